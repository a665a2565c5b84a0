//! The gradient of a step: summed over its micro-batches in one fixed tree, whoever computes them.
//!
//! The flat gradient buffer is cut into **buckets**, which become final from its end to its start. Each rank computes a
//! contiguous run of the step's micro-batches and keeps, for every bucket, the sums of the aligned subtrees of its run.
//! In its last micro-batch a bucket goes to the collectives worker as soon as backward has left it, and is exchanged
//! while the layers below still run backward. The sum's bits depend on the list of micro-batches only: not on the number
//! of ranks, not on accumulation, not on the buckets.

use std::ops::Range;
use std::time::{Duration, Instant};

use azulejo_amx::Executor;
use azulejo_collectives::{Communicator, Handle, TreeSum};

use crate::batch::Batch;
use crate::error::{Error, Result};
use crate::flat;
use crate::model::{Model, Step};
use crate::params::Params;
use crate::sampler::share;

/// Fewest elements of a bucket: 1 Mi `f32` are 4 MiB, large enough that latency does not count, small enough that the
/// last bucket, which nothing hides, is a small part of the whole.
const BUCKET: usize = 1 << 20;

/// What travels beside the gradients of a step: the loss and the wish to stop.
const NOTES: usize = 2;

/// One rank's part in summing gradients.
#[derive(Debug)]
pub struct DataParallel {
    buckets: Vec<Bucket>, // from the end of the flat buffer to its start
    notes: TreeSum,
    under_way: Vec<Started>, // empty between steps
}

#[derive(Debug)]
struct Bucket {
    range: Range<usize>,
    sums: TreeSum,
}

/// What a step's micro-batches gave together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sum {
    /// The mean of the micro-batches' losses.
    pub loss: f32,
    /// Some rank wants to stop after this step.
    pub stop: bool,
    /// Time that this rank waited for others after its own backward had ended.
    pub waited: Duration,
}

impl DataParallel {
    /// Buckets for a table of parameters: whole parameters, at least a mebi-element each.
    pub fn new(params: &Params) -> DataParallel {
        let mut buckets = Vec::new();
        let mut end = params.total();
        let starts: Vec<usize> = params.iter().map(|p| p.range.start).collect();
        for start in starts.into_iter().rev() {
            if end - start >= BUCKET || start == 0 {
                buckets.push(Bucket {
                    range: start..end,
                    sums: TreeSum::new(0),
                });
                end = start;
            }
        }
        DataParallel {
            buckets,
            notes: TreeSum::new(0),
            under_way: Vec::new(),
        }
    }

    /// Bytes of gradients that a step exchanges.
    pub fn bytes(&self) -> usize {
        self.buckets.iter().map(|b| b.range.len() * size_of::<f32>()).sum()
    }

