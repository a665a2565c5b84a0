//! A word that threads wait on: spin for a bounded time, then sleep in the kernel.
//!
//! A sleeper announces itself before it looks at the word for the last time, and a writer looks for sleepers after it
//! has written; both in one total order (`SeqCst`), so one of them sees the other and no wake-up is lost.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sys;

/// Pauses between two looks at the clock. A pause is 10 to 140 cycles, so the clock is read every microsecond or so.
const PAUSES_PER_LOOK: u32 = 32;
/// A gap between two looks at the clock longer than this means that the thread was preempted: an ordinary gap is a
/// hundred times shorter, and a scheduler's slice is several times longer.
const PREEMPTED: Duration = Duration::from_micros(500);
/// Waits that do not spin after a preemption: long enough that an oversubscribed machine almost never spins, short
/// enough that a chance interruption costs a millisecond or so.
const WAITS_WITHOUT_SPIN: u32 = 64;

/// How one thread spins; it remembers whether spinning was a good idea lately.
#[derive(Debug)]
pub(super) struct Spinner {
    bound: Duration,
    /// Waits for which this thread is not to spin.
    quiet: u32,
}

impl Spinner {
    pub(super) fn new(bound: Duration) -> Self {
        Spinner { bound, quiet: 0 }
    }

    /// Spins until `done` or until the bound; returns whether `done` became true.
    fn spin(&mut self, done: impl Fn() -> bool) -> bool {
        if done() {
            return true;
        }
        if self.bound.is_zero() {
            return false;
        }
        if self.quiet > 0 {
            self.quiet -= 1;
            return false;
        }
        let start = Instant::now();
        let mut last = start;
        loop {
            for _ in 0..PAUSES_PER_LOOK {
                spin_loop();
                if done() {
                    return true;
                }
            }
            let now = Instant::now();
            if now - last > PREEMPTED {
                self.quiet = WAITS_WITHOUT_SPIN;
                return false;
            }
            if now - start >= self.bound {
                return false;
            }
            last = now;
        }
    }
}

/// A word to wait on.
#[derive(Debug)]
pub(super) struct Gate {
    word: AtomicU32,
    sleepers: AtomicU32,
}

impl Gate {
    pub(super) fn new(value: u32) -> Self {
        Gate {
            word: AtomicU32::new(value),
            sleepers: AtomicU32::new(0),
        }
    }

    /// Waits until `stop_waiting(word)`, and returns the word. What was written before the word was set is visible.
    pub(super) fn wait(&self, spinner: &mut Spinner, stop_waiting: impl Fn(u32) -> bool) -> u32 {
        let ready = || stop_waiting(self.word.load(Ordering::Acquire));
        if !spinner.spin(ready) {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            loop {
                let value = self.word.load(Ordering::SeqCst);
                if stop_waiting(value) {
                    break;
                }
                sys::wait_while_equal(&self.word, value);
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        self.word.load(Ordering::Acquire)
    }

    /// Sets the word while nobody waits on it.
    pub(super) fn reset(&self, value: u32) {
        self.word.store(value, Ordering::Relaxed);
    }

    /// Adds one, wakes whoever sleeps, and returns the new value.
    pub(super) fn advance(&self) -> u32 {
        let value = self.word.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        self.wake();
        value
    }

    /// Takes one off; whoever takes the last one wakes those who sleep.
    pub(super) fn count_down(&self) {
        if self.word.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            sys::wake_all(&self.word);
        }
    }
}
