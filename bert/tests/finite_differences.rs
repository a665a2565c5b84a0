//! The gradient along random directions against differences of the loss, with every dropout on: the fixtures have none.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that says what it measured"
)]

mod common;

use azulejo_bert::Serial;
use azulejo_bert::config::Config;
use azulejo_bert::model::{Model, Step};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use common::Fixture;

/// Half the distance between the two losses, relative to the root mean square of a tensor: the error of a central
/// difference falls with its square, and the rounding of the loss, 2^-24, grows with its inverse.
const DISTANCE: f64 = 1e-2;

fn loss(model: &Model, fixture: &Fixture, grads: &mut [f32]) -> f64 {
    let place = Step {
        seed: 11,
        step: 4,
        weight: 1.0,
    };
    let batch = fixture.batch(1);
    let targets = [(3, 5), (8, 60), (9, 1), (40, 96), (41, 2), (3, 5)];
    let mut on_ready = |_: std::ops::Range<usize>, _: &mut [f32]| {};
    f64::from(match fixture.head {
        Head::QuestionAnswering => model
            .train_micro_batch(&Serial, &batch, place, grads, &mut on_ready)
            .unwrap(),
        Head::MaskedLanguage => model
            .train_micro_batch_mlm(&Serial, &batch, &targets, place, grads, &mut on_ready)
            .unwrap(),
    })
}

/// A number in -1..1 that follows from its index.
fn direction(i: usize) -> f64 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

#[test]
fn every_tensor_along_a_direction() {
    for name in ["bert_qa", "distilbert_qa", "bert_mlm", "distilbert_mlm"] {
        let fixture = Fixture::read(name);
        let mut value = fixture.config.to_json();
        let rates = [
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "dropout",
            "attention_dropout",
            "qa_dropout",
        ];
        for (i, field) in rates.into_iter().enumerate() {
            value[field] = (0.1 + 0.05 * i as f64).into();
        }
        let mut model = Model::new(Config::from_value(value).unwrap(), fixture.head, Precision::F32).unwrap();
        let weights = fixture.model(Precision::F32).weights().to_vec();
        model.update(&Serial, |w| w.copy_from_slice(&weights)).unwrap();
        let mut grads = vec![0.0; weights.len()];
        loss(&model, &fixture, &mut grads);
        let mut unused = vec![0.0; weights.len()];
        let mut failures = Vec::new();
        let mut worst: f64 = 0.0;
        for param in model.params().clone().iter() {
            let range = param.range.clone();
            // The padding row takes part in the loss and has no gradient by rule.
            let spared = if param.name.ends_with("word_embeddings.weight") {
                fixture.config.hidden
            } else {
                0
            };
            let size = common::norm(weights[range.clone()].iter().map(|&w| f64::from(w))) / (range.len() as f64).sqrt();
            let step = DISTANCE * size / (range.len() as f64).sqrt();
            let along: Vec<f64> = (0..range.len())
                .map(|i| if i < spared { 0.0 } else { direction(range.start + i) })
                .collect();
            let mut at = |sign: f64| {
                let changed = |w: &mut [f32]| {
                    w.copy_from_slice(&weights);
                    for (w, a) in w[range.clone()].iter_mut().zip(&along) {
                        *w = (f64::from(*w) + sign * step * (range.len() as f64).sqrt() * a) as f32;
                    }
                };
                model.update(&Serial, changed).unwrap();
                loss(&model, &fixture, &mut unused)
            };
            let numeric = (at(1.0) - at(-1.0)) / (2.0 * step * (range.len() as f64).sqrt());
            let exact: f64 = along
                .iter()
                .zip(&grads[range.clone()])
                .map(|(a, g)| a * f64::from(*g))
                .sum();
            let scale = common::norm(grads[range.clone()].iter().map(|&g| f64::from(g)));
            // The difference's own error: curvature, some DISTANCE^2 of the change that a whole tensor's gradient can
            // make, and the rounding of two losses of about 4 over the distance.
            let bound = 0.02 * scale + 4.0 * 2f64.powi(-22) / (DISTANCE * size);
            worst = worst.max((numeric - exact).abs() / bound);
            if (numeric - exact).abs() > bound {
                failures.push(format!(
                    "{}: {numeric} by differences, {exact} by backward, bound {bound}",
                    param.name
                ));
            }
        }
        println!("{name}: {worst:.2} of the bound");
        assert!(failures.is_empty(), "{name}: {failures:#?}");
    }
}
