//! The operations of the model: a forward and a backward in each file, neighbours that mirror each other.
//!
//! Letters: `t` tokens of the micro-batch (no padding), `s` sequences, `h` hidden, `a` heads, `d` head width, `f`
//! feed-forward width, `v` vocabulary. `d_x` is the gradient of the loss with respect to `x`. Outputs come first, then
//! inputs, then sizes. Gradients of parameters accumulate; all other outputs are overwritten.
//!
//! Threads share work in fixed blocks of rows, and every sum runs in an order that the sizes alone decide, so that
//! the number of threads never changes a result.

pub(crate) mod column_sums;
pub(crate) mod embedding;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod span_loss;
#[cfg(test)]
mod tests;
pub(crate) mod vocabulary_loss;

use crate::buffers::Buffers;
use crate::error::Result;
use azulejo_allocator::{Lease, StepArena};
use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::rows::Rows;
use azulejo_amx::{Executor, Gemm, RowDropout, Scratch};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Who does the work, with what.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) exec: &'a dyn Executor,
    pub(crate) gemm: Gemm,
    pub(crate) rows: Rows,
    pub(crate) buffers: &'a Buffers,
    pub(crate) arena: &'a StepArena,
}

impl Context<'_> {
    /// A buffer of `len` elements with unspecified contents. `name` says what it is for.
    pub(crate) fn take<T: bytemuck::Pod>(&self, name: &'static str, len: usize) -> Result<Lease<T>> {
        Ok(self.arena.take(name, len)?)
    }

    /// Lends `work` the scratch memory of a matrix product.
    fn with_scratch<R>(&self, work: impl FnOnce(&mut Scratch) -> R) -> R {
        let mut scratch = self.buffers.scratch();
        work(&mut scratch)
    }
}

/// The rows of a micro-batch as the addresses of their dropout masks.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) ids: &'a [RowId], // (t)
}

impl<'a> Tokens<'a> {
    /// A dropout for the given rows.
    pub(crate) fn mask(&self, dropout: Option<Dropout>, rows: Range<usize>) -> Option<RowDropout<'a>> {
        Some(RowDropout {
            dropout: dropout?,
            rows: &self.ids[rows],
        })
    }
}

/// Rows that one thread takes at a time, and whose sums are added up before they meet others'. 64 rows of 768 `f32`
/// are 192 KiB: several such operands stay in a core's own cache while one operation follows the other.
pub(crate) const BLOCK: usize = Rows::BLOCK;

/// The rows of block `i`, which has `len` of them.
pub(crate) fn block_rows(i: usize, len: usize) -> Range<usize> {
    i * BLOCK..i * BLOCK + len
}

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

/// [`share`] for work that needs memory beside its item: each worker has one of `seats`, and a worker without one does
/// nothing.
pub(crate) fn share_seats<S: Send, I>(
    exec: &dyn Executor,
    seats: impl Iterator<Item = S> + Send,
    items: I,
    work: impl Fn(&mut S, I::Item) + Sync,
) where
    I: Iterator + Send,
{
    let (seats, items) = (Mutex::new(seats), Mutex::new(items));
    exec.run(&|_| {
        let seat = seats.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(mut seat) = seat else { return };
        loop {
            let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            match item {
                Some(item) => work(&mut seat, item),
                None => break,
            }
        }
    });
}

/// [`share`] for work that can fail; returns an error if any item had one.
pub(crate) fn try_share<I, E>(
    exec: &dyn Executor,
    items: I,
    work: impl Fn(I::Item) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    I: Iterator + Send,
    E: Send,
{
    let failure = Mutex::new(None);
    share(exec, items, |item| {
        if let Err(error) = work(item) {
            failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(error);
        }
    });
    failure
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}
