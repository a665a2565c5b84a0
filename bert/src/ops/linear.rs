//! `y = x W^T + b`, with what follows it: nothing, GELU, or a residual.

use crate::error::Result;
use crate::ops::{Context, column_sums};
use crate::precision::Operand;
use azulejo_amx::{Epilogue, MatMut, MatRef, Out};

/// A weight matrix `(n, k)` with its bias: what the flat buffer holds, and what is prepared from it.
pub(crate) struct Layer<'a, T: Operand> {
    pub(crate) weight: &'a [f32], // (n, k)
    pub(crate) bias: &'a [f32],   // (n)
    pub(crate) prepared: &'a T::Prepared,
}

impl<T: Operand> Layer<'_, T> {
    fn n(&self) -> usize {
        self.bias.len()
    }

    fn k(&self) -> usize {
        self.weight.len() / self.bias.len()
    }

    fn operand(&self) -> Result<(MatRef<'_, f32>, &T::Prepared)> {
        Ok((MatRef::row_major(self.weight, self.n(), self.k())?, self.prepared))
    }
}

/// `y = x W^T`: the bias is left to the operation that reads y. y `(t, n)`, x `(t, k)`
pub(crate) fn forward_without_bias<T: Operand>(cx: Context, y: &mut [f32], x: &[T], layer: &Layer<T>) -> Result<()> {
    forward_into(cx, Out::f32(dense_mut(y, layer.n())?), x, layer, Epilogue::default())
}

/// `y = x W^T + b`. y `(t, n)`, x `(t, k)`
pub(crate) fn forward<T: Operand>(cx: Context, y: &mut [f32], x: &[T], layer: &Layer<T>) -> Result<()> {
    let epilogue = Epilogue {
        bias: Some(layer.bias),
        ..Default::default()
    };
    forward_into(cx, Out::f32(dense_mut(y, layer.n())?), x, layer, epilogue)
}

/// The same, rounded for the next product.
pub(crate) fn forward_rounded<T: Operand>(cx: Context, y: &mut [T], x: &[T], layer: &Layer<T>) -> Result<()> {
    let epilogue = Epilogue {
        bias: Some(layer.bias),
        ..Default::default()
    };
    forward_into(cx, T::out(dense_mut(y, layer.n())?), x, layer, epilogue)
}

/// `g = gelu(u)`, `u = x W^T + b`. g, u `(t, n)`, x `(t, k)`
pub(crate) fn forward_gelu<T: Operand>(cx: Context, g: &mut [T], u: &mut [T], x: &[T], layer: &Layer<T>) -> Result<()> {
    let gelu = Some(T::gelu(dense_mut(u, layer.n())?));
    let epilogue = Epilogue {
        bias: Some(layer.bias),
        gelu,
        ..Default::default()
    };
    forward_into(cx, T::out(dense_mut(g, layer.n())?), x, layer, epilogue)
}

/// `d_x = d_y W + residual`. d_x, residual `(t, k)`, d_y `(t, n)`
pub(crate) fn backward_input<T: Operand>(
    cx: Context,
    d_x: &mut [f32],
    d_y: &[T],
    layer: &Layer<T>,
    residual: Option<&[f32]>,
) -> Result<()> {
    let residual = residual.map(|r| dense(r, layer.k())).transpose()?;
    let epilogue = Epilogue {
        residual,
        ..Default::default()
    };
    backward_into(cx, Out::f32(dense_mut(d_x, layer.k())?), d_y, layer, epilogue)
}

/// The same without a residual, rounded for the next product.
pub(crate) fn backward_input_rounded<T: Operand>(
    cx: Context,
    d_x: &mut [T],
    d_y: &[T],
    layer: &Layer<T>,
) -> Result<()> {
    backward_into(cx, T::out(dense_mut(d_x, layer.k())?), d_y, layer, Epilogue::default())
}

/// `d_u = (d_y W) gelu'(u)`: through the projection and the GELU below it. d_u, u `(t, k)`, d_y `(t, n)`
pub(crate) fn backward_input_gelu<T: Operand>(
    cx: Context,
    d_u: &mut [T],
    d_y: &[T],
    layer: &Layer<T>,
    u: &[T],
) -> Result<()> {
    let d_gelu = Some(T::d_gelu(dense(u, layer.k())?));
    let epilogue = Epilogue {
        d_gelu,
        ..Default::default()
    };
    backward_into(cx, T::out(dense_mut(d_u, layer.k())?), d_y, layer, epilogue)
}

/// `d_w += d_y^T x`. d_w `(n, k)`, d_y `(t, n)`, x `(t, k)`
pub(crate) fn backward_weight<T: Operand>(cx: Context, d_w: &mut [f32], d_y: &[T], x: &[T], n: usize) -> Result<()> {
    let k = d_w.len() / n;
    let out = Out::add_f32(dense_mut(d_w, k)?);
    let (d_y, x) = (dense(d_y, n)?, dense(x, k)?);
    cx.with_scratch(|scratch| T::product(&cx.gemm, cx.exec, out, d_y.t(), x, Epilogue::default(), scratch))
}

/// `d_w += d_y^T x` and `d_b += sum of d_y`. d_w `(n, k)`, d_b `(n)`, d_y `(t, n)`, x `(t, k)`
pub(crate) fn backward_parameters<T: Operand>(
    cx: Context,
    d_w: &mut [f32],
    d_b: &mut [f32],
    d_y: &[T],
    x: &[T],
) -> Result<()> {
    backward_weight(cx, d_w, d_y, x, d_b.len())?;
    column_sums::add(cx, d_b, d_y)
}

fn forward_into<T: Operand>(cx: Context, out: Out, x: &[T], layer: &Layer<T>, epilogue: Epilogue) -> Result<()> {
    let x = dense(x, layer.k())?;
    let weight = layer.operand()?;
    cx.with_scratch(|scratch| T::product_forward(&cx.gemm, cx.exec, out, x, weight, epilogue, scratch))
}

fn backward_into<T: Operand>(cx: Context, out: Out, d_y: &[T], layer: &Layer<T>, epilogue: Epilogue) -> Result<()> {
    let d_y = dense(d_y, layer.n())?;
    let weight = layer.operand()?;
    cx.with_scratch(|scratch| T::product_backward(&cx.gemm, cx.exec, out, d_y, weight, epilogue, scratch))
}

/// A whole buffer as rows of `cols` elements.
pub(crate) fn dense<T>(data: &[T], cols: usize) -> Result<MatRef<'_, T>> {
    Ok(MatRef::row_major(data, data.len() / cols, cols)?)
}

/// A whole buffer as rows of `cols` elements.
pub(crate) fn dense_mut<T>(data: &mut [T], cols: usize) -> Result<MatMut<'_, T>> {
    let rows = data.len() / cols;
    Ok(MatMut::row_major(data, rows, cols)?)
}
