//! Where a rank computes, where its collectives worker runs and where its memory is: this machine's part of the plan.

use std::sync::{Arc, OnceLock};

use azulejo_collectives::StartHook;
use azulejo_collectives::launch::Launch;
use azulejo_topology::{
    CpuSet, Error, Machine, Plan, RankPlan, Readback, Report, Request, TeamConfig, apply, pin_worker,
};

/// One rank's place on its machine, carried out.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    rank: RankPlan,
    /// What the kernel made of it.
    report: Report,
    /// What the kernel made of the collectives worker's, once that has started.
    worker: Arc<OnceLock<Result<Option<Readback>, Error>>>,
    /// The plan of the whole machine, for people.
    pub(crate) table: String,
}

impl Place {
    /// Plans for the ranks of this machine, as `OMP_NUM_THREADS`, `KMP_HW_SUBSET`, `CCL_WORKER_COUNT` and
    /// `CCL_WORKER_AFFINITY` ask, and confines this thread and those it starts to its part.
    pub(crate) fn of(launch: &Launch) -> Result<Place, Error> {
        let mut request = Request::from_env()?;
        if launch.world_size == 1 {
            // Alone there is nothing to exchange.
            request.workers_per_rank = 0;
        }
        let plan = Plan::make(&Machine::read()?, &request, launch.machine_size)?;
        let rank = plan.rank(launch.machine_rank)?.clone();
        let report = apply(&rank);
        Ok(Place {
            rank,
            report,
            worker: Arc::default(),
            table: plan.to_string(),
        })
    }

    /// The team that computes there.
    pub(crate) fn team(&self) -> TeamConfig {
        self.rank.team()
    }

    /// What the collectives worker does first: it goes to its CPU.
    pub(crate) fn worker_hook(&self) -> StartHook {
        let (cpus, outcome) = (self.rank.worker.clone(), Arc::clone(&self.worker));
        Arc::new(move || {
            // A second worker of this process would go to the same CPU.
            let _ = outcome.set(pin_worker(&cpus));
        })
    }

    /// All CPUs of the rank, for threads that work while the team does not.
    pub(crate) fn cpus(&self) -> CpuSet {
        self.rank.process()
    }

    /// One line: what was planned and what the kernel gave.
    pub(crate) fn line(&self) -> String {
        let threads = match self.rank.threads {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        let how = if self.rank.pinned {
            "pinned"
        } else {
            "shared, not pinned"
        };
        let worker = match self.worker.get() {
            _ if self.rank.worker.is_empty() => "no collectives worker".to_owned(),
            None => format!("collectives worker planned on CPU {}", self.rank.worker),
            Some(Ok(Some(readback))) if !readback.is_exact() => format!(
                "collectives worker planned on CPU {}, the kernel gave {:#}",
                readback.asked, readback.actual
            ),
            Some(Ok(_)) => format!("collectives worker on CPU {}", self.rank.worker),
            Some(Err(reason)) => format!("collectives worker not pinned: {reason}"),
        };
        let mut line = format!(
            "{threads} on CPU {} ({how}); {worker}; {}",
            self.rank.compute, self.report.memory
        );
        for difference in &self.report.differences {
            line.push_str("; ");
            line.push_str(difference);
        }
        line
    }
}
