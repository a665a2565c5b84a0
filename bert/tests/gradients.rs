//! Logits, loss, every gradient and 20 optimiser steps against PyTorch's values for tiny models.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that says what it measured"
)]

mod common;

use azulejo_bert::Serial;
use azulejo_bert::optim::{AdamW, Settings, Variant};
use azulejo_bert::precision::Precision;
use azulejo_bert::schedule::{LearningRate, Schedule};
use common::{Fixture, STEP, norm};

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

/// Operands of products carry 8 bits. Errors of single products are independent: over the 10 to 20 rounded operands on
/// the way from weights to logits, and twice as many to a gradient, sqrt(20) 2^-9 = 9e-3 and sqrt(40) 2^-9 = 1.2e-2 of
/// the values that meet, which LayerNorms and softmaxes of these deliberately rough weights magnify a few times.
const BF16: Bounds = Bounds {
    precision: Precision::Bf16,
    logits: 1e-1,
    loss: 2e-2,
    gradient: 6e-2,
    floor: 5e-3,
};

#[test]
fn bf16_values_and_gradients() {
    for name in NAMES {
        hold(name, &BF16);
    }
}

#[test]
fn bf16_loss_curve() {
    for name in ["bert_qa", "distilbert_qa"] {
        let (losses, norms) = curve_error(name, Precision::Bf16, Variant::Torch);
        assert!(losses < 3e-2 && norms < 1.5e-1, "{name}: {losses:e} {norms:e}");
    }
}

#[test]
fn f32_values_and_gradients() {
    for name in NAMES {
        hold(name, &F32);
    }
}

/// Trains for the fixture's 20 steps and returns the largest relative error of the losses and of the gradient norms.
fn curve_error(name: &str, precision: Precision, variant: Variant) -> (f64, f64) {
    let fixture = Fixture::read(name);
    let kind = if variant == Variant::Torch { "torch" } else { "hf" };
    let losses = fixture.tensor(&format!("curve.{kind}.loss"));
    let norms = fixture.tensor(&format!("curve.{kind}.norm"));
    let mut model = fixture.model(precision);
    let settings = Settings {
        variant,
        beta1: fixture.number("beta1"),
        beta2: fixture.number("beta2"),
        eps: fixture.number("eps"),
        weight_decay: fixture.number("weight_decay"),
        max_grad_norm: fixture.number("clip"),
    };
    let rate = LearningRate {
        schedule: Schedule::Linear,
        peak: fixture.number("learning_rate"),
        warmup: fixture.number("warmup") as u64,
        total: fixture.number("steps") as u64,
    };
    let mut adam = AdamW::new(settings, model.params());
    let mut grads = vec![0.0; model.params().total()];
    let mut worst = (0.0f64, 0.0f64);
    for k in 0..losses.len() {
        grads.fill(0.0);
        let loss = model
            .train_micro_batch(&Serial, &fixture.batch(k % 3), STEP, &mut grads, &mut |_, _| {})
            .unwrap();
        let norm = adam.update(&Serial, &mut model, &grads, rate.at(k as u64)).unwrap();
        worst.0 = worst.0.max((f64::from(loss) / losses[k] - 1.0).abs());
        worst.1 = worst.1.max((norm / norms[k] - 1.0).abs());
    }
    println!(
        "{name} {precision:?} {variant:?}: losses {:.2e}, norms {:.2e}",
        worst.0, worst.1
    );
    worst
}

/// The bounds are a single loss's (2e-6) and gradient's (2e-5) of [`F32`], five times: an update is the sign of a
/// gradient at first, so that an element whose gradient is rounding noise moves by the whole rate.
#[test]
fn f32_loss_curve() {
    for name in ["bert_qa", "distilbert_qa"] {
        for variant in [Variant::Torch, Variant::Hf] {
            let (losses, norms) = curve_error(name, Precision::F32, variant);
            assert!(
                losses < 1e-5 && norms < 1e-4,
                "{name} {variant:?}: {losses:e} {norms:e}"
            );
        }
    }
}

/// A weight that is not a number is found and named, with the samples that met it.
#[test]
fn what_is_not_finite_is_named() {
    let fixture = Fixture::read("bert_qa");
    let mut model = fixture.model(Precision::F32);
    let weights = model.weights().to_vec();
    let mut grads = vec![0.0; weights.len()];
    let mut spoil = |name: &str, value: f32| {
        let place = model.params().find(name).unwrap().range.start + 5;
        let mut changed = weights.clone();
        changed[place] = value;
        model.update(&Serial, |w| w.copy_from_slice(&changed)).unwrap();
        model
            .train_micro_batch(&Serial, &fixture.batch(1), STEP, &mut grads, &mut |_, _| {})
            .unwrap_err()
            .to_string()
    };
    let message = spoil("bert.encoder.layer.1.intermediate.dense.weight", f32::NAN);
    assert!(
        message.contains("the weight bert.encoder.layer.1.intermediate.dense.weight"),
        "{message}"
    );
    assert!(message.contains("[100, 101, 102]"), "{message}");
    let message = spoil("bert.encoder.layer.1.attention.output.LayerNorm.weight", f32::MAX);
    assert!(message.contains("feed-forward part of encoder layer 1"), "{message}");
}