    /// Computes this rank's share of a step and leaves the mean gradient over all its micro-batches in `grads`, on
    /// every rank. After an error the communicator and `grads` are of no further use for this step.
    pub fn step(
        &mut self,
        exec: &dyn Executor,
        model: &Model,
        comm: &Communicator,
        grads: &mut [f32],
        plan: &StepPlan<'_>,
    ) -> Result<Sum> {
        let total = plan.micro_batches as u64;
        let mine = share(plan.micro_batches, comm.rank(), comm.world_size());
        if plan.batches.len() != mine.len() {
            return Err(Error::Length {
                what: "micro-batches of this rank",
                expected: mine.len(),
                got: plan.batches.len(),
            });
        }
        if plan.micro_batches == 1 && comm.world_size() == 1 {
            flat::zero(exec, grads);
            let loss = model.train_micro_batch(exec, &plan.batches[0], plan.step, grads, &mut |_, _| {})?;
            return Ok(Sum {
                loss,
                stop: plan.stop,
                waited: Duration::ZERO,
            });
        }
        self.notes.restart(total);
        for bucket in &mut self.buckets {
            bucket.sums.restart(total);
        }
        let mut under_way = std::mem::take(&mut self.under_way);
        under_way.clear(); // of a step that failed
        for (m, batch) in mine.clone().zip(plan.batches) {
            let last = m + 1 == mine.end;
            flat::zero(exec, grads);
            let mut sent = Ok(());
            let mut left = self.buckets.iter_mut().peekable(); // those that are not final yet
            let loss = model.train_micro_batch(exec, batch, plan.step, grads, &mut |ready, grads| {
                while sent.is_ok()
                    && let Some(bucket) = left.next_if(|bucket| bucket.range.start >= ready.start)
                {
                    sent = bucket.add(exec, m as u64, grads);
                    if last && sent.is_ok() {
                        sent = bucket.start(comm, total).map(|started| under_way.push(started));
                    }
                }
            })?;
            sent?;
            let mut note = self.notes.spare().unwrap_or_default();
            note.clear();
            note.extend([loss, if last && plan.stop { 1.0 } else { 0.0 }]);
            self.notes.add(m as u64, note)?;
        }
        if mine.is_empty() {
            for bucket in &mut self.buckets {
                under_way.push(bucket.start(comm, total)?);
            }
        }
        let notes = start(comm, &mut self.notes, NOTES, total)?;

        let mean = 1.0 / plan.micro_batches as f32;
        let mut waited = Duration::ZERO;
        for (bucket, started) in self.buckets.iter_mut().zip(under_way.drain(..)) {
            let wait = Instant::now();
            let sum = started.finish()?;
            waited += wait.elapsed();
            flat::scale(exec, &mut grads[bucket.range.clone()], &sum, mean);
            bucket.sums.recycle(sum);
        }
        self.under_way = under_way;
        let notes_sum = notes.finish()?;
        let sum = Sum {
            loss: notes_sum[0] * mean,
            stop: notes_sum[1] > 0.0,
            waited,
        };
        self.notes.recycle(notes_sum);
        Ok(sum)
    }
}

impl Bucket {
    /// Adds its part of a micro-batch's gradient.
    fn add(&mut self, exec: &dyn Executor, micro_batch: u64, grads: &[f32]) -> Result<()> {
        let mut copy = self.sums.spare().unwrap_or_default();
        copy.resize(self.range.len(), 0.0);
        flat::copy(exec, &mut copy, &grads[self.range.clone()]);
        let add = |total: &mut [f32], other: &[f32]| flat::add(exec, total, other);
        Ok(self.sums.add_with(micro_batch, copy, add)?)
    }

    fn start(&mut self, comm: &Communicator, total: u64) -> Result<Started> {
        start(comm, &mut self.sums, self.range.len(), total)
    }
}

/// A sum over all ranks that is under way, or that needs none of them.
#[derive(Debug)]
enum Started {
    Exchange(Handle<Vec<f32>>),
    Done(Vec<f32>),
}

impl Started {
    fn finish(self) -> Result<Vec<f32>> {
        match self {
            Started::Exchange(handle) => Ok(handle.wait()?),
            Started::Done(sum) => Ok(sum),
        }
    }
}

/// Sends this rank's subtrees on their way; with one rank they are the whole tree already.
fn start(comm: &Communicator, sums: &mut TreeSum, len: usize, total: u64) -> Result<Started> {
    if comm.world_size() == 1
        && let Some(sum) = sums.take_total()
    {
        return Ok(Started::Done(sum));
    }
    let parts = sums.take();
    let handle = if parts.is_empty() {
        let mut buffer = sums.spare().unwrap_or_default();
        buffer.resize(len, 0.0);
        comm.start_all_reduce_tree_without_parts(buffer, total, 0)?
    } else {
        comm.start_all_reduce_tree(parts, total, 0)?
    };
    Ok(Started::Exchange(handle))
}

/// What [`DataParallel::step`] needs to know about a step.
#[derive(Debug, Clone, Copy)]
pub struct StepPlan<'a> {
    /// Its place in the run.
    pub step: Step,
    /// Its micro-batches, over all ranks.
    pub micro_batches: usize,
    /// This rank's [`share`] of them, in order.
    pub batches: &'a [Batch],
    /// This rank wants to stop after this step.
    pub stop: bool,
}
