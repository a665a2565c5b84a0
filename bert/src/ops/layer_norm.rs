//! `y = (x - mean) rstd gamma + beta` over each row.

use crate::ops::column_sums::add_blocks;
use crate::ops::{BLOCK, Context, share};
use crate::precision::Operand;

/// Writes y and its rounded copy for the next product; saves mean and 1 / deviation of each row.
/// y, rounded, x `(t, h)`; stats `(t, 2)`; gamma, beta `(h)`
pub(crate) fn forward<T: Operand>(
    cx: Context,
    y: &mut [f32],
    rounded: &mut [T],
    stats: &mut [f32],
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    eps: f32,
) {
    let h = gamma.len();
    let block = BLOCK * h;
    let outputs = y
        .chunks_mut(block)
        .zip(rounded.chunks_mut(block))
        .zip(stats.chunks_mut(2 * BLOCK));
    share(cx.exec, outputs.zip(x.chunks(block)), |(((y, rounded), stats), x)| {
        let rows = y
            .chunks_mut(h)
            .zip(rounded.chunks_mut(h))
            .zip(stats.chunks_mut(2))
            .zip(x.chunks(h));
        for (((y, rounded), stats), x) in rows {
            let mean = x.iter().sum::<f32>() / h as f32;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / h as f32;
            let rstd = 1.0 / (variance + eps).sqrt();
            stats.copy_from_slice(&[mean, rstd]);
            for i in 0..h {
                y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
                rounded[i] = T::from_f32(y[i]);
            }
        }
    });
}

/// d_x, and the gradients of gamma and beta, in one pass. d_x, d_y, x `(t, h)`; stats `(t, 2)`; d_gamma, d_beta `(h)`
pub(crate) fn backward(
    cx: Context,
    d_x: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    d_y: &[f32],
    x: &[f32],
    stats: &[f32],
    gamma: &[f32],
) {
    let h = gamma.len();
    let block = BLOCK * h;
    let blocks = x.len().div_ceil(block);
    let mut partial_gamma = cx.buffers.take::<f32>("scale gradients of blocks", blocks * h); // (blocks, h)
    let mut partial_beta = cx.buffers.take::<f32>("shift gradients of blocks", blocks * h); // (blocks, h)
    let outputs = d_x
        .chunks_mut(block)
        .zip(partial_gamma.chunks_mut(h))
        .zip(partial_beta.chunks_mut(h));
    let inputs = d_y.chunks(block).zip(x.chunks(block)).zip(stats.chunks(2 * BLOCK));
    share(
        cx.exec,
        outputs.zip(inputs),
        |(((d_x, d_gamma), d_beta), ((d_y, x), stats))| {
            d_gamma.fill(0.0);
            d_beta.fill(0.0);
            let rows = d_x
                .chunks_mut(h)
                .zip(d_y.chunks(h))
                .zip(x.chunks(h))
                .zip(stats.chunks(2));
            for (((d_x, d_y), x), stats) in rows {
                let (mean, rstd) = (stats[0], stats[1]);
                // Two sums over the row first, then what each element contributes.
                let (mut sum, mut sum_x) = (0.0, 0.0);
                for i in 0..h {
                    let normal = (x[i] - mean) * rstd;
                    let d = d_y[i] * gamma[i];
                    sum += d;
                    sum_x += d * normal;
                    d_gamma[i] += d_y[i] * normal;
                    d_beta[i] += d_y[i];
                }
                let (sum, sum_x) = (sum / h as f32, sum_x / h as f32);
                for i in 0..h {
                    let normal = (x[i] - mean) * rstd;
                    d_x[i] = (d_y[i] * gamma[i] - sum - normal * sum_x) * rstd;
                }
            }
        },
    );
    add_blocks(d_gamma, &partial_gamma);
    add_blocks(d_beta, &partial_beta);
}
