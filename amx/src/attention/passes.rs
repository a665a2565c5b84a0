//! What attention does between its matrix products: elementwise over a block of scores, eight query rows at a time.
//!
//! Eight rows give eight independent chains of additions, and are what one batch of random blocks decides for sixteen
//! columns. Blocks have room for a whole number of groups of eight; rows past the last query are computed and ignored.

use half::bf16;

use crate::math;
use crate::rng::{Dropout, RowId};
use crate::rows::number::Number;
use crate::simd::{Kernel, Lanes, Scalar};

/// Rows of a group.
pub(crate) const GROUP: usize = 8;

/// A matrix in scratch: rows `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

impl Size {
    /// Row r of group g, as whole chunks of sixteen columns and the columns behind them.
    #[inline(always)]
    fn row<T>(self, x: &[T], row: usize) -> (&[[T; 16]], &[T]) {
        x[row * self.stride..][..self.cols].as_chunks::<16>()
    }

    /// As [`Size::row`], to write.
    #[inline(always)]
    fn row_mut<T>(self, x: &mut [T], row: usize) -> (&mut [[T; 16]], &mut [T]) {
        x[row * self.stride..][..self.cols].as_chunks_mut::<16>()
    }
}

/// Dropout of the probabilities of one head of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadDropout {
    pub(crate) dropout: Dropout,
    pub(crate) sample: u64,
    /// The number of the block's first group of eight rows within the sample.
    pub(crate) first_group: u32,
}

impl HeadDropout {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a block has few groups")]
    fn factors<S: Lanes>(self, s: S, group: usize, chunk: usize) -> [S::F; 8] {
        let id = RowId {
            sample: self.sample,
            row: self.first_group + group as u32,
        };
        self.dropout.group_factors(s, id, chunk)
    }
}

/// p = dropout(exp(scale scores - max)) for each row of a block, with the row's log-sum-exp and 1 / sum (before dropout).
pub(crate) struct Exponentials<'a, T> {
    /// (rows, cols), rounded up to whole groups of rows.
    pub(crate) p: &'a mut [T],
    pub(crate) lse: &'a mut [f32],
    pub(crate) inverse: &'a mut [f32],
    pub(crate) scores: &'a [f32],
    pub(crate) size: Size,
    pub(crate) scale: f32,
    pub(crate) dropout: Option<HeadDropout>,
}

impl<T: Number> Kernel for Exponentials<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        for group in 0..self.size.rows.div_ceil(GROUP) {
            let p = &mut self.p[group * GROUP * self.size.stride..];
            let scores = &self.scores[group * GROUP * self.size.stride..];
            let sums = match self.dropout {
                Some(dropout) => exponentials::<S, T, true>(s, p, scores, self.size, self.scale, dropout, group),
                None => {
                    let none = HeadDropout {
                        dropout: Dropout::NONE,
                        sample: 0,
                        first_group: 0,
                    };
                    exponentials::<S, T, false>(s, p, scores, self.size, self.scale, none, group)
                }
            };
            let first = group * GROUP;
            for r in 0..GROUP.min(self.size.rows - first) {
                let (sum, shift) = sums[r];
                self.lse[first + r] = math::ln(Scalar, sum) - shift;
                self.inverse[first + r] = 1.0 / sum;
            }
        }
    }
}

/// One group of [`Exponentials`]: the sum of each row and minus its scaled maximum.
#[inline(always)]
fn exponentials<S: Lanes, T: Number, const DROP: bool>(
    s: S,
    p: &mut [T],
    scores: &[f32],
    size: Size,
    scale: f32,
    dropout: HeadDropout,
    group: usize,
) -> [(f32, f32); GROUP] {
    let chunks = size.cols / 16;
    let tail = size.cols % 16;
    let mut shifts = [0.0; GROUP];
    for r in 0..GROUP {
        let (row, rest) = size.row(scores, r);
        let mut greatest = [s.splat(f32::NEG_INFINITY); 2];
        let (pairs, last) = row.as_chunks::<2>();
        for pair in pairs {
            greatest[0] = s.max(greatest[0], s.load(&pair[0]));
            greatest[1] = s.max(greatest[1], s.load(&pair[1]));
        }
        for chunk in last {
            greatest[0] = s.max(greatest[0], s.load(chunk));
        }
        if tail > 0 {
            greatest[1] = s.max(greatest[1], s.load_part(rest, f32::NEG_INFINITY));
        }
        shifts[r] = -(s.max_lane(s.max(greatest[0], greatest[1])) * scale);
    }
    let scale = s.splat(scale);
    let mut sums = [s.splat(0.0); GROUP];
    for c in 0..chunks {
        let mut factors = [scale; GROUP];
        if DROP {
            factors = dropout.factors(s, group, c);
        }
        for r in 0..GROUP {
            let x = s.load(&size.row(scores, r).0[c]);
            let e = math::exp_below_88(s, s.fma(x, scale, s.splat(shifts[r])));
            sums[r] = s.add(sums[r], e);
            T::store(
                s,
                if DROP { s.mul(e, factors[r]) } else { e },
                &mut size.row_mut(p, r).0[c],
            );
        }
    }
    if tail > 0 {
        let mut factors = [scale; GROUP];
        if DROP {
            factors = dropout.factors(s, group, chunks);
        }
        for r in 0..GROUP {
            let x = s.load_part(size.row(scores, r).1, f32::NEG_INFINITY);
            let e = math::exp_below_88(s, s.fma(x, scale, s.splat(shifts[r])));
            sums[r] = s.add(sums[r], e);
            T::store_part(s, if DROP { s.mul(e, factors[r]) } else { e }, size.row_mut(p, r).1);
        }
    }
    let mut out = [(0.0, 0.0); GROUP];
    for r in 0..GROUP {
        out[r] = (s.sum(sums[r]), shifts[r]);
    }
    out
}

