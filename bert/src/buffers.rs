//! The memory of a pass: an arena for its buffers, and what the kernels work in.
//!
//! Buffers are leases of a [`StepArena`]: their contents are whatever the last user left, and every operation writes its
//! outputs in full. Everything else is lent and returned. After the first pass, nothing is allocated and no page faults
//! unless a batch has more tokens than the arena has planned for.

use azulejo_allocator::StepArena;
use azulejo_amx::Scratch;
use azulejo_amx::attention::AttentionScratch;
use azulejo_amx::rng::RowId;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Result;

/// The kinds of passes. Each has a sequence of buffers of its own, and so arenas of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Forward and backward.
    Train,
    /// Forward alone.
    Forward,
}

/// A model's memory.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    train: Mutex<Vec<StepArena>>,
    forward: Mutex<Vec<StepArena>>,
    rows: Mutex<Vec<Vec<RowId>>>,
    scratch: Mutex<Vec<Scratch>>,
    attention: Mutex<Vec<AttentionScratch>>,
    lent: AtomicU64, // nanoseconds
}

impl Buffers {
    /// Nothing yet.
    pub(crate) fn new() -> Buffers {
        Buffers::default()
    }

    /// Does one pass with an arena of its kind, and ends the arena's step. As many arenas exist as there ever were passes
    /// of a kind at one time.
    pub(crate) fn step<R>(&self, kind: Kind, pass: impl FnOnce(&StepArena) -> Result<R>) -> Result<R> {
        let arenas = || self.arenas(kind).lock().unwrap_or_else(PoisonError::into_inner);
        let free = arenas().pop();
        let arena = free.unwrap_or_default();
        let result = pass(&arena);
        let end = arena.end_step();
        arenas().push(arena);
        let value = result?;
        end?;
        Ok(value)
    }

    fn arenas(&self, kind: Kind) -> &Mutex<Vec<StepArena>> {
        match kind {
            Kind::Train => &self.train,
            Kind::Forward => &self.forward,
        }
    }

    /// The places of a micro-batch's rows, to be filled.
    pub(crate) fn rows(&self) -> Loan<'_, Vec<RowId>> {
        Loan::new(&self.rows)
    }

    /// Working memory of matrix products.
    pub(crate) fn scratch(&self) -> Timed<'_, Scratch> {
        Timed::new(&self.scratch, &self.lent)
    }

    /// Working memory of attention.
    pub(crate) fn attention(&self) -> Timed<'_, AttentionScratch> {
        Timed::new(&self.attention, &self.lent)
    }

    /// How long kernels' working memory was on loan in all: the time spent in matrix products and attention.
    pub(crate) fn lent(&self) -> Duration {
        Duration::from_nanos(self.lent.load(Ordering::Relaxed))
    }
}

/// Memory on loan; dropping it gives it back. As much exists as was ever lent at one time.
pub(crate) struct Loan<'a, T: Default> {
    memory: T,
    home: &'a Mutex<Vec<T>>,
}

impl<'a, T: Default> Loan<'a, T> {
    fn new(home: &'a Mutex<Vec<T>>) -> Loan<'a, T> {
        let free = home.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Loan {
            memory: free.unwrap_or_default(),
            home,
        }
    }
}

impl<T: Default + fmt::Debug> fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&self.memory).finish()
    }
}

impl<T: Default> Deref for Loan<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.memory
    }
}

impl<T: Default> DerefMut for Loan<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.memory
    }
}

impl<T: Default> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.home.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }
}

/// A kernel's working memory on loan, and for how long.
pub(crate) struct Timed<'a, T: Default> {
    loan: Loan<'a, T>,
    lent: &'a AtomicU64,
    since: Instant,
}

impl<'a, T: Default> Timed<'a, T> {
    fn new(home: &'a Mutex<Vec<T>>, lent: &'a AtomicU64) -> Timed<'a, T> {
        Timed {
            loan: Loan::new(home),
            lent,
            since: Instant::now(),
        }
    }
}

impl<T: Default> Deref for Timed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.loan
    }
}

impl<T: Default> DerefMut for Timed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.loan
    }
}

impl<T: Default> Drop for Timed<'_, T> {
    fn drop(&mut self) {
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        self.lent.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_arena_and_passes_at_one_time_have_one_each() {
        let buffers = Buffers::new();
        let pass = |arena: &StepArena| {
            let lease = arena.take::<f32>("x", 100)?;
            Ok((lease.as_ptr().addr(), lease.is_planned()))
        };
        assert!(!buffers.step(Kind::Train, pass).unwrap().1);
        let planned = buffers.step(Kind::Train, pass).unwrap();
        assert!(planned.1);
        assert!(!buffers.step(Kind::Forward, pass).unwrap().1);
        let within = buffers.step(Kind::Train, |outer| {
            let outer = pass(outer)?;
            let inner = buffers.step(Kind::Train, pass)?;
            Ok((outer, inner.1))
        });
        assert_eq!(within.unwrap(), (planned, false));
        assert_eq!(buffers.train.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_pass_that_fails_gives_its_arena_back() {
        let buffers = Buffers::new();
        let pass = |fails: bool| {
            buffers.step(Kind::Train, |arena| {
                let lease = arena.take::<u8>("x", 10)?;
                if fails {
                    arena.take::<u8>("y", usize::MAX)?;
                }
                Ok(lease.is_planned())
            })
        };
        assert!(!pass(false).unwrap());
        let message = pass(true).unwrap_err().to_string();
        assert!(message.contains('y'), "{message}");
        assert!(pass(false).unwrap(), "the plan is still there");
    }
}
