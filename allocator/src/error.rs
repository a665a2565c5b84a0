//! The crate's one error type.

use std::fmt;
use std::io;

/// What can go wrong in the arenas. The global allocator has no errors of its own: it answers with null.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A buffer would have taken the arena above its limit. The arena is as it was before the call.
    Exhausted {
        /// The buffer.
        name: &'static str,
        /// Bytes asked for.
        asked: usize,
        /// Bytes of living leases.
        in_use: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A length that does not fit into memory.
    TooLong {
        /// The buffer.
        name: &'static str,
        /// Elements asked for.
        len: usize,
        /// Bytes of an element.
        element: usize,
    },
    /// An element type that wants a coarser alignment than the arena gives.
    Alignment {
        /// The buffer.
        name: &'static str,
        /// Alignment of the element type.
        asked: usize,
        /// Alignment of every lease.
        given: usize,
    },
    /// A step was ended while leases of it were alive. The step goes on: drop them and end it again.
    Outlived {
        /// The first of the buffers that are alive.
        name: &'static str,
        /// How many are alive.
        leases: usize,
    },
    /// The system had no memory. An arena goes on without a plan.
    Map {
        /// Bytes asked for.
        asked: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Exhausted {
                name,
                asked,
                in_use,
                limit,
            } => {
                write!(
                    f,
                    "buffer {name:?} of {asked} bytes does not fit: {in_use} of at most {limit} bytes are in use"
                )
            }
            Error::TooLong { name, len, element } => {
                write!(
                    f,
                    "buffer {name:?} of {len} elements of {element} bytes is longer than memory"
                )
            }
            Error::Alignment { name, asked, given } => {
                write!(
                    f,
                    "buffer {name:?} wants an alignment of {asked} bytes, the arena gives {given}"
                )
            }
            Error::Outlived { name, leases } => {
                write!(
                    f,
                    "the step cannot end: {leases} of its leases are alive, among them {name:?}"
                )
            }
            Error::Map { asked, source } => write!(f, "cannot map {asked} bytes: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Map { source, .. } => Some(source),
            _ => None,
        }
    }
}
