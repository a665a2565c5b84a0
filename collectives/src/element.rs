//! The numbers that can travel: sealed, because every rank must know the same list.

use half::{bf16, f16};

use crate::op::ReduceOp;

/// A number that collectives move and reduce.
pub trait Element: bytemuck::Pod + Send + Sync + private::Arithmetic {
    /// The name in messages.
    const NAME: &'static str;
}

pub(crate) mod private {
    use super::ReduceOp;

    /// What the algorithms need of a number.
    pub trait Arithmetic: Sized {
        /// The code on the wire.
        const CODE: u8;
        /// The type in which values are joined.
        type Wide: Copy + Default + Send + 'static;
        /// Into the wide type, exactly.
        fn widen(self) -> Self::Wide;
        /// From the wide type, rounded once.
        fn narrow(wide: Self::Wide) -> Self;
        /// A sum divided by the number of ranks.
        fn divide(wide: Self::Wide, ranks: usize) -> Self::Wide;
        /// Joins two wide values.
        fn join(op: ReduceOp, left: Self::Wide, right: Self::Wide) -> Self::Wide;
    }
}

macro_rules! elements {
    ($($type:ty, $name:literal, $code:literal, $wide:ty, $widen:expr, $narrow:expr, $add:expr, $divide:expr, $min:expr, $max:expr;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = $name;
        }
        impl private::Arithmetic for $type {
            const CODE: u8 = $code;
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide { $widen(self) }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self { $narrow(wide) }
            #[inline(always)]
            fn divide(wide: $wide, ranks: usize) -> $wide { $divide(wide, ranks) }
            #[inline(always)]
            fn join(op: ReduceOp, left: $wide, right: $wide) -> $wide {
                match op {
                    ReduceOp::Sum | ReduceOp::Average => $add(left, right),
                    ReduceOp::Min => $min(left, right),
                    ReduceOp::Max => $max(left, right),
                }
            }
        }
    )*};
}

/// The names by code, for messages about what another rank called.
pub(crate) fn name_of(code: u8) -> &'static str {
    match code {
        1 => f32::NAME,
        2 => f64::NAME,
        3 => bf16::NAME,
        4 => f16::NAME,
        5 => i32::NAME,
        6 => i64::NAME,
        7 => u8::NAME,
        8 => u32::NAME,
        9 => u64::NAME,
        _ => "unknown",
    }
}

macro_rules! float_join {
    ($min:ident, $max:ident, $wide:ty) => {
        fn $min(a: $wide, b: $wide) -> $wide {
            if a.is_nan() || a < b { a } else { b }
        }
        fn $max(a: $wide, b: $wide) -> $wide {
            if a.is_nan() || a > b { a } else { b }
        }
    };
}
float_join!(min_f32, max_f32, f32);
float_join!(min_f64, max_f64, f64);

/// The quotient by a number of ranks.
fn divide_f32(sum: f32, ranks: usize) -> f32 {
    sum / ranks as f32
}
fn divide_f64(sum: f64, ranks: usize) -> f64 {
    sum / ranks as f64
}
fn divide_i64(sum: i64, ranks: usize) -> i64 {
    sum / ranks as i64
}
fn divide_i128(sum: i128, ranks: usize) -> i128 {
    sum / ranks as i128
}

// type, name, code on the wire, type in which values are joined, into it, from it, sum, quotient, min, max.
// Integers are joined in a type of twice the width or more, so averages do not overflow; sums that do not fit wrap: on
// every rank alike, and without a panic.
elements! {
    f32, "f32", 1, f32, |x| x, |x| x, |a: f32, b: f32| a + b, divide_f32, min_f32, max_f32;
    f64, "f64", 2, f64, |x| x, |x| x, |a: f64, b: f64| a + b, divide_f64, min_f64, max_f64;
    bf16, "bf16", 3, f32, bf16::to_f32, bf16::from_f32, |a: f32, b: f32| a + b, divide_f32, min_f32, max_f32;
    f16, "f16", 4, f32, f16::to_f32, f16::from_f32, |a: f32, b: f32| a + b, divide_f32, min_f32, max_f32;
    i32, "i32", 5, i64, i64::from, |x| x as i32, i64::wrapping_add, divide_i64, Ord::min, Ord::max;
    i64, "i64", 6, i128, i128::from, |x| x as i64, i128::wrapping_add, divide_i128, Ord::min, Ord::max;
    u8, "u8", 7, i64, i64::from, |x| x as u8, i64::wrapping_add, divide_i64, Ord::min, Ord::max;
    u32, "u32", 8, i64, i64::from, |x| x as u32, i64::wrapping_add, divide_i64, Ord::min, Ord::max;
    u64, "u64", 9, i128, i128::from, |x| x as u64, i128::wrapping_add, divide_i128, Ord::min, Ord::max;
}
