//! The step's scratch memory: named buffers that return to a pool when they are dropped.
//!
//! Contents are whatever the last user left; every operation writes its outputs in full. After the first step of a
//! given size nothing is allocated any more.

use azulejo_amx::Scratch;
use azulejo_amx::attention::AttentionScratch;
use azulejo_amx::rng::RowId;
use half::bf16;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The pools, one for each element type.
#[derive(Debug, Default)]
pub struct Buffers {
    f32: Pool<f32>,
    bf16: Pool<bf16>,
    u32: Pool<u32>,
    f64: Pool<f64>,
    rows: Pool<RowId>,
    scratch: Mutex<Vec<Scratch>>,
    attention: Mutex<Vec<AttentionScratch>>,
    lent: AtomicU64, // nanoseconds
}

/// Free buffers of one element type.
#[derive(Debug)]
pub struct Pool<T>(Mutex<Vec<Vec<T>>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Pool(Mutex::new(Vec::new()))
    }
}

/// An element type that has a pool.
pub trait Pooled: Copy + Default + Send + Sync + fmt::Debug + 'static {
    /// The pool of this type.
    fn pool(buffers: &Buffers) -> &Pool<Self>;
}

impl Pooled for f32 {
    fn pool(buffers: &Buffers) -> &Pool<f32> {
        &buffers.f32
    }
}

impl Pooled for bf16 {
    fn pool(buffers: &Buffers) -> &Pool<bf16> {
        &buffers.bf16
    }
}

impl Pooled for u32 {
    fn pool(buffers: &Buffers) -> &Pool<u32> {
        &buffers.u32
    }
}

impl Pooled for f64 {
    fn pool(buffers: &Buffers) -> &Pool<f64> {
        &buffers.f64
    }
}

impl Pooled for RowId {
    fn pool(buffers: &Buffers) -> &Pool<RowId> {
        &buffers.rows
    }
}

impl Buffers {
    /// Empty pools.
    pub fn new() -> Buffers {
        Buffers::default()
    }

    /// A buffer of `len` elements with unspecified contents. `name` says what it is for.
    pub fn take<T: Pooled>(&self, name: &'static str, len: usize) -> Buf<'_, T> {
        let pool = T::pool(self);
        let mut free = pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The tightest fit, so that a small buffer does not sit on a large one; else the largest, which grows.
        let fit = free
            .iter()
            .enumerate()
            .filter(|(_, v)| v.capacity() >= len)
            .min_by_key(|(_, v)| v.capacity());
        let index = fit
            .or_else(|| free.iter().enumerate().max_by_key(|(_, v)| v.capacity()))
            .map(|(i, _)| i);
        let mut data = index.map_or_else(Vec::new, |i| free.swap_remove(i));
        drop(free);
        if data.capacity() < len {
            // What it holds is not worth a copy.
            data = Vec::new();
        }
        data.resize(len, T::default());
        Buf { data, name, pool }
    }

    /// Working memory of matrix products.
    pub fn scratch(&self) -> Loan<'_, Scratch> {
        Loan::new(&self.scratch, &self.lent)
    }

    /// How long kernels' working memory was on loan in all: the time spent in matrix products and attention.
    pub fn lent(&self) -> Duration {
        Duration::from_nanos(self.lent.load(Ordering::Relaxed))
    }

    /// Working memory of attention.
    pub fn attention(&self) -> Loan<'_, AttentionScratch> {
        Loan::new(&self.attention, &self.lent)
    }
}

/// Working memory of a kernel on loan.
#[derive(Debug)]
pub struct Loan<'a, T: Default> {
    memory: T,
    home: &'a Mutex<Vec<T>>,
    lent: &'a AtomicU64,
    since: Instant,
}

impl<'a, T: Default> Loan<'a, T> {
    /// As much memory exists as was ever lent at one time.
    fn new(home: &'a Mutex<Vec<T>>, lent: &'a AtomicU64) -> Loan<'a, T> {
        let free = home.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Loan {
            memory: free.unwrap_or_default(),
            home,
            lent,
            since: Instant::now(),
        }
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
        let nanoseconds = self.since.elapsed().as_nanos() as u64;
        self.lent.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// A buffer on loan; dropping it gives it back.
pub struct Buf<'a, T: Pooled> {
    data: Vec<T>,
    name: &'static str,
    pool: &'a Pool<T>,
}

impl<T: Pooled> fmt::Debug for Buf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.data.len())
    }
}

impl<T: Pooled> Deref for Buf<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data
    }
}

impl<T: Pooled> DerefMut for Buf<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data
    }
}

impl<T: Pooled> Drop for Buf<'_, T> {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).push(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back() {
        let buffers = Buffers::new();
        let first = buffers.take::<f32>("a", 100);
        let address = first.as_ptr();
        let other = buffers.take::<f32>("b", 10);
        drop((first, other));
        let again = buffers.take::<f32>("c", 90);
        assert_eq!((again.as_ptr(), again.len()), (address, 90));
        assert_eq!(buffers.take::<f32>("d", 9).len(), 9);
    }
}
