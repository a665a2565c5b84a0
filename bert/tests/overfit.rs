//! A model learns eight questions by heart, in both precisions, with dropout on.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that says what it measured"
)]

use azulejo_bert::Serial;
use azulejo_bert::batch::Batch;
use azulejo_bert::config::Config;
use azulejo_bert::model::{Model, Step};
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;

/// Sequences of 10 to 31 pseudo-random tokens; the answers are where a fixed formula says.
fn questions() -> Batch {
    let mut batch = Batch::new();
    for sample in 0..8u32 {
        let n = 10 + 3 * sample;
        let ids: Vec<u32> = (0..n).map(|i| 1 + (sample * 7919 + i * 104_729) % 96).collect();
        let start = (sample * 5 + 2) % (n - 3);
        batch.push(&ids, &[], start, start + sample % 3, u64::from(sample));
    }
    batch
}

fn largest(logits: &[f32]) -> u32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32
}

#[test]
fn eight_questions_by_heart() {
    for precision in [Precision::F32, Precision::Bf16] {
        let config = Config::bert(97, 48, 2, 3, 100).unwrap();
        let mut model = Model::new(config.clone(), Head::QuestionAnswering, precision).unwrap();
        let weights = model.params().initialise(&config, 5);
        model.update(&Serial, |w| w.copy_from_slice(&weights)).unwrap();
        let mut adam = AdamW::new(Settings::default(), model.params());
        let mut grads = vec![0.0; model.params().total()];
        let batch = questions();
        let mut losses = Vec::new();
        for step in 0..60 {
            grads.fill(0.0);
            let place = Step {
                seed: 3,
                step,
                weight: 1.0,
            };
            losses.push(
                model
                    .train_micro_batch(&Serial, &batch, place, &mut grads, &mut |_, _| {})
                    .unwrap(),
            );
            adam.update(&Serial, &mut model, &grads, 2e-3).unwrap();
        }
        println!("{precision:?}: loss from {} to {}", losses[0], losses[losses.len() - 1]);
        assert!(losses[losses.len() - 1] < 0.1, "{precision:?}: {losses:?}");
        let logits = model.forward(&Serial, &batch).unwrap();
        for (i, range) in batch.ranges().enumerate() {
            let found = (largest(&logits.start[range.clone()]), largest(&logits.end[range]));
            assert_eq!(found, (batch.starts[i], batch.ends[i]), "{precision:?}, question {i}");
        }
    }
}
