//! The crate's one error type.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cpuset::{CpuId, CpuSet};

/// What can go wrong while reading a machine, planning on it or applying a plan.
///
/// No call of this crate leaves a thread half pinned: after an error the affinity of the calling thread is what it was
/// before, unless the variant says otherwise.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder of the machine's description could not be read.
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A text did not have the form that was expected of it.
    Parse {
        /// Where the text came from: a path or the name of a variable.
        origin: String,
        /// The text.
        text: String,
        /// The form that was expected.
        expected: &'static str,
    },
    /// The description of the machine holds no CPU that may be used.
    NoCpu {
        /// The CPUs that are online.
        online: CpuSet,
        /// The CPUs that the affinity mask and the cpuset allow.
        allowed: CpuSet,
    },
    /// A request cannot be met on this machine.
    Request {
        /// What was asked for.
        asked: String,
        /// What the machine has.
        available: String,
    },
    /// A rank that the plan does not have.
    Rank {
        /// The rank that was asked for.
        rank: usize,
        /// The number of ranks in the plan.
        ranks: usize,
    },
    /// A system call refused.
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A thread could not be pinned.
    Pin {
        /// The CPUs that were asked for.
        asked: CpuSet,
        /// The CPUs on which the kernel lets the thread run.
        actual: CpuSet,
        /// What the system said.
        source: io::Error,
    },
    /// A team needs at least one thread.
    EmptyTeam,
    /// A thread of the team could not be started; those that had been started have ended again.
    Spawn {
        /// The member that could not be started.
        member: usize,
        /// The number of members that were asked for.
        members: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A member of the team could not be pinned; all members have ended again. The calling thread, member 0, keeps the
    /// pinning it got.
    TeamPin {
        /// The member.
        member: usize,
        /// The CPU it was to run on.
        cpu: CpuId,
        /// What the system said.
        reason: String,
    },
    /// The second reading of the machine by libhwloc failed.
    #[cfg(feature = "hwloc")]
    Hwloc {
        /// What was asked of libhwloc.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read { path, source } => write!(f, "cannot read {}: {source}", path.display()),
            Error::Parse { origin, text, expected } => {
                write!(f, "{origin}: expected {expected}, got {text:?}")
            }
            Error::NoCpu { online, allowed } => {
                write!(f, "no usable CPU: online are {online:#}, allowed are {allowed:#}")
            }
            Error::Request { asked, available } => write!(f, "asked for {asked}, but there is {available}"),
            Error::Rank { rank, ranks } => write!(f, "asked for local rank {rank} of a plan of {ranks} ranks"),
            Error::System { call, source } => write!(f, "{call}: {source}"),
            Error::Pin { asked, actual, source } => {
                write!(
                    f,
                    "cannot pin the thread to CPUs {asked:#} (it may run on {actual:#}): {source}"
                )
            }
            Error::EmptyTeam => write!(f, "a team needs at least 1 thread, got 0"),
            Error::Spawn {
                member,
                members,
                source,
            } => {
                write!(f, "cannot start thread {member} of a team of {members}: {source}")
            }
            Error::TeamPin { member, cpu, reason } => {
                write!(f, "cannot pin member {member} of the team to CPU {cpu}: {reason}")
            }
            #[cfg(feature = "hwloc")]
            Error::Hwloc { what, reason } => write!(f, "libhwloc, asked for {what}: {reason}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Read { source, .. }
            | Error::System { source, .. }
            | Error::Pin { source, .. }
            | Error::Spawn { source, .. } => Some(source),
            _ => None,
        }
    }
}
