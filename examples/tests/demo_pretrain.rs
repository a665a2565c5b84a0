//! The shipped encoder is what `pretrain_tiny` makes: the first steps of its loss curve come out again.

use std::error::Error;

use azulejo_amx::Isa;
use azulejo_bert::Serial;
use azulejo_examples::demo::pretrain::{CURVE, Pretraining, SEED, STEPS};
use serde_json::Value;

#[test]
fn the_first_steps_of_pre_training_come_out_again() -> Result<(), Box<dyn Error>> {
    let recorded: Value = serde_json::from_str(include_str!("../assets/pretrain_curve.json"))?;
    assert_eq!(recorded["seed"], SEED);
    assert_eq!(recorded["steps"], STEPS);
    let recorded = recorded["loss"].as_array().ok_or("expected an array")?;
    assert_eq!(recorded.len(), CURVE);
    // Without vector instructions a step takes seconds.
    let steps = if Isa::best()? == Isa::Portable { 1 } else { CURVE };
    let mut run = Pretraining::new(&Serial, SEED, STEPS)?;
    for (step, expected) in recorded.iter().enumerate().take(steps) {
        let expected = expected.as_f64().ok_or("expected a number")?;
        let loss = f64::from(run.step(&Serial)?.total);
        // The instruction set changes no bit of the encoder; the heads' exponential is the system's, and a better
        // approximation inside the encoder may move the last bits of bf16: a thousandth of the loss is far above both
        // and far below what any change of recipe, text or seed does.
        let bound = 1e-3 * expected;
        assert!(
            (loss - expected).abs() <= bound,
            "seed {SEED}, step {step}: loss {loss}, recorded {expected}"
        );
    }
    Ok(())
}
