//! Carries a plan out and reads everything back from the kernel.

use std::fmt;

use crate::affinity::{Readback, pin_current_thread};
use crate::cpuset::CpuSet;
use crate::membind::{Binding, PageNodes, bind_current_thread, prefer_current_thread, sample_pages};
use crate::plan::RankPlan;
use crate::sys;

/// Pages that are touched after memory is bound to see where they land.
const PROBE_PAGES: usize = 16;

/// What became of a rank's part of a plan. Nothing in it is an error: a rank that could not be placed computes the same
/// values, only slower.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The process's CPUs as asked for and as the kernel reports them; `None` when they could not be set.
    pub cpus: Option<Readback>,
    /// The process's memory.
    pub memory: Binding,
    /// The nodes of pages touched after the memory was bound; `None` where the system does not tell.
    pub pages: Option<PageNodes>,
    /// Differences between the plan and the machine, one line each.
    pub differences: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cpus {
            Some(cpus) => write!(f, "runs on CPU {:#}, {}", cpus.actual, self.memory)?,
            None => write!(f, "not confined, {}", self.memory)?,
        }
        if let Some(pages) = &self.pages {
            write!(f, "; {pages}")?;
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
    let memory = if rank.prefer.is_empty() {
        bind_current_thread(&rank.nodes)
    } else {
        prefer_current_thread(&rank.prefer)
    };
    let pages = probe();
    match (&memory, &pages) {
        (Binding::Refused { .. }, _) => differences.push(memory.to_string()),
        (Binding::Bound(nodes), Some(pages)) if !pages.nodes().is_subset(nodes) => {
            differences.push(format!("planned memory on node {nodes}, but {pages}"));
        }
        _ => {}
    }
    Report {
        cpus,
        memory,
        pages,
        differences,
    }
}

/// Touches new pages and asks where they are.
fn probe() -> Option<PageNodes> {
    let page = sys::page_size();
    // One page more than is looked at, so that the first may belong to something older.
    let mut memory = vec![0u8; (PROBE_PAGES + 1) * page];
    for byte in memory.iter_mut().step_by(page) {
        // A write that the compiler may not leave out.
        *byte = std::hint::black_box(1);
    }
    let first_whole = memory.as_ptr().align_offset(page).min(page);
    let inner = std::hint::black_box(&memory)[first_whole..].get(..PROBE_PAGES * page)?;
    sample_pages(inner, PROBE_PAGES).ok()
}

/// Pins the calling thread to the worker's CPUs of a rank; for the start hook of a collectives worker. Returns what the
/// kernel reports, or the reason for not being pinned.
pub fn pin_worker(worker: &CpuSet) -> Result<Option<Readback>, crate::error::Error> {
    if worker.is_empty() {
        return Ok(None);
    }
    pin_current_thread(worker).map(Some)
}