/// Where the backward pass puts the dropped-out probabilities and the gradient of the scores.
pub(crate) trait Sink {
    /// Takes sixteen columns of two neighbouring rows, of which the first is even. Columns past `width` and rows past the last
    /// query hold zeros.
    fn put<S: Lanes>(&mut self, s: S, row: usize, chunk: usize, width: usize, p: [S::F; 2], d_scores: [S::F; 2]);
}

/// From scores and the gradient d_p of the probabilities after dropout: the probabilities P after dropout and
/// d_scores = P' (d_p m - delta), P' being the probabilities before dropout and m the mask; the score's scale is left out.
pub(crate) struct ScoreGradients<'a, K> {
    pub(crate) sink: K,
    pub(crate) scores: &'a [f32],
    pub(crate) d_p: &'a [f32],
    /// Of each row, room for whole groups.
    pub(crate) lse: &'a [f32],
    /// sum(O d_O) of each row, room for whole groups.
    pub(crate) delta: &'a [f32],
    pub(crate) size: Size,
    pub(crate) scale: f32,
    pub(crate) dropout: Option<HeadDropout>,
}

impl<K: Sink> Kernel for ScoreGradients<'_, K> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(mut self, s: S) {
        for group in 0..self.size.rows.div_ceil(GROUP) {
            match self.dropout {
                Some(dropout) => self.group::<S, true>(s, group, dropout),
                None => {
                    let none = HeadDropout {
                        dropout: Dropout::NONE,
                        sample: 0,
                        first_group: 0,
                    };
                    self.group::<S, false>(s, group, none);
                }
            }
        }
    }
}

impl<K: Sink> ScoreGradients<'_, K> {
    #[inline(always)]
    fn group<S: Lanes, const DROP: bool>(&mut self, s: S, group: usize, dropout: HeadDropout) {
        let first = group * GROUP;
        let size = self.size;
        let scores = &self.scores[first * size.stride..];
        let d_p = &self.d_p[first * size.stride..];
        let lse = &self.lse[first..first + GROUP];
        let delta = &self.delta[first..first + GROUP];
        let live = GROUP.min(size.rows - first);
        let scale = s.splat(self.scale);
        let zero = s.splat(0.0);
        for c in 0..size.cols.div_ceil(16) {
            let width = 16.min(size.cols - 16 * c);
            let mut factors = [zero; GROUP];
            if DROP {
                factors = dropout.factors(s, group, c);
            }
            for pair in 0..GROUP / 2 {
                let (mut p_out, mut d_out) = ([zero; 2], [zero; 2]);
                for i in 0..2 {
                    let r = 2 * pair + i;
                    if r >= live {
                        continue;
                    }
                    let at = r * size.stride + 16 * c;
                    let (x, d) = if width == 16 {
                        (s.load(sixteen(scores, at)), s.load(sixteen(d_p, at)))
                    } else {
                        let range = at..at + width;
                        let x = s.load_part(&scores[range.clone()], f32::NEG_INFINITY);
                        (x, s.load_part(&d_p[range], 0.0))
                    };
                    let p = math::exp_below_88(s, s.fma(x, scale, s.splat(-lse[r])));
                    let (dropped, d) = if DROP {
                        (s.mul(p, factors[r]), s.mul(d, factors[r]))
                    } else {
                        (p, d)
                    };
                    p_out[i] = dropped;
                    d_out[i] = s.mul(p, s.sub(d, s.splat(delta[r])));
                }
                self.sink.put(s, first + 2 * pair, c, width, p_out, d_out);
            }
        }
    }
}

/// Sixteen elements from an offset on.
#[inline(always)]
fn sixteen<T>(x: &[T], at: usize) -> &[T; 16] {
    let (chunks, _) = x[at..at + 16].as_chunks::<16>();
    &chunks[0]
}

/// As [`sixteen`], to write.
#[inline(always)]
fn sixteen_mut<T>(x: &mut [T], at: usize) -> &mut [T; 16] {
    let (chunks, _) = x[at..at + 16].as_chunks_mut::<16>();
    &mut chunks[0]
}

