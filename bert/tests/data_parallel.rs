//! The number of processes never changes a result: the same global micro-batches give the same weights, bit for bit.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use azulejo_bert::config::Config;
use azulejo_bert::features::Feature;
use azulejo_bert::model::Model;
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::sampler::Sampler;
use azulejo_bert::schedule::{LearningRate, Schedule};
use azulejo_bert::trainer::{Every, Observer, Outcome, Progress, TrainConfig, train};
use azulejo_bert::{Error, Result, Serial};
use azulejo_collectives::{Communicator, threads};

/// 50 windows of 6 to 30 pseudo-random tokens with answers by formula.
fn features() -> Vec<Feature> {
    let mut state = 7u32;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % below
    };
    (0..50)
        .map(|example| {
            let len = 6 + random(25) as usize;
            let start = random(len as u32 - 1);
            Feature {
                ids: (0..len).map(|_| 5 + random(90)).collect(),
                token_types: (0..len).map(|i| u8::from(i > 3)).collect(),
                offsets: vec![None; len],
                example,
                start,
                end: start + 1,
            }
        })
        .collect()
}

/// Weights, steps done, and the two moments.
type Saved = (Vec<f32>, u64, Vec<f32>, Vec<f32>);

/// Keeps the optimiser's state at one step, and asks to stop at another.
#[derive(Default)]
struct Watch {
    stop_before: Option<u64>,
    step: u64,
    losses: Vec<f32>,
    saved: Option<Saved>,
}

impl Observer for Watch {
    fn step(&mut self, progress: &Progress) -> Result<()> {
        self.step = progress.step;
        self.losses.push(progress.loss);
        Ok(())
    }
    fn log(&mut self, _: &Progress, _: f64) -> Result<()> {
        Ok(())
    }
    fn save(&mut self, _: &Progress, model: &Model, optimizer: &AdamW) -> Result<()> {
        let (m, v) = optimizer.moments();
        self.saved = Some((model.weights().to_vec(), optimizer.steps(), m.to_vec(), v.to_vec()));
        Ok(())
    }
    fn wants_to_stop(&mut self) -> bool {
        self.stop_before == Some(self.step + 1)
    }
}

fn model(precision: Precision) -> Model {
    let config = Config::bert(97, 48, 2, 3, 100).unwrap();
    let mut model = Model::new(config, Head::QuestionAnswering, precision).unwrap();
    let weights = model.params().initialise(model.config(), 3);
    model.update(&Serial, |to| to.copy_from_slice(&weights)).unwrap();
    model
}

fn config(micro_batch: usize, micro_batches_per_step: usize, features: &[Feature]) -> TrainConfig {
    TrainConfig {
        sampler: Sampler {
            samples: features.len(),
            micro_batch,
            micro_batches_per_step,
            seed: 42,
            drop_last: false,
            lengths: None,
        },
        steps: 7,
        learning_rate: LearningRate {
            schedule: Schedule::Linear,
            peak: 1e-3,
            warmup: 2,
            total: 7,
        },
        seed: 42,
        logging: Every::NEVER,
        evaluation: Every::NEVER,
        eval_delay: 0,
        eval_on_start: false,
        saving: Every::NEVER,
    }
}

fn one_rank(
    comm: &Communicator,
    precision: Precision,
    config: &TrainConfig,
    features: &[Feature],
) -> (Vec<f32>, Outcome) {
    let mut model = model(precision);
    let mut optimizer = AdamW::new(Settings::default(), model.params());
    let mut watch = Watch::default();
    let outcome = train(&Serial, comm, &mut model, &mut optimizer, features, config, &mut watch).unwrap();
    (model.weights().to_vec(), outcome)
}

/// Final weights of every rank.
fn run(ranks: usize, precision: Precision, config: &TrainConfig) -> Vec<Vec<f32>> {
    let features = features();
    std::thread::scope(|scope| {
        let started: Vec<_> = threads(ranks)
            .unwrap()
            .into_iter()
            .map(|comm| {
                let features = &features;
                scope.spawn(move || one_rank(&comm, precision, config, features).0)
            })
            .collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}

#[test]
fn the_number_of_ranks_changes_no_bit() {
    let features = features();
    for (precision, per_step, worlds) in [
        (Precision::Bf16, 8, [1, 4, 8].as_slice()),
        // Counts that are no powers of two, ranks without a micro-batch in the epoch's last step.
        (Precision::Bf16, 6, &[1, 3, 5, 6]),
        (Precision::F32, 4, &[1, 2, 4]),
    ] {
        let config = config(3, per_step, &features);
        let mut expected = None;
        for &world in worlds {
            for (rank, weights) in run(world, precision, &config).iter().enumerate() {
                let expected = expected.get_or_insert_with(|| bits(weights));
                assert!(
                    *expected == bits(weights),
                    "rank {rank} of {world}, {per_step} micro-batches a step, {precision:?}"
                );
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_weights_and_another_seed_does_not() {
    let features = features();
    let mut config = config(4, 2, &features);
    let [first, second] = [(); 2].map(|()| run(2, Precision::Bf16, &config).remove(0));
    assert_eq!(bits(&first), bits(&second));
    config.seed = 43;
    assert_ne!(bits(&first), bits(&run(2, Precision::Bf16, &config)[0]));
}

#[test]
fn a_run_that_was_stopped_and_resumed_equals_one_that_was_not() {
    let features = features();
    let config = config(4, 3, &features);
    let comm = threads(1).unwrap().remove(0);
    let (expected, _) = one_rank(&comm, Precision::Bf16, &config, &features);

    let mut watch = Watch {
        stop_before: Some(4),
        ..Watch::default()
    };
    let mut first = model(Precision::Bf16);
    let mut optimizer = AdamW::new(Settings::default(), first.params());
    let outcome = train(
        &Serial,
        &comm,
        &mut first,
        &mut optimizer,
        &features,
        &config,
        &mut watch,
    )
    .unwrap();
    assert!(outcome.stopped);
    assert_eq!(outcome.steps, 4, "it stops after the step that was asked");
    let (weights, steps, m, v) = watch.saved.expect("a run that is stopped saves a checkpoint");

    let mut second = model(Precision::Bf16);
    second.update(&Serial, |to| to.copy_from_slice(&weights)).unwrap();
    let mut optimizer = AdamW::new(Settings::default(), second.params());
    optimizer.restore(steps, m, v).unwrap();
    let outcome = train(
        &Serial,
        &comm,
        &mut second,
        &mut optimizer,
        &features,
        &config,
        &mut Watch::default(),
    )
    .unwrap();
    assert_eq!((outcome.steps, outcome.stopped), (7, false));
    assert_eq!(bits(&expected), bits(second.weights()));
}

#[test]
fn a_loss_that_is_not_finite_names_the_step_and_the_samples() {
    let features = features();
    let config = config(4, 1, &features);
    let comm = threads(1).unwrap().remove(0);
    let mut model = model(Precision::F32);
    model.update(&Serial, |w| w[500] = f32::NAN).unwrap();
    let mut optimizer = AdamW::new(Settings::default(), model.params());
    // The word with the broken embedding need not be in the first batch.
    let error = train(
        &Serial,
        &comm,
        &mut model,
        &mut optimizer,
        &features,
        &config,
        &mut Watch::default(),
    )
    .unwrap_err();
    assert!(matches!(error, Error::Step { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("step ") && text.contains("is not finite (samples ["),
        "{text}"
    );
}
