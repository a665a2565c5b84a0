//! The scalar model of the tile product: what every bf16 kernel computes, bit for bit.
//!
//! For each block of 32 k: two chains of fused multiply-adds, one over even and one over odd k, both from +0; their sum;
//! then the sum is added to the accumulator. All of it rounds to nearest even, takes denormal inputs as zero and flushes
//! denormal results to zero (decided after rounding, as x86 does), sign kept. A block past the end of K is filled with zeros.

/// The smallest normal f32.
const TINY: f32 = f32::MIN_POSITIVE;

/// Denormals become zero of the same sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.abs() < TINY {
        f32::from_bits(x.to_bits() & 0x8000_0000)
    } else {
        x
    }
}

/// `a * b + c` for bf16 values a and b, with denormal inputs and results flushed.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (a, b, c) = (flush(a), flush(b), flush(c));
    let sum = a.mul_add(b, c);
    if sum.abs() > TINY || sum.is_nan() {
        return sum;
    }
    if sum.abs() == TINY && !rounds_below(a, b, c) {
        return sum;
    }
    flush_small(sum)
}

/// A result of at most the smallest normal number that counts as tiny.
fn flush_small(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x8000_0000)
}

/// Whether `|a * b + c|`, which rounds to the smallest normal number on the denormal grid, stays below it when the exponent is
/// unbounded: the unit calls that tiny. The boundary lies half a step of the finer grid below.
fn rounds_below(a: f32, b: f32, c: f32) -> bool {
    let boundary = f64::from(TINY) - f64::powi(2.0, -151);
    // The product of two bf16 is exact in f64. The sum is not always: its error decides when it lands on the boundary.
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = p + c;
    let q = sum - p;
    let error = (p - (sum - q)) + (c - q);
    let (sum, error) = if sum < 0.0 { (-sum, -error) } else { (sum, error) };
    sum < boundary || (sum == boundary && error < 0.0)
}

/// `a + b` with denormal inputs and results flushed. A sum of two f32 below the smallest normal number is exact.
#[inline(always)]
pub(crate) fn add(a: f32, b: f32) -> f32 {
    flush(flush(a) + flush(b))
}

/// One block of K for one element: `even` and `odd` are the chains' ends.
#[inline(always)]
pub(crate) fn finish(accumulator: f32, even: f32, odd: f32) -> f32 {
    add(accumulator, add(even, odd))
}
