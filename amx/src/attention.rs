//! Attention within each sequence: `softmax(Q K^T / sqrt(d)) V` for each head, forward and backward.
//!
//! Queries, keys and values are read in place from the (t, 3h) output of one matrix product: row by row, the queries of
//! all heads, then the keys, then the values. Sequences lie one after the other without padding, so no mask exists.
//!
//! One task is one head of one sequence. It works through blocks of [`BLOCK`] queries, so that the block of scores
//! stays in the second-level cache:
//!
//! ```text
//! forward:   S = Q K^T                          (block, n)
//!            P = dropout(exp(S / sqrt(d) - max)), lse = log sum exp
//!            O = P V / sum                      (block, d)
//! backward:  S = Q K^T, d_P = d_O V^T           (block, n), computed again rather than kept
//!            P = exp(S / sqrt(d) - lse), d_S = P (dropout(d_P) - sum(O d_O))
//!            d_Q = d_S K / sqrt(d)              (block, d)
//!            d_V^T += d_O^T dropout(P), d_K^T += Q^T d_S / sqrt(d)     (d, n), over the blocks in order
//! ```
//!
//! In bf16 the two large operands of backward's last products are written by the pass over the scores in the packed
//! layout of [`crate::Packed`] at once, which is why these products are made transposed: nothing of size (n, n) is ever
//! rearranged. Probabilities and their gradients are rounded to bf16 between the products; everything else is f32.
//!
//! Who computes a task, and which other sequences there are, changes no bit of its result.
#![expect(
    unsafe_code,
    reason = "tasks write rows of the shared outputs, each its own columns of its own rows"
)]

mod passes;
mod products;

use std::sync::{Mutex, PoisonError};

use half::bf16;

use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::gemm::Gemm;
use crate::matrix::{MatMut, MatRef};
use crate::parallel::{Shared, for_each_tile};
use crate::rng::{Dropout, RowId};
use crate::rows::Number;
use crate::scratch::Scratch;
use crate::simd::Level;

use passes::{GROUP, HeadDropout, RowProducts, ScaledRow, Size, Transpose};

/// Queries of a block: with 512 keys its scores and their gradients take 768 KiB of f32 and bf16, within a second-level
/// cache of 1 MiB or more. A multiple of 32, so that a block is whole blocks of depth where it is reduced over.
pub const BLOCK: usize = 128;

/// The number type of activations: bf16 or f32.
pub trait Activation: Number + bytemuck::Pod + products::Products {}

impl Activation for f32 {}
impl Activation for bf16 {}

/// The sequences and sizes of one call.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// First rows of the sequences, and the number of rows at the end.
    pub cu_seqlens: &'a [u32],
    /// Dropout of the probabilities, with the global sample index of each sequence.
    pub dropout: Option<(Dropout, &'a [u64])>,
}

/// Attention with the kernels of a [`Gemm`].
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    gemm: Gemm,
}

/// Working memory: one seat a worker, each of which grows to what its largest task needs and is then reused.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    seats: Vec<Mutex<Seat>>,
    /// Sequences, the longest first.
    order: Vec<u32>,
}

/// The working memory of one worker.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    gemm: Scratch,
    lines: Vec<Line>,
}

/// Storage at the alignment of a cache line.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Cuts slices of any number type from a seat's memory.
pub(crate) struct Cutter<'a> {
    rest: &'a mut [Line],
}

impl Cutter<'_> {
    /// Lines that `len` elements of T take.
    fn lines<T>(len: usize) -> usize {
        (len * size_of::<T>()).div_ceil(size_of::<Line>())
    }
}

impl<'a> Cutter<'a> {
    /// The next `len` elements, aligned to a cache line; contents are unspecified.
    fn take<T: bytemuck::Pod>(&mut self, len: usize) -> &'a mut [T] {
        let (lines, rest) = std::mem::take(&mut self.rest).split_at_mut(Self::lines::<T>(len));
        self.rest = rest;
        &mut bytemuck::cast_slice_mut(lines)[..len]
    }
}

