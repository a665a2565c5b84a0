//! exp, ln, erf, GELU and its derivative: one sequence of operations each, the same bits at every vector width.
//!
//! A library's `exp` differs from platform to platform. These functions are polynomials with a fixed order of fused
//! multiply-adds over the operations of [`crate::simd`], none of which rounds differently from one instruction set to
//! the next. `exp(Avx512, x)` is sixteen times `exp(Scalar, x)`, bit for bit.
//!
//! The greatest errors against f64, found over a dense grid (the tests hold them there):
//!
//! | function | domain | greatest error |
//! |---|---|---|
//! | [`exp`] | all; 0 below -87.336 instead of denormals | 1.0 ulp |
//! | [`ln`] | all, denormals included | 1.0 ulp |
//! | [`erf`] | all | 3 ulp |
//! | [`gelu`] | all | 2.5e-7 max(abs(x), abs(gelu(x))) absolute, 1e-6 relative down to x = -5 |
//! | [`gelu_grad`] | all | 3e-7 absolute |
//!
//! Coefficients are minimax fits of our own (weighted least squares iterated to the equal-ripple error in extended
//! precision, then rounded to f32); the error of each fit without rounding stands beside it.
#![allow(dead_code, reason = "erf is here for completeness; GELU needs only the normal tail")]

use crate::simd::Ops;

/// A polynomial by Horner's rule; the coefficients begin with the highest power.
#[inline(always)]
fn horner<S: Ops, const N: usize>(s: S, x: S::F, c: [f32; N]) -> S::F {
    let mut sum = s.splat(c[0]);
    for i in 1..N {
        sum = s.fma(sum, x, s.splat(c[i]));
    }
    sum
}

/// 1.5 * 2^23: added to a number below 2^22, it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// e^x. Infinite above 88.723; 0 below the least normal number (-87.336), so that no denormal is made.
#[inline(always)]
pub(crate) fn exp<S: Ops>(s: S, x: S::F) -> S::F {
    // e^x = 2^n e^r with n = round(x / ln 2) and abs(r) <= ln(2) / 2. The bounds come first so that NaN passes through.
    let bounded = s.min(s.splat(89.0), s.max(s.splat(-104.0), x));
    let shifted = s.fma(bounded, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    // ln 2 in two parts: the upper one has 9 bits behind the point, so its product with n is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), bounded);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    // e^r = 1 + r + r^2 q(r); the fit is within 3.1e-9.
    let q = horner(
        s,
        r,
        [0.001_381_453_8, 0.008_368_745, 0.041_668_39, 0.166_665_21, 0.499_999_94],
    );
    let p = s.add(s.splat(1.0), s.fma(s.mul(q, r), r, r));
    // The low bits of `shifted` are n; adding them to the exponent multiplies by 2^n.
    let scaled = s.number(s.add_u32(s.bits(p), s.shl::<23>(s.bits(shifted))));
    let tiny = s.lt(x, s.splat(-87.336_54));
    let huge = s.lt(s.splat(88.722_84), x);
    s.select(tiny, s.splat(0.0), s.select(huge, s.splat(f32::INFINITY), scaled))
}

/// The natural logarithm: -inf at 0, NaN below.
#[inline(always)]
pub(crate) fn ln<S: Ops>(s: S, x: S::F) -> S::F {
    // Denormals are scaled into the normal range by 2^23.
    let small = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let normal = s.select(small, s.mul(x, s.splat(8_388_608.0)), x);
    let bias = s.select(small, s.splat(-23.0), s.splat(0.0));
    // x = 2^e m with m in [sqrt(1/2), sqrt(2)): the bits of sqrt(1/2) are taken off before the exponent is read.
    let bits = s.sub_u32(s.bits(normal), s.splat_u32(0x3f35_04f3));
    let mantissa = s.and(bits, s.splat_u32(0x007f_ffff));
    // The sign bit of the difference makes the exponent negative; 2^8 is added to shift it in, then taken off.
    let exponent = s.sub_u32(
        s.shr::<23>(s.add_u32(bits, s.splat_u32(0x4000_0000))),
        s.splat_u32(0x80),
    );
    let e = s.add(s.i32_to_f32(exponent), bias);
    let m = s.number(s.add_u32(mantissa, s.splat_u32(0x3f35_04f3)));
    // ln m = 2 atanh(f / (2 + f)) with f = m - 1: with t that quotient, 2 t = f - t f, which keeps the leading f exact.
    let f = s.sub(m, s.splat(1.0));
    let t = s.div(f, s.add(f, s.splat(2.0)));
    let t2 = s.mul(t, t);
    // The series of 2 atanh(t) - 2 t = t t2 (2/3 + 2/5 t2 + ..), cut where 2/11 t^10 is below 1e-8.
    let series = s.mul(t2, horner(s, t2, [2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0]));
    // ln m = f - t (f - series); the correction is at most a fifth of f.
    let correction = s.mul(t, s.sub(f, series));
    let low = s.fma(e, s.splat(-2.121_944_4e-4), s.neg(correction));
    let sum = s.fma(e, s.splat(0.693_359_4), s.add(f, low));
    // Special values: infinity and NaN stay, zero gives -inf, a negative number NaN.
    let finite = s.lt(x, s.splat(f32::INFINITY));
    let out = s.select(finite, sum, x);
    let positive = s.lt(s.splat(0.0), x);
    let negative = s.lt(x, s.splat(0.0));
    let below = s.select(
        negative,
        s.splat(f32::NAN),
        s.select(s.lt(x, s.splat(f32::MIN_POSITIVE)), s.splat(f32::NEG_INFINITY), x),
    );
    s.select(positive, out, below)
}

/// 1 / sqrt(x), each of the two correctly rounded.
#[inline(always)]
pub(crate) fn rsqrt<S: Ops>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), s.sqrt(x))
}

