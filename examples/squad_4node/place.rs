//! Where a rank computes, where its collectives worker runs and where its memory is: this machine's part of the plan.

use azulejo_collectives::launch::Launch;
use azulejo_topology::{Error, Machine, Plan, RankPlan, Report, Request, TeamConfig, apply};

/// One rank's place on its machine, carried out.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    rank: RankPlan,
    /// What the kernel made of it.
    report: Report,
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
            table: plan.to_string(),
        })
    }

    /// The team that computes there.
    pub(crate) fn team(&self) -> TeamConfig {
        self.rank.team()
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
        let worker = match self.rank.worker.to_string() {
            none if none.is_empty() => "no collectives worker".to_owned(),
            cpus => format!("collectives worker on CPU {cpus}"),
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
