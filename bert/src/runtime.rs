//! Where the threads of a placement plan meet the kernels and the data.
//!
//! `azulejo-amx` asks for an executor of the caller's choice and knows no threads; `azulejo-topology` has a pinned team
//! and knows no matrices. The newtype here joins them.

use azulejo_amx::Executor;
use azulejo_topology::{CpuSet, Team, pin_current_thread};

/// A pinned [`Team`] as the executor of matrix products and row operations.
///
/// ```
/// use azulejo_bert::Executor;
/// use azulejo_bert::runtime::TeamExecutor;
/// use azulejo_topology::{Team, TeamConfig};
///
/// let exec = TeamExecutor(Team::new(TeamConfig::unpinned(2))?);
/// assert_eq!(exec.threads(), 2);
/// # Ok::<(), azulejo_topology::Error>(())
/// ```
#[derive(Debug)]
pub struct TeamExecutor(pub Team);

impl Executor for TeamExecutor {
    fn threads(&self) -> usize {
        self.0.threads()
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        self.0.run(task);
    }
}

/// Starts the threads that prepare data (tokenising and cutting into windows), each free to run on all of `cpus`: `threads`
/// of them, or one for each of the CPUs. Returns whether they could be started, which is once in a process and before the
/// first data are prepared.
///
/// A thread inherits the CPUs of the one that starts it, and making a pinned [`Team`] pins the calling thread to one CPU;
/// threads that started by themselves afterwards would all share that one.
pub fn preparation_threads(threads: Option<usize>, cpus: &CpuSet) -> bool {
    let cpus = cpus.clone();
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(cpus.len()))
        .thread_name(|i| format!("prepare {i}"))
        .start_handler(move |_| {
            if let Err(error) = pin_current_thread(&cpus) {
                tracing::warn!("a thread that prepares data stays where it is: {error}");
            }
        })
        .build_global()
        .is_ok()
}
