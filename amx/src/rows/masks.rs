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
            apply_row(s, out, x, self.dropout.dropout, id);
        }
    }
}

/// One row of [`Apply`].
#[inline(always)]
pub(crate) fn apply_row<S: Lanes, O: Number, I: Number>(s: S, out: &mut [O], x: &[I], dropout: Dropout, id: RowId) {
    let (out, out_rest) = out.as_chunks_mut::<128>();
    let (x, x_rest) = x.as_chunks::<128>();
    let full = out.len();
    for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
        let factors = dropout.factors(s, id, i);
        let (out, _) = out.as_chunks_mut::<16>();
        let (x, _) = x.as_chunks::<16>();
        for j in 0..8 {
            O::store(s, s.mul(I::load(s, &x[j]), factors[j]), &mut out[j]);
        }
    }
    if !out_rest.is_empty() {
        let factors = dropout.factors(s, id, full);
        let mut factors_out = [[0.0; 16]; 8];
        for j in 0..8 {
            s.store(factors[j], &mut factors_out[j]);
        }
        for ((out, x), factor) in out_rest.chunks_mut(16).zip(x_rest.chunks(16)).zip(&factors_out) {
            O::store_part(s, s.mul(I::load_part(s, x, 0.0), s.load(factor)), out);
        }
    }
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
    // Chunks of 128 columns, which is what one batch of random blocks decides.
    for (i, x) in x.chunks_mut(128).enumerate() {
        let bias = bias.map(|b| &b[i * 128..][..x.len()]);
        let residual = residual.map(|r| &r[i * 128..][..x.len()]);
        let mut factors = [[1.0; 16]; 8];
        if let Some((dropout, id)) = dropout {
            let values = dropout.factors(s, id, i);
            for j in 0..8 {
                s.store(values[j], &mut factors[j]);
            }
        }
        let (chunks, tail) = x.as_chunks_mut::<16>();
        let full = chunks.len();
        for (j, (x, factor)) in chunks.iter_mut().zip(&factors).enumerate() {
            let mut value = s.load(x);
            if let Some(bias) = bias {
                value = s.add(value, s.load(&bias.as_chunks::<16>().0[j]));
            }
            if let Some(residual) = residual {
                value = s.fma(value, s.load(factor), s.load(&residual.as_chunks::<16>().0[j]));
            } else {
                value = s.mul(value, s.load(factor));
            }
            s.store(value, x);
        }
        if !tail.is_empty() {
            let mut value = s.load_part(tail, 0.0);
            if let Some(bias) = bias {
                value = s.add(value, s.load_part(&bias[full * 16..], 0.0));
            }
            if let Some(residual) = residual {
                value = s.fma(value, s.load(&factors[full]), s.load_part(&residual[full * 16..], 0.0));
            } else {
                value = s.mul(value, s.load(&factors[full]));
            }
            s.store_part(value, tail);
        }
    }
}
