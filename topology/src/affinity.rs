//! Pinning of threads, and the fence around `core_affinity`.
//!
//! `core_affinity` is used where its contract suffices: pinning to one CPU. Its set has 1,024 bits and an id beyond
//! them panics inside libc, so ids are checked here before the call; wider masks and larger ids go through the raw
//! call. It answers with a bare bool, so the mask is read back from the kernel whatever it answered.

use std::io;

use crate::cpuset::{CpuId, CpuSet};
use crate::error::Error;
use crate::sys;

/// Bits of the set that `core_affinity` uses on Linux (libc's `cpu_set_t`).
const CORE_AFFINITY_BITS: usize = 1024;

/// What was asked of the kernel, and what the kernel says afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readback {
    /// The CPUs that were asked for.
    pub asked: CpuSet,
    /// The CPUs on which the kernel lets the thread run now.
    pub actual: CpuSet,
}

impl Readback {
    /// Whether the kernel reports exactly what was asked for.
    pub fn is_exact(&self) -> bool {
        self.asked == self.actual
    }
}

/// The CPUs on which the calling thread may run.
pub fn allowed_cpus() -> Result<CpuSet, Error> {
    sys::affinity().map_err(|source| Error::System {
        call: "sched_getaffinity",
        source,
    })
}

/// Pins the calling thread to `cpus` and reads the mask back.
///
/// The kernel drops CPUs that are offline or outside the cpuset without a word as long as one remains; the difference
/// shows in the [`Readback`]. When none remains, the thread's mask stays as it was and the error says so.
pub fn pin_current_thread(cpus: &CpuSet) -> Result<Readback, Error> {
    let outcome = match (cpus.len(), cpus.first()) {
        (1, Some(cpu)) if cpu < CORE_AFFINITY_BITS => pin_to_one(cpu),
        _ => sys::set_affinity(cpus),
    };
    let actual = allowed_cpus()?;
    match outcome {
        Ok(()) => Ok(Readback {
            asked: cpus.clone(),
            actual,
        }),
        Err(source) => Err(Error::Pin {
            asked: cpus.clone(),
            actual,
            source,
        }),
    }
}

/// Pins to one CPU; the id is below the size of `core_affinity`'s set.
#[expect(
    clippy::disallowed_methods,
    reason = "the door to core_affinity: its answer is read back"
)]
fn pin_to_one(cpu: CpuId) -> io::Result<()> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
        return Ok(());
    }
    // The bool does not tell why. The raw call answers with the reason, and succeeds on kernels whose own mask is
    // longer than 1,024 bits and which therefore refuse the short one.
    sys::set_affinity(&CpuSet::single(cpu))
}
