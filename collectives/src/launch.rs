//! Who this process is in the job, and how the other processes are started.
//!
//! The same program is launcher and worker. [`detect`] reads what a launcher has set (torchrun and its relatives, MPI
//! launchers, Slurm, this crate's own) and answers what this process shall do: be a rank, start the ranks of a node,
//! or, where nobody has said anything, whatever its own arguments ask for ([`Local`] and [`Remote`] start ranks).
//!
//! | source, in order of precedence | variables |
//! | --- | --- |
//! | torchrun, this crate's launcher | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
//! | a PyTorchJob without torchrun | `PET_NODE_RANK`, `PET_NNODES`, `PET_NPROC_PER_NODE`, `PET_MASTER_ADDR`, `PET_MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` |
//! | Hydra (MPICH, Intel MPI) | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
//! | Slurm's srun | `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` |

use std::fmt;
use std::path::PathBuf;

use crate::auth::Secret;

mod env;
mod host_file;
mod local;
mod output;
mod ssh;

pub use env::{detect, detect_in};
pub use host_file::{Host, parse_host_file, place};
pub use local::{Local, Outcome, STATUS_PEER_LOST};
pub use ssh::Remote;

/// The most ranks of a job: the list that they exchange when they meet has room for no more.
pub const LARGEST_WORLD: usize = 16_384;

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// Rank 0 listens there.
    Address {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
    },
    /// All ranks are on one machine: rank 0 listens on a free port of the loopback interface and writes it to this
    /// file, in a folder that is the user's alone. No port is chosen in advance, so none can be taken.
    File(PathBuf),
    /// Nobody has said; ranks that an MPI launcher has started can still meet through MPI.
    Unknown,
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Address { host, port } => write!(f, "{host}:{port}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Unknown => write!(f, "an unknown place"),
        }
    }
}

/// One rank's place in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// This rank, counted from 0.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// This rank among those of its node.
    pub local_rank: usize,
    /// The number of ranks on its node.
    pub local_size: usize,
    /// This rank among all those on its machine: differs from `local_rank` where one machine stands for many nodes.
    pub machine_rank: usize,
    /// The number of ranks on its machine.
    pub machine_size: usize,
    /// Where the ranks meet.
    pub meeting: Meeting,
    /// The job's secret. Without one, ranks can meet only through a file of their user.
    pub secret: Option<Secret>,
    /// Who said all this, for messages.
    pub source: &'static str,
}

impl Launch {
    /// Whether an MPI launcher has started this rank.
    pub fn by_mpi(&self) -> bool {
        self.source.starts_with("OMPI_") || self.source.starts_with("PMI_")
    }
}

/// A node's share of a job: what an agent on it has to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShare {
    /// This node, counted from 0.
    pub node: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// Ranks on each node.
    pub ranks_per_node: usize,
    /// Where the ranks meet.
    pub meeting: Meeting,
}

/// What a process shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Be this rank.
    Rank(Launch),
    /// Start the ranks of this node.
    Node(NodeShare),
    /// Nobody has said anything: the program's arguments decide.
    Unassigned,
}