/// The normal distribution's tail Phi(-z) for z >= 0, and its exponential factor e^(-z^2 / 2).
#[inline(always)]
fn normal_tail<S: Ops>(s: S, z: S::F) -> (S::F, S::F) {
    let gauss = exp(s, s.mul(s.mul(z, z), s.splat(-0.5)));
    // Phi(-z) = e^(-z^2 / 2) R(z) with R smooth and falling slowly: a polynomial in t = 1 / (1 + z / 4), within 1.2e-8
    // up to z = 13.3, where e^(-z^2 / 2) has become 0.
    let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.25), s.splat(1.0)));
    let ratio = horner(
        s,
        t,
        [
            0.034_692_146,
            -0.200_207_95,
            0.404_450_2,
            -0.346_053_54,
            0.314_964_53,
            -0.026_031_487,
            0.123_536_036,
            0.094_393_06,
            0.100_281_37,
            -2.436_250_5e-5,
        ],
    );
    (s.mul(gauss, ratio), gauss)
}

/// The error function.
#[inline(always)]
pub(crate) fn erf<S: Ops>(s: S, x: S::F) -> S::F {
    let z = s.abs(x);
    let (tail, _) = normal_tail(s, s.mul(z, s.splat(std::f32::consts::SQRT_2)));
    let far = s.fma(tail, s.splat(-2.0), s.splat(1.0));
    // Near zero, where 1 - 2 Phi cancels: x times a polynomial in x^2, within 1.4e-9 up to 0.75.
    let x2 = s.mul(z, z);
    let near = s.mul(
        z,
        horner(
            s,
            x2,
            [
                -6.749_512_4e-4,
                0.005_114_345_3,
                -0.026_834_624,
                0.112_833_77,
                -0.376_126_2,
                std::f32::consts::FRAC_2_SQRT_PI,
            ],
        ),
    );
    let value = s.select(s.lt(z, s.splat(0.75)), near, far);
    let sign = s.and(s.bits(x), s.splat_u32(0x8000_0000));
    s.number(s.or(s.bits(value), sign))
}

