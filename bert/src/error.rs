//! The crate's one error type.

use std::fmt;
use std::path::{Path, PathBuf};

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
    /// A file is not the JSON it should be.
    Json {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// Two questions of one data set have the same id.
    DuplicateId {
        /// The file.
        path: PathBuf,
        /// The id.
        id: String,
        /// Number in the file, counted from 1, of the question that first uses the id.
        first: usize,
        /// Number of the question that uses it again.
        second: usize,
    },
    /// A file of the right format without the contents that are needed: a data set, a vocabulary, a weight file.
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is missing or wrong.
        reason: String,
    },
    /// A question leaves no room for its context in the window.
    QuestionTooLong {
        /// The question's id.
        id: String,
        /// Length of the question in tokens.
        tokens: usize,
        /// The longest question that the window admits.
        limit: usize,
        /// The window's length in tokens.
        max_length: usize,
    },
    /// Windows would not advance: they overlap by at least as many tokens as there is room for.
    StrideTooLarge {
        /// The question's id.
        id: String,
        /// Tokens of the context that fit into a window of this question.
        budget: usize,
        /// The overlap asked for.
        stride: usize,
    },
    /// A tensor of a weight file has another shape than the model.
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor's name in the file.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// The file's shape.
        got: Vec<usize>,
    },
    /// A weight file lacks tensors that the model cannot do without.
    MissingTensors {
        /// The file.
        path: PathBuf,
        /// Their names.
        names: Vec<String>,
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
    /// There is no memory for a step's buffers.
    Memory(azulejo_allocator::Error),
    /// A step of training failed.
    Step {
        /// Its number, counted from 1.
        step: u64,
        /// What happened.
        source: Box<Error>,
    },
    /// The Hugging Face Hub did not give what was asked for.
    Hub {
        /// The repository.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// Another rank failed, or could not be reached.
    Collectives(azulejo_collectives::Error),
}

impl From<azulejo_collectives::Error> for Error {
    fn from(error: azulejo_collectives::Error) -> Error {
        Error::Collectives(error)
    }
}

impl From<azulejo_allocator::Error> for Error {
    fn from(error: azulejo_allocator::Error) -> Error {
        Error::Memory(error)
    }
}

impl From<azulejo_amx::Error> for Error {
    fn from(error: azulejo_amx::Error) -> Error {
        Error::Kernel(error)
    }
}

impl Error {
    /// Turns an I/O error of `path` into an [`Error::Io`], for `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    }

    /// The same error, with the number of the step in which it happened.
    pub(crate) fn in_step(self, step: u64) -> Error {
        Error::Step {
            step,
            source: Box::new(self),
        }
    }

    /// An [`Error::File`].
    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Error {
        Error::File {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Json {
                path,
                line,
                column,
                message,
            } => write!(f, "{}:{line}:{column}: {message}", path.display()),
            Error::DuplicateId {
                path,
                id,
                first,
                second,
            } => write!(
                f,
                "{}: questions {first} and {second} have the same id {id:?}",
                path.display()
            ),
            Error::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Error::QuestionTooLong {
                id,
                tokens,
                limit,
                max_length,
            } => write!(
                f,
                "question {id:?} has {tokens} tokens, but windows of {max_length} tokens leave room for at most {limit}: \
                 shorten the question or raise the window length"
            ),
            Error::StrideTooLarge { id, budget, stride } => write!(
                f,
                "windows of question {id:?} hold {budget} tokens of its context and cannot overlap by {stride}: \
                 lower the stride below {budget} or raise the window length"
            ),
            Error::TensorShape {
                path,
                name,
                expected,
                got,
            } => write!(
                f,
                "{}: tensor {name:?} has shape {got:?}, the model needs {expected:?}",
                path.display()
            ),
            Error::MissingTensors { path, names } => write!(
                f,
                "{}: {} tensors that the model needs are missing: {}",
                path.display(),
                names.len(),
                names.join(", ")
            ),
            Error::Config { reason } => write!(f, "model configuration: {reason}"),
            Error::Batch { reason } => write!(f, "batch: {reason}"),
            Error::Length { what, expected, got } => write!(f, "{what}: expected {expected} elements, got {got}"),
            Error::Kernel(source) => write!(f, "{source}"),
            Error::Memory(source) => write!(f, "{source}"),
            Error::Step { step, source } => write!(f, "step {step}: {source}"),
            Error::Hub { what, reason } => write!(f, "{what}: {reason}"),
            Error::Collectives(source) => write!(f, "{source}"),
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
            Error::Memory(source) => Some(source),
            Error::Step { source, .. } => Some(source),
            Error::Collectives(source) => Some(source),
            _ => None,
        }
    }
}
