//! The page heap: runs of pages from the system, and the cache of free runs with its decay.
//!
//! A free run stays mapped, so the next user of its pages takes no faults. Neighbours merge; a run that nobody used for
//! [`DECAY_MS`] is unmapped by a later call. There is no background thread.
#![expect(unsafe_code, clippy::disallowed_methods, reason = "maps and unmaps memory")]

use super::size_class::PAGE;
use crate::align::round_up;
use std::ptr;

/// How many free runs are remembered; beyond that the smallest goes back to the system.
const RUNS: usize = 512;
/// How long an unused run stays mapped.
const DECAY_MS: u64 = 10_000;
/// How often runs are looked through for age.
const SWEEP_MS: u64 = 250;

/// A free run of pages.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: usize,
    bytes: usize,
    since: u64,
}

/// Counters of the page heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    pub(crate) mapped: usize,
    pub(crate) cached: usize,
    pub(crate) maps: u64,
    pub(crate) unmaps: u64,
    pub(crate) remaps: u64,
    pub(crate) reuses: u64,
}

/// The free runs. Invariant 1: `runs[..len]` are disjoint ranges of pages that this heap mapped and nobody uses.
#[derive(Debug)]
pub(crate) struct Runs {
    runs: [Run; RUNS],
    len: usize,
    swept: u64,
    pub(crate) counters: Counters,
}

impl Runs {
    pub(crate) const fn new() -> Runs {
        Runs {
            runs: [Run {
                at: 0,
                bytes: 0,
                since: 0,
            }; RUNS],
            len: 0,
            swept: 0,
            counters: Counters {
                mapped: 0,
                cached: 0,
                maps: 0,
                unmaps: 0,
                remaps: 0,
                reuses: 0,
            },
        }
    }

