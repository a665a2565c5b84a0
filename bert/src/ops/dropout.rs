//! Dropout: a mask that is a function of the element's address, so that backward makes it again.

use crate::batch::Batch;
use crate::ops::{BLOCK, Context, share};
use crate::precision::Operand;

/// A row of activations, by the sample it belongs to: what addresses its mask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowId {
    pub(crate) sample: u64,
    pub(crate) row: u32,
}

/// One dropout layer in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropout {
    key: u64,
    threshold: u32,
    scale: f32,
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Dropout {
    pub(crate) fn new(probability: f32, seed: u64, step: u64, layer: u32, site: u32) -> Option<Dropout> {
        let key = mix(mix(mix(seed) ^ step) ^ (u64::from(layer) << 32 | u64::from(site)));
        let threshold = (probability * 65536.0) as u32;
        (0.0..1.0).contains(&probability).then_some(Dropout {
            key,
            threshold,
            scale: 1.0 / (1.0 - probability),
        })
    }

    pub(crate) fn factor(&self, row: RowId, column: u32) -> f32 {
        let bits = mix(mix(self.key ^ row.sample) ^ (u64::from(row.row) << 32 | u64::from(column)));
        if (bits as u32 & 0xffff) < self.threshold {
            0.0
        } else {
            self.scale
        }
    }
}

/// The tokens of a micro-batch as rows of masks.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) sequence: &'a [u32], // (t): the sequence of each token
}

impl Tokens<'_> {
    pub(crate) fn row(&self, token: usize) -> RowId {
        let sequence = self.sequence[token] as usize;
        RowId {
            sample: self.batch.sample_index[sequence],
            row: token as u32 - self.batch.cu_seqlens[sequence],
        }
    }
}

/// x = dropout(x), and its rounded copy for the next product. x, rounded `(t, h)`
pub(crate) fn forward<T: Operand>(
    cx: Context,
    x: &mut [f32],
    rounded: &mut [T],
    dropout: Option<Dropout>,
    tokens: Tokens,
    h: usize,
) {
    let Some(dropout) = dropout else { return };
    let blocks = x.chunks_mut(BLOCK * h).zip(rounded.chunks_mut(BLOCK * h)).enumerate();
    share(cx.exec, blocks, |(block, (x, rounded))| {
        for (i, (x, rounded)) in x.chunks_mut(h).zip(rounded.chunks_mut(h)).enumerate() {
            let row = tokens.row(block * BLOCK + i);
            for (c, (x, rounded)) in x.iter_mut().zip(rounded).enumerate() {
                *x *= dropout.factor(row, c as u32);
                *rounded = T::from_f32(*x);
            }
        }
    });
}

/// y = dropout(y) + residual. y, residual `(t, h)`
pub(crate) fn add_residual(
    cx: Context,
    y: &mut [f32],
    residual: &[f32],
    dropout: Option<Dropout>,
    tokens: Tokens,
    h: usize,
) {
    share(
        cx.exec,
        y.chunks_mut(BLOCK * h).zip(residual.chunks(BLOCK * h)).enumerate(),
        |(block, (y, residual))| {
            for (i, (y, residual)) in y.chunks_mut(h).zip(residual.chunks(h)).enumerate() {
                let row = tokens.row(block * BLOCK + i);
                for (c, (y, residual)) in y.iter_mut().zip(residual).enumerate() {
                    *y = *y * dropout.map_or(1.0, |d| d.factor(row, c as u32)) + residual;
                }
            }
        },
    );
}

/// d_y = dropout's factor times d_r, rounded for the next product. d_y, d_r `(t, h)`
pub(crate) fn backward<T: Operand>(
    cx: Context,
    d_y: &mut [T],
    d_r: &[f32],
    dropout: Option<Dropout>,
    tokens: Tokens,
    h: usize,
) {
    share(
        cx.exec,
        d_y.chunks_mut(BLOCK * h).zip(d_r.chunks(BLOCK * h)).enumerate(),
        |(block, (d_y, d_r))| {
            for (i, (d_y, d_r)) in d_y.chunks_mut(h).zip(d_r.chunks(h)).enumerate() {
                let row = tokens.row(block * BLOCK + i);
                for (c, (d_y, d_r)) in d_y.iter_mut().zip(d_r).enumerate() {
                    *d_y = T::from_f32(d_r * dropout.map_or(1.0, |d| d.factor(row, c as u32)));
                }
            }
        },
    );
}

/// x = dropout(x): the head's input, and its own backward. x `(t, h)`
pub(crate) fn scale(cx: Context, x: &mut [f32], dropout: Option<Dropout>, tokens: Tokens, h: usize) {
    let Some(dropout) = dropout else { return };
    share(cx.exec, x.chunks_mut(BLOCK * h).enumerate(), |(block, x)| {
        for (i, x) in x.chunks_mut(h).enumerate() {
            let row = tokens.row(block * BLOCK + i);
            for (c, x) in x.iter_mut().enumerate() {
                *x *= dropout.factor(row, c as u32);
            }
        }
    });
}