impl Seat {
    /// The scratch of matrix products, and memory of at least so many lines.
    fn parts(&mut self, lines: usize) -> (&mut Scratch, Cutter<'_>) {
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        (&mut self.gemm, Cutter { rest: &mut self.lines })
    }
}

impl AttentionScratch {
    /// Empty working memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Seats for every worker, and the order of the sequences.
    fn prepare(&mut self, threads: usize, cu_seqlens: &[u32]) -> (&[Mutex<Seat>], &[u32]) {
        if self.seats.len() < threads {
            self.seats.resize_with(threads, Mutex::default);
        }
        self.order.clear();
        self.order
            .extend(0..u32::try_from(cu_seqlens.len() - 1).unwrap_or(u32::MAX));
        // The longest first, so that the last tasks are short ones and workers finish together.
        let length = |s: u32| cu_seqlens[s as usize + 1] - cu_seqlens[s as usize];
        self.order.sort_unstable_by_key(|&s| (std::cmp::Reverse(length(s)), s));
        (&self.seats, &self.order)
    }

    /// Gives every seat as much memory as the largest has: which worker meets the longest sequence is left to chance, and
    /// the next call shall not grow for it.
    fn even_out(&mut self) {
        let (mut lines, mut bytes) = (0, 0);
        for seat in &mut self.seats {
            let seat = seat.get_mut().unwrap_or_else(PoisonError::into_inner);
            lines = lines.max(seat.lines.len());
            bytes = bytes.max(seat.gemm.bytes());
        }
        for seat in &mut self.seats {
            let seat = seat.get_mut().unwrap_or_else(PoisonError::into_inner);
            seat.parts(lines).0.reserve(bytes);
        }
    }
}

/// One head of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a, T> {
    gemm: Gemm,
    level: Level,
    /// (n, d) each.
    q: MatRef<'a, T>,
    k: MatRef<'a, T>,
    v: MatRef<'a, T>,
    /// Rows and columns of q, k and v.
    n: usize,
    d: usize,
    /// 1 / sqrt(d).
    scale: f32,
    dropout: Option<HeadDropout>,
}

/// Work on one head: the head, its sequence's first row, its number, the worker's memory.
type HeadTask<'a, T> = dyn Fn(Head<'_, T>, usize, usize, &mut Seat) -> Result<()> + Sync + 'a;

impl<T> Head<'_, T> {
    /// Elements from row to row of a block of scores.
    fn stride(&self) -> usize {
        self.n.next_multiple_of(16)
    }

    /// Rows of the largest block, in whole groups.
    fn block_rows(&self) -> usize {
        BLOCK.min(self.n.next_multiple_of(32))
    }

    /// The dropout of the block that begins at a query.
    #[expect(clippy::cast_possible_truncation, reason = "queries are counted in 32 bits")]
    fn dropout_from(&self, query: usize) -> Option<HeadDropout> {
        self.dropout.map(|d| HeadDropout {
            first_group: d.first_group + (query / GROUP) as u32,
            ..d
        })
    }
}

/// The address of the group of eight queries that holds `query` in the dropout mask of one head: the mask of
/// [`Attention`] keeps the probability of (query, key) where
/// `dropout.keeps_in_group(dropout_group(sample, head, n, query), query % 8, key)`, n being the sequence's length.
#[expect(
    clippy::cast_possible_truncation,
    reason = "groups of a sample are counted in 32 bits"
)]
pub fn dropout_group(sample: u64, head: usize, n: usize, query: usize) -> RowId {
    RowId {
        sample,
        row: (head * n.div_ceil(GROUP) + query / GROUP) as u32,
    }
}

impl Attention {
    /// Attention whose matrix products are those of `gemm`.
    pub fn new(gemm: Gemm) -> Self {
        Self { gemm }
    }

