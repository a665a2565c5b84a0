//! The crate's one error enum. Every variant names the rank or the two sides that disagree.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. See `docs/errors.md` for the state of a communicator afterwards: after [`Error::PeerLost`],
/// [`Error::Deadline`], [`Error::Mismatch`] and [`Error::Worker`] every later call returns the same error at once;
/// after the others nothing was done and the communicator is as before.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A rank died, was cut off, stopped answering or left.
    PeerLost {
        /// The rank that failed.
        rank: usize,
        /// What was seen.
        reason: String,
        /// The rank that saw it, when it was another one.
        reported_by: Option<usize>,
    },
    /// Ranks did not take part in an operation in time.
    Deadline {
        /// The ranks that were waited for.
        missing: Vec<usize>,
        /// The operation, with its number in call order.
        call: String,
        /// How long was waited.
        waited: Duration,
        /// The rank that waited, when it was another one.
        reported_by: Option<usize>,
    },
    /// Two ranks called different operations as their n-th.
    Mismatch {
        /// The number of the operation in call order.
        number: u64,
        /// One rank and what it called.
        one: (usize, String),
        /// Another rank and what it called.
        other: (usize, String),
    },
    /// The communication thread ended unexpectedly.
    Worker {
        /// What it said last.
        reason: String,
    },
    /// A root that is no rank.
    Root {
        /// The root asked for.
        root: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// A rank to send to or to receive from that is none, or the caller itself.
    Partner {
        /// The rank asked for.
        partner: usize,
        /// The caller.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// Buffers that should be equally long are not.
    Length {
        /// Elements expected.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// More bytes than an operation may carry.
    TooLarge {
        /// Bytes given.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Subtrees that do not make up the tree.
    Parts {
        /// What is wrong with them.
        reason: String,
    },
    /// A launcher's variable that cannot be used, or two that disagree.
    Variable {
        /// The variable.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An address that cannot be listened on or reached.
    Address {
        /// The address as it was given.
        address: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The ranks did not all meet in time.
    Join {
        /// Which ranks are absent and what is known of them.
        reason: String,
        /// How long was waited.
        waited: Duration,
    },
    /// A rank of this job that does not fit: another world size, protocol or rank number.
    Refused {
        /// Both sides.
        reason: String,
    },
    /// The job's secret is missing or not usable.
    Secret {
        /// What is wrong with it; never the secret.
        reason: String,
    },
    /// A host file that cannot be read as one.
    HostFile {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A process could not be started or watched.
    Process {
        /// What was done.
        action: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The ranks of a host cannot share memory. [`Backend::Tcp`](crate::Backend::Tcp) goes without.
    SharedMemory {
        /// What the system said.
        reason: String,
    },
    /// The MPI library does not fit.
    Mpi {
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    pub(crate) fn address(address: impl fmt::Display, action: &'static str, source: io::Error) -> Self {
        Self::Address {
            address: address.to_string(),
            action,
            source: Arc::new(source),
        }
    }

    pub(crate) fn process(action: impl Into<String>, source: io::Error) -> Self {
        Self::Process {
            action: action.into(),
            source: Arc::new(source),
        }
    }

    /// The rank that this error blames, where it is exactly one.
    pub fn failed_rank(&self) -> Option<usize> {
        match self {
            Self::PeerLost { rank, .. } => Some(*rank),
            Self::Deadline { missing, .. } if missing.len() == 1 => missing.first().copied(),
            _ => None,
        }
    }
}

/// "rank 1", "ranks 1 and 2", "ranks 1, 2 and 3".
pub(crate) fn ranks(list: &[usize]) -> String {
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    match names.as_slice() {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [head @ .., last] => format!("ranks {} and {last}", head.join(", ")),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reporter = |reported_by: &Option<usize>| match reported_by {
            Some(rank) => format!(" (reported by rank {rank})"),
            None => String::new(),
        };
        match self {
            Self::PeerLost {
                rank,
                reason,
                reported_by,
            } => {
                write!(f, "rank {rank} {reason}{}", reporter(reported_by))
            }
            Self::Deadline {
                missing,
                call,
                waited,
                reported_by,
            } => write!(
                f,
                "{} did not take part in {call} within {:.1} s{}",
                ranks(missing),
                waited.as_secs_f64(),
                reporter(reported_by)
            ),
            Self::Mismatch { number, one, other } => write!(
                f,
                "operation {number} differs between ranks: rank {} called {}, rank {} called {}",
                one.0, one.1, other.0, other.1
            ),
            Self::Worker { reason } => write!(f, "the communication thread ended: {reason}"),
            Self::Root { root, world_size } => {
                write!(f, "root {root} is no rank of a world of {world_size}")
            }
            Self::Partner {
                partner,
                rank,
                world_size,
            } => write!(
                f,
                "rank {partner} is no other rank than {rank} in a world of {world_size}"
            ),
            Self::Length { expected, got } => write!(f, "expected {expected} elements, got {got}"),
            Self::TooLarge { bytes, limit } => write!(f, "{bytes} bytes are more than the {limit} allowed"),
            Self::Parts { reason } => write!(f, "the parts are no tree: {reason}"),
            Self::Variable { name, reason } => write!(f, "{name}: {reason}"),
            Self::Address {
                address,
                action,
                source,
            } => write!(f, "cannot {action} {address}: {source}"),
            Self::Join { reason, waited } => {
                write!(
                    f,
                    "the ranks did not all meet within {:.1} s: {reason}",
                    waited.as_secs_f64()
                )
            }
            Self::Refused { reason } => write!(f, "refused to join: {reason}"),
            Self::Secret { reason } => write!(f, "the job's secret: {reason}"),
            Self::HostFile { line, reason } => write!(f, "host file, line {line}: {reason}"),
            Self::Process { action, source } => write!(f, "cannot {action}: {source}"),
            Self::SharedMemory { reason } => write!(f, "shared memory: {reason}"),
            Self::Mpi { reason } => write!(f, "MPI: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Address { source, .. } | Self::Process { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}
