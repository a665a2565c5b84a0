//! Which CPUs a rank computes on.

use azulejo_collectives::launch::Launch;
use azulejo_topology::{CpuSet, Error, Spin, TeamConfig, allowed_cpus};

/// One rank's place on its machine.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The CPUs it may use.
    pub(crate) cpus: CpuSet,
    /// Threads that compute.
    pub(crate) threads: usize,
    /// No other rank of the job uses these CPUs; the threads are pinned.
    pub(crate) exclusive: bool,
}

impl Place {
    /// Deals the CPUs that this process may use out among the ranks of its machine, in order. With fewer CPUs than ranks
    /// they are shared: every rank computes with one thread that the kernel places. `asked` is a number of threads that
    /// the user wants (`OMP_NUM_THREADS`); it can lower the number, not raise it above the rank's CPUs.
    pub(crate) fn of(launch: &Launch, asked: Option<usize>) -> Result<Place, Error> {
        let cpus = allowed_cpus()?;
        let ranks = launch.machine_size;
        if cpus.len() < ranks {
            return Ok(Place {
                cpus,
                threads: 1,
                exclusive: false,
            });
        }
        let share = |rank: usize| rank * cpus.len() / ranks;
        let (from, to) = (share(launch.machine_rank), share(launch.machine_rank + 1));
        let mut mine = CpuSet::new();
        let threads = (to - from).min(asked.unwrap_or(usize::MAX)).max(1);
        cpus.iter().skip(from).take(threads).for_each(|cpu| mine.insert(cpu));
        Ok(Place {
            cpus: mine,
            threads,
            exclusive: true,
        })
    }

    /// The team that computes there.
    pub(crate) fn team(&self) -> TeamConfig {
        if self.exclusive {
            return TeamConfig::pinned(&self.cpus);
        }
        let mut config = TeamConfig::unpinned(self.threads);
        // A member that spins would keep the other ranks of this CPU from working.
        config.spin = Spin::Never;
        config
    }
}
