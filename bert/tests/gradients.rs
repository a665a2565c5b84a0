//! Logits, loss, every gradient and 20 optimiser steps against PyTorch's values for tiny models.

mod common;

use azulejo_bert::Serial;
use azulejo_bert::precision::Precision;
use common::{Fixture, norm};

const NAMES: [&str; 4] = ["bert_qa", "distilbert_qa", "bert_mlm", "distilbert_mlm"];

/// Bounds of one precision. An element of the logits may differ from the reference by `logits` times their root mean
/// square, the loss by `loss` times itself, and a gradient tensor, as a vector, by `gradient` times its own norm plus
/// `floor` times the norm of the whole gradient. The floor is for the key biases alone: softmax does not see them, so
/// that their gradient is zero but for rounding.
struct Bounds {
    precision: Precision,
    logits: f64,
    loss: f64,
    gradient: f64,
    floor: f64,
}

/// Sums of at most 100 products round by about 10 units of 2^-24 relative to the norm of their terms, and a gradient
/// passes through about 30 such sums: 2e-5.
const F32: Bounds = Bounds {
    precision: Precision::F32,
    logits: 2e-5,
    loss: 2e-6,
    gradient: 2e-5,
    floor: 1e-6,
};

fn hold(name: &str, bounds: &Bounds) {
    let fixture = Fixture::read(name);
    let model = fixture.model(bounds.precision);
    let mut failures = Vec::new();
    if name.ends_with("qa") {
        let logits = model.forward(&Serial, &fixture.batch(0)).unwrap();
        for (part, got) in [("start", logits.start), ("end", logits.end)] {
            let expected = fixture.tensor(&format!("0.{part}_logits"));
            let scale = norm(expected.iter().copied()) / (expected.len() as f64).sqrt();
            let error = got
                .iter()
                .zip(&expected)
                .map(|(g, e)| (f64::from(*g) - e).abs())
                .fold(0.0, f64::max)
                / scale;
            println!("{name} {:?} {part} logits: {error:.2e}", bounds.precision);
            if error.is_nan() || error > bounds.logits {
                failures.push(format!("{part} logits differ by {error:e}, bound {:e}", bounds.logits));
            }
        }
    }
    let (loss, grads) = fixture.train(&model, &Serial);
    let expected = fixture.tensor("0.loss")[0];
    let error = (f64::from(loss) / expected - 1.0).abs();
    println!("{name} {:?} loss: {error:.2e}", bounds.precision);
    if error.is_nan() || error > bounds.loss {
        failures.push(format!("loss {loss}, expected {expected}, bound {:e}", bounds.loss));
    }
    let reference: Vec<Vec<f64>> = model
        .params()
        .iter()
        .map(|param| fixture.tensor(&format!("g.{}", param.name)))
        .collect();
    let total = norm(reference.iter().flatten().copied());
    let mut worst = (0.0, "");
    for (param, expected) in model.params().iter().zip(&reference) {
        let got = &grads[param.range.clone()];
        let error = norm(got.iter().zip(expected).map(|(g, e)| f64::from(*g) - e));
        let size = norm(expected.iter().copied());
        let bound = bounds.gradient * size + bounds.floor * total;
        if error / bound > worst.0 {
            worst = (error / bound, &param.name);
        }
        if error.is_nan() || error > bound {
            failures.push(format!(
                "gradient of {}: error {error:e}, norm {size:e}, bound {bound:e}",
                param.name
            ));
        }
    }
    println!(
        "{name} {:?} gradients: {:.3} of the bound in {}",
        bounds.precision, worst.0, worst.1
    );
    assert!(failures.is_empty(), "{name}: {failures:#?}");
}

#[test]
fn f32_values_and_gradients() {
    for name in NAMES {
        hold(name, &F32);
    }
}
