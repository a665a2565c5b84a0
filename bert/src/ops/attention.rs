//! `softmax(Q K^T / sqrt(d)) V` inside each sequence, for each head.
//!
//! A thread takes a sequence with all its heads; the scores of one head are computed, used and forgotten, and backward
//! computes them again. Nothing of size n x n is kept between the passes.

use crate::batch::Batch;
use crate::error::Result;
use crate::ops::{Context, try_share};
use crate::precision::Operand;
use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::{Epilogue, MatMut, MatRef, Out, RowDropout, Serial};

/// Heads and their width.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) count: usize,
    pub(crate) width: usize,
}

/// Cuts a `(t, width)` buffer into the rows of each sequence.
struct Cut<'a, T> {
    rest: &'a mut [T],
    bounds: std::slice::Windows<'a, u32>,
    width: usize,
}

impl<'a, T> Iterator for Cut<'a, T> {
    type Item = &'a mut [T];

    fn next(&mut self) -> Option<&'a mut [T]> {
        let pair = self.bounds.next()?;
        let (first, rest) = std::mem::take(&mut self.rest).split_at_mut((pair[1] - pair[0]) as usize * self.width);
        self.rest = rest;
        Some(first)
    }
}

/// context `(t, h)`, qkv `(t, 3h)`
pub(crate) fn forward<T: Operand>(
    cx: Context,
    context: &mut [T],
    qkv: &[T],
    batch: &Batch,
    heads: Heads,
    dropout: Option<Dropout>,
) -> Result<()> {
    let d = heads.width;
    let h = heads.count * d;
    let contexts = Cut {
        rest: context,
        bounds: batch.cu_seqlens.windows(2),
        width: h,
    };
    try_share(cx.exec, contexts.enumerate(), |(s, context)| {
        let range = batch.sequence(s);
        let n = range.len();
        let qkv = MatRef::row_major(&qkv[range.start * 3 * h..range.end * 3 * h], n, 3 * h)?;
        let mut scores = cx.buffers.take::<f32>("attention scores", n * n); // (n, n)
        let mut p = cx.buffers.take::<T>("attention probabilities", n * n); // (n, n)
        let mut rows = cx.buffers.take::<RowId>("attention rows", n);
        for head in 0..heads.count {
            let part = |i: usize| qkv.sub(0..n, i * h + head * d..i * h + (head + 1) * d);
            let (q, k, v) = (part(0)?, part(1)?, part(2)?);
            mask_rows(&mut rows, batch.sample_index[s], head);
            probabilities(cx, &mut scores, q, k)?;
            match dropout {
                Some(dropout) => cx.rows.dropout(&mut p, &scores, n, RowDropout { dropout, rows: &rows }),
                None => cx.rows.convert(&mut p, &scores),
            }
            let out = MatMut::row_major(&mut *context, n, h)?.sub(0..n, head * d..(head + 1) * d)?;
            product(cx, T::out(out), MatRef::row_major(&p[..], n, n)?, v)?;
        }
        Ok(())
    })
}

/// d_qkv `(t, 3h)`, d_context `(t, h)`, qkv `(t, 3h)`
pub(crate) fn backward<T: Operand>(
    cx: Context,
    d_qkv: &mut [T],
    d_context: &[T],
    qkv: &[T],
    batch: &Batch,
    heads: Heads,
    dropout: Option<Dropout>,
) -> Result<()> {
    let d = heads.width;
    let h = heads.count * d;
    let scale = 1.0 / (d as f32).sqrt();
    let cuts = Cut {
        rest: d_qkv,
        bounds: batch.cu_seqlens.windows(2),
        width: 3 * h,
    };
    try_share(cx.exec, cuts.enumerate(), |(s, d_qkv)| {
        let range = batch.sequence(s);
        let n = range.len();
        let qkv = MatRef::row_major(&qkv[range.start * 3 * h..range.end * 3 * h], n, 3 * h)?;
        let d_context = MatRef::row_major(&d_context[range.start * h..range.end * h], n, h)?;
        let mut scores = cx.buffers.take::<f32>("attention scores", n * n); // (n, n)
        let mut d_scores = cx.buffers.take::<f32>("d attention scores", n * n); // (n, n)
        let mut p = cx.buffers.take::<T>("attention probabilities", n * n); // (n, n)
        let mut rows = cx.buffers.take::<RowId>("attention rows", n);
        for head in 0..heads.count {
            let columns = |i: usize| i * h + head * d..i * h + (head + 1) * d;
            let (q, k, v) = (
                qkv.sub(0..n, columns(0))?,
                qkv.sub(0..n, columns(1))?,
                qkv.sub(0..n, columns(2))?,
            );
            let d_out = d_context.sub(0..n, columns(0))?;
            mask_rows(&mut rows, batch.sample_index[s], head);
            let mask = dropout.map(|dropout| RowDropout { dropout, rows: &rows });

            probabilities(cx, &mut scores, q, k)?;
            match mask {
                Some(mask) => cx.rows.dropout(&mut p, &scores, n, mask),
                None => cx.rows.convert(&mut p, &scores),
            }
            let d_v = MatMut::row_major(&mut *d_qkv, n, 3 * h)?.sub(0..n, columns(2))?;
            product(cx, T::out(d_v), MatRef::row_major(&p[..], n, n)?.t(), d_out)?;

            let epilogue = Epilogue {
                dropout: mask,
                ..Default::default()
            };
            product_with(
                cx,
                Out::f32(MatMut::row_major(&mut d_scores, n, n)?),
                d_out,
                v.t(),
                epilogue,
            )?;
            for (d_scores, p) in d_scores.chunks_mut(n).zip(scores.chunks(n)) {
                cx.rows.softmax_backward_row(d_scores, p, scale);
            }
            cx.rows.convert(&mut p, &d_scores);
            let d_s = MatRef::row_major(&p[..], n, n)?;
            let d_q = MatMut::row_major(&mut *d_qkv, n, 3 * h)?.sub(0..n, columns(0))?;
            product(cx, T::out(d_q), d_s, k)?;
            let d_k = MatMut::row_major(&mut *d_qkv, n, 3 * h)?.sub(0..n, columns(1))?;
            product(cx, T::out(d_k), d_s.t(), q)?;
        }
        Ok(())
    })
}

/// p = softmax(q k^T / sqrt(d)) for one head. p `(n, n)`, q, k `(n, d)`
fn probabilities<T: Operand>(cx: Context, p: &mut [f32], q: MatRef<T>, k: MatRef<T>) -> Result<()> {
    let n = q.rows();
    let scale = 1.0 / (q.cols() as f32).sqrt();
    product(cx, Out::f32(MatMut::row_major(p, n, n)?), q, k.t())?;
    for row in p.chunks_mut(n) {
        cx.rows.softmax_row(row, scale);
    }
    Ok(())
}

/// The address of a row's mask: its head and query, counted inside the sample.
fn mask_rows(rows: &mut [RowId], sample: u64, head: usize) {
    let n = rows.len();
    for (i, row) in rows.iter_mut().enumerate() {
        *row = RowId {
            sample,
            row: (head * n + i) as u32,
        };
    }
}

fn product<T: Operand>(cx: Context, out: Out, a: MatRef<T>, b: MatRef<T>) -> Result<()> {
    product_with(cx, out, a, b, Epilogue::default())
}

fn product_with<T: Operand>(cx: Context, out: Out, a: MatRef<T>, b: MatRef<T>, epilogue: Epilogue) -> Result<()> {
    cx.with_scratch(|scratch| T::product(&cx.gemm, &Serial, out, a, b, epilogue, scratch))
}
