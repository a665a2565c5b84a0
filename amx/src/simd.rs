//! Sixteen virtual lanes, whatever the machine's vector width.
//!
//! Every kernel of this crate that is not a matrix product is written once, over the traits [`Ops`] (arithmetic) and
//! [`Lanes`] (arithmetic plus memory), and compiled for each instruction set by [`Level::run`]. A vector is always
//! sixteen numbers: an array, two 256-bit registers or one 512-bit register. No operation here rounds differently from one
//! implementation to the next, so a kernel gives the same bits on all of them.
//!
//! The tokens ([`Avx2`], [`Avx512`]) are values without size whose existence proves that the processor has the
//! instructions: only `new` makes one, and it asks the processor first. [`Scalar`] is the same arithmetic on one number.
#![expect(
    unsafe_code,
    reason = "vector intrinsics, and calls of functions compiled for more than the baseline"
)]
#![allow(
    dead_code,
    reason = "a complete set of operations reads better than the half that is used"
)]

use half::bf16;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Arithmetic on a vector of f32 (`F`), of u32 (`I`) and of truth values (`M`), by a token.
pub trait Ops: Copy {
    /// A vector of f32.
    type F: Copy;
    /// A vector of u32.
    type I: Copy;
    /// A truth value for each lane.
    type M: Copy;

    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a - b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The square root, correctly rounded.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// a where a > b, otherwise b; so b where either is NaN, as the x86 instruction does.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// a where a < b, otherwise b; so b where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// a < b; false where either is NaN.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// a where m, otherwise b.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// The bits of a number.
    fn bits(self, a: Self::F) -> Self::I;
    /// The number of these bits.
    fn number(self, a: Self::I) -> Self::F;

    /// The same word in every lane.
    fn splat_u32(self, x: u32) -> Self::I;
    /// a + b modulo 2^32.
    fn add_u32(self, a: Self::I, b: Self::I) -> Self::I;
    /// a - b modulo 2^32.
    fn sub_u32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// a << N.
    fn shl<const N: u32>(self, a: Self::I) -> Self::I;
    /// a >> N, zeros coming in.
    fn shr<const N: u32>(self, a: Self::I) -> Self::I;
    /// a < b as signed numbers.
    fn lt_i32(self, a: Self::I, b: Self::I) -> Self::M;
    /// The signed numbers as f32, rounded to nearest even.
    fn i32_to_f32(self, a: Self::I) -> Self::F;

    /// |a|.
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.number(self.and(self.bits(a), self.splat_u32(0x7fff_ffff)))
    }

    /// -a, a NaN's sign included.
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.number(self.xor(self.bits(a), self.splat_u32(0x8000_0000)))
    }
}

/// Sixteen lanes: [`Ops`] plus memory, bf16 and the pieces of the random number generator.
pub trait Lanes: Ops {
    /// Sixteen numbers from memory.
    fn load(self, x: &[f32; 16]) -> Self::F;
    /// Sixteen numbers to memory.
    fn store(self, a: Self::F, x: &mut [f32; 16]);
    /// Sixteen bf16 from memory, widened (exact).
    fn load_bf16(self, x: &[bf16; 16]) -> Self::F;
    /// Sixteen numbers to memory as bf16: nearest even, denormals kept, NaN quieted and its sign kept.
    fn store_bf16(self, a: Self::F, x: &mut [bf16; 16]);
    /// Sixteen words from memory.
    fn load_u32(self, x: &[u32; 16]) -> Self::I;
    /// Sixteen words to memory.
    fn store_u32(self, a: Self::I, x: &mut [u32; 16]);
    /// In each pair of lanes (2i, 2i + 1): the 64-bit product of the even words of a and b, low word first.
    fn mul_even(self, a: Self::I, b: Self::I) -> Self::I;
    /// In each pair of lanes: the odd word moved to the even lane, zero behind it.
    fn odd_to_even(self, a: Self::I) -> Self::I;
    /// Even lanes of a in the even lanes, even lanes of b in the odd lanes.
    fn interleave_even(self, a: Self::I, b: Self::I) -> Self::I;

