//! What the suites share: random numbers with printed seeds, oracles, comparison of bits.
#![allow(dead_code, reason = "each suite uses its part")]

#[cfg(target_os = "linux")]
pub(crate) mod guard;
#[path = "int8_oracle.rs"]
pub(crate) mod int8;

use azulejo_amx::Isa;
use half::bf16;

/// The instruction sets to test: all that this processor has, or the one that `AZULEJO_ISA` names.
pub(crate) fn available() -> Vec<Isa> {
    if std::env::var("AZULEJO_ISA").is_ok_and(|name| Isa::ALL.iter().any(|isa| isa.name() == name)) {
        vec![Isa::best().expect("AZULEJO_ISA names an available instruction set")]
    } else {
        Isa::available()
    }
}

/// A linear congruential generator; the upper bits of its state.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// Between -1 and 1.
    pub(crate) fn symmetric(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

/// Rounds the exact sum of two f64 to f32 with denormals flushed, tininess decided after rounding to 24 bits. `x` and `y` must
/// be such that their exact sum needs the error term of one f64 addition.
fn round_sum(x: f64, y: f64) -> f32 {
    let sum = x + y;
    if !sum.is_finite() || sum == 0.0 {
        return sum as f32;
    }
    // Round to odd: an inexact sum gets its last bit set, so that the second rounding cannot be a double rounding.
    let t = sum - x;
    let error = (x - (sum - t)) + (y - t);
    let mut bits = sum.to_bits();
    if error != 0.0 && bits & 1 == 0 {
        // Towards the exact value: away from zero if the error has the sign of the sum.
        bits = if (error > 0.0) == (sum > 0.0) {
            bits + 1
        } else {
            bits - 1
        };
    }
    // Scaled away from the denormals, rounding keeps 24 bits; f64 has the range.
    let odd = f64::from_bits(bits);
    if odd.abs() < 1e-30 {
        let scaled = (odd * f64::powi(2.0, 100)) as f32;
        let limit = (f64::from(f32::MIN_POSITIVE) * f64::powi(2.0, 100)) as f32;
        if scaled.abs() < limit {
            return 0f32.copysign(scaled);
        }
        return (f64::from(scaled) * f64::powi(2.0, -100)) as f32;
    }
    odd as f32
}

fn daz(x: f32) -> f64 {
    f64::from(if x.is_subnormal() { 0f32.copysign(x) } else { x })
}

fn fma(a: bf16, b: bf16, c: f32) -> f32 {
    round_sum(daz(a.to_f32()) * daz(b.to_f32()), daz(c))
}

/// The published semantics of the tile product, written from the text: even chain, odd chain, sum, accumulator.
pub(crate) fn oracle_bf16(
    m: usize,
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> bf16,
    b: impl Fn(usize, usize) -> bf16,
) -> Vec<f32> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            let mut acc = 0.0f32;
            for block in (0..k).step_by(32) {
                let (mut even, mut odd) = (0.0f32, 0.0f32);
                let at = |p| {
                    if p < k {
                        (a(i, p), b(p, j))
                    } else {
                        (bf16::ZERO, bf16::ZERO)
                    }
                };
                for p in (block..block + 32).step_by(2) {
                    let (x, y) = at(p);
                    even = fma(x, y, even);
                    let (x, y) = at(p + 1);
                    odd = fma(x, y, odd);
                }
                let sum = round_sum(daz(even), daz(odd));
                acc = round_sum(daz(acc), daz(sum));
            }
            c[i * n + j] = acc;
        }
    }
    c
}

/// One chain of fused multiply-adds over K.
pub(crate) fn oracle_f32(
    m: usize,
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> f32,
    b: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            c[i * n + j] = (0..k).fold(0.0f32, |acc, p| a(i, p).mul_add(b(p, j), acc));
        }
    }
    c
}

/// Bits must agree; NaN is compared as a class, since payloads differ between units.
pub(crate) fn assert_same(got: &[f32], expected: &[f32], n: usize, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differing: Vec<usize> = (0..got.len())
        .filter(|&i| got[i].to_bits() != expected[i].to_bits() && !(got[i].is_nan() && expected[i].is_nan()))
        .collect();
    if let Some(&i) = differing.first() {
        panic!(
            "{what}: {} of {} differ, first at ({}, {}): got {:e} ({:#x}), expected {:e} ({:#x})",
            differing.len(),
            got.len(),
            i / n,
            i % n,
            got[i],
            got[i].to_bits(),
            expected[i],
            expected[i].to_bits()
        );
    }
}
