//! How a communicator behaves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Runs at the start of the communication thread, for instance to pin it.
pub type StartHook = Arc<dyn Fn() + Send + Sync>;

/// What carries the data between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// MPI where an MPI launcher has started the rank and the feature `mpi` is compiled in, else [`Backend::Hybrid`].
    #[default]
    Automatic,
    /// Shared memory between the ranks of a host, TCP between hosts.
    Hybrid,
    /// TCP, also inside a host.
    Tcp,
    /// The cluster's MPI.
    Mpi,
}

/// How a communicator behaves.
#[derive(Clone)]
pub struct Options {
    /// The longest that an operation may take from its call on this rank to its end. Ranks may be this far apart.
    pub deadline: Duration,
    /// How long a rank may be silent before it counts as frozen or cut off. Live ranks speak every second.
    pub silence: Duration,
    /// How long the ranks may take to meet.
    pub join_deadline: Duration,
    /// Bytes of one piece of data: what can be sent before something more urgent, and the grain of overlap.
    pub segment_bytes: usize,
    /// Runs first on the communication thread.
    pub start_hook: Option<StartHook>,
    /// What carries the data.
    pub backend: Backend,
    /// The node that this rank counts itself to, where that is not the host it runs on: ranks with different names
    /// share no memory. For trials in which one machine stands for several nodes.
    pub node: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(300),
            silence: Duration::from_secs(8),
            join_deadline: Duration::from_secs(120),
            // Large enough that system calls and wake-ups are cheap, small enough to stay in the L2 cache.
            segment_bytes: 128 << 10,
            start_hook: None,
            backend: Backend::Automatic,
            node: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("deadline", &self.deadline)
            .field("silence", &self.silence)
            .field("join_deadline", &self.join_deadline)
            .field("segment_bytes", &self.segment_bytes)
            .field("backend", &self.backend)
            .field("node", &self.node)
            .field("start_hook", &self.start_hook.is_some())
            .finish()
    }
}
