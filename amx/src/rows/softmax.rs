//! Softmax of a row, its gradient, and the cross-entropy of a row against one class.

use super::number::Number;
use super::reduce::{Fold, Greatest, Plain, reduce};
use crate::math;
use crate::simd::{Kernel, Lanes, Scalar};

/// The sum of exponentials of scaled distances from the greatest number.
#[derive(Clone, Copy)]
struct Exponentials {
    scale: f32,
    shift: f32,
}

impl Fold for Exponentials {
    #[inline(always)]
    fn step<S: Lanes>(self, s: S, sum: S::F, x: S::F) -> S::F {
        s.add(
            sum,
            math::exp_below_88(s, s.fma(x, s.splat(self.scale), s.splat(self.shift))),
        )
    }
}

/// log(sum(exp(scale x))) of a row, and the shift -scale max(x) (or -max when the scale is negative) used on the way.
#[inline(always)]
fn log_sum_exp<S: Lanes, T: Number>(s: S, x: &[T], scale: f32) -> f32 {
    let greatest = s.max_lane(reduce(s, x, Greatest, f32::NEG_INFINITY, f32::NEG_INFINITY));
    let shift = -(greatest * scale);
    let sum = s.sum(reduce(s, x, Exponentials { scale, shift }, 0.0, f32::NEG_INFINITY));
    math::ln(Scalar, sum) - shift
}

/// x = softmax(scale x) of one row, scale > 0; gives log(sum(exp(scale x))).
pub(crate) struct Softmax<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) scale: f32,
}

impl Kernel for Softmax<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) -> f32 {
        let greatest = s.max_lane(reduce(s, self.x, Greatest, f32::NEG_INFINITY, f32::NEG_INFINITY));
        let shift = -(greatest * self.scale);
        let (scale_lanes, shift_lanes) = (s.splat(self.scale), s.splat(shift));
        {
            let (chunks, tail) = self.x.as_chunks_mut::<16>();
            for x in chunks {
                let value = math::exp_below_88(s, s.fma(s.load(x), scale_lanes, shift_lanes));
                s.store(value, x);
            }
            if !tail.is_empty() {
                let value = math::exp_below_88(s, s.fma(s.load_part(tail, 0.0), scale_lanes, shift_lanes));
                s.store_part(value, tail);
            }
        }
        let sum = s.sum(reduce(s, self.x, Plain, 0.0, 0.0));
        let factor = s.splat(1.0 / sum);
        let (chunks, tail) = self.x.as_chunks_mut::<16>();
        for x in chunks {
            s.store(s.mul(s.load(x), factor), x);
        }
        if !tail.is_empty() {
            s.store_part(s.mul(s.load_part(tail, 0.0), factor), tail);
        }
        math::ln(Scalar, sum) - shift
    }
}

/// d_p = p (d_p - sum(p d_p)) scale: the gradient before the softmax, in place.
pub(crate) struct SoftmaxBackward<'a> {
    pub(crate) d_p: &'a mut [f32],
    pub(crate) p: &'a [f32],
    pub(crate) scale: f32,
}

impl Kernel for SoftmaxBackward<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (p, p_tail) = self.p.as_chunks::<16>();
        let (d_p, d_p_tail) = self.d_p.as_chunks_mut::<16>();
        let mut sum = s.splat(0.0);
        for (p, d_p) in p.iter().zip(&*d_p) {
            sum = s.fma(s.load(p), s.load(d_p), sum);
        }
        if !p_tail.is_empty() {
            sum = s.fma(s.load_part(p_tail, 0.0), s.load_part(d_p_tail, 0.0), sum);
        }
        let sum = s.splat(s.sum(sum));
        let scale = s.splat(self.scale);
        for (p, d_p) in p.iter().zip(d_p) {
            let value = s.mul(s.mul(s.load(p), s.sub(s.load(d_p), sum)), scale);
            s.store(value, d_p);
        }
        if !p_tail.is_empty() {
            let value = s.mul(
                s.mul(s.load_part(p_tail, 0.0), s.sub(s.load_part(d_p_tail, 0.0), sum)),
                scale,
            );
            s.store_part(value, d_p_tail);
        }
    }
}

/// The loss of a row of logits; with its gradient times `weight` when wanted.
pub(crate) struct CrossEntropy<'a> {
    pub(crate) d_logits: Option<&'a mut [f32]>,
    pub(crate) logits: &'a [f32],
    pub(crate) target: usize,
    pub(crate) weight: f32,
}

impl Kernel for CrossEntropy<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) -> f32 {
        let total = log_sum_exp(s, self.logits, 1.0);
        if let Some(d_logits) = self.d_logits {
            let (total, weight) = (s.splat(total), s.splat(self.weight));
            let (out, out_tail) = d_logits.as_chunks_mut::<16>();
            let (x, x_tail) = self.logits.as_chunks::<16>();
            for (out, x) in out.iter_mut().zip(x) {
                s.store(s.mul(math::exp_below_88(s, s.sub(s.load(x), total)), weight), out);
            }
            if !out_tail.is_empty() {
                let value = s.mul(math::exp_below_88(s, s.sub(s.load_part(x_tail, 0.0), total)), weight);
                s.store_part(value, out_tail);
            }
            d_logits[self.target] -= self.weight;
        }
        total - self.logits[self.target]
    }
}
