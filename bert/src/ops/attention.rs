//! `softmax(Q K^T / sqrt(d)) V` inside each sequence, for each head.

use crate::batch::Batch;
use crate::ops::dropout::{Dropout, RowId};
use crate::ops::{Context, share};
use crate::precision::Operand;

/// Sizes that do not follow from the buffers.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) width: usize,
}

/// Cuts a `(t, width)` buffer into the rows of each sequence.
struct Cut<'a, T> {
    rest: &'a mut [T],
    lengths: std::slice::Windows<'a, u32>,
    width: usize,
}

impl<'a, T> Iterator for Cut<'a, T> {
    type Item = &'a mut [T];

    fn next(&mut self) -> Option<&'a mut [T]> {
        let pair = self.lengths.next()?;
        let (first, rest) = std::mem::take(&mut self.rest).split_at_mut((pair[1] - pair[0]) as usize * self.width);
        self.rest = rest;
        Some(first)
    }
}

/// context `(t, h)`, statistics `(t, a)`, qkv `(t, 3h)`
pub(crate) fn forward<T: Operand>(
    cx: Context,
    context: &mut [T],
    statistics: &mut [f32],
    qkv: &[T],
    batch: &Batch,
    shape: Shape,
    dropout: Option<Dropout>,
) {
    let (a, d) = (shape.heads, shape.width);
    let h = a * d;
    let scale = 1.0 / (d as f32).sqrt();
    let contexts = Cut {
        rest: context,
        lengths: batch.cu_seqlens.windows(2),
        width: h,
    };
    let statistics = Cut {
        rest: statistics,
        lengths: batch.cu_seqlens.windows(2),
        width: a,
    };
    share(
        cx.exec,
        contexts.zip(statistics).enumerate(),
        |(s, (context, statistics))| {
            let range = batch.sequence(s);
            let qkv = &qkv[range.start * 3 * h..range.end * 3 * h];
            let n = range.len();
            for head in 0..a {
                let at = |part: usize, token: usize| &qkv[token * 3 * h + part * h + head * d..][..d];
                for i in 0..n {
                    let scores: Vec<f32> = (0..n).map(|j| dot(at(0, i), at(1, j)) * scale).collect();
                    let max = scores.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
                    let lse = max + scores.iter().map(|s| (s - max).exp()).sum::<f32>().ln();
                    statistics[i * a + head] = lse;
                    let row = RowId {
                        sample: batch.sample_index[s],
                        row: (head * n + i) as u32,
                    };
                    let mut sums = vec![0.0; d];
                    for j in 0..n {
                        let p = (scores[j] - lse).exp() * dropout.map_or(1.0, |x| x.factor(row, j as u32));
                        for (sum, v) in sums.iter_mut().zip(at(2, j)) {
                            *sum += p * v.to_f32();
                        }
                    }
                    for (c, sum) in context[i * h + head * d..][..d].iter_mut().zip(sums) {
                        *c = T::from_f32(sum);
                    }
                }
            }
        },
    );
}

/// d_qkv `(t, 3h)`, d_context, context `(t, h)`, qkv `(t, 3h)`, statistics `(t, a)`
pub(crate) fn backward<T: Operand>(
    cx: Context,
    d_qkv: &mut [T],
    d_context: &[T],
    context: &[T],
    qkv: &[T],
    statistics: &[f32],
    batch: &Batch,
    shape: Shape,
    dropout: Option<Dropout>,
) {
    let (a, d) = (shape.heads, shape.width);
    let h = a * d;
    let scale = 1.0 / (d as f32).sqrt();
    let cuts = Cut {
        rest: d_qkv,
        lengths: batch.cu_seqlens.windows(2),
        width: 3 * h,
    };
    share(cx.exec, cuts.enumerate(), |(s, d_qkv)| {
        let range = batch.sequence(s);
        let n = range.len();
        let qkv = &qkv[range.start * 3 * h..range.end * 3 * h];
        let mut sums = vec![0.0f32; n * 3 * h];
        for head in 0..a {
            let at = |part: usize, token: usize| &qkv[token * 3 * h + part * h + head * d..][..d];
            for i in 0..n {
                let token = range.start + i;
                let row = RowId {
                    sample: batch.sample_index[s],
                    row: (head * n + i) as u32,
                };
                let d_out = &d_context[token * h + head * d..][..d];
                // Softmax's common term: sum over j of p d_p, which is the product of output and its gradient.
                let common = dot(d_out, &context[token * h + head * d..][..d]);
                let lse = statistics[token * a + head];
                for j in 0..n {
                    let p = (dot(at(0, i), at(1, j)) * scale - lse).exp();
                    let factor = dropout.map_or(1.0, |x| x.factor(row, j as u32));
                    let d_p = dot(d_out, at(2, j)) * factor;
                    let d_score = p * (d_p - common) * scale;
                    for c in 0..d {
                        sums[(i * 3) * h + head * d + c] += d_score * at(1, j)[c].to_f32();
                        sums[(j * 3 + 1) * h + head * d + c] += d_score * at(0, i)[c].to_f32();
                        sums[(j * 3 + 2) * h + head * d + c] += p * factor * d_out[c].to_f32();
                    }
                }
            }
        }
        for (d, sum) in d_qkv.iter_mut().zip(sums) {
            *d = T::from_f32(sum);
        }
    });
}

fn dot<T: Operand>(x: &[T], y: &[T]) -> f32 {
    x.iter().zip(y).map(|(x, y)| x.to_f32() * y.to_f32()).sum()
}
