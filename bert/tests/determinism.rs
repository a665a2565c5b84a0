//! What must not change a single bit: the number of threads, the instruction set, the rest of the batch.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that says what it skipped"
)]

mod common;

use azulejo_amx::Isa;
use azulejo_bert::batch::Batch;
use azulejo_bert::config::Config;
use azulejo_bert::model::{Model, Step};
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::{Executor, Serial};
use common::{Fixture, Threads};

const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];
const NAMES: [&str; 2] = ["bert_qa", "distilbert_qa"];

/// The fixture's model with the published dropout rates.
fn with_dropout(fixture: &Fixture, precision: Precision, isa: Isa) -> Model {
    let mut value = fixture.config.to_json();
    for field in [
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "dropout",
        "attention_dropout",
        "qa_dropout",
    ] {
        value[field] = 0.1.into();
    }
    let config = Config::from_value(value).unwrap();
    let mut model = Model::with_isa(config, Head::QuestionAnswering, precision, isa).unwrap();
    let weights = fixture.model(precision).weights().to_vec();
    model.update(&Serial, |w| w.copy_from_slice(&weights)).unwrap();
    model
}

/// Three optimiser steps of two micro-batches each; losses and weights as bits.
fn train(fixture: &Fixture, precision: Precision, isa: Isa, exec: &dyn Executor) -> (Vec<u32>, Vec<u32>) {
    let mut model = with_dropout(fixture, precision, isa);
    let mut adam = AdamW::new(
        Settings {
            weight_decay: 0.01,
            ..Settings::default()
        },
        model.params(),
    );
    let mut losses = Vec::new();
    for step in 0..3 {
        let mut grads = vec![0.0; model.params().total()];
        for number in 0..2 {
            let place = Step {
                seed: 7,
                step,
                weight: 0.5,
            };
            let batch = fixture.batch(number);
            losses.push(
                model
                    .train_micro_batch(exec, &batch, place, &mut grads, &mut |_, _| {})
                    .unwrap()
                    .to_bits(),
            );
        }
        adam.update(exec, &mut model, &grads, 1e-3).unwrap();
    }
    (losses, model.weights().iter().map(|w| w.to_bits()).collect())
}

#[test]
fn threads_change_nothing() {
    for name in NAMES {
        let fixture = Fixture::read(name);
        for precision in PRECISIONS {
            let isa = Isa::best().unwrap();
            let one = train(&fixture, precision, isa, &Serial);
            for threads in [2, 3] {
                assert!(
                    one == train(&fixture, precision, isa, &Threads(threads)),
                    "{name} {precision:?} {threads}"
                );
            }
        }
    }
}

#[test]
fn the_instruction_set_changes_nothing() {
    println!("{}", azulejo_amx::report());
    let fixture = Fixture::read("bert_qa");
    for precision in PRECISIONS {
        let expected = train(&fixture, precision, Isa::Portable, &Serial);
        for isa in Isa::available() {
            assert!(
                expected == train(&fixture, precision, isa, &Serial),
                "{precision:?} {isa}"
            );
        }
    }
}

#[test]
fn a_sequence_alone_is_the_sequence_in_a_batch() {
    for name in NAMES {
        let fixture = Fixture::read(name);
        let batch = fixture.batch(0);
        for precision in PRECISIONS {
            let model = fixture.model(precision);
            let together = model.forward(&Serial, &batch).unwrap();
            for (i, range) in batch.ranges().enumerate() {
                let mut alone = Batch::new();
                alone.push(&batch.ids[range.clone()], &batch.token_types[range.clone()], 0, 0, 5);
                let alone = model.forward(&Serial, &alone).unwrap();
                assert_eq!(
                    alone.start,
                    together.start[range.clone()],
                    "{name} {precision:?} sequence {i}"
                );
                assert_eq!(alone.end, together.end[range], "{name} {precision:?} sequence {i}");
            }
        }
    }
}

/// A sample's masks follow from its index, not from its place: two samples that change places in a batch keep their
/// losses' sum to rounding, and the same step again gives the same bits.
#[test]
fn masks_belong_to_samples() {
    let fixture = Fixture::read("bert_qa");
    let model = with_dropout(&fixture, Precision::F32, Isa::best().unwrap());
    let batch = fixture.batch(2);
    let loss = |order: &[usize], step: u64, shift: u64| {
        let mut mixed = Batch::new();
        for &i in order {
            let range = batch.sequence(i);
            let (start, end) = (batch.starts[i], batch.ends[i]);
            let sample = batch.sample_index[i] + shift;
            mixed.push(&batch.ids[range.clone()], &batch.token_types[range], start, end, sample);
        }
        let mut grads = vec![0.0; model.params().total()];
        let place = Step {
            seed: 7,
            step,
            weight: 1.0,
        };
        model
            .train_micro_batch(&Serial, &mixed, place, &mut grads, &mut |_, _| {})
            .unwrap()
    };
    let base = loss(&[0, 1, 2, 3, 4], 0, 0);
    let mixed = loss(&[3, 1, 4, 0, 2], 0, 0);
    // Five losses are added in another order.
    assert!((base - mixed).abs() <= 5.0 * f32::EPSILON * base, "{base} {mixed}");
    assert!(
        (loss(&[0, 1, 2, 3, 4], 1, 0) - base).abs() > 1e-4,
        "another step, the same masks"
    );
    assert!(
        (loss(&[0, 1, 2, 3, 4], 0, 10) - base).abs() > 1e-4,
        "other samples, the same masks"
    );
}

#[test]
fn ranges_come_from_the_end_to_the_start() {
    for name in ["bert_qa", "distilbert_mlm"] {
        let fixture = Fixture::read(name);
        let model = fixture.model(Precision::F32);
        let (_, whole) = fixture.train(&model, &Serial);
        let mut grads = vec![0.0; whole.len()];
        let mut next = whole.len();
        let mut ready = 0;
        let mut on_ready = |range: std::ops::Range<usize>, grads: &mut [f32]| {
            assert_eq!(range.end, next, "{name}");
            assert!(
                grads[range.clone()] == whole[range.clone()],
                "{name}: {range:?} was not final"
            );
            next = range.start;
            ready += 1;
        };
        let batch = fixture.batch(0);
        match fixture.head {
            Head::QuestionAnswering => {
                model.train_micro_batch(&Serial, &batch, common::STEP, &mut grads, &mut on_ready)
            }
            Head::MaskedLanguage => model.train_micro_batch_mlm(
                &Serial,
                &batch,
                &fixture.targets(),
                common::STEP,
                &mut grads,
                &mut on_ready,
            ),
        }
        .unwrap();
        assert_eq!((next, ready), (0, model.config().layers + 2), "{name}");
    }
}
