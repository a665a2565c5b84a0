//! `y = (x - mean) rstd gamma + beta` over each row, with what stands before it at the end of a sublayer:
//! `x = dropout(branch + bias) + residual`.

use crate::error::Result;
use crate::ops::{BLOCK, Context, Tokens, block_rows, share};
use crate::precision::Operand;
use azulejo_amx::rng::Dropout;
use azulejo_amx::rows::{Branch, LayerNormOut, LayerNormParams, LayerNormSaved, Prologue};

/// What a LayerNorm writes.
pub(crate) struct Outputs<'a, T> {
    pub(crate) y: &'a mut [f32],     // (t, h)
    pub(crate) rounded: &'a mut [T], // (t, h): for the next product
    pub(crate) mean: &'a mut [f32],  // (t)
    pub(crate) rstd: &'a mut [f32],  // (t): 1 / sqrt(variance + eps)
}

impl<'a, T> Outputs<'a, T> {
    /// The same for each block of rows.
    fn blocks(self, h: usize) -> impl Iterator<Item = Outputs<'a, T>> {
        let Outputs { y, rounded, mean, rstd } = self;
        let rows = y.chunks_mut(BLOCK * h).zip(rounded.chunks_mut(BLOCK * h));
        let stats = mean.chunks_mut(BLOCK).zip(rstd.chunks_mut(BLOCK));
        rows.zip(stats)
            .map(|((y, rounded), (mean, rstd))| Outputs { y, rounded, mean, rstd })
    }
}

/// What stands between a product and its LayerNorm.
#[derive(Clone, Copy)]
pub(crate) struct Sublayer<'a> {
    pub(crate) bias: &'a [f32],     // (h)
    pub(crate) residual: &'a [f32], // (t, h)
    pub(crate) dropout: Option<Dropout>,
    pub(crate) tokens: Tokens<'a>,
}

/// y = LayerNorm(x). x `(t, h)`
pub(crate) fn forward<T: Operand>(cx: Context, out: Outputs<T>, x: &[f32], params: LayerNormParams) {
    let h = params.gamma.len();
    share(cx.exec, out.blocks(h).zip(x.chunks(BLOCK * h)), |(out, x)| {
        let Outputs { y, rounded, mean, rstd } = out;
        let to = LayerNormOut {
            mean: Some(mean),
            rstd: Some(rstd),
            ..T::layer_norm_out(y, rounded)
        };
        cx.rows.layer_norm_forward(to, x, params);
        T::after_layer_norm(y, rounded);
    });
}

/// x = dropout(x + bias) + residual, y = LayerNorm(x). x `(t, h)`: the branch's product, then the sum
pub(crate) fn forward_sublayer<T: Operand>(
    cx: Context,
    out: Outputs<T>,
    x: &mut [f32],
    sublayer: Sublayer,
    params: LayerNormParams,
) {
    let h = params.gamma.len();
    let blocks = out
        .blocks(h)
        .zip(x.chunks_mut(BLOCK * h))
        .zip(sublayer.residual.chunks(BLOCK * h));
    share(cx.exec, blocks.enumerate(), |(i, ((out, x), residual))| {
        let Outputs { y, rounded, mean, rstd } = out;
        let rows = block_rows(i, mean.len());
        let prologue = Prologue {
            bias: Some(sublayer.bias),
            dropout: sublayer.tokens.mask(sublayer.dropout, rows),
            residual: Some(residual),
        };
        let to = LayerNormOut {
            mean: Some(mean),
            rstd: Some(rstd),
            ..T::layer_norm_out(y, rounded)
        };
        cx.rows.residual_layer_norm_forward(to, x, prologue, params);
        T::after_layer_norm(y, rounded);
    });
}

/// What backward reads of the forward pass.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) x: &'a [f32],     // (t, h)
    pub(crate) mean: &'a [f32],  // (t)
    pub(crate) rstd: &'a [f32],  // (t)
    pub(crate) gamma: &'a [f32], // (h)
}

