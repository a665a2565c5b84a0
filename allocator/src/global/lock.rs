//! A lock that needs no memory, never panics and can be held across a fork.
#![expect(unsafe_code, reason = "a lock hands out the value behind it")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value behind a spinning lock. The sections are a few hundred instructions at most, apart from system calls.
#[derive(Debug)]
pub(crate) struct Locked<T> {
    held: AtomicBool,
    /// Invariant 1: touched only by the thread that set `held`.
    value: UnsafeCell<T>,
}

// SAFETY: by invariant 1 one thread at a time reaches the value, so moving the access between threads needs `T: Send` only.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Locked<T> {
        Locked {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `work` alone. `work` must not take the same lock.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        // SAFETY: this thread set `held` just now and clears it below (invariant 1).
        let result = work(unsafe { &mut *self.value.get() });
        self.unlock();
        result
    }

    /// Takes the lock without looking at the value: what the fork handlers do.
    pub(crate) fn lock(&self) {
        let mut tries = 0_u32;
        while self.held.swap(true, Ordering::Acquire) {
            while self.held.load(Ordering::Relaxed) {
                tries = tries.wrapping_add(1);
                if tries.is_multiple_of(64) {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Ends what [`Locked::lock`] began.
    pub(crate) fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }
}
