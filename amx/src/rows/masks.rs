//! Dropout along rows, alone and with the additions around it.

use super::number::Number;
use crate::epilogue::RowDropout;
use crate::rng::{Dropout, RowId};
use crate::simd::{Kernel, Lanes};

/// out = dropout(x) on rows of `width`.
pub(crate) struct Apply<'a, O, I> {
    pub(crate) out: &'a mut [O],
    pub(crate) x: &'a [I],
    pub(crate) width: usize,
    pub(crate) dropout: RowDropout<'a>,
}

impl<O: Number, I: Number> Kernel for Apply<'_, O, I> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let rows = self
            .out
            .chunks_exact_mut(self.width)
            .zip(self.x.chunks_exact(self.width));
        for ((out, x), &id) in rows.zip(self.dropout.rows) {
            masked_row::<S, O, true, false>(s, out, x, &mut [], self.dropout.dropout, id);
        }
    }
}

/// out = dropout(x) on one row, with DROP; sums += that, with SUM.
#[inline(always)]
pub(crate) fn masked_row<S: Lanes, O: Number, const DROP: bool, const SUM: bool>(
    s: S,
    out: &mut [O],
    x: &[impl Number],
    sums: &mut [f32],
    dropout: Dropout,
    id: RowId,
) {
    // Chunks of 128 columns, which is what one batch of random blocks decides.
    let (out, out_rest) = out.as_chunks_mut::<128>();
    let (x, x_rest) = x.as_chunks::<128>();
    let (sums, sums_rest) = sums.as_chunks_mut::<128>();
    let full = out.len();
    for i in 0..full {
        let mut factors = [s.splat(1.0); 8];
        if DROP {
            factors = dropout.factors(s, id, i);
        }
        let (out, _) = out[i].as_chunks_mut::<16>();
        let (x, _) = x[i].as_chunks::<16>();
        for j in 0..8 {
            let mut value = load(s, &x[j]);
            if DROP {
                value = s.mul(value, factors[j]);
            }
            O::store(s, value, &mut out[j]);
            if SUM {
                let sum = &mut sums[i].as_chunks_mut::<16>().0[j];
                let total = s.add(s.load(sum), value);
                s.store(total, sum);
            }
        }
    }
    if !out_rest.is_empty() {
        let mut factors = [[1.0; 16]; 8];
        if DROP {
            let values = dropout.factors(s, id, full);
            for j in 0..8 {
                s.store(values[j], &mut factors[j]);
            }
        }
        for (j, (out, x)) in out_rest.chunks_mut(16).zip(x_rest.chunks(16)).enumerate() {
            let value = s.mul(load_part(s, x), s.load(&factors[j]));
            O::store_part(s, value, out);
            if SUM {
                let sum = &mut sums_rest[16 * j..];
                let total = s.add(s.load_part(sum, 0.0), value);
                s.store_part(total, sum);
            }
        }
    }
}

/// Sixteen numbers of any type.
#[inline(always)]
fn load<S: Lanes, T: Number>(s: S, x: &[T; 16]) -> S::F {
    T::load(s, x)
}

/// Up to sixteen numbers of any type, zeros behind them.
#[inline(always)]
fn load_part<S: Lanes, T: Number>(s: S, x: &[T]) -> S::F {
    T::load_part(s, x, 0.0)
}

/// x = dropout(x + bias) + residual on rows of `width`.
pub(crate) struct BiasDropoutResidual<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) dropout: Option<RowDropout<'a>>,
    pub(crate) residual: Option<&'a [f32]>,
    pub(crate) width: usize,
}

impl Kernel for BiasDropoutResidual<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        for (i, x) in self.x.chunks_exact_mut(self.width).enumerate() {
            let residual = self.residual.map(|r| &r[i * self.width..][..self.width]);
            let dropout = self.dropout.map(|d| (d.dropout, d.rows[i]));
            bias_dropout_residual_row(s, x, self.bias, dropout, residual);
        }
    }
}

/// One row of [`BiasDropoutResidual`].
#[inline(always)]
pub(crate) fn bias_dropout_residual_row<S: Lanes>(
    s: S,
    x: &mut [f32],
    bias: Option<&[f32]>,
    dropout: Option<(Dropout, RowId)>,
    residual: Option<&[f32]>,
) {
    // Chunks of 128 columns, which is what one batch of random blocks decides. Absent parts are neutral numbers.
    for (i, x) in x.chunks_mut(128).enumerate() {
        let bias = bias.map_or(&[][..], |b| &b[i * 128..][..x.len()]);
        let residual = residual.map_or(&[][..], |r| &r[i * 128..][..x.len()]);
        let mut factors = [s.splat(1.0); 8];
        if let Some((dropout, id)) = dropout {
            factors = dropout.factors(s, id, i);
        }
        if x.len() == 128 {
            let (x, _) = x.as_chunks_mut::<16>();
            let (bias, residual) = (bias.as_chunks::<16>().0, residual.as_chunks::<16>().0);
            for j in 0..8 {
                let mut value = s.load(&x[j]);
                if let Some(bias) = bias.get(j) {
                    value = s.add(value, s.load(bias));
                }
                let rest = residual.get(j).map_or(s.splat(0.0), |r| s.load(r));
                s.store(s.fma(value, factors[j], rest), &mut x[j]);
            }
        } else {
            let mut stored = [[0.0; 16]; 8];
            for j in 0..8 {
                s.store(factors[j], &mut stored[j]);
            }
            for (j, x) in x.chunks_mut(16).enumerate() {
                let range = 16 * j..16 * j + x.len();
                let part = |y: &'_ [f32]| {
                    if y.is_empty() {
                        s.splat(0.0)
                    } else {
                        s.load_part(&y[range.clone()], 0.0)
                    }
                };
                let value = s.add(s.load_part(x, 0.0), part(bias));
                s.store_part(s.fma(value, s.load(&stored[j]), part(residual)), x);
            }
        }
    }
}