    /// out (t, h) and lse (t, heads) from qkv (t, 3h): each head's output, and the logarithm of the sum of exponentials of
    /// its scaled scores, which backward needs.
    ///
    /// # Errors
    /// When the slices do not have the sizes that `sequences` implies. Nothing has been written then.
    pub fn forward<T: Activation>(
        &self,
        exec: &dyn Executor,
        out: &mut [T],
        lse: &mut [f32],
        qkv: &[T],
        sequences: Sequences<'_>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let Sequences { heads, width, .. } = sequences;
        let t = sequences.check(&[
            ("attention output", out.len(), heads * width),
            ("attention statistics", lse.len(), heads),
            ("queries, keys and values", qkv.len(), 3 * heads * width),
        ])?;
        let out = Shared::new(MatMut::row_major(out, t, heads * width)?);
        let lse = Shared::new(MatMut::row_major(lse, t, heads)?);
        self.each_head(exec, qkv, sequences, scratch, &|head, first, at, seat| {
            T::forward(&head, seat, &mut |rows, x, row_lse, inverse| {
                for r in 0..rows.len() {
                    let row = first + rows.start + r;
                    // SAFETY: the rows are the sequence's and the columns the head's, and one worker has this task.
                    let to = unsafe { out.row(row, at * width, width) };
                    self.gemm.isa().level().run(ScaledRow {
                        out: to,
                        x: &x[r * width..][..width],
                        factor: inverse[r],
                    });
                    // SAFETY: as above; column `at` is the head's.
                    let to = unsafe { lse.row(row, at, 1) };
                    to[0] = row_lse[r];
                }
            })
        })
    }

    /// d_qkv (t, 3h) from d_out (t, h) and what forward read and wrote.
    ///
    /// # Errors
    /// When the slices do not have the sizes that `sequences` implies. Nothing has been written then.
    pub fn backward<T: Activation>(
        &self,
        exec: &dyn Executor,
        d_qkv: &mut [T],
        d_out: &[T],
        saved: AttentionSaved<'_, T>,
        sequences: Sequences<'_>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let Sequences { heads, width, .. } = sequences;
        let h = heads * width;
        let t = sequences.check(&[
            ("gradient of queries, keys and values", d_qkv.len(), 3 * h),
            ("gradient of the attention output", d_out.len(), h),
            ("attention output", saved.out.len(), h),
            ("attention statistics", saved.lse.len(), heads),
            ("queries, keys and values", saved.qkv.len(), 3 * h),
        ])?;
        let d_qkv = Shared::new(MatMut::row_major(d_qkv, t, 3 * h)?);
        self.each_head(exec, saved.qkv, sequences, scratch, &|head, first, at, seat| {
            let view = |x| strided(x, first, head.n, h, at * width, width);
            let outer = Outer {
                out: view(saved.out)?,
                d_out: view(d_out)?,
                lse: strided(saved.lse, first, head.n, heads, at, 1)?,
            };
            T::backward(&head, &outer, seat, &mut |part, rows, x| {
                for r in 0..rows.len() {
                    // SAFETY: the rows are the sequence's and the columns the head's in one of the three parts, and one
                    // worker has this task.
                    let to = unsafe { d_qkv.row(first + rows.start + r, part * h + at * width, width) };
                    self.gemm.isa().level().run(ScaledRow {
                        out: to,
                        x: &x[r * width..][..width],
                        factor: 1.0,
                    });
                }
            })
        })
    }

