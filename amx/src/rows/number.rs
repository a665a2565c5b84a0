//! The two number types that activations are stored as.

use half::bf16;

use crate::simd::Lanes;

/// A type that activations are stored as: f32 or bf16. Arithmetic is in f32 either way; storing rounds to nearest even.
pub trait Number: Copy + Send + Sync + Default + std::fmt::Debug + sealed::Stored {}

impl Number for f32 {}
impl Number for bf16 {}

pub(crate) mod sealed {
    use super::{Lanes, bf16};

    /// How sixteen numbers, or the last few of a row, come from memory and go there.
    pub trait Stored: Sized {
        /// Sixteen numbers from memory.
        fn load<S: Lanes>(s: S, x: &[Self; 16]) -> S::F;
        /// Sixteen numbers to memory.
        fn store<S: Lanes>(s: S, a: S::F, x: &mut [Self; 16]);
        /// The first `x.len()` numbers from memory, `fill` behind them.
        fn load_part<S: Lanes>(s: S, x: &[Self], fill: f32) -> S::F;
        /// The first `x.len()` numbers to memory.
        fn store_part<S: Lanes>(s: S, a: S::F, x: &mut [Self]);
    }

    impl Stored for f32 {
        #[inline(always)]
        fn load<S: Lanes>(s: S, x: &[f32; 16]) -> S::F {
            s.load(x)
        }
        #[inline(always)]
        fn store<S: Lanes>(s: S, a: S::F, x: &mut [f32; 16]) {
            s.store(a, x);
        }
        #[inline(always)]
        fn load_part<S: Lanes>(s: S, x: &[f32], fill: f32) -> S::F {
            s.load_part(x, fill)
        }
        #[inline(always)]
        fn store_part<S: Lanes>(s: S, a: S::F, x: &mut [f32]) {
            s.store_part(a, x);
        }
    }

    impl Stored for bf16 {
        #[inline(always)]
        fn load<S: Lanes>(s: S, x: &[bf16; 16]) -> S::F {
            s.load_bf16(x)
        }
        #[inline(always)]
        fn store<S: Lanes>(s: S, a: S::F, x: &mut [bf16; 16]) {
            s.store_bf16(a, x);
        }
        #[inline(always)]
        fn load_part<S: Lanes>(s: S, x: &[bf16], fill: f32) -> S::F {
            s.load_part_bf16(x, fill)
        }
        #[inline(always)]
        fn store_part<S: Lanes>(s: S, a: S::F, x: &mut [bf16]) {
            s.store_part_bf16(a, x);
        }
    }
}
