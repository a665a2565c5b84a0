//! What the matrix products read: `f32`, or `bf16` rounded once where a value is produced.
//!
//! Either way sums are kept in `f32`, and so are the residual stream, LayerNorm, softmax, loss, gradients of
//! parameters and the weights that the optimiser updates.

use crate::error::Result;
use azulejo_amx::attention::Activation;
use azulejo_amx::rows::{BranchOut, LayerNormOut};
use azulejo_amx::{DGelu, Epilogue, Executor, Gelu, Gemm, MatMut, MatRef, Out, Packed, Scratch};
use half::bf16;
use std::fmt::Debug;

/// Type of the operands of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// `f32` throughout.
    F32,
    /// `bf16` operands, `f32` everywhere else.
    Bf16,
}

/// An operand type of matrix products, and what differs between the two.
pub(crate) trait Operand: Activation {
    /// A weight matrix `(n, k)` as the products read it beside the flat buffer.
    type Prepared: Debug + Send + Sync;

    fn prepared(n: usize, k: usize) -> Self::Prepared;

    /// Takes over new values of the weight.
    fn prepare(prepared: &mut Self::Prepared, weight: MatRef<f32>) -> Result<()>;

    /// `out = epilogue(a b)`, any strides.
    fn product(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        a: MatRef<Self>,
        b: MatRef<Self>,
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()>;

    /// `out = epilogue(x W^T)`.
    fn product_forward(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        x: MatRef<Self>,
        weight: (MatRef<f32>, &Self::Prepared),
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()>;

    /// `out = epilogue(d_y W)`.
    fn product_backward(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        d_y: MatRef<Self>,
        weight: (MatRef<f32>, &Self::Prepared),
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()>;

    fn out(matrix: MatMut<Self>) -> Out;
    fn gelu(save: MatMut<Self>) -> Gelu;
    fn d_gelu(u: MatRef<Self>) -> DGelu;
    fn branch_out(out: &mut [Self]) -> BranchOut<'_>;

    /// LayerNorm's outputs y and rounded; [`after_layer_norm`](Operand::after_layer_norm) completes them.
    fn layer_norm_out<'a>(y: &'a mut [f32], rounded: &'a mut [Self]) -> LayerNormOut<'a>;
    fn after_layer_norm(y: &[f32], rounded: &mut [Self]);
}

impl Operand for f32 {
    /// The flat buffer is what the products read.
    type Prepared = ();

    fn prepared(_n: usize, _k: usize) {}

    fn prepare(_prepared: &mut (), _weight: MatRef<f32>) -> Result<()> {
        Ok(())
    }

    fn product(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        a: MatRef<f32>,
        b: MatRef<f32>,
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()> {
        Ok(gemm.f32(exec, out, a, b, epilogue, scratch)?)
    }

    fn product_forward(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        x: MatRef<f32>,
        weight: (MatRef<f32>, &()),
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()> {
        Ok(gemm.f32(exec, out, x, weight.0.t(), epilogue, scratch)?)
    }

    fn product_backward(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        d_y: MatRef<f32>,
        weight: (MatRef<f32>, &()),
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()> {
        Ok(gemm.f32(exec, out, d_y, weight.0, epilogue, scratch)?)
    }

    fn out(matrix: MatMut<f32>) -> Out {
        Out::f32(matrix)
    }

    fn gelu(save: MatMut<f32>) -> Gelu {
        Gelu {
            save_f32: Some(save),
            save_bf16: None,
        }
    }

    fn d_gelu(u: MatRef<f32>) -> DGelu {
        DGelu::F32(u)
    }

    fn branch_out(out: &mut [f32]) -> BranchOut<'_> {
        BranchOut::F32(out)
    }

    fn layer_norm_out<'a>(y: &'a mut [f32], _rounded: &'a mut [f32]) -> LayerNormOut<'a> {
        LayerNormOut {
            f32: Some(y),
            ..Default::default()
        }
    }

    fn after_layer_norm(y: &[f32], rounded: &mut [f32]) {
        rounded.copy_from_slice(y);
    }
}

/// A weight packed for both directions.
#[derive(Debug)]
pub(crate) struct Both {
    forward: Packed,  // W^T: (k, n)
    backward: Packed, // W: (n, k)
}

impl Operand for bf16 {
    type Prepared = Both;

    fn prepared(n: usize, k: usize) -> Both {
        Both {
            forward: Packed::new(k, n),
            backward: Packed::new(n, k),
        }
    }

    fn prepare(prepared: &mut Both, weight: MatRef<f32>) -> Result<()> {
        prepared.forward.pack_f32(weight.t())?;
        prepared.backward.pack_f32(weight)?;
        Ok(())
    }

    fn product(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        a: MatRef<bf16>,
        b: MatRef<bf16>,
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()> {
        Ok(gemm.bf16_unpacked(exec, out, a, b, epilogue, scratch)?)
    }

    fn product_forward(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        x: MatRef<bf16>,
        weight: (MatRef<f32>, &Both),
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()> {
        Ok(gemm.bf16(exec, out, x, weight.1.forward.as_ref(), epilogue, scratch)?)
    }

    fn product_backward(
        gemm: &Gemm,
        exec: &dyn Executor,
        out: Out,
        d_y: MatRef<bf16>,
        weight: (MatRef<f32>, &Both),
        epilogue: Epilogue,
        scratch: &mut Scratch,
    ) -> Result<()> {
        Ok(gemm.bf16(exec, out, d_y, weight.1.backward.as_ref(), epilogue, scratch)?)
    }

    fn out(matrix: MatMut<bf16>) -> Out {
        Out::bf16(matrix)
    }

    fn gelu(save: MatMut<bf16>) -> Gelu {
        Gelu {
            save_f32: None,
            save_bf16: Some(save),
        }
    }

    fn d_gelu(u: MatRef<bf16>) -> DGelu {
        DGelu::Bf16(u)
    }

    fn branch_out(out: &mut [bf16]) -> BranchOut<'_> {
        BranchOut::Bf16(out)
    }

    fn layer_norm_out<'a>(y: &'a mut [f32], rounded: &'a mut [bf16]) -> LayerNormOut<'a> {
        LayerNormOut {
            f32: Some(y),
            bf16: Some(rounded),
            ..Default::default()
        }
    }

    fn after_layer_norm(_y: &[f32], _rounded: &mut [bf16]) {}
}