    /// Two vectors to memory as bf16 pairs: element i of `even`, then element i of `odd`; rounded as
    /// [`Lanes::store_bf16`] does. Two rows of a packed operand are one row of such pairs.
    fn store_bf16_pairs(self, even: Self::F, odd: Self::F, x: &mut [bf16; 32]);
    /// Sixteen pairs of bf16 from memory as words, the first of a pair in the lower half.
    fn load_pairs(self, x: &[bf16; 32]) -> Self::I;
    /// As [`Lanes::load_pairs`], to memory.
    fn store_pairs(self, a: Self::I, x: &mut [bf16; 32]);
    /// The transpose of sixteen rows.
    fn transpose(self, rows: [Self::F; 16]) -> [Self::F; 16];

    /// The first `x.len()` (at most 16) numbers from memory, `fill` in the lanes behind them.
    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> Self::F {
        let mut lanes = [fill; 16];
        for (lane, &value) in lanes.iter_mut().zip(x) {
            *lane = value;
        }
        self.load(&lanes)
    }

    /// The first `x.len()` (at most 16) lanes to memory.
    #[inline(always)]
    fn store_part(self, a: Self::F, x: &mut [f32]) {
        let mut lanes = [0.0; 16];
        self.store(a, &mut lanes);
        for (value, lane) in x.iter_mut().zip(lanes) {
            *value = lane;
        }
    }

    /// As [`Lanes::load_part`], from bf16.
    #[inline(always)]
    fn load_part_bf16(self, x: &[bf16], fill: f32) -> Self::F {
        let mut lanes = [bf16::from_f32_const(fill); 16];
        for (lane, &value) in lanes.iter_mut().zip(x) {
            *lane = value;
        }
        self.load_bf16(&lanes)
    }

    /// As [`Lanes::store_part`], to bf16.
    #[inline(always)]
    fn store_part_bf16(self, a: Self::F, x: &mut [bf16]) {
        let mut lanes = [bf16::ZERO; 16];
        self.store_bf16(a, &mut lanes);
        for (value, lane) in x.iter_mut().zip(lanes) {
            *value = lane;
        }
    }

    /// The lanes folded by halves: lane i with lane i + 8, then i + 4, i + 2, i + 1.
    #[inline(always)]
    fn fold(self, a: Self::F, combine: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0.0; 16];
        self.store(a, &mut lanes);
        let mut half = 8;
        while half > 0 {
            for i in 0..half {
                lanes[i] = combine(lanes[i], lanes[i + half]);
            }
            half /= 2;
        }
        lanes[0]
    }

    /// The sum of the lanes in the order of [`Lanes::fold`].
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        self.fold(a, |x, y| x + y)
    }

    /// The greatest lane.
    #[inline(always)]
    fn max_lane(self, a: Self::F) -> f32 {
        self.fold(a, |x, y| if x > y { x } else { y })
    }
}

/// A computation written over [`Lanes`], to be compiled once for each instruction set.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The computation. Implementations are `#[inline(always)]`, so that they land in the function that carries the
    /// target features.
    fn run<S: Lanes>(self, s: S) -> Self::Output;
}

/// A vector instruction set that this processor has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// Arrays of sixteen; what the compiler makes of them on the baseline.
    Portable,
    /// Two 256-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// One 512-bit register.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// Runs the kernel as compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Level::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(token) => token.run(kernel),
        }
    }

    /// Every level of this processor, the simplest first.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Level> {
        let mut levels = vec![Level::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::new().map(Level::Avx2));
            levels.extend(Avx512::new().map(Level::Avx512));
        }
        levels
    }
}