/// GELU and its derivative: x Phi(x), and Phi(x) + x phi(x).
///
/// Phi is taken from the tail, so the value keeps its relative accuracy for negative x, where (1 + erf) / 2 cancels.
#[inline(always)]
pub(crate) fn gelu_with_grad<S: Ops>(s: S, x: S::F) -> (S::F, S::F) {
    let (tail, gauss) = normal_tail(s, s.abs(x));
    let phi = s.select(s.lt(x, s.splat(0.0)), tail, s.sub(s.splat(1.0), tail));
    // 1 / sqrt(2 pi).
    let density = s.mul(gauss, s.splat(0.398_942_3));
    (s.mul(x, phi), s.fma(x, density, phi))
}

/// GELU, the form with the error function: x (1 + erf(x / sqrt 2)) / 2.
#[inline(always)]
pub(crate) fn gelu<S: Ops>(s: S, x: S::F) -> S::F {
    gelu_with_grad(s, x).0
}

/// The derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_grad<S: Ops>(s: S, x: S::F) -> S::F {
    gelu_with_grad(s, x).1
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::print_stdout,
        reason = "the errors found are the evidence for the table above"
    )]

    use super::*;
    use crate::simd::{Kernel, Lanes, Level, Scalar};

    /// erfc in f64 by its continued fraction (z > 2) or series: far more exact than f32 needs.
    fn erfc(z: f64) -> f64 {
        if z < 0.0 {
            return 2.0 - erfc(-z);
        }
        if z < 2.5 {
            let (mut term, mut sum) = (z, z);
            for n in 1..120 {
                let n = f64::from(n);
                term *= -z * z / n;
                sum += term / (2.0 * n + 1.0);
            }
            return 1.0 - sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let mut fraction = z;
        for k in (1..200).rev() {
            fraction = z + f64::from(k) / 2.0 / fraction;
        }
        (-z * z).exp() / std::f64::consts::PI.sqrt() / fraction
    }

    fn phi(x: f64) -> f64 {
        0.5 * erfc(-x / std::f64::consts::SQRT_2)
    }

    /// The distance from `got` to `want` in units of the last place of `want` as an f32.
    fn ulps(got: f32, want: f64) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the reference is rounded to find its unit"
        )]
        let near = (want as f32).abs().max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
        (f64::from(got) - want).abs() / unit
    }

    /// Every 997th f32 between the two, both signs' patterns as given: dense near zero, as floats are.
    fn grid(from: f32, to: f32) -> impl Iterator<Item = f32> {
        (from.to_bits()..to.to_bits()).step_by(997).map(f32::from_bits)
    }

    #[test]
    fn exp_is_within_its_bound() {
        let mut worst = 0.0_f64;
        for x in grid(1e-9, 88.72).flat_map(|x| [x, -x]).filter(|&x| x > -87.336) {
            worst = worst.max(ulps(exp(Scalar, x), f64::from(x).exp()));
        }
        println!("exp: {worst:.3} ulp");
        assert!(worst <= 1.0, "{worst}");
        assert_eq!(exp(Scalar, 0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!(exp(Scalar, f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(Scalar, -87.4).to_bits(), 0);
        assert_eq!(exp(Scalar, f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(Scalar, 88.73), f32::INFINITY);
        assert!(exp(Scalar, f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_within_its_bound() {
        let mut worst = 0.0_f64;
        for x in grid(1e-44, f32::MAX) {
            worst = worst.max(ulps(ln(Scalar, x), f64::from(x).ln()));
        }
        for i in 0..200_000_u32 {
            let x = 1.0 + (f64::from(i) - 1e5) * 3e-6;
            #[expect(clippy::cast_possible_truncation, reason = "a grid of f32 around 1")]
            let x = x as f32;
            worst = worst.max(ulps(ln(Scalar, x), f64::from(x).ln()));
        }
        println!("ln: {worst:.3} ulp");
        assert!(worst <= 1.0, "{worst}");
        assert_eq!(ln(Scalar, 1.0).to_bits(), 0);
        assert_eq!(ln(Scalar, 0.0), f32::NEG_INFINITY);
        assert_eq!(ln(Scalar, f32::INFINITY), f32::INFINITY);
        assert!(ln(Scalar, -1.0).is_nan() && ln(Scalar, f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_within_its_bound() {
        let mut worst = 0.0_f64;
        for x in grid(1e-20, 6.0) {
            worst = worst.max(ulps(erf(Scalar, x), 1.0 - erfc(f64::from(x))).min(if x < 1e-3 {
                // Below, 1 - erfc cancels in f64 too; the series' first term is exact enough there.
                let x = f64::from(x);
                ulps(
                    erf(Scalar, x as f32),
                    (x - x * x * x / 3.0) * 2.0 / std::f64::consts::PI.sqrt(),
                )
            } else {
                f64::INFINITY
            }));
            assert_eq!(erf(Scalar, -x).to_bits(), (-erf(Scalar, x)).to_bits());
        }
        println!("erf: {worst:.3} ulp");
        assert!(worst <= 3.0, "{worst}");
        assert_eq!(erf(Scalar, f32::INFINITY).to_bits(), 1.0_f32.to_bits());
        assert!(erf(Scalar, f32::NAN).is_nan());
    }

    #[test]
    fn gelu_and_its_derivative_are_within_their_bounds() {
        let (mut absolute, mut relative, mut slope) = (0.0_f64, 0.0_f64, 0.0_f64);
        for x in grid(1e-20, 30.0).flat_map(|x| [x, -x]) {
            let wide = f64::from(x);
            let want = wide * phi(wide);
            let error = (f64::from(gelu(Scalar, x)) - want).abs();
            absolute = absolute.max(error / wide.abs());
            if x > -5.0 {
                relative = relative.max(error / want.abs());
            }
            let density = (-wide * wide / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            slope = slope.max((f64::from(gelu_grad(Scalar, x)) - (phi(wide) + wide * density)).abs());
        }
        println!("gelu: {absolute:.2e} of x, {relative:.2e} relative above -5; its derivative: {slope:.2e}");
        assert!(
            absolute <= 2.5e-7 && relative <= 1e-6 && slope <= 3e-7,
            "{absolute} {relative} {slope}"
        );
        assert_eq!(gelu(Scalar, 0.0).to_bits(), 0);
        assert!(gelu(Scalar, f32::NAN).is_nan() && gelu_grad(Scalar, f32::NAN).is_nan());
    }

    /// All functions on one vector, their bits.
    struct All([f32; 16]);

    impl Kernel for All {
        type Output = [[f32; 16]; 6];
        #[inline(always)]
        fn run<S: Lanes>(self, s: S) -> Self::Output {
            let x = s.load(&self.0);
            let mut out = [[0.0; 16]; 6];
            for (out, value) in
                out.iter_mut()
                    .zip([exp(s, x), ln(s, x), erf(s, x), gelu(s, x), gelu_grad(s, x), rsqrt(s, x)])
            {
                s.store(value, out);
            }
            out
        }
    }

    #[test]
    fn every_level_gives_the_bits_of_the_scalar_twin() {
        let specials = [
            0.0,
            -0.0,
            1.0,
            f32::MIN_POSITIVE,
            1e-42,
            f32::INFINITY,
            88.722,
            -87.336,
            -87.337,
            f32::MAX,
        ];
        let values = (0..u32::MAX)
            .step_by(999_983)
            .map(f32::from_bits)
            .filter(|x| !x.is_nan());
        let values: Vec<f32> = specials
            .into_iter()
            .chain(values)
            .chain(grid(1e-3, 90.0).step_by(7).map(|x| -x))
            .collect();
        println!("levels: {:?}", Level::all());
        for level in Level::all() {
            for chunk in values.as_chunks::<16>().0 {
                let got = level.run(All(*chunk));
                for (i, &x) in chunk.iter().enumerate() {
                    let want = [
                        exp(Scalar, x),
                        ln(Scalar, x),
                        erf(Scalar, x),
                        gelu(Scalar, x),
                        gelu_grad(Scalar, x),
                        rsqrt(Scalar, x),
                    ];
                    for (f, want) in want.into_iter().enumerate() {
                        let got = got[f][i];
                        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                        assert!(same, "{level:?}: function {f} of {x:e}: {got:e}, scalar {want:e}");
                    }
                }
            }
        }
    }
}