/// d_x, and the gradients of gamma and beta, in one pass. d_x, d_y `(t, h)`; d_gamma, d_beta `(h)`
pub(crate) fn backward(
    cx: Context,
    d_x: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    d_y: &[f32],
    saved: Saved,
) -> Result<()> {
    let h = saved.gamma.len();
    let blocks = saved.mean.len().div_ceil(BLOCK);
    let mut partial = cx.take::<f32>("LayerNorm gradients of blocks", 2 * blocks * h)?; // (blocks, 2h)
    share(
        cx.exec,
        d_x.chunks_mut(BLOCK * h).zip(partial.chunks_mut(2 * h)).enumerate(),
        |(i, (d_x, partial))| {
            partial.fill(0.0);
            let (d_gamma, d_beta) = partial.split_at_mut(h);
            backward_block(cx, d_x, d_gamma, d_beta, d_y, saved, i);
        },
    );
    add_partial(&partial, [d_gamma, d_beta]);
    Ok(())
}

/// Gradients of the parameters that a sublayer's end has.
pub(crate) struct SublayerGradients<'a> {
    pub(crate) d_gamma: &'a mut [f32], // (h)
    pub(crate) d_beta: &'a mut [f32],  // (h)
    pub(crate) d_bias: &'a mut [f32],  // (h)
}

/// Through LayerNorm to d_sum, which the residual takes as it is, and through dropout and bias to d_branch.
/// d_sum, d_branch, d_y `(t, h)`
pub(crate) fn backward_sublayer<T: Operand>(
    cx: Context,
    d_sum: &mut [f32],
    d_branch: &mut [T],
    gradients: SublayerGradients,
    d_y: &[f32],
    saved: Saved,
    dropout: Option<Dropout>,
    tokens: Tokens,
) -> Result<()> {
    let h = saved.gamma.len();
    let blocks = saved.mean.len().div_ceil(BLOCK);
    let mut partial = cx.take::<f32>("LayerNorm gradients of blocks", 3 * blocks * h)?; // (blocks, 3h)
    let outputs = d_sum
        .chunks_mut(BLOCK * h)
        .zip(d_branch.chunks_mut(BLOCK * h))
        .zip(partial.chunks_mut(3 * h));
    share(cx.exec, outputs.enumerate(), |(i, ((d_sum, d_branch), partial))| {
        partial.fill(0.0);
        let (d_gamma, rest) = partial.split_at_mut(h);
        let (d_beta, d_bias) = rest.split_at_mut(h);
        backward_block(cx, d_sum, d_gamma, d_beta, d_y, saved, i);
        let rows = block_rows(i, d_sum.len() / h);
        let branch = Branch {
            d_out: T::branch_out(d_branch),
            dropout: tokens.mask(dropout, rows),
            d_bias: Some(d_bias),
        };
        cx.rows.branch_backward(branch, d_sum, h);
    });
    add_partial(&partial, [gradients.d_gamma, gradients.d_beta, gradients.d_bias]);
    Ok(())
}

fn backward_block(
    cx: Context,
    d_x: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    d_y: &[f32],
    saved: Saved,
    block: usize,
) {
    let h = saved.gamma.len();
    let rows = block_rows(block, d_x.len() / h);
    let elements = rows.start * h..rows.end * h;
    let part = LayerNormSaved {
        x: &saved.x[elements.clone()],
        mean: &saved.mean[rows.clone()],
        rstd: &saved.rstd[rows],
        gamma: saved.gamma,
    };
    cx.rows.layer_norm_backward(d_x, d_gamma, d_beta, &d_y[elements], part);
}

/// Adds each block's sums, which lie side by side, to their totals; first block first.
fn add_partial<const N: usize>(partial: &[f32], totals: [&mut [f32]; N]) {
    let h = totals[0].len();
    for (i, total) in totals.into_iter().enumerate() {
        for block in partial.chunks(N * h) {
            for (total, p) in total.iter_mut().zip(&block[i * h..][..h]) {
                *total += p;
            }
        }
    }
}