/// Probabilities and gradients as f32 rows.
pub(crate) struct Rows<'a> {
    pub(crate) p: &'a mut [f32],
    pub(crate) d_scores: &'a mut [f32],
    pub(crate) stride: usize,
}

impl Sink for Rows<'_> {
    #[inline(always)]
    fn put<S: Lanes>(&mut self, s: S, row: usize, chunk: usize, width: usize, p: [S::F; 2], d_scores: [S::F; 2]) {
        for i in 0..2 {
            let at = (row + i) * self.stride + 16 * chunk;
            s.store_part(p[i], &mut self.p[at..at + width]);
            s.store_part(d_scores[i], &mut self.d_scores[at..at + width]);
        }
    }
}

/// Both in the layout of a packed operand (the queries being its K), and the gradients as rows too.
pub(crate) struct PackedPairs<'a> {
    /// (queries, keys) packed.
    pub(crate) p: &'a mut [bf16],
    /// (queries, keys) packed.
    pub(crate) d_scores: &'a mut [bf16],
    /// Blocks of 32 queries.
    pub(crate) k_blocks: usize,
    /// (queries, keys), rows `stride` apart, room for whole chunks and groups.
    pub(crate) d_rows: &'a mut [bf16],
    pub(crate) stride: usize,
}

impl Sink for PackedPairs<'_> {
    #[inline(always)]
    fn put<S: Lanes>(&mut self, s: S, row: usize, chunk: usize, _: usize, p: [S::F; 2], d_scores: [S::F; 2]) {
        // A tile has 32 rows of K, that is sixteen rows of pairs of 32 elements.
        let at = (chunk * self.k_blocks + row / 32) * 512 + row % 32 / 2 * 32;
        s.store_bf16_pairs(p[0], p[1], pairs_mut(self.p, at));
        s.store_bf16_pairs(d_scores[0], d_scores[1], pairs_mut(self.d_scores, at));
        for i in 0..2 {
            let at = (row + i) * self.stride + 16 * chunk;
            s.store_bf16(d_scores[i], sixteen_mut(self.d_rows, at));
        }
    }
}

/// A row of pairs of a packed operand.
#[inline(always)]
fn pairs_mut(x: &mut [bf16], at: usize) -> &mut [bf16; 32] {
    let (rows, _) = x[at..at + 32].as_chunks_mut::<32>();
    &mut rows[0]
}

/// delta = sum(out d_out) of each row of two strided matrices.
pub(crate) struct RowProducts<'a, T> {
    pub(crate) delta: &'a mut [f32],
    pub(crate) out: &'a [T],
    pub(crate) d_out: &'a [T],
    pub(crate) size: Size,
}

impl<T: Number> Kernel for RowProducts<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        for (r, delta) in self.delta.iter_mut().enumerate().take(self.size.rows) {
            let (x, x_tail) = self.size.row(self.out, r);
            let (y, y_tail) = self.size.row(self.d_out, r);
            let mut sum = s.splat(0.0);
            for (x, y) in x.iter().zip(y) {
                sum = s.fma(T::load(s, x), T::load(s, y), sum);
            }
            if !x_tail.is_empty() {
                sum = s.fma(T::load_part(s, x_tail, 0.0), T::load_part(s, y_tail, 0.0), sum);
            }
            *delta = s.sum(sum);
        }
    }
}

/// out = factor x for a row.
pub(crate) struct ScaledRow<'a, T> {
    pub(crate) out: &'a mut [T],
    pub(crate) x: &'a [f32],
    pub(crate) factor: f32,
}

impl<T: Number> Kernel for ScaledRow<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let factor = s.splat(self.factor);
        let (out, out_tail) = self.out.as_chunks_mut::<16>();
        let (x, x_tail) = self.x.as_chunks::<16>();
        for (out, x) in out.iter_mut().zip(x) {
            T::store(s, s.mul(s.load(x), factor), out);
        }
        if !out_tail.is_empty() {
            T::store_part(s, s.mul(s.load_part(x_tail, 0.0), factor), out_tail);
        }
    }
}

/// out = the transpose of x: out (cols, rows) dense, x (rows, cols) with a stride.
pub(crate) struct Transpose<'a> {
    pub(crate) out: &'a mut [f32],
    pub(crate) x: &'a [f32],
    pub(crate) size: Size,
}

impl Kernel for Transpose<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let Size { rows, cols, stride } = self.size;
        for row in (0..rows).step_by(16) {
            for col in (0..cols).step_by(16) {
                let (height, width) = (16.min(rows - row), 16.min(cols - col));
                let mut lanes = [s.splat(0.0); 16];
                for r in 0..16 {
                    if r < height {
                        let at = (row + r) * stride + col;
                        lanes[r] = s.load_part(&self.x[at..at + width], 0.0);
                    }
                }
                let columns = s.transpose(lanes);
                for c in 0..16 {
                    if c < width {
                        let at = (col + c) * rows + row;
                        s.store_part(columns[c], &mut self.out[at..at + height]);
                    }
                }
            }
        }
    }
}
