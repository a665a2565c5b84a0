//! The step loop: which samples, at which learning rate, when to log, when to save, when to stop.
//!
//! Policy is in [`TrainConfig`]; what is seen of it goes to an [`Observer`], so that progress bars, log files and
//! checkpoints are the program's business. Every rank runs the same loop over the same list of micro-batches.

use std::time::{Duration, Instant};

use azulejo_amx::Executor;
use azulejo_collectives::Communicator;

use crate::batch::Batch;
use crate::data_parallel::{DataParallel, StepPlan};
use crate::error::{Error, Result};
use crate::features::Feature;
use crate::model::{Model, Step};
use crate::optim::AdamW;
use crate::sampler::{Epoch, Sampler, share};
use crate::schedule::LearningRate;

/// What a run does.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// How the samples are dealt out.
    pub sampler: Sampler,
    /// Optimiser steps in all: see [`total_steps`].
    pub steps: u64,
    /// The learning rate of each step.
    pub learning_rate: LearningRate,
    /// Seed of the dropout masks.
    pub seed: u64,
    /// When a log entry is written.
    pub logging: Every,
    /// When the model is evaluated, but not before step `eval_delay`.
    pub evaluation: Every,
    /// The first step after which the model may be evaluated.
    pub eval_delay: u64,
    /// Evaluate before the first step too.
    pub eval_on_start: bool,
    /// When a checkpoint is saved. One that falls on an evaluation comes after it.
    pub saving: Every,
}

/// How often something happens in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Every {
    /// After each step whose number is a multiple of this; 0 for none.
    pub steps: u64,
    /// After the last step too.
    pub last: bool,
}

impl Every {
    /// At no time.
    pub const NEVER: Every = Every { steps: 0, last: false };

    /// Whether it happens after step `step` of `of`.
    pub fn falls_on(self, step: u64, of: u64) -> bool {
        (self.steps > 0 && step.is_multiple_of(self.steps)) || (self.last && step == of)
    }
}

/// Optimiser steps of `epochs` (which may be a fraction), or `max_steps` if it is above 0.
pub fn total_steps(sampler: &Sampler, epochs: f64, max_steps: i64) -> u64 {
    if max_steps > 0 {
        return max_steps as u64;
    }
    (epochs * sampler.steps_per_epoch() as f64).ceil() as u64
}

/// Where a run stands after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Steps done, those before a resume included.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Epochs done, as a fraction.
    pub epoch: f64,
    /// The mean loss of the step's micro-batches.
    pub loss: f32,
    /// The gradient's norm before clipping.
    pub grad_norm: f64,
    /// The learning rate of the step.
    pub learning_rate: f64,
    /// Samples of the step, over all ranks.
    pub samples: usize,
    /// Tokens of the step, over all ranks.
    pub tokens: usize,
}

/// What happens during a run, told as it happens. All ranks are told; those that have nothing to do with it do nothing.
pub trait Observer {
    /// A step is done.
    fn step(&mut self, progress: &Progress) -> Result<()>;
    /// It is time for a log entry: the mean loss since the last one.
    fn log(&mut self, progress: &Progress, mean_loss: f64) -> Result<()>;
    /// It is time to evaluate; every rank is asked at the same step. Nothing is done where it is not overridden.
    fn evaluate(&mut self, _progress: &Progress, _model: &Model) -> Result<()> {
        Ok(())
    }
    /// It is time for a checkpoint.
    fn save(&mut self, progress: &Progress, model: &Model, optimizer: &AdamW) -> Result<()>;
    /// Whether this rank wants to stop after the coming step (Ctrl-C).
    fn wants_to_stop(&mut self) -> bool;
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// It stopped because a rank wanted to; a checkpoint was saved.
    pub stopped: bool,
    /// The mean loss over the steps of this run.
    pub mean_loss: f64,
    /// Samples trained on in this run, over all ranks.
    pub samples: usize,
    /// Tokens trained on in this run, over all ranks.
    pub tokens: usize,
    /// Time of this run.
    pub elapsed: Duration,
    /// Part of it in which this rank waited for the others' gradients.
    pub waited: Duration,
    /// Part of it in which gradients were clipped and weights updated.
    pub optimizing: Duration,
    /// Part of it in which micro-batches were put together.
    pub batching: Duration,
}

