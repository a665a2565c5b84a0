//! What the matrix products read: `f32`, or `bf16` rounded once where a value is produced.
//!
//! Either way sums are kept in `f32`, and so are the residual stream, LayerNorm, softmax, loss, gradients of
//! parameters and the weights that the optimiser updates.

use crate::buffers::Pooled;
use half::bf16;

/// Type of the operands of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// `f32` throughout.
    F32,
    /// `bf16` operands, `f32` everywhere else.
    Bf16,
}

/// An operand type of matrix products.
pub(crate) trait Operand: Pooled {
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Operand for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Operand for bf16 {
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}
