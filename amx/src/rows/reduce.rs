//! Sums and maxima along a row, in one order whatever the vector width: element i goes to chain `i / 16 % 4` and lane
//! `i % 16`, but the last chunks of a row to the chains in turn and a partial chunk to the last chain; then the four chains
//! are added in pairs and the lanes folded by halves. Four chains hide the latency of the addition.

use super::number::Number;
use crate::simd::{Kernel, Lanes};

/// What a reduction does with the next sixteen numbers.
pub(crate) trait Fold: Copy {
    /// The accumulator after these numbers.
    fn step<S: Lanes>(self, s: S, sum: S::F, x: S::F) -> S::F;
    /// Two accumulators joined.
    #[inline(always)]
    fn join<S: Lanes>(self, s: S, a: S::F, b: S::F) -> S::F {
        s.add(a, b)
    }
}

/// The reduction of a row, before its lanes are folded. `start` is neutral to `join`; `fill` is a number that `step`
/// ignores.
#[inline(always)]
pub(crate) fn reduce<S: Lanes, T: Number, F: Fold>(s: S, x: &[T], f: F, start: f32, fill: f32) -> S::F {
    let (chunks, tail) = x.as_chunks::<16>();
    let (quads, rest) = chunks.as_chunks::<4>();
    let mut chains = [s.splat(start); 4];
    for quad in quads {
        for j in 0..4 {
            chains[j] = f.step(s, chains[j], T::load(s, &quad[j]));
        }
    }
    for j in 0..3 {
        if let Some(chunk) = rest.get(j) {
            chains[j] = f.step(s, chains[j], T::load(s, chunk));
        }
    }
    if !tail.is_empty() {
        chains[3] = f.step(s, chains[3], T::load_part(s, tail, fill));
    }
    f.join(s, f.join(s, chains[0], chains[1]), f.join(s, chains[2], chains[3]))
}

/// The sum.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Fold for Plain {
    #[inline(always)]
    fn step<S: Lanes>(self, s: S, sum: S::F, x: S::F) -> S::F {
        s.add(sum, x)
    }
}

/// The sum of squares.
#[derive(Clone, Copy)]
pub(crate) struct Squares;

impl Fold for Squares {
    #[inline(always)]
    fn step<S: Lanes>(self, s: S, sum: S::F, x: S::F) -> S::F {
        s.fma(x, x, sum)
    }
}

/// The sum of squared distances from a number.
#[derive(Clone, Copy)]
pub(crate) struct Deviations(pub(crate) f32);

impl Fold for Deviations {
    #[inline(always)]
    fn step<S: Lanes>(self, s: S, sum: S::F, x: S::F) -> S::F {
        let d = s.sub(x, s.splat(self.0));
        s.fma(d, d, sum)
    }
}

/// The greatest number; a NaN among them may or may not be the result.
#[derive(Clone, Copy)]
pub(crate) struct Greatest;

impl Fold for Greatest {
    #[inline(always)]
    fn step<S: Lanes>(self, s: S, sum: S::F, x: S::F) -> S::F {
        s.max(sum, x)
    }
    #[inline(always)]
    fn join<S: Lanes>(self, s: S, a: S::F, b: S::F) -> S::F {
        s.max(a, b)
    }
}

/// Numbers whose squares are summed in f32 before the sum goes on in f64.
const SQUARES_BLOCK: usize = 4096;

/// The sum of squares of a long slice.
pub(crate) struct SumSquares<'a>(pub(crate) &'a [f32]);

impl Kernel for SumSquares<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) -> f64 {
        self.0
            .chunks(SQUARES_BLOCK)
            .map(|block| f64::from(s.sum(reduce(s, block, Squares, 0.0, 0.0))))
            .sum()
    }
}

/// Rows whose column sums stay in registers before they go to memory: enough to make its traffic small.
const COLUMN_ROWS: usize = 8;

/// sums += the rows of x (rows of `sums.len()`), each column from the first row to the last.
pub(crate) struct ColumnSums<'a, T> {
    pub(crate) sums: &'a mut [f32],
    pub(crate) x: &'a [T],
}

impl<T: Number> Kernel for ColumnSums<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let width = self.sums.len();
        let (sums, sums_tail) = self.sums.as_chunks_mut::<16>();
        let chunks = sums.len();
        for block in self.x.chunks(COLUMN_ROWS * width) {
            if block.len() == COLUMN_ROWS * width {
                // The eight rows' chunks, so that the loop over columns has no divisions and no bounds to check.
                let rows: [&[[T; 16]]; COLUMN_ROWS] =
                    std::array::from_fn(|r| &block[r * width..].as_chunks::<16>().0[..chunks]);
                for (i, sum) in sums.iter_mut().enumerate() {
                    let mut total = s.load(sum);
                    for row in rows {
                        total = s.add(total, T::load(s, &row[i]));
                    }
                    s.store(total, sum);
                }
            } else {
                for row in block.chunks_exact(width) {
                    for (sum, x) in sums.iter_mut().zip(row.as_chunks::<16>().0) {
                        let total = s.add(s.load(sum), T::load(s, x));
                        s.store(total, sum);
                    }
                }
            }
            if !sums_tail.is_empty() {
                for row in block.chunks_exact(width) {
                    let total = s.add(s.load_part(sums_tail, 0.0), T::load_part(s, &row[chunks * 16..], 0.0));
                    s.store_part(total, sums_tail);
                }
            }
        }
    }
}
