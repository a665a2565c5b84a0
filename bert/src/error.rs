//! The crate's one error type.

use std::fmt;
use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong; every variant names both what was expected and what came.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A model configuration that cannot be used.
    Config {
        /// What is wrong with it, with both sides.
        reason: String,
    },
    /// A batch that does not fit the model.
    Batch {
        /// What is wrong with it, with both sides.
        reason: String,
    },
    /// A buffer of the wrong length.
    Length {
        /// The buffer.
        what: &'static str,
        /// Elements it must have.
        expected: usize,
        /// Elements it has.
        got: usize,
    },
    /// A loss or gradient that is not a finite number.
    NotFinite {
        /// The first bad tensor in the order of the computation.
        tensor: String,
        /// Global indices of the samples of the micro-batch in which it appeared; empty where only the sum over
        /// several is known.
        samples: Vec<u64>,
    },
    /// A matrix product or row operation refused its operands.
    Kernel(azulejo_amx::Error),
}

impl From<azulejo_amx::Error> for Error {
    fn from(error: azulejo_amx::Error) -> Error {
        Error::Kernel(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Config { reason } => write!(f, "model configuration: {reason}"),
            Error::Batch { reason } => write!(f, "batch: {reason}"),
            Error::Length { what, expected, got } => write!(f, "{what}: expected {expected} elements, got {got}"),
            Error::Kernel(source) => write!(f, "{source}"),
            Error::NotFinite { tensor, samples } if samples.is_empty() => write!(f, "{tensor} is not finite"),
            Error::NotFinite { tensor, samples } => {
                write!(f, "{tensor} is not finite (samples {samples:?} of this micro-batch)")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Kernel(source) => Some(source),
            _ => None,
        }
    }
}
