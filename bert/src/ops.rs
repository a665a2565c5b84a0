//! The operations of the model: a forward and a backward in each file, neighbours that mirror each other.
//!
//! Letters: `t` tokens of the micro-batch (no padding), `s` sequences, `h` hidden, `a` heads, `d` head width, `f`
//! feed-forward width, `v` vocabulary. `d_x` is the gradient of the loss with respect to `x`. Outputs come first, then
//! inputs, then sizes. Gradients of parameters accumulate; all other outputs are overwritten.
//!
//! Threads share work in fixed blocks of rows, and every sum runs in an order that the sizes alone decide, so that
//! the number of threads never changes a result.

pub(crate) mod attention;
pub(crate) mod column_sums;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod gelu;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod span_loss;
pub(crate) mod vocabulary_loss;

use crate::buffers::Buffers;
use std::sync::{Mutex, PoisonError};

/// Workers that run one closure each.
pub trait Executor: Sync {
    /// The number of workers.
    fn threads(&self) -> usize;

    /// Calls `task(worker)` once on each worker and returns after all have finished.
    fn run(&self, task: &(dyn Fn(usize) + Sync));
}

/// The calling thread as the only worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Executor for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        task(0);
    }
}

/// Who does the work.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) exec: &'a dyn Executor,
    pub(crate) buffers: &'a Buffers,
}

/// Rows that one thread takes at a time: enough that the lock below costs nothing beside the work on a row of
/// hundreds of elements, few enough that a batch of a few hundred tokens spreads evenly.
pub(crate) const BLOCK: usize = 64;

/// Hands the items to the workers, each item once; which worker takes which is left to chance, so an item must carry
/// everything that its result depends on.
pub(crate) fn share<I>(exec: &dyn Executor, items: I, work: impl Fn(I::Item) + Sync)
where
    I: Iterator + Send,
{
    let items = Mutex::new(items);
    exec.run(&|_| {
        loop {
            let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            match item {
                Some(item) => work(item),
                None => break,
            }
        }
    });
}
