//! How the values of the ranks are joined.

use std::fmt;

/// How a reduction joins the values of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum, added in the fixed tree order; 16-bit floats are added in f32 and rounded once.
    Sum,
    /// The smallest value; NaN where a rank has NaN.
    Min,
    /// The largest value; NaN where a rank has NaN.
    Max,
    /// The sum, divided by the number of ranks before it is rounded; of whole numbers, rounded towards zero.
    Average,
}

impl ReduceOp {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Average => 4,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Sum),
            2 => Some(Self::Min),
            3 => Some(Self::Max),
            4 => Some(Self::Average),
            _ => None,
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Average => "average",
        })
    }
}
