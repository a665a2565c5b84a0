//! Layer normalisation of rows, forward and backward.

use half::bf16;

use super::masks::{bias_dropout_residual_row, masked_row};
use super::number::Number;
use super::reduce::{Deviations, Plain, reduce};
use crate::epilogue::RowDropout;
use crate::math;
use crate::rng::{Dropout, RowId};
use crate::simd::{Kernel, Lanes, Scalar};

/// What layer normalisation writes; rows of `gamma.len()` columns.
#[derive(Debug, Default)]
pub struct LayerNormOut<'a> {
    /// The result.
    pub f32: Option<&'a mut [f32]>,
    /// The result for the next matrix product.
    pub bf16: Option<&'a mut [bf16]>,
    /// The mean of each row, for backward.
    pub mean: Option<&'a mut [f32]>,
    /// 1 / sqrt(variance + eps) of each row, for backward.
    pub rstd: Option<&'a mut [f32]>,
}

/// Scale, shift and epsilon of a layer normalisation.
#[derive(Debug, Clone, Copy)]
pub struct LayerNormParams<'a> {
    /// Scale of each column.
    pub gamma: &'a [f32],
    /// Shift of each column.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub eps: f32,
}

/// What is added to a row before it is normalised: `x = dropout(x + bias) + residual`, each part optional.
#[derive(Debug, Default, Clone, Copy)]
pub struct Prologue<'a> {
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// Applied after the bias.
    pub dropout: Option<RowDropout<'a>>,
    /// Added last; the shape of x.
    pub residual: Option<&'a [f32]>,
}

/// y = layer_norm(x).
pub(crate) struct Forward<'a> {
    pub(crate) out: LayerNormOut<'a>,
    pub(crate) x: &'a [f32],
    pub(crate) params: LayerNormParams<'a>,
}

impl Kernel for Forward<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(mut self, s: S) {
        for (i, x) in self.x.chunks_exact(self.params.gamma.len()).enumerate() {
            forward_row(s, &mut self.out, i, x, self.params);
        }
    }
}

/// x = dropout(x + bias) + residual, then y = layer_norm(x), while the row is in the nearest cache.
pub(crate) struct ForwardAfter<'a> {
    pub(crate) out: LayerNormOut<'a>,
    pub(crate) x: &'a mut [f32],
    pub(crate) prologue: Prologue<'a>,
    pub(crate) params: LayerNormParams<'a>,
}

impl Kernel for ForwardAfter<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(mut self, s: S) {
        let width = self.params.gamma.len();
        for (i, x) in self.x.chunks_exact_mut(width).enumerate() {
            let residual = self.prologue.residual.map(|r| &r[i * width..][..width]);
            let dropout = self.prologue.dropout.map(|d| (d.dropout, d.rows[i]));
            bias_dropout_residual_row(s, x, self.prologue.bias, dropout, residual);
            forward_row(s, &mut self.out, i, x, self.params);
        }
    }
}

/// Row i of the forward pass: two passes for mean and variance, so that nothing cancels, and one that writes.
#[inline(always)]
fn forward_row<S: Lanes>(s: S, out: &mut LayerNormOut<'_>, i: usize, x: &[f32], params: LayerNormParams<'_>) {
    let width = x.len();
    #[expect(clippy::cast_precision_loss, reason = "rows are shorter than 2^24")]
    let count = width as f32;
    let mean = s.sum(reduce(s, x, Plain, 0.0, 0.0)) / count;
    let variance = s.sum(reduce(s, x, Deviations(mean), 0.0, mean)) / count;
    let rstd = math::rsqrt(Scalar, variance + params.eps);
    if let Some(means) = &mut out.mean {
        means[i] = mean;
    }
    if let Some(rstds) = &mut out.rstd {
        rstds[i] = rstd;
    }
    let row = i * width..(i + 1) * width;
    match (&mut out.f32, &mut out.bf16) {
        (Some(y), Some(z)) => normalise(s, Some(&mut y[row.clone()]), Some(&mut z[row]), x, params, mean, rstd),
        (Some(y), None) => normalise(s, Some(&mut y[row]), None, x, params, mean, rstd),
        (None, Some(z)) => normalise(s, None, Some(&mut z[row]), x, params, mean, rstd),
        (None, None) => {}
    }
}

