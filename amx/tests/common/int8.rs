//! The suite of every 8-bit kernel against a 64-bit reference of its own: part of `every_isa`, so that the emulated run has it too.

use azulejo_amx::int8::{Byte, GemmInt8, Int8Kernel, OutInt32, PackedInt8, Per, ZeroPoints};
use azulejo_amx::{MatMut, MatRef, Scratch, Serial};

use super::common::int8::{Values, oracle};
use super::common::{Random, available};
use super::{SHAPES, transposed};

/// The kernels of the instruction sets under test.
fn kernels() -> Vec<Int8Kernel> {
    let isas = available();
    Int8Kernel::available()
        .into_iter()
        .filter(|kernel| isas.contains(&kernel.isa()))
        .collect()
}

#[test]
fn says_which_int8_kernels_are_executed() {
    for kernel in Int8Kernel::ALL {
        match kernel.check() {
            Ok(()) => println!("kernel executed: {kernel}"),
            Err(reason) => println!("kernel skipped: {kernel} ({reason})"),
        }
    }
}

fn case<A: Byte + Into<i64>>(
    kernel: Int8Kernel,
    random: &mut Random,
    values: Values,
    (m, n, k): (usize, usize, usize),
) {
    let gemm = GemmInt8::with_kernel(kernel).unwrap();
    let mut scratch = Scratch::new();
    let a: Vec<A> = (0..m * k).map(|_| values.byte(random)).collect();
    let b: Vec<i8> = (0..k * n).map(|_| values.byte(random)).collect();
    let za: i32 = values.byte::<A>(random).into().try_into().unwrap();
    let zb: Vec<i32> = (0..n).map(|_| values.byte::<i8>(random).into()).collect();
    let (at, bt) = (transposed(&a, m, k), transposed(&b, k, n));
    let a_views = [
        MatRef::row_major(&a, m, k).unwrap(),
        MatRef::row_major(&at, k, m).unwrap().t(),
    ];
    let b_views = [
        MatRef::row_major(&b, k, n).unwrap(),
        MatRef::row_major(&bt, n, k).unwrap().t(),
    ];
    let plain = ZeroPoints::default();
    let shifted = ZeroPoints {
        a: Per::Tensor(za),
        b: Per::Channel(&zb),
    };
    for (zero, name) in [(plain, "no zero points"), (shifted, "zero points")] {
        let expected = oracle(a_views[0], b_views[0], &zero);
        for (ai, a_view) in a_views.into_iter().enumerate() {
            for (bi, b_view) in b_views.into_iter().enumerate() {
                let packed = PackedInt8::from_i8(b_view);
                let mut c = vec![-77; m * n];
                let out = OutInt32::Set(MatMut::row_major(&mut c, m, n).unwrap());
                gemm.i32(&Serial, out, a_view, packed.as_ref(), zero, &mut scratch)
                    .unwrap();
                assert_eq!(
                    c, expected,
                    "{kernel} {values:?} {m} x {n} x {k}, a {ai}, b {bi}, {name}"
                );
            }
        }
    }
}

/// Both types of A, values of all kinds, zero points, every layout.
#[test]
fn int8_sums_equal_the_reference() {
    for kernel in kernels() {
        let mut random = Random::new(21);
        for &shape in SHAPES {
            case::<u8>(kernel, &mut random, Values::Any, shape);
            case::<i8>(kernel, &mut random, Values::Any, shape);
        }
        for shape in [(16, 16, 64), (35, 37, 70), (12, 32, 1030)] {
            case::<u8>(kernel, &mut random, Values::Extreme, shape);
            case::<i8>(kernel, &mut random, Values::Extreme, shape);
        }
    }
}