/// One number: the scalar twin of every function of `math`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Ops for Scalar {
    type F = f32;
    type I = u32;
    type M = bool;

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn sqrt(self, a: f32) -> f32 {
        a.sqrt()
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn lt(self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn select(self, m: bool, a: f32, b: f32) -> f32 {
        if m { a } else { b }
    }
    #[inline(always)]
    fn bits(self, a: f32) -> u32 {
        a.to_bits()
    }
    #[inline(always)]
    fn number(self, a: u32) -> f32 {
        f32::from_bits(a)
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> u32 {
        x
    }
    #[inline(always)]
    fn add_u32(self, a: u32, b: u32) -> u32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn sub_u32(self, a: u32, b: u32) -> u32 {
        a.wrapping_sub(b)
    }
    #[inline(always)]
    fn and(self, a: u32, b: u32) -> u32 {
        a & b
    }
    #[inline(always)]
    fn or(self, a: u32, b: u32) -> u32 {
        a | b
    }
    #[inline(always)]
    fn xor(self, a: u32, b: u32) -> u32 {
        a ^ b
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: u32) -> u32 {
        a << N
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: u32) -> u32 {
        a >> N
    }
    #[inline(always)]
    fn lt_i32(self, a: u32, b: u32) -> bool {
        a.cast_signed() < b.cast_signed()
    }
    #[inline(always)]
    #[expect(
        clippy::cast_precision_loss,
        reason = "the conversion rounds, as its vector twins do"
    )]
    fn i32_to_f32(self, a: u32) -> f32 {
        a.cast_signed() as f32
    }
}

/// Sixteen numbers in an array; every operation is [`Scalar`]'s, lane by lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

/// Applies the scalar operation to each lane.
#[inline(always)]
fn each<T: Copy, R>(a: [T; 16], f: impl Fn(T) -> R) -> [R; 16] {
    std::array::from_fn(|i| f(a[i]))
}

/// Applies the scalar operation to each pair of lanes.
#[inline(always)]
fn both<T: Copy, R>(a: [T; 16], b: [T; 16], f: impl Fn(T, T) -> R) -> [R; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Ops for Portable {
    type F = [f32; 16];
    type I = [u32; 16];
    type M = [bool; 16];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; 16]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |x, y| Scalar.add(x, y))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |x, y| Scalar.sub(x, y))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |x, y| Scalar.mul(x, y))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |x, y| Scalar.div(x, y))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| Scalar.fma(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        each(a, |x| Scalar.sqrt(x))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |x, y| Scalar.max(x, y))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both(a, b, |x, y| Scalar.min(x, y))
    }
    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        both(a, b, |x, y| Scalar.lt(x, y))
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| Scalar.select(m[i], a[i], b[i]))
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::I {
        each(a, |x| Scalar.bits(x))
    }
    #[inline(always)]
    fn number(self, a: Self::I) -> Self::F {
        each(a, |x| Scalar.number(x))
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::I {
        [x; 16]
    }
    #[inline(always)]
    fn add_u32(self, a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |x, y| Scalar.add_u32(x, y))
    }
    #[inline(always)]
    fn sub_u32(self, a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |x, y| Scalar.sub_u32(x, y))
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |x, y| x & y)
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |x, y| x | y)
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        both(a, b, |x, y| x ^ y)
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        each(a, |x| x << N)
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::I) -> Self::I {
        each(a, |x| x >> N)
    }
    #[inline(always)]
    fn lt_i32(self, a: Self::I, b: Self::I) -> Self::M {
        both(a, b, |x, y| Scalar.lt_i32(x, y))
    }
    #[inline(always)]
    fn i32_to_f32(self, a: Self::I) -> Self::F {
        each(a, |x| Scalar.i32_to_f32(x))
    }
}

/// bf16 of one f32: nearest even, denormals kept, NaN quieted and its sign kept.
#[inline(always)]
fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    let is_nan = (bits & 0x7fff_ffff) > 0x7f80_0000;
    #[expect(clippy::cast_possible_truncation, reason = "both are the upper half of a word")]
    bf16::from_bits((if is_nan { quiet } else { rounded }) as u16)
}