    /// A run of `bytes` (whole pages) at a multiple of `align` (a power of two, a page at least); its address, and
    /// whether it is fresh from the system and so all zero. `None` when the system refuses.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> Option<(usize, bool)> {
        let mut best: Option<(usize, usize)> = None;
        for (i, run) in self.runs[..self.len].iter().enumerate() {
            let Some(at) = round_up(run.at, align) else { continue };
            let fits = (at - run.at)
                .checked_add(bytes)
                .is_some_and(|needed| needed <= run.bytes);
            if fits && best.is_none_or(|(b, _)| run.bytes < self.runs[b].bytes) {
                best = Some((i, at));
            }
        }
        let Some((index, at)) = best else {
            return self.map(bytes, align).map(|at| (at, true));
        };
        let run = self.remove(index);
        self.put(run.at, at - run.at, run.since);
        self.put(at + bytes, run.at + run.bytes - at - bytes, run.since);
        self.counters.reuses += 1;
        Some((at, false))
    }

    /// Takes back a run that `take` gave out, or part of one.
    pub(crate) fn give(&mut self, at: usize, bytes: usize) {
        let now = now_ms();
        let mut run = Run { at, bytes, since: now };
        let mut i = 0;
        while i < self.len {
            let other = self.runs[i];
            if other.at + other.bytes == run.at || run.at + run.bytes == other.at {
                self.remove(i);
                run = Run {
                    at: run.at.min(other.at),
                    bytes: run.bytes + other.bytes,
                    // The age of the larger part: a hot sliver must not keep a cold giant alive.
                    since: if other.bytes > run.bytes {
                        other.since
                    } else {
                        run.since
                    },
                };
            } else {
                i += 1;
            }
        }
        self.put(run.at, run.bytes, run.since);
        if now.saturating_sub(self.swept) >= SWEEP_MS {
            self.swept = now;
            self.release(now.saturating_sub(DECAY_MS));
        }
    }

    /// Unmaps the free runs that nobody used since `before`; how many bytes.
    pub(crate) fn release(&mut self, before: u64) -> usize {
        let mut i = 0;
        let mut released = 0;
        while i < self.len {
            if self.runs[i].since <= before {
                let run = self.remove(i);
                released += run.bytes;
                self.unmap(run.at, run.bytes);
            } else {
                i += 1;
            }
        }
        released
    }

    /// Moves a used run to `new` bytes without copying; `None` where the system does not, and then nothing has changed.
    pub(crate) fn remap(&mut self, at: usize, old: usize, new: usize) -> Option<usize> {
        // SAFETY: the caller owns the run `at..at + old`, and after success uses only the returned address.
        let moved = unsafe { libc::mremap(ptr::with_exposed_provenance_mut(at), old, new, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED {
            return None;
        }
        self.counters.remaps += 1;
        self.counters.mapped = self.counters.mapped + new - old;
        Some(moved.expose_provenance())
    }

    fn remove(&mut self, index: usize) -> Run {
        let run = self.runs[index];
        self.len -= 1;
        self.runs[index] = self.runs[self.len];
        self.counters.cached -= run.bytes;
        run
    }

    fn put(&mut self, at: usize, bytes: usize, since: u64) {
        if bytes == 0 {
            return;
        }
        let mut run = Run { at, bytes, since };
        if self.len == RUNS {
            let mut smallest = 0;
            for i in 1..RUNS {
                if self.runs[i].bytes < self.runs[smallest].bytes {
                    smallest = i;
                }
            }
            if self.runs[smallest].bytes < run.bytes {
                let victim = self.remove(smallest);
                self.runs[self.len] = run;
                self.len += 1;
                self.counters.cached += run.bytes;
                run = victim;
            }
            self.unmap(run.at, run.bytes);
            return;
        }
        self.runs[self.len] = run;
        self.len += 1;
        self.counters.cached += bytes;
    }

    fn map(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let extra = if align > PAGE { align } else { 0 };
        let length = bytes.checked_add(extra)?;
        // SAFETY: a fresh anonymous map at an address of the system's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.expose_provenance();
        self.counters.maps += 1;
        self.counters.mapped += length;
        let at = round_up(base, align)?;
        self.unmap(base, at - base);
        self.unmap(at + bytes, base + length - at - bytes);
        Some(at)
    }

    fn unmap(&mut self, at: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        // SAFETY: the range was mapped by this heap and is neither used nor in `runs` any more.
        let failed = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), bytes) };
        // A refusal (the limit on the number of maps) leaks address space; nothing better is possible here.
        if failed == 0 {
            self.counters.unmaps += 1;
            self.counters.mapped -= bytes;
        }
    }
}

/// Milliseconds of a coarse monotonic clock: no system call.
pub(crate) fn now_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    // The offset keeps the clock of a machine just started above the decay.
    DECAY_MS + 1 + time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_split_merge_align_and_leave() {
        let mut runs = Box::new(Runs::new());
        let (a, fresh) = runs.take(16 * PAGE, PAGE).unwrap();
        assert!(fresh);
        runs.give(a, 16 * PAGE);
        let (b, fresh) = runs.take(4 * PAGE, 4 * PAGE).unwrap();
        assert!(!fresh && b % (4 * PAGE) == 0 && b >= a && b + 4 * PAGE <= a + 16 * PAGE);
        assert_eq!(runs.counters.cached, 12 * PAGE);
        runs.give(b, 4 * PAGE);
        assert_eq!((runs.len, runs.counters.cached), (1, 16 * PAGE));
        assert_eq!(runs.release(u64::MAX), 16 * PAGE);
        assert_eq!((runs.len, runs.counters.cached, runs.counters.mapped), (0, 0, 0));
        assert!(runs.take(1 << 62, PAGE).is_none());
    }

    #[test]
    fn a_full_table_keeps_the_largest() {
        let mut runs = Box::new(Runs::new());
        let (base, _) = runs.take(2 * (RUNS + 8) * PAGE, PAGE).unwrap();
        for i in 0..RUNS + 8 {
            runs.give(base + 2 * i * PAGE, PAGE);
        }
        assert_eq!((runs.len, runs.counters.cached), (RUNS, RUNS * PAGE));
    }
}
