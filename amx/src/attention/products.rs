//! The products of one head, in bf16 on packed operands and in f32 on strided ones.

use std::ops::Range;

use half::bf16;

use super::passes::{Exponentials, PackedPairs, Rows, ScoreGradients, Size};
use super::{BLOCK, Cutter, Head, Outer, Seat, block_statistics, transpose};
use crate::epilogue::{Epilogue, Out};
use crate::error::Result;
use crate::executor::Serial;
use crate::matrix::{MatMut, MatRef};
use crate::pack::{Packed, PackedMut, PackedRef};

/// Takes rows of the output: which, their values (rows, d), their lse and the factor of each row.
type TakeOutput<'a> = &'a mut dyn FnMut(Range<usize>, &[f32], &[f32], &[f32]);
/// Takes rows of a gradient: of queries (0), keys (1) or values (2), which rows, their values (rows, d).
type TakeGradient<'a> = &'a mut dyn FnMut(usize, Range<usize>, &[f32]);

/// The two directions for one type of activations.
#[allow(private_interfaces, reason = "sealed: nobody outside can name it")]
pub trait Products: Sized {
    /// Gives the rows of the output block by block.
    fn forward(head: &Head<'_, Self>, seat: &mut Seat, take: TakeOutput<'_>) -> Result<()>;
    /// Gives the rows of the three gradients.
    fn backward(head: &Head<'_, Self>, outer: &Outer<'_, Self>, seat: &mut Seat, take: TakeGradient<'_>) -> Result<()>;
}

/// The blocks of queries.
fn blocks(n: usize) -> impl Iterator<Item = Range<usize>> {
    (0..n).step_by(BLOCK).map(move |first| first..n.min(first + BLOCK))
}

/// Adds to the output after the first block, replaces it in the first.
fn out_of(matrix: MatMut<'_, f32>, first: bool) -> Out<'_> {
    if first { Out::f32(matrix) } else { Out::add_f32(matrix) }
}

#[allow(private_interfaces, reason = "sealed: nobody outside can name it")]
impl Products for bf16 {
    fn forward(head: &Head<'_, bf16>, seat: &mut Seat, take: TakeOutput<'_>) -> Result<()> {
        let (n, d, stride, room) = (head.n, head.d, head.stride(), head.block_rows());
        let (keys_len, values_len) = (Packed::len(d, n), Packed::len(n, d));
        let lines = Cutter::lines::<bf16>(keys_len)
            + Cutter::lines::<bf16>(values_len)
            + Cutter::lines::<f32>(room * stride)
            + Cutter::lines::<bf16>(room * stride)
            + Cutter::lines::<f32>(room * d)
            + 2 * Cutter::lines::<f32>(room);
        let (scratch, mut cut) = seat.parts(lines);

        // (d, n) and (n, d)
        let (keys, values) = (cut.take(keys_len), cut.take(values_len));
        PackedMut::new(keys, d, n)?.pack_bf16(head.k.t())?;
        PackedMut::new(values, n, d)?.pack_bf16(head.v)?;
        let (keys, values) = (PackedRef::new(keys, d, n)?, PackedRef::new(values, n, d)?);
        // (block, n), (block, n), (block, d), (block), (block)
        let (scores, p): (&mut [f32], &mut [bf16]) = (cut.take(room * stride), cut.take(room * stride));
        let (x, lse, inverse) = (cut.take(room * d), cut.take(room), cut.take(room));

        for block in blocks(n) {
            let rows = block.len();
            let size = Size { rows, cols: n, stride };
            let out = Out::f32(MatMut::strided(scores, rows, n, stride)?);
            head.gemm.bf16(
                &Serial,
                out,
                head.q.sub(block.clone(), 0..d)?,
                keys,
                Epilogue::default(),
                scratch,
            )?;
            head.level.run(Exponentials {
                p: &mut *p,
                lse: &mut *lse,
                inverse: &mut *inverse,
                scores,
                size,
                scale: head.scale,
                dropout: head.dropout_from(block.start),
            });
            let out = Out::f32(MatMut::row_major(x, rows, d)?);
            let p = MatRef::strided(p, rows, n, stride, 1)?;
            head.gemm.bf16(&Serial, out, p, values, Epilogue::default(), scratch)?;
            take(block, x, lse, inverse);
        }
        Ok(())
    }

    fn backward(head: &Head<'_, bf16>, outer: &Outer<'_, bf16>, seat: &mut Seat, take: TakeGradient<'_>) -> Result<()> {
        let (n, d, stride, room) = (head.n, head.d, head.stride(), head.block_rows());
        let (wide_len, tall_len, pairs_len) = (Packed::len(d, n), Packed::len(n, d), Packed::len(room, n));
        let lines = 2 * Cutter::lines::<bf16>(wide_len)
            + Cutter::lines::<bf16>(tall_len)
            + 2 * Cutter::lines::<f32>(room * stride)
            + 2 * Cutter::lines::<bf16>(pairs_len)
            + Cutter::lines::<bf16>(room * stride)
            + 2 * Cutter::lines::<f32>(d * n)
            + Cutter::lines::<f32>(n * d)
            + 2 * Cutter::lines::<f32>(room);
        let (scratch, mut cut) = seat.parts(lines);

        // (d, n), (d, n) and (n, d)
        let (keys_t, values_t, keys) = (cut.take(wide_len), cut.take(wide_len), cut.take(tall_len));
        PackedMut::new(keys_t, d, n)?.pack_bf16(head.k.t())?;
        PackedMut::new(values_t, d, n)?.pack_bf16(head.v.t())?;
        PackedMut::new(keys, n, d)?.pack_bf16(head.k)?;
        let (keys_t, values_t) = (PackedRef::new(keys_t, d, n)?, PackedRef::new(values_t, d, n)?);
        let keys = PackedRef::new(keys, n, d)?;
        // (block, n) each: scores, gradient of the probabilities; probabilities and gradient of the scores, packed; the
        // latter as rows.
        let (scores, d_p): (&mut [f32], &mut [f32]) = (cut.take(room * stride), cut.take(room * stride));
        let (p, d_scores): (&mut [bf16], &mut [bf16]) = (cut.take(pairs_len), cut.take(pairs_len));
        let d_rows: &mut [bf16] = cut.take(room * stride);
        // (d, n), (d, n), (n, d)
        let (d_keys_t, d_values_t, x) = (cut.take(d * n), cut.take(d * n), cut.take(n * d));
        let (delta, lse) = (cut.take(room), cut.take(room));

        for block in blocks(n) {
            let rows = block.len();
            let size = Size { rows, cols: n, stride };
            let (q, d_out) = (head.q.sub(block.clone(), 0..d)?, outer.d_out.sub(block.clone(), 0..d)?);
            let out = Out::f32(MatMut::strided(scores, rows, n, stride)?);
            head.gemm.bf16(&Serial, out, q, keys_t, Epilogue::default(), scratch)?;
            let out = Out::f32(MatMut::strided(d_p, rows, n, stride)?);
            head.gemm
                .bf16(&Serial, out, d_out, values_t, Epilogue::default(), scratch)?;
            block_statistics(head, outer, block.start, rows, delta, lse);

            let packed_len = Packed::len(rows, n);
            let (p, d_scores) = (&mut p[..packed_len], &mut d_scores[..packed_len]);
            if !rows.is_multiple_of(32) {
                // The rows of depth behind the last group of queries multiply zeros and must be numbers.
                p.fill(bf16::ZERO);
                d_scores.fill(bf16::ZERO);
            }
            head.level.run(ScoreGradients {
                sink: PackedPairs {
                    p: &mut *p,
                    d_scores: &mut *d_scores,
                    k_blocks: rows.div_ceil(32),
                    d_rows: &mut *d_rows,
                    stride,
                },
                scores,
                d_p,
                lse,
                delta,
                size,
                scale: head.scale,
                dropout: head.dropout_from(block.start),
            });
            let (p, d_scores) = (PackedRef::new(p, rows, n)?, PackedRef::new(d_scores, rows, n)?);

            let scaled = || Epilogue {
                alpha: Some(head.scale),
                ..Epilogue::default()
            };
            let out = Out::f32(MatMut::row_major(x, rows, d)?);
            let d_rows = MatRef::strided(d_rows, rows, n, stride, 1)?;
            head.gemm.bf16(&Serial, out, d_rows, keys, scaled(), scratch)?;
            take(0, block.clone(), x);
            let first = block.start == 0;
            let out = out_of(MatMut::row_major(d_values_t, d, n)?, first);
            head.gemm
                .bf16(&Serial, out, d_out.t(), p, Epilogue::default(), scratch)?;
            let out = out_of(MatMut::row_major(d_keys_t, d, n)?, first);
            head.gemm.bf16(&Serial, out, q.t(), d_scores, scaled(), scratch)?;
        }
        transpose(head.level, x, d_keys_t, d, n, n);
        take(1, 0..n, x);
        transpose(head.level, x, d_values_t, d, n, n);
        take(2, 0..n, x);
        Ok(())
    }
}

#[allow(private_interfaces, reason = "sealed: nobody outside can name it")]
impl Products for f32 {
    fn forward(head: &Head<'_, f32>, seat: &mut Seat, take: TakeOutput<'_>) -> Result<()> {
        let (n, d, stride, room) = (head.n, head.d, head.stride(), head.block_rows());
        let lines =
            2 * Cutter::lines::<f32>(room * stride) + Cutter::lines::<f32>(room * d) + 2 * Cutter::lines::<f32>(room);
        let (scratch, mut cut) = seat.parts(lines);
        // (block, n), (block, n), (block, d), (block), (block)
        let (scores, p): (&mut [f32], &mut [f32]) = (cut.take(room * stride), cut.take(room * stride));
        let (x, lse, inverse) = (cut.take(room * d), cut.take(room), cut.take(room));

        for block in blocks(n) {
            let rows = block.len();
            let size = Size { rows, cols: n, stride };
            let out = Out::f32(MatMut::strided(scores, rows, n, stride)?);
            let q = head.q.sub(block.clone(), 0..d)?;
            head.gemm
                .f32(&Serial, out, q, head.k.t(), Epilogue::default(), scratch)?;
            head.level.run(Exponentials {
                p: &mut *p,
                lse: &mut *lse,
                inverse: &mut *inverse,
                scores,
                size,
                scale: head.scale,
                dropout: head.dropout_from(block.start),
            });
            let out = Out::f32(MatMut::row_major(x, rows, d)?);
            let p = MatRef::strided(p, rows, n, stride, 1)?;
            head.gemm.f32(&Serial, out, p, head.v, Epilogue::default(), scratch)?;
            take(block, x, lse, inverse);
        }
        Ok(())
    }

    fn backward(head: &Head<'_, f32>, outer: &Outer<'_, f32>, seat: &mut Seat, take: TakeGradient<'_>) -> Result<()> {
        let (n, d, stride, room) = (head.n, head.d, head.stride(), head.block_rows());
        let lines =
            4 * Cutter::lines::<f32>(room * stride) + 3 * Cutter::lines::<f32>(n * d) + 2 * Cutter::lines::<f32>(room);
        let (scratch, mut cut) = seat.parts(lines);
        // (block, n) each
        let (scores, d_p): (&mut [f32], &mut [f32]) = (cut.take(room * stride), cut.take(room * stride));
        let (p, d_scores): (&mut [f32], &mut [f32]) = (cut.take(room * stride), cut.take(room * stride));
        // (n, d) each
        let (d_keys, d_values, x) = (cut.take(n * d), cut.take(n * d), cut.take(n * d));
        let (delta, lse) = (cut.take(room), cut.take(room));

        for block in blocks(n) {
            let rows = block.len();
            let size = Size { rows, cols: n, stride };
            let (q, d_out) = (head.q.sub(block.clone(), 0..d)?, outer.d_out.sub(block.clone(), 0..d)?);
            let out = Out::f32(MatMut::strided(scores, rows, n, stride)?);
            head.gemm
                .f32(&Serial, out, q, head.k.t(), Epilogue::default(), scratch)?;
            let out = Out::f32(MatMut::strided(d_p, rows, n, stride)?);
            head.gemm
                .f32(&Serial, out, d_out, head.v.t(), Epilogue::default(), scratch)?;
            block_statistics(head, outer, block.start, rows, delta, lse);
            head.level.run(ScoreGradients {
                sink: Rows {
                    p: &mut *p,
                    d_scores: &mut *d_scores,
                    stride,
                },
                scores,
                d_p,
                lse,
                delta,
                size,
                scale: head.scale,
                dropout: head.dropout_from(block.start),
            });
            let (p, d_scores) = (
                MatRef::strided(p, rows, n, stride, 1)?,
                MatRef::strided(d_scores, rows, n, stride, 1)?,
            );

            let scaled = || Epilogue {
                alpha: Some(head.scale),
                ..Epilogue::default()
            };
            let out = Out::f32(MatMut::row_major(x, rows, d)?);
            head.gemm.f32(&Serial, out, d_scores, head.k, scaled(), scratch)?;
            take(0, block.clone(), x);
            let first = block.start == 0;
            let out = out_of(MatMut::row_major(d_values, n, d)?, first);
            head.gemm
                .f32(&Serial, out, p.t(), d_out, Epilogue::default(), scratch)?;
            let out = out_of(MatMut::row_major(d_keys, n, d)?, first);
            head.gemm.f32(&Serial, out, d_scores.t(), q, scaled(), scratch)?;
        }
        take(1, 0..n, d_keys);
        take(2, 0..n, d_values);
        Ok(())
    }
}