impl Lanes for Portable {
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(self, a: Self::F, x: &mut [f32; 16]) {
        *x = a;
    }
    #[inline(always)]
    fn load_bf16(self, x: &[bf16; 16]) -> Self::F {
        each(*x, |x| f32::from_bits(u32::from(x.to_bits()) << 16))
    }
    #[inline(always)]
    fn store_bf16(self, a: Self::F, x: &mut [bf16; 16]) {
        *x = each(a, to_bf16);
    }
    #[inline(always)]
    fn load_u32(self, x: &[u32; 16]) -> Self::I {
        *x
    }
    #[inline(always)]
    fn store_u32(self, a: Self::I, x: &mut [u32; 16]) {
        *x = a;
    }
    #[inline(always)]
    fn mul_even(self, a: Self::I, b: Self::I) -> Self::I {
        #[expect(clippy::cast_possible_truncation, reason = "the product is cut in its two words")]
        std::array::from_fn(|i| {
            let product = u64::from(a[i & !1]) * u64::from(b[i & !1]);
            if i % 2 == 0 {
                product as u32
            } else {
                (product >> 32) as u32
            }
        })
    }
    #[inline(always)]
    fn odd_to_even(self, a: Self::I) -> Self::I {
        std::array::from_fn(|i| if i % 2 == 0 { a[i + 1] } else { 0 })
    }
    #[inline(always)]
    fn store_bf16_pairs(self, even: Self::F, odd: Self::F, x: &mut [bf16; 32]) {
        for i in 0..16 {
            x[2 * i] = to_bf16(even[i]);
            x[2 * i + 1] = to_bf16(odd[i]);
        }
    }
    #[inline(always)]
    fn load_pairs(self, x: &[bf16; 32]) -> Self::I {
        std::array::from_fn(|i| u32::from(x[2 * i].to_bits()) | u32::from(x[2 * i + 1].to_bits()) << 16)
    }
    #[inline(always)]
    fn store_pairs(self, a: Self::I, x: &mut [bf16; 32]) {
        for i in 0..16 {
            #[expect(clippy::cast_possible_truncation, reason = "the word is cut in its two halves")]
            let halves = [a[i] as u16, (a[i] >> 16) as u16];
            x[2 * i] = bf16::from_bits(halves[0]);
            x[2 * i + 1] = bf16::from_bits(halves[1]);
        }
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::F; 16]) -> [Self::F; 16] {
        std::array::from_fn(|i| std::array::from_fn(|j| rows[j][i]))
    }
    #[inline(always)]
    fn interleave_even(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| if i % 2 == 0 { a[i] } else { b[i - 1] })
    }
}

/// Evaluates intrinsics on the strength of a token.
#[cfg(target_arch = "x86_64")]
macro_rules! proven {
    ($e:expr) => {
        // SAFETY: the caller holds a token, which only `new` makes, after it has seen the processor's features.
        // Pointers given to loads and stores come from references to arrays of the vector's size.
        unsafe { $e }
    };
}

/// Two 256-bit registers: AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2 {
    /// Keeps the constructor private.
    proof: (),
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The token, where the processor has AVX2 and FMA.
    pub(crate) fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2 { proof: () })
    }

    /// Runs the kernel as compiled with AVX2 and FMA.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn inner<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
            kernel.run(token)
        }
        proven!(inner(self, kernel))
    }
}

/// Eight numbers rounded to bf16 in the upper halves of their words, with rubbish in the lower halves.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn bf16_avx2(a: __m256) -> __m256i {
    let bits = _mm256_castps_si256(a);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
    _mm256_blendv_epi8(rounded, quiet, nan)
}

