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
//! | [`exp`] | all; 0 below -87.337 instead of denormals | 1.0 ulp |
//! | [`ln`] | all, denormals included | 1.0 ulp |
//! | [`erf`] | all | 2.5e-7 absolute |
//! | [`gelu`] | all | 1.5e-7 of abs(x) |
//! | [`gelu_grad`] | all | 5e-7 absolute |
//!
//! GELU and its derivative are polynomials without exponential or division, at half the cost: they run over the widest
//! activations of a model.
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

/// e^x. Infinite above 88.723; 0 below the least normal number (-87.337), so that no denormal is made.
#[inline(always)]
pub(crate) fn exp<S: Ops>(s: S, x: S::F) -> S::F {
    let huge = s.lt(s.splat(88.722_84), x);
    s.select(huge, s.splat(f32::INFINITY), exp_below_88(s, x))
}

/// [`exp`] for arguments up to 88, NaN and minus infinity included: what a softmax needs.
#[inline(always)]
pub(crate) fn exp_below_88<S: Ops>(s: S, x: S::F) -> S::F {
    // e^x = 2^n e^r with n = round(x / ln 2) and abs(r) <= ln(2) / 2. Far below, n and r are rubbish that is not selected.
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    // ln 2 in two parts: the upper one has 9 bits behind the point, so its product with n is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    // e^r = 1 + r (1 + r q(r)); the fit of q leaves 3.1e-9.
    let q = horner(
        s,
        r,
        [0.001_381_453_8, 0.008_368_745, 0.041_668_39, 0.166_665_21, 0.499_999_94],
    );
    let p = s.fma(s.fma(q, r, s.splat(1.0)), r, s.splat(1.0));
    // The low bits of `shifted` are n; adding them to the exponent multiplies by 2^n.
    let scaled = s.number(s.add_u32(s.bits(p), s.shl::<23>(s.bits(shifted))));
    s.select(s.lt(x, s.splat(-87.336_54)), s.splat(0.0), scaled)
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

/// [`horner`] on several vectors in step, so that none waits for its own last operation.
#[inline(always)]
fn horner_each<S: Ops, const V: usize, const N: usize>(s: S, x: [S::F; V], c: [f32; N]) -> [S::F; V] {
    let mut sum = [s.splat(c[0]); V];
    for i in 1..N {
        for v in 0..V {
            sum[v] = s.fma(sum[v], x[v], s.splat(c[i]));
        }
    }
    sum
}

/// An odd function that is nearly constant beyond `bound`: c p(u) with c = x within the bound and u = 2 c^2 / bound^2 - 1,
/// which runs over [-1, 1], where the coefficients are small and nothing cancels.
#[inline(always)]
fn odd<S: Ops, const V: usize, const N: usize>(s: S, x: [S::F; V], bound: f32, coefficients: [f32; N]) -> [S::F; V] {
    let (mut c, mut u) = (x, x);
    for v in 0..V {
        // The bounds come first so that NaN passes through.
        c[v] = s.min(s.splat(bound), s.max(s.splat(-bound), x[v]));
        u[v] = s.fma(s.mul(c[v], c[v]), s.splat(2.0 / (bound * bound)), s.splat(-1.0));
    }
    let p = horner_each(s, u, coefficients);
    for v in 0..V {
        c[v] = s.mul(c[v], p[v]);
    }
    c
}

/// erf(x / sqrt 2) / 2, that is the normal distribution's Phi(x) - 1/2; exactly 1/2 from 5.375 on. The fit leaves 2.5e-8.
#[inline(always)]
fn half_erf<S: Ops, const V: usize>(s: S, x: [S::F; V]) -> [S::F; V] {
    odd(
        s,
        x,
        5.375,
        [
            3.625_186e-4,
            -9.558_672e-4,
            8.383_909e-4,
            -0.001_167_346_3,
            0.003_522_997,
            -0.006_490_563,
            0.009_445_543,
            -0.013_774_785,
            0.019_472_364,
            -0.025_642_324,
            0.032_114_394,
            -0.039_306_156,
            0.048_690_714,
            -0.065_622_4,
            0.131_535_77,
        ],
    )
}

/// The error function.
#[inline(always)]
pub(crate) fn erf<S: Ops>(s: S, x: S::F) -> S::F {
    let [half] = half_erf(s, [s.mul(x, s.splat(std::f32::consts::SQRT_2))]);
    s.mul(s.splat(2.0), half)
}

/// GELU, the form with the error function: x (1 + erf(x / sqrt 2)) / 2.
#[inline(always)]
pub(crate) fn gelu<S: Ops>(s: S, x: S::F) -> S::F {
    let [y] = gelu_each(s, [x]);
    y
}

/// [`gelu`] of several vectors.
#[inline(always)]
pub(crate) fn gelu_each<S: Ops, const V: usize>(s: S, x: [S::F; V]) -> [S::F; V] {
    let mut y = half_erf(s, x);
    for v in 0..V {
        y[v] = s.fma(x[v], y[v], s.mul(x[v], s.splat(0.5)));
    }
    y
}

/// The derivative of [`gelu`]: Phi(x) + x phi(x). The fit leaves 3.0e-7; exactly 0 or 1 beyond 5.625.
#[inline(always)]
pub(crate) fn gelu_grad<S: Ops>(s: S, x: S::F) -> S::F {
    let [y] = gelu_grad_each(s, [x]);
    y
}

/// [`gelu_grad`] of several vectors.
#[inline(always)]
pub(crate) fn gelu_grad_each<S: Ops, const V: usize>(s: S, x: [S::F; V]) -> [S::F; V] {
    let mut y = odd(
        s,
        x,
        5.625,
        [
            -0.007_321_829,
            0.017_436_989,
            -0.006_967_859_3,
            0.001_054_796_3,
            -0.033_321_735,
            0.059_725_89,
            -0.056_499_69,
            0.059_686_482,
            -0.071_890_89,
            0.072_643_23,
            -0.064_265_42,
            0.055_610_087,
            -0.050_294_653,
            0.051_382_896,
            -0.063_934_86,
            0.125_845_46,
        ],
    );
    for y in &mut y {
        *y = s.add(*y, s.splat(0.5));
    }
    y
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
        for x in grid(1e-20, 30.0) {
            worst = worst.max((f64::from(erf(Scalar, x)) - (1.0 - erfc(f64::from(x)))).abs());
            assert_eq!(erf(Scalar, -x).to_bits(), (-erf(Scalar, x)).to_bits());
        }
        println!("erf: {worst:.2e}");
        assert!(worst <= 2.5e-7, "{worst}");
        assert_eq!(erf(Scalar, f32::INFINITY).to_bits(), 1.0_f32.to_bits());
        assert!(erf(Scalar, f32::NAN).is_nan());
    }

    #[test]
    fn gelu_and_its_derivative_are_within_their_bounds() {
        let (mut value, mut slope) = (0.0_f64, 0.0_f64);
        for x in grid(1e-20, 30.0).flat_map(|x| [x, -x]) {
            let wide = f64::from(x);
            let error = (f64::from(gelu(Scalar, x)) - wide * phi(wide)).abs();
            value = value.max(error / wide.abs());
            let density = (-wide * wide / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            slope = slope.max((f64::from(gelu_grad(Scalar, x)) - (phi(wide) + wide * density)).abs());
        }
        println!("gelu: {value:.2e} of x; its derivative: {slope:.2e}");
        assert!(value <= 1.5e-7 && slope <= 5e-7, "{value} {slope}");
        assert_eq!(gelu(Scalar, 0.0).to_bits(), 0);
        for x in [6.0, 100.0, 1e30] {
            assert_eq!(gelu(Scalar, x), x);
            assert_eq!(gelu(Scalar, -x), 0.0);
            assert_eq!([gelu_grad(Scalar, x), gelu_grad(Scalar, -x)], [1.0, 0.0]);
        }
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