/// Trains `model` from step `optimizer.steps()` on. All ranks call it with the same arguments.
pub fn train(
    exec: &dyn Executor,
    comm: &Communicator,
    model: &mut Model,
    optimizer: &mut AdamW,
    features: &[Feature],
    config: &TrainConfig,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    let sampler = &config.sampler;
    if features.is_empty() || sampler.samples != features.len() {
        return Err(Error::Length {
            what: "training features",
            expected: sampler.samples.max(1),
            got: features.len(),
        });
    }
    let per_epoch = sampler.steps_per_epoch() as u64;
    let mut exchange = DataParallel::new(model.params());
    let mut grads = vec![0.0; model.params().total()];
    let mut batches = Vec::new();
    let mut epoch: Option<(usize, Epoch)> = None;
    let begin = Instant::now();
    let resumed = optimizer.steps();
    let mut outcome = Outcome {
        steps: resumed,
        stopped: false,
        mean_loss: 0.0,
        samples: 0,
        tokens: 0,
        elapsed: Duration::ZERO,
        waited: Duration::ZERO,
        optimizing: Duration::ZERO,
        batching: Duration::ZERO,
    };
    let (mut losses, mut unlogged, mut unlogged_steps) = (0.0, 0.0, 0u64);
    if config.eval_on_start && resumed == 0 {
        let start = Progress {
            step: 0,
            steps: config.steps,
            epoch: 0.0,
            loss: 0.0,
            grad_norm: 0.0,
            learning_rate: config.learning_rate.at(0),
            samples: 0,
            tokens: 0,
        };
        observer.evaluate(&start, model)?;
    }
    while outcome.steps < config.steps {
        let step = outcome.steps;
        let batching = Instant::now();
        let number = (step / per_epoch) as usize;
        let (_, order) = match &mut epoch {
            Some(present) if present.0 == number => present,
            other => other.insert((number, sampler.epoch(number))),
        };
        let micro_batches = order.step((step % per_epoch) as usize);
        let mine = share(micro_batches.len(), comm.rank(), comm.world_size());
        batches.resize_with(batches.len().max(mine.len()), Batch::new);
        let batches = &mut batches[..mine.len()];
        for (batch, samples) in batches.iter_mut().zip(micro_batches.clone().skip(mine.start)) {
            fill(batch, samples, features);
        }
        let all = || micro_batches.clone().flatten();
        let (samples, tokens) = (all().count(), all().map(|&i| features[i as usize].len()).sum());
        let micro_batches = micro_batches.len();
        outcome.batching += batching.elapsed();

        let plan = StepPlan {
            step: Step {
                seed: config.seed,
                step,
                weight: 1.0,
            },
            micro_batches,
            batches,
            stop: observer.wants_to_stop(),
        };
        let sum = exchange
            .step(exec, model, comm, &mut grads, &plan)
            .map_err(|e| e.in_step(step + 1))?;
        let optimizing = Instant::now();
        let learning_rate = config.learning_rate.at(step);
        let grad_norm = optimizer
            .update(exec, model, &grads, learning_rate)
            .map_err(|e| e.in_step(step + 1))?;
        outcome.optimizing += optimizing.elapsed();
        outcome.waited += sum.waited;
        outcome.samples += samples;
        outcome.tokens += tokens;
        outcome.steps += 1;
        let progress = Progress {
            step: outcome.steps,
            steps: config.steps,
            epoch: outcome.steps as f64 / per_epoch as f64,
            loss: sum.loss,
            grad_norm,
            learning_rate,
            samples,
            tokens,
        };
        losses += f64::from(sum.loss);
        unlogged += f64::from(sum.loss);
        unlogged_steps += 1;
        observer.step(&progress)?;
        if config.logging.falls_on(outcome.steps, config.steps) {
            observer.log(&progress, unlogged / unlogged_steps as f64)?;
            (unlogged, unlogged_steps) = (0.0, 0);
        }
        outcome.stopped = sum.stop && outcome.steps < config.steps;
        // Whoever wants to stop does not want to wait for an evaluation.
        let evaluates = config.evaluation.falls_on(outcome.steps, config.steps) && outcome.steps >= config.eval_delay;
        if evaluates && !outcome.stopped {
            observer.evaluate(&progress, model)?;
        }
        if config.saving.falls_on(outcome.steps, config.steps) || outcome.stopped {
            observer.save(&progress, model, optimizer)?;
        }
        if outcome.stopped {
            break;
        }
    }
    outcome.elapsed = begin.elapsed();
    outcome.mean_loss = losses / (outcome.steps - resumed).max(1) as f64;
    Ok(outcome)
}

/// Makes the micro-batch of these samples.
fn fill(batch: &mut Batch, samples: &[u32], features: &[Feature]) {
    batch.clear();
    for &sample in samples {
        let f = &features[sample as usize];
        batch.push(&f.ids, &f.token_types, f.start, f.end, u64::from(sample));
    }
}
