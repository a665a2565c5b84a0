//! Where the thread team meets the kernels.
//!
//! `azulejo-amx` asks for an executor of the caller's choice and knows no threads; `azulejo-topology` has a pinned team
//! and knows no matrices. The newtype here joins them.

use azulejo_amx::Executor;
use azulejo_topology::Team;

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
