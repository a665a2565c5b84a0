//! The crate's one error type. Every variant carries both sides: what was expected and what came.

use std::fmt;

use crate::isa::{Isa, Unavailable};

/// What can go wrong at the public door. Nothing has been computed or written when one of these is returned, except
/// for [`Error::Executor`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A name that is no instruction set of this crate.
    UnknownIsa {
        /// The name that was given.
        name: String,
    },
    /// The instruction set exists but cannot be used here.
    IsaUnavailable {
        /// The instruction set asked for.
        isa: Isa,
        /// The step of the detection that failed.
        reason: Unavailable,
    },
    /// A view reaches past the end of its slice.
    Extent {
        /// Elements that shape and strides need.
        needed: usize,
        /// Elements in the slice.
        available: usize,
    },
    /// Shape times stride does not fit in the address space.
    Overflow {
        /// Rows of the shape.
        rows: usize,
        /// Columns of the shape.
        cols: usize,
    },
    /// Rows of a mutable view would overlap.
    RowStride {
        /// Columns of the view: the least row stride.
        cols: usize,
        /// The row stride that was given.
        row_stride: usize,
    },
    /// Two operands disagree about a shape.
    Shape {
        /// Which operand.
        what: &'static str,
        /// Shape that the other operands imply (rows, columns).
        expected: (usize, usize),
        /// Shape that was given.
        got: (usize, usize),
    },
    /// A call without any output.
    NoOutput,
    /// Options that exclude each other.
    Conflict {
        /// The two options in words.
        what: &'static str,
    },
    /// A zero point that its type cannot hold.
    ZeroPoint {
        /// Which one.
        what: &'static str,
        /// What was given.
        value: i32,
        /// The least value of the type.
        least: i32,
        /// The greatest value of the type.
        most: i32,
    },
    /// The stored sum of a column of a packed operand is not the sum of its elements: the storage is damaged.
    PackedSum {
        /// The column.
        column: usize,
        /// The sum of the elements.
        expected: i32,
        /// The sum that was stored.
        got: i32,
    },
    /// The executor returned before every tile was computed; the outputs are incomplete.
    Executor {
        /// Tiles computed.
        done: usize,
        /// Tiles of the call.
        total: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownIsa { name } => {
                write!(
                    f,
                    "unknown instruction set {name:?}, expected portable, avx2, avx512 or amx"
                )
            }
            Self::IsaUnavailable { isa, reason } => write!(f, "instruction set {isa} cannot be used here: {reason}"),
            Self::Extent { needed, available } => {
                write!(f, "the view needs {needed} elements, the slice has {available}")
            }
            Self::Overflow { rows, cols } => {
                write!(
                    f,
                    "a view of {rows} x {cols} with these strides exceeds the address space"
                )
            }
            Self::RowStride { cols, row_stride } => {
                write!(
                    f,
                    "row stride {row_stride} is less than the {cols} columns of a mutable view"
                )
            }
            Self::Shape { what, expected, got } => {
                write!(
                    f,
                    "{what}: expected {} x {}, got {} x {}",
                    expected.0, expected.1, got.0, got.1
                )
            }
            Self::NoOutput => write!(f, "no output was given"),
            Self::Conflict { what } => write!(f, "{what} exclude each other"),
            Self::ZeroPoint {
                what,
                value,
                least,
                most,
            } => write!(f, "{what}: expected {least} to {most}, got {value}"),
            Self::PackedSum { column, expected, got } => {
                write!(
                    f,
                    "the packed operand is damaged: the elements of column {column} add up to {expected}, the stored sum is {got}"
                )
            }
            Self::Executor { done, total } => {
                write!(
                    f,
                    "the executor returned after {done} of {total} tiles, the outputs are incomplete"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
