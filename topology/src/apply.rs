//! Carries a plan out and reads everything back from the kernel.

use std::fmt;

use crate::affinity::{Readback, pin_current_thread};
use crate::cpuset::CpuSet;
use crate::membind::{Binding, bind_current_thread};
use crate::plan::RankPlan;

/// What became of a rank's part of a plan. Nothing in it is an error: a rank that could not be placed computes the same
/// values, only slower.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The process's CPUs as asked for and as the kernel reports them; `None` when they could not be set.
    pub cpus: Option<Readback>,
    /// The process's memory.
    pub memory: Binding,
    /// Differences between the plan and the machine, one line each.
    pub differences: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cpus {
            Some(cpus) => write!(f, "runs on CPU {:#}, {}", cpus.actual, self.memory)?,
            None => write!(f, "not confined, {}", self.memory)?,
        }
        for difference in &self.differences {
            write!(f, "\n{difference}")?;
        }
        Ok(())
    }
}

/// Confines the calling thread to the rank's CPUs and binds its memory. Threads started afterwards inherit both, so this
/// belongs at the start of the program; the team and the worker then pin themselves within.
pub fn apply(rank: &RankPlan) -> Report {
    let mut differences = Vec::new();
    let cpus = match pin_current_thread(&rank.process()) {
        Ok(readback) => {
            if !readback.is_exact() {
                differences.push(format!(
                    "planned CPUs {:#}, the kernel gave {:#}",
                    readback.asked, readback.actual
                ));
            }
            Some(readback)
        }
        Err(error) => {
            differences.push(error.to_string());
            None
        }
    };
    let memory = bind_current_thread(&rank.nodes);
    if let Binding::Refused { .. } = &memory {
        differences.push(memory.to_string());
    }
    Report {
        cpus,
        memory,
        differences,
    }
}

/// Pins the calling thread to the worker's CPUs of a rank; for the start hook of a collectives worker. Returns what the
/// kernel reports, or the reason for not being pinned.
pub fn pin_worker(worker: &CpuSet) -> Result<Option<Readback>, crate::error::Error> {
    if worker.is_empty() {
        return Ok(None);
    }
    pin_current_thread(worker).map(Some)
}