/// The transpose of eight rows of eight: pairs, then quads, then halves.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn transpose_avx2(rows: [__m256; 8]) -> [__m256; 8] {
    let mut pairs = rows;
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // Quad q of rows 0..4 (and 4..8) holds columns q and q + 4 of those rows.
    let mut quads = rows;
    for half in 0..2 {
        let at = 4 * half;
        quads[at] = _mm256_shuffle_ps::<0b01_00_01_00>(pairs[at], pairs[at + 2]);
        quads[at + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(pairs[at], pairs[at + 2]);
        quads[at + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(pairs[at + 1], pairs[at + 3]);
        quads[at + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(pairs[at + 1], pairs[at + 3]);
    }
    let mut columns = rows;
    for i in 0..4 {
        columns[i] = _mm256_permute2f128_ps::<0x20>(quads[i], quads[4 + i]);
        columns[4 + i] = _mm256_permute2f128_ps::<0x31>(quads[i], quads[4 + i]);
    }
    columns
}

/// A pair of operations, one for each register.
#[cfg(target_arch = "x86_64")]
macro_rules! pairwise {
    ($f:ident, $a:expr) => {
        proven!([$f($a[0]), $f($a[1])])
    };
    ($f:ident, $a:expr, $b:expr) => {
        proven!([$f($a[0], $b[0]), $f($a[1], $b[1])])
    };
}

#[cfg(target_arch = "x86_64")]
impl Ops for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type M = [__m256; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        proven!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        proven!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        pairwise!(_mm256_sqrt_ps, a)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        pairwise!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        proven!([
            _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]),
            _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])
        ])
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        proven!([_mm256_blendv_ps(b[0], a[0], m[0]), _mm256_blendv_ps(b[1], a[1], m[1])])
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::I {
        pairwise!(_mm256_castps_si256, a)
    }
    #[inline(always)]
    fn number(self, a: Self::I) -> Self::F {
        pairwise!(_mm256_castsi256_ps, a)
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::I {
        proven!([_mm256_set1_epi32(x.cast_signed()); 2])
    }
    #[inline(always)]
    fn add_u32(self, a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn sub_u32(self, a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_xor_si256, a, b)
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        proven!({
            let n = _mm_cvtsi32_si128(N.cast_signed());
            [_mm256_sll_epi32(a[0], n), _mm256_sll_epi32(a[1], n)]
        })
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::I) -> Self::I {
        proven!({
            let n = _mm_cvtsi32_si128(N.cast_signed());
            [_mm256_srl_epi32(a[0], n), _mm256_srl_epi32(a[1], n)]
        })
    }
    #[inline(always)]
    fn lt_i32(self, a: Self::I, b: Self::I) -> Self::M {
        proven!([
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(b[0], a[0])),
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(b[1], a[1]))
        ])
    }
    #[inline(always)]
    fn i32_to_f32(self, a: Self::I) -> Self::F {
        pairwise!(_mm256_cvtepi32_ps, a)
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::F {
        proven!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(self, a: Self::F, x: &mut [f32; 16]) {
        proven!({
            _mm256_storeu_ps(x.as_mut_ptr(), a[0]);
            _mm256_storeu_ps(x.as_mut_ptr().add(8), a[1]);
        });
    }
    #[inline(always)]
    fn load_bf16(self, x: &[bf16; 16]) -> Self::F {
        proven!({
            let lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(lo)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(hi)),
            ]
        })
    }
    #[inline(always)]
    fn store_bf16(self, a: Self::F, x: &mut [bf16; 16]) {
        proven!({
            let low = _mm256_srli_epi32::<16>(bf16_avx2(a[0]));
            let high = _mm256_srli_epi32::<16>(bf16_avx2(a[1]));
            // The pack works within 128-bit halves; the permutation puts its four quarters in order.
            let packed = _mm256_packus_epi32(low, high);
            _mm256_storeu_si256(x.as_mut_ptr().cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        });
    }
    #[inline(always)]
    fn store_bf16_pairs(self, even: Self::F, odd: Self::F, x: &mut [bf16; 32]) {
        proven!({
            for i in 0..2 {
                let low = _mm256_srli_epi32::<16>(bf16_avx2(even[i]));
                let high = _mm256_and_si256(bf16_avx2(odd[i]), _mm256_set1_epi32(!0xffff));
                _mm256_storeu_si256(x.as_mut_ptr().add(16 * i).cast(), _mm256_or_si256(low, high));
            }
        });
    }
    #[inline(always)]
    fn load_pairs(self, x: &[bf16; 32]) -> Self::I {
        proven!([
            _mm256_loadu_si256(x.as_ptr().cast()),
            _mm256_loadu_si256(x.as_ptr().add(16).cast())
        ])
    }
    #[inline(always)]
    fn store_pairs(self, a: Self::I, x: &mut [bf16; 32]) {
        proven!({
            _mm256_storeu_si256(x.as_mut_ptr().cast(), a[0]);
            _mm256_storeu_si256(x.as_mut_ptr().add(16).cast(), a[1]);
        });
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::F; 16]) -> [Self::F; 16] {
        proven!({
            // Four blocks of eight by eight; the two off the diagonal change places.
            let a = transpose_avx2(std::array::from_fn(|i| rows[i][0]));
            let b = transpose_avx2(std::array::from_fn(|i| rows[i][1]));
            let c = transpose_avx2(std::array::from_fn(|i| rows[8 + i][0]));
            let d = transpose_avx2(std::array::from_fn(|i| rows[8 + i][1]));
            std::array::from_fn(|i| if i < 8 { [a[i], c[i]] } else { [b[i - 8], d[i - 8]] })
        })
    }
    #[inline(always)]
    fn load_u32(self, x: &[u32; 16]) -> Self::I {
        proven!([
            _mm256_loadu_si256(x.as_ptr().cast()),
            _mm256_loadu_si256(x.as_ptr().add(8).cast())
        ])
    }
    #[inline(always)]
    fn store_u32(self, a: Self::I, x: &mut [u32; 16]) {
        proven!({
            _mm256_storeu_si256(x.as_mut_ptr().cast(), a[0]);
            _mm256_storeu_si256(x.as_mut_ptr().add(8).cast(), a[1]);
        });
    }
    #[inline(always)]
    fn mul_even(self, a: Self::I, b: Self::I) -> Self::I {
        pairwise!(_mm256_mul_epu32, a, b)
    }
    #[inline(always)]
    fn odd_to_even(self, a: Self::I) -> Self::I {
        proven!([_mm256_srli_epi64::<32>(a[0]), _mm256_srli_epi64::<32>(a[1])])
    }
    #[inline(always)]
    fn interleave_even(self, a: Self::I, b: Self::I) -> Self::I {
        proven!([
            _mm256_blend_epi32::<0b1010_1010>(a[0], _mm256_slli_epi64::<32>(b[0])),
            _mm256_blend_epi32::<0b1010_1010>(a[1], _mm256_slli_epi64::<32>(b[1]))
        ])
    }
}