/// y = (x - mean) rstd gamma + beta, stored in either or both types.
#[inline(always)]
fn normalise<S: Lanes>(
    s: S,
    y: Option<&mut [f32]>,
    z: Option<&mut [bf16]>,
    x: &[f32],
    params: LayerNormParams<'_>,
    mean: f32,
    rstd: f32,
) {
    let (mean, rstd) = (s.splat(mean), s.splat(rstd));
    let (x, x_tail) = x.as_chunks::<16>();
    let (gamma, gamma_tail) = params.gamma.as_chunks::<16>();
    let (beta, beta_tail) = params.beta.as_chunks::<16>();
    let (gamma, beta) = (&gamma[..x.len()], &beta[..x.len()]);
    let (mut y, y_tail) = y.unwrap_or_default().as_chunks_mut::<16>();
    let (mut z, z_tail) = z.unwrap_or_default().as_chunks_mut::<16>();
    // Empty where not wanted; otherwise of x's length, and said so to spare the loop its checks.
    let (with_y, with_z) = (!y.is_empty(), !z.is_empty());
    if with_y {
        y = &mut y[..x.len()];
    }
    if with_z {
        z = &mut z[..x.len()];
    }
    for i in 0..x.len() {
        let value = s.mul(s.sub(s.load(&x[i]), mean), rstd);
        let value = s.fma(value, s.load(&gamma[i]), s.load(&beta[i]));
        if with_y {
            s.store(value, &mut y[i]);
        }
        if with_z {
            s.store_bf16(value, &mut z[i]);
        }
    }
    if !x_tail.is_empty() {
        let value = s.mul(s.sub(s.load_part(x_tail, 0.0), mean), rstd);
        let value = s.fma(value, s.load_part(gamma_tail, 0.0), s.load_part(beta_tail, 0.0));
        s.store_part(value, y_tail);
        s.store_part_bf16(value, z_tail);
    }
}

/// What backward reads: the gradient of the output, and what forward read and saved.
#[derive(Debug, Clone, Copy)]
pub struct LayerNormSaved<'a> {
    /// The input of forward.
    pub x: &'a [f32],
    /// The mean of each row.
    pub mean: &'a [f32],
    /// 1 / sqrt(variance + eps) of each row.
    pub rstd: &'a [f32],
    /// Scale of each column.
    pub gamma: &'a [f32],
}

/// The gradient that leaves a layer normalisation towards the branch with dropout and bias.
#[derive(Debug)]
pub struct Branch<'a> {
    /// The gradient behind the dropout, for the next matrix product.
    pub d_out: BranchOut<'a>,
    /// The dropout of forward.
    pub dropout: Option<RowDropout<'a>>,
    /// Gradient of the bias: the column sums of `d_out` before rounding are added to it, row after row.
    pub d_bias: Option<&'a mut [f32]>,
}

/// Where the branch's gradient goes.
#[derive(Debug)]
pub enum BranchOut<'a> {
    /// As f32.
    F32(&'a mut [f32]),
    /// Rounded to bf16.
    Bf16(&'a mut [bf16]),
}

/// d_x from d_y; the parameters' gradients are added to.
pub(crate) struct Backward<'a, T> {
    pub(crate) d_x: &'a mut [f32],
    pub(crate) d_gamma: &'a mut [f32],
    pub(crate) d_beta: &'a mut [f32],
    pub(crate) d_y: &'a [T],
    pub(crate) saved: LayerNormSaved<'a>,
}

impl<T: Number> Kernel for Backward<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let LayerNormSaved { x, mean, rstd, gamma } = self.saved;
        let width = gamma.len();
        let rows = self.d_x.chunks_exact_mut(width).zip(self.d_y.chunks_exact(width));
        for (i, ((d_x, d_y), x)) in rows.zip(x.chunks_exact(width)).enumerate() {
            backward_row(s, d_x, self.d_gamma, self.d_beta, d_y, x, gamma, mean[i], rstd[i]);
        }
    }
}

/// With n = (x - mean) rstd and g = d_y gamma: d_x = rstd (g - mean(g) - n mean(g n)), d_gamma += d_y n, d_beta += d_y.
///
/// The parameters' gradients stay in the nearest cache from row to row; several rows at a time, with the gradients in
/// registers between them, were tried and were slower.
#[inline(always)]
fn backward_row<S: Lanes, T: Number>(
    s: S,
    d_x: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    d_y: &[T],
    x: &[f32],
    gamma: &[f32],
    mean: f32,
    rstd: f32,
) {
    let (mean, rstd) = (s.splat(mean), s.splat(rstd));
    let (g, gn) = row_sums(s, d_y, x, gamma, mean, rstd);
    #[expect(clippy::cast_precision_loss, reason = "rows are shorter than 2^24")]
    let count = x.len() as f32;
    let (g_mean, minus_gn_mean) = (s.splat(g / count), s.splat(-gn / count));
    let gradient = |dy: S::F, n: S::F, scale: S::F| {
        let inner = s.sub(s.mul(dy, scale), g_mean);
        s.mul(rstd, s.fma(n, minus_gn_mean, inner))
    };

    let (x, x_tail) = x.as_chunks::<16>();
    let (d_y, d_y_tail) = d_y.as_chunks::<16>();
    let (gamma, gamma_tail) = gamma.as_chunks::<16>();
    let (d_x, d_x_tail) = d_x.as_chunks_mut::<16>();
    let (d_gamma, d_gamma_tail) = d_gamma.as_chunks_mut::<16>();
    let (d_beta, d_beta_tail) = d_beta.as_chunks_mut::<16>();
    let columns = d_x.iter_mut().zip(d_gamma).zip(d_beta);
    for ((((d_x, d_gamma), d_beta), x), (d_y, gamma)) in columns.zip(x).zip(d_y.iter().zip(gamma)) {
        let dy = T::load(s, d_y);
        let n = s.mul(s.sub(s.load(x), mean), rstd);
        s.store(s.fma(dy, n, s.load(d_gamma)), d_gamma);
        s.store(s.add(s.load(d_beta), dy), d_beta);
        s.store(gradient(dy, n, s.load(gamma)), d_x);
    }
    if !x_tail.is_empty() {
        let dy = T::load_part(s, d_y_tail, 0.0);
        let n = s.mul(s.sub(s.load_part(x_tail, 0.0), mean), rstd);
        s.store_part(s.fma(dy, n, s.load_part(d_gamma_tail, 0.0)), d_gamma_tail);
        s.store_part(s.add(s.load_part(d_beta_tail, 0.0), dy), d_beta_tail);
        s.store_part(gradient(dy, n, s.load_part(gamma_tail, 0.0)), d_x_tail);
    }
}

