//! Rows of tables added up (words, positions, token types), LayerNorm, dropout.

use crate::error::Result;
use crate::ops::layer_norm::{self, Outputs, Saved};
use crate::ops::{BLOCK, Context, Tokens, block_rows, share};
use crate::precision::Operand;
use azulejo_amx::rng::Dropout;
use azulejo_amx::rows::{LayerNormParams, Prologue};

/// A table `(rows, h)` and the row that each token reads `(t)`.
pub(crate) type Lookup<'a> = (&'a [f32], &'a [u32]);

/// x = the sum of each token's rows. x `(t, h)`
pub(crate) fn sum_forward(cx: Context, x: &mut [f32], lookups: &[Lookup], h: usize) {
    share(cx.exec, x.chunks_mut(BLOCK * h).enumerate(), |(block, x)| {
        for (i, x) in x.chunks_mut(h).enumerate() {
            for (nth, (table, index)) in lookups.iter().enumerate() {
                let row = &table[index[block * BLOCK + i] as usize * h..][..h];
                if nth == 0 {
                    x.copy_from_slice(row);
                } else {
                    cx.rows.add(x, row);
                }
            }
        }
    });
}

/// `d_table[index] += d_x`, in the order of the tokens for each row of the table; `skip` is a row without gradient.
/// d_table `(rows, h)`, d_x `(t, h)`, index `(t)`
pub(crate) fn sum_backward(
    cx: Context,
    d_table: &mut [f32],
    d_x: &[f32],
    index: &[u32],
    skip: Option<u32>,
    h: usize,
) -> Result<()> {
    // Tokens sorted by the row they read: each row's additions are one run, whoever adds them.
    let mut order = cx.take::<u32>("tokens by table row", index.len())?; // (t)
    for (token, place) in order.iter_mut().enumerate() {
        *place = token as u32;
    }
    order.sort_unstable_by_key(|&token| (index[token as usize], token));
    let order = &order[..];
    // Most rows of a table are not read, so that a thread takes many at a time.
    const ROWS: usize = 256;
    share(cx.exec, d_table.chunks_mut(ROWS * h).enumerate(), |(chunk, d_table)| {
        let first = chunk * ROWS;
        let start = order.partition_point(|&token| (index[token as usize] as usize) < first);
        for &token in &order[start..] {
            let (token, row) = (token as usize, index[token as usize]);
            let Some(d_row) = d_table.chunks_mut(h).nth(row as usize - first) else {
                break;
            };
            if Some(row) != skip {
                cx.rows.add(d_row, &d_x[token * h..][..h]);
            }
        }
    });
    Ok(())
}

/// y = dropout(LayerNorm(x)). x `(t, h)`
pub(crate) fn norm_forward<T: Operand>(
    cx: Context,
    out: Outputs<T>,
    x: &[f32],
    params: LayerNormParams,
    dropout: Option<Dropout>,
    tokens: Tokens,
) {
    let h = params.gamma.len();
    let Outputs { y, rounded, mean, rstd } = out;
    layer_norm::forward(
        cx,
        Outputs {
            y: &mut *y,
            rounded: &mut *rounded,
            mean,
            rstd,
        },
        x,
        params,
    );
    if dropout.is_some() {
        let blocks = y.chunks_mut(BLOCK * h).zip(rounded.chunks_mut(BLOCK * h)).enumerate();
        share(cx.exec, blocks, |(i, (y, rounded))| {
            drop_block(cx, y, dropout, tokens, i, h);
            cx.rows.convert(rounded, y);
        });
    }
}

/// d_x from d_y, which becomes the gradient before dropout. d_x, d_y `(t, h)`; d_gamma, d_beta `(h)`
pub(crate) fn norm_backward(
    cx: Context,
    d_x: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    d_y: &mut [f32],
    saved: Saved,
    dropout: Option<Dropout>,
    tokens: Tokens,
) -> Result<()> {
    drop_rows(cx, d_y, dropout, tokens, saved.gamma.len());
    layer_norm::backward(cx, d_x, d_gamma, d_beta, d_y, saved)
}

/// x = dropout(x), which is its own backward. x `(t, h)`
pub(crate) fn drop_rows(cx: Context, x: &mut [f32], dropout: Option<Dropout>, tokens: Tokens, h: usize) {
    if dropout.is_some() {
        share(cx.exec, x.chunks_mut(BLOCK * h).enumerate(), |(i, x)| {
            drop_block(cx, x, dropout, tokens, i, h)
        });
    }
}

fn drop_block(cx: Context, x: &mut [f32], dropout: Option<Dropout>, tokens: Tokens, block: usize, h: usize) {
    let dropout = tokens.mask(dropout, block_rows(block, x.len() / h));
    cx.rows.add_bias_dropout_residual(
        x,
        Prologue {
            dropout,
            ..Default::default()
        },
        h,
    );
}