    /// Runs a task for each head of each sequence: `task(head, the sequence's first row, the head's number, seat)`.
    fn each_head<T: Activation>(
        &self,
        exec: &dyn Executor,
        qkv: &[T],
        sequences: Sequences<'_>,
        scratch: &mut AttentionScratch,
        task: &HeadTask<'_, T>,
    ) -> Result<()> {
        let Sequences {
            heads,
            width,
            cu_seqlens,
            dropout,
        } = sequences;
        let threads = exec.threads().max(1);
        let (seats, order) = scratch.prepare(threads, cu_seqlens);
        let failed = Mutex::new(None);
        #[expect(clippy::cast_precision_loss, reason = "a head is narrower than 2^24")]
        let scale = 1.0 / (width as f32).sqrt();
        for_each_tile(exec, threads, order.len() * heads, &|seat, index| {
            let s = order[index / heads] as usize;
            let at = index % heads;
            let first = cu_seqlens[s] as usize;
            let n = cu_seqlens[s + 1] as usize - first;
            if n == 0 {
                return;
            }
            let run = || {
                let part = |i: usize| strided(qkv, first, n, 3 * heads * width, (i * heads + at) * width, width);
                let head = Head {
                    gemm: self.gemm,
                    level: self.gemm.isa().level(),
                    q: part(0)?,
                    k: part(1)?,
                    v: part(2)?,
                    n,
                    d: width,
                    scale,
                    dropout: dropout
                        .filter(|(dropout, _)| !dropout.is_identity())
                        .map(|(dropout, samples)| {
                            let id = dropout_group(samples[s], at, n, 0);
                            HeadDropout {
                                dropout,
                                sample: id.sample,
                                first_group: id.row,
                            }
                        }),
                };
                // A panic elsewhere leaves nothing behind that the next task would read.
                let mut seat = seats[seat].lock().unwrap_or_else(PoisonError::into_inner);
                task(head, first, at, &mut seat)
            };
            if let Err(error) = run() {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        })?;
        scratch.even_out();
        failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }
}

/// What forward read and wrote, for backward.
#[derive(Debug, Clone, Copy)]
pub struct AttentionSaved<'a, T> {
    /// The output (t, h).
    pub out: &'a [T],
    /// The statistics (t, heads).
    pub lse: &'a [f32],
    /// Queries, keys and values (t, 3h).
    pub qkv: &'a [T],
}

/// What backward reads besides queries, keys and values, for one head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outer<'a, T> {
    /// (n, d)
    out: MatRef<'a, T>,
    /// (n, d)
    d_out: MatRef<'a, T>,
    /// (n, 1)
    lse: MatRef<'a, f32>,
}

/// `n` rows from row `first` on, `len` columns from column `at` on, of a matrix with rows of `width`.
fn strided<T>(x: &[T], first: usize, n: usize, width: usize, at: usize, len: usize) -> Result<MatRef<'_, T>> {
    MatRef::strided(&x[first * width + at..], n, len, width, 1)
}

impl Sequences<'_> {
    /// The number of rows, if the sequences are in order and every slice has the rows; (what, length, row width) each.
    fn check(&self, slices: &[(&'static str, usize, usize)]) -> Result<usize> {
        let ordered = self.cu_seqlens.first() == Some(&0) && self.cu_seqlens.is_sorted();
        if !ordered || self.heads == 0 || self.width == 0 {
            return Err(Error::Conflict {
                what: "sequences that do not begin at row 0 in order, or heads of no width,",
            });
        }
        let t = self.cu_seqlens.last().map_or(0, |&t| t as usize);
        for &(what, len, width) in slices {
            if t.checked_mul(width) != Some(len) {
                return Err(Error::Shape {
                    what,
                    expected: (t, width),
                    got: (len / width, width),
                });
            }
        }
        match self.dropout {
            Some((_, samples)) if samples.len() + 1 != self.cu_seqlens.len() => Err(Error::Shape {
                what: "sample indices",
                expected: (self.cu_seqlens.len() - 1, 1),
                got: (samples.len(), 1),
            }),
            _ => Ok(t),
        }
    }
}

/// sum(O d_O) and lse of the rows of a block, with room for whole groups behind them.
fn block_statistics<T: Activation>(
    head: &Head<'_, T>,
    outer: &Outer<'_, T>,
    query: usize,
    rows: usize,
    delta: &mut [f32],
    lse: &mut [f32],
) {
    let size = Size {
        rows,
        cols: head.d,
        stride: outer.out.row_stride(),
    };
    head.level.run(RowProducts {
        delta,
        out: &outer.out.data()[query * size.stride..],
        d_out: &outer.d_out.data()[query * size.stride..],
        size,
    });
    for (r, lse) in lse.iter_mut().enumerate().take(rows) {
        *lse = outer.lse.data()[(query + r) * outer.lse.row_stride()];
    }
}

/// Writes the transpose of x (d, n) to `out` (n, d).
fn transpose(level: Level, out: &mut [f32], x: &[f32], d: usize, n: usize, stride: usize) {
    level.run(Transpose {
        out,
        x,
        size: Size {
            rows: d,
            cols: n,
            stride,
        },
    });
}