/// The sums of g = d_y gamma and of g n over a row, n being the normalised row.
#[inline(always)]
fn row_sums<S: Lanes, T: Number>(s: S, d_y: &[T], x: &[f32], gamma: &[f32], mean: S::F, rstd: S::F) -> (f32, f32) {
    let (x, x_tail) = x.as_chunks::<16>();
    let (d_y, d_y_tail) = d_y.as_chunks::<16>();
    let (gamma, gamma_tail) = gamma.as_chunks::<16>();
    let (d_y, gamma) = (&d_y[..x.len()], &gamma[..x.len()]);
    // Two chains for each sum: even chunks and odd ones. The mean of g n is rstd times the sum over g (x - mean).
    let mut g_sum = [s.splat(0.0); 2];
    let mut gn_sum = [s.splat(0.0); 2];
    for pair in 0..x.len() / 2 {
        for j in 0..2 {
            let i = pair * 2 + j;
            let g = s.mul(T::load(s, &d_y[i]), s.load(&gamma[i]));
            g_sum[j] = s.add(g_sum[j], g);
            gn_sum[j] = s.fma(g, s.sub(s.load(&x[i]), mean), gn_sum[j]);
        }
    }
    if x.len() % 2 == 1 {
        let i = x.len() - 1;
        let g = s.mul(T::load(s, &d_y[i]), s.load(&gamma[i]));
        g_sum[0] = s.add(g_sum[0], g);
        gn_sum[0] = s.fma(g, s.sub(s.load(&x[i]), mean), gn_sum[0]);
    }
    if !x_tail.is_empty() {
        let g = s.mul(T::load_part(s, d_y_tail, 0.0), s.load_part(gamma_tail, 0.0));
        g_sum[1] = s.add(g_sum[1], g);
        gn_sum[1] = s.fma(g, s.sub(s.load_part(x_tail, 0.0), mean), gn_sum[1]);
    }
    let gn = s.mul(s.add(gn_sum[0], gn_sum[1]), rstd);
    (s.sum(s.add(g_sum[0], g_sum[1])), s.sum(gn))
}

/// The branch's gradient: dropout of d_x, its column sums, and its rounding.
pub(crate) struct BranchBackward<'a> {
    pub(crate) branch: Branch<'a>,
    pub(crate) d_x: &'a [f32],
    pub(crate) width: usize,
}

impl Kernel for BranchBackward<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let Branch { d_out, dropout, d_bias } = self.branch;
        match d_out {
            BranchOut::F32(out) => branch_rows(s, out, d_bias, self.d_x, self.width, dropout),
            BranchOut::Bf16(out) => branch_rows(s, out, d_bias, self.d_x, self.width, dropout),
        }
    }
}

/// The rows of [`BranchBackward`] for one type of output.
#[inline(always)]
fn branch_rows<S: Lanes, O: Number>(
    s: S,
    out: &mut [O],
    d_bias: Option<&mut [f32]>,
    d_x: &[f32],
    width: usize,
    dropout: Option<RowDropout<'_>>,
) {
    match d_bias {
        None => {
            for (i, (out, d_x)) in out.chunks_exact_mut(width).zip(d_x.chunks_exact(width)).enumerate() {
                match dropout {
                    Some(RowDropout { dropout, rows }) => {
                        masked_row::<S, O, true, false>(s, out, d_x, &mut [], dropout, rows[i])
                    }
                    None => masked_row::<S, O, false, false>(s, out, d_x, &mut [], Dropout::NONE, RowId::default()),
                }
            }
        }
        Some(d_bias) => {
            for (i, (out, d_x)) in out.chunks_exact_mut(width).zip(d_x.chunks_exact(width)).enumerate() {
                match dropout {
                    Some(RowDropout { dropout, rows }) => {
                        masked_row::<S, O, true, true>(s, out, d_x, d_bias, dropout, rows[i])
                    }
                    None => masked_row::<S, O, false, true>(s, out, d_x, d_bias, Dropout::NONE, RowId::default()),
                }
            }
        }
    }
}