/// One 512-bit register: AVX-512 F, BW, DQ and VL, with AVX2 and FMA below them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512 {
    /// Keeps the constructor private.
    proof: (),
}

/// The mask of the first `n` lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits are set")]
    let mask = ((1_u32 << n.min(16)) - 1) as u16;
    mask
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// The token, where the processor has the instructions.
    pub(crate) fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma"))
        .then_some(Avx512 { proof: () })
    }

    /// Runs the kernel as compiled with AVX-512.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn inner<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
            kernel.run(token)
        }
        proven!(inner(self, kernel))
    }
}

/// Sixteen numbers rounded to bf16 in the upper halves of their words, with rubbish in the lower halves.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn bf16_avx512(a: __m512) -> __m512i {
    let bits = _mm512_castps_si512(a);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
    _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000))
}

/// The transpose of sixteen rows of sixteen: pairs, quads, then 128-bit blocks in two steps.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose_avx512(rows: [__m512; 16]) -> [__m512; 16] {
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // quads[4 g + q]: in its 128-bit block b, column 4 b + q of rows 4 g to 4 g + 3.
    let mut quads = rows;
    for g in 0..4 {
        let at = 4 * g;
        quads[at] = _mm512_shuffle_ps::<0b01_00_01_00>(pairs[at], pairs[at + 2]);
        quads[at + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(pairs[at], pairs[at + 2]);
        quads[at + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(pairs[at + 1], pairs[at + 3]);
        quads[at + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(pairs[at + 1], pairs[at + 3]);
    }
    let mut columns = rows;
    for q in 0..4 {
        // Blocks 0 and 2, and blocks 1 and 3, of the first two groups of rows and of the last two.
        let even_top = _mm512_shuffle_f32x4::<0b10_00_10_00>(quads[q], quads[4 + q]);
        let odd_top = _mm512_shuffle_f32x4::<0b11_01_11_01>(quads[q], quads[4 + q]);
        let even_bottom = _mm512_shuffle_f32x4::<0b10_00_10_00>(quads[8 + q], quads[12 + q]);
        let odd_bottom = _mm512_shuffle_f32x4::<0b11_01_11_01>(quads[8 + q], quads[12 + q]);
        columns[q] = _mm512_shuffle_f32x4::<0b10_00_10_00>(even_top, even_bottom);
        columns[4 + q] = _mm512_shuffle_f32x4::<0b10_00_10_00>(odd_top, odd_bottom);
        columns[8 + q] = _mm512_shuffle_f32x4::<0b11_01_11_01>(even_top, even_bottom);
        columns[12 + q] = _mm512_shuffle_f32x4::<0b11_01_11_01>(odd_top, odd_bottom);
    }
    columns
}

#[cfg(target_arch = "x86_64")]
impl Ops for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        proven!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        proven!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::F) -> Self::F {
        proven!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        proven!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        proven!(_mm512_mask_blend_ps(m, b, a))
    }
    #[inline(always)]
    fn bits(self, a: Self::F) -> Self::I {
        proven!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn number(self, a: Self::I) -> Self::F {
        proven!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn splat_u32(self, x: u32) -> Self::I {
        proven!(_mm512_set1_epi32(x.cast_signed()))
    }
    #[inline(always)]
    fn add_u32(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_u32(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: Self::I) -> Self::I {
        proven!(_mm512_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: Self::I) -> Self::I {
        proven!(_mm512_srli_epi32::<N>(a))
    }
    #[inline(always)]
    fn lt_i32(self, a: Self::I, b: Self::I) -> Self::M {
        proven!(_mm512_cmplt_epi32_mask(a, b))
    }
    #[inline(always)]
    fn i32_to_f32(self, a: Self::I) -> Self::F {
        proven!(_mm512_cvtepi32_ps(a))
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> Self::F {
        proven!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, a: Self::F, x: &mut [f32; 16]) {
        proven!(_mm512_storeu_ps(x.as_mut_ptr(), a));
    }
    #[inline(always)]
    fn load_bf16(self, x: &[bf16; 16]) -> Self::F {
        proven!({
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        })
    }
    #[inline(always)]
    fn store_bf16(self, a: Self::F, x: &mut [bf16; 16]) {
        proven!({
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bf16_avx512(a)));
            _mm256_storeu_si256(x.as_mut_ptr().cast(), halves);
        });
    }
    #[inline(always)]
    fn store_bf16_pairs(self, even: Self::F, odd: Self::F, x: &mut [bf16; 32]) {
        proven!({
            let low = _mm512_srli_epi32::<16>(bf16_avx512(even));
            let high = _mm512_and_si512(bf16_avx512(odd), _mm512_set1_epi32(!0xffff));
            _mm512_storeu_si512(x.as_mut_ptr().cast(), _mm512_or_si512(low, high));
        });
    }
    #[inline(always)]
    fn load_pairs(self, x: &[bf16; 32]) -> Self::I {
        proven!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_pairs(self, a: Self::I, x: &mut [bf16; 32]) {
        proven!(_mm512_storeu_si512(x.as_mut_ptr().cast(), a));
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::F; 16]) -> [Self::F; 16] {
        proven!(transpose_avx512(rows))
    }
    #[inline(always)]
    fn load_u32(self, x: &[u32; 16]) -> Self::I {
        proven!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_u32(self, a: Self::I, x: &mut [u32; 16]) {
        proven!(_mm512_storeu_si512(x.as_mut_ptr().cast(), a));
    }
    #[inline(always)]
    fn mul_even(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_mul_epu32(a, b))
    }
    #[inline(always)]
    fn odd_to_even(self, a: Self::I) -> Self::I {
        proven!(_mm512_srli_epi64::<32>(a))
    }
    #[inline(always)]
    fn interleave_even(self, a: Self::I, b: Self::I) -> Self::I {
        proven!(_mm512_mask_blend_epi32(
            0b1010_1010_1010_1010,
            a,
            _mm512_slli_epi64::<32>(b)
        ))
    }
    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> Self::F {
        // The mask covers at most the slice, so that no byte behind it is touched.
        proven!(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(x.len()), x.as_ptr()))
    }
    #[inline(always)]
    fn store_part(self, a: Self::F, x: &mut [f32]) {
        proven!(_mm512_mask_storeu_ps(x.as_mut_ptr(), first(x.len()), a));
    }
    #[inline(always)]
    fn load_part_bf16(self, x: &[bf16], fill: f32) -> Self::F {
        proven!({
            let behind = _mm256_set1_epi16(bf16::from_f32_const(fill).to_bits().cast_signed());
            let halves = _mm256_mask_loadu_epi16(behind, first(x.len()), x.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        })
    }
    #[inline(always)]
    fn store_part_bf16(self, a: Self::F, x: &mut [bf16]) {
        proven!({
            let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bf16_avx512(a)));
            _mm256_mask_storeu_epi16(x.as_mut_ptr().cast(), first(x.len()), halves);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transpose, and two rows as pairs.
    struct Moves([[f32; 16]; 16]);

    impl Kernel for Moves {
        type Output = ([[f32; 16]; 16], [bf16; 32]);
        #[inline(always)]
        fn run<S: Lanes>(self, s: S) -> Self::Output {
            let mut rows = [s.splat(0.0); 16];
            for i in 0..16 {
                rows[i] = s.load(&self.0[i]);
            }
            let mut out = [[0.0; 16]; 16];
            for (out, row) in out.iter_mut().zip(s.transpose(rows)) {
                s.store(row, out);
            }
            let mut pairs = [bf16::ZERO; 32];
            s.store_bf16_pairs(rows[3], rows[5], &mut pairs);
            (out, pairs)
        }
    }

    #[test]
    fn moves_follow_their_definitions() {
        let mut rows: [[f32; 16]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 16 + j) as f32 * 1.003));
        (rows[3][2], rows[5][7], rows[5][9]) = (f32::NAN, f32::NEG_INFINITY, f32::from_bits(0xff80_0001));
        for level in Level::all() {
            let (out, pairs) = level.run(Moves(rows));
            for i in 0..16 {
                for j in 0..16 {
                    assert_eq!(out[i][j].to_bits(), rows[j][i].to_bits(), "{level:?} {i} {j}");
                }
                assert_eq!(
                    pairs[2 * i].to_bits(),
                    bf16::from_f32(rows[3][i]).to_bits(),
                    "{level:?} {i}"
                );
                assert_eq!(
                    pairs[2 * i + 1].to_bits(),
                    bf16::from_f32(rows[5][i]).to_bits(),
                    "{level:?} {i}"
                );
            }
        }
    }
}
