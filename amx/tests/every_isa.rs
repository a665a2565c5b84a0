//! Every instruction set against an oracle of its own, bit for bit, over a grid of shapes.
#![expect(clippy::print_stdout, reason = "a run says what was executed and what was skipped")]
#![expect(clippy::unwrap_used, reason = "a test may end on an error")]

mod common;
#[path = "common/int8.rs"]
mod int8;

use azulejo_amx::{Epilogue, Gemm, Isa, MatMut, MatRef, Out, Packed, Scratch, Serial};
use common::{Random, assert_same, available, oracle_bf16, oracle_f32};
use half::bf16;

#[test]
fn says_what_is_executed() {
    for isa in Isa::ALL {
        match isa.check() {
            Ok(()) => {
                // In a child process: the instructions exist and compute.
                assert_eq!(isa.canary(), Ok(()), "{isa}");
                println!("ISA executed: {isa}");
            }
            Err(reason) => println!("ISA skipped: {isa} ({reason})"),
        }
    }
}

const SHAPES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (16, 16, 32),
    (32, 32, 32),
    (0, 5, 7),
    (5, 0, 7),
    (5, 7, 0),
    (1, 130, 65),
    (130, 1, 33),
    (2, 3, 95),
    (17, 15, 31),
    (33, 49, 64),
    (31, 63, 100),
    (48, 80, 130),
    (12, 16, 544),
    (13, 17, 1100),
    (65, 33, 96),
];

fn bf16_case(isa: Isa, random: &mut Random, kind: Kind, (m, n, k): (usize, usize, usize)) {
    let gemm = Gemm::with_isa(isa).unwrap();
    let mut scratch = Scratch::new();
    let a: Vec<bf16> = (0..m * k).map(|_| kind.value(random)).collect();
    let b: Vec<bf16> = (0..k * n).map(|_| kind.value(random)).collect();
    let expected = oracle_bf16(m, n, k, |i, p| a[i * k + p], |p, j| b[p * n + j]);
    let (at, bt) = (transposed(&a, m, k), transposed(&b, k, n));
    let a_views = [
        MatRef::row_major(&a, m, k).unwrap(),
        MatRef::row_major(&at, k, m).unwrap().t(),
    ];
    let b_views = [
        MatRef::row_major(&b, k, n).unwrap(),
        MatRef::row_major(&bt, n, k).unwrap().t(),
    ];
    for (ai, a_view) in a_views.into_iter().enumerate() {
        for (bi, b_view) in b_views.into_iter().enumerate() {
            let what = format!("{isa} {kind:?} {m} x {n} x {k}, a {ai}, b {bi}");
            let mut c = vec![f32::NAN; m * n];
            let packed = Packed::from_bf16(b_view);
            let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
            gemm.bf16(&Serial, out, a_view, packed.as_ref(), Epilogue::default(), &mut scratch)
                .unwrap();
            assert_same(&c, &expected, n, &what);
            c.fill(f32::NAN);
            let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
            gemm.bf16_unpacked(&Serial, out, a_view, b_view, Epilogue::default(), &mut scratch)
                .unwrap();
            assert_same(&c, &expected, n, &format!("{what}, unpacked"));
        }
    }
}

fn transposed<T: Copy>(x: &[T], rows: usize, cols: usize) -> Vec<T> {
    (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
}

/// Where values are drawn from.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Ordinary,
    /// Products near the smallest normal number, denormal inputs.
    Tiny,
    /// Overflow.
    Huge,
    /// Zeros of both signs, infinities, NaN, denormals among ordinary values.
    Special,
}

impl Kind {
    fn value(self, random: &mut Random) -> bf16 {
        let bits = random.next() as u16;
        let sign_and_fraction = bits & 0x807f;
        let pick = random.next();
        let exponent = match self {
            Self::Ordinary => 120 + pick % 14,
            Self::Tiny if pick.is_multiple_of(5) => 0,
            Self::Tiny => 58 + pick % 10,
            Self::Huge => 185 + pick % 10,
            Self::Special if pick.is_multiple_of(8) => {
                const SPECIAL: [u16; 12] = [
                    0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x3f80, 0xbf80, 0x0001, 0x8001, 0x7f7f, 0x0080, 0x4000,
                ];
                return bf16::from_bits(SPECIAL[pick as usize / 8 % 12]);
            }
            Self::Special => 127,
        };
        bf16::from_bits(sign_and_fraction | (exponent as u16) << 7)
    }
}

#[test]
fn bf16_bits_equal_the_oracle() {
    for isa in available() {
        let mut random = Random::new(7);
        for &shape in SHAPES {
            bf16_case(isa, &mut random, Kind::Ordinary, shape);
        }
        for shape in [(16, 16, 32), (35, 37, 70)] {
            bf16_case(isa, &mut random, Kind::Huge, shape);
        }
    }
}

/// Apart, because the emulator of `tools/amx_suite.sh` flushes some differences that are just not denormal.
#[test]
fn near_zero_bf16_bits_equal_the_oracle() {
    for isa in available() {
        let mut random = Random::new(8);
        for kind in [Kind::Tiny, Kind::Special] {
            for shape in [(16, 16, 32), (35, 37, 70), (48, 64, 256)] {
                bf16_case(isa, &mut random, kind, shape);
            }
        }
    }
}

#[test]
fn f32_bits_equal_the_oracle() {
    for isa in available() {
        let gemm = Gemm::with_isa(isa).unwrap();
        let mut scratch = Scratch::new();
        let mut random = Random::new(11);
        for &(m, n, k) in SHAPES {
            let a: Vec<f32> = (0..m * k).map(|_| random.symmetric()).collect();
            let b: Vec<f32> = (0..k * n).map(|_| random.symmetric()).collect();
            let expected = oracle_f32(m, n, k, |i, p| a[i * k + p], |p, j| b[p * n + j]);
            let (at, bt) = (transposed(&a, m, k), transposed(&b, k, n));
            let a_views = [
                MatRef::row_major(&a, m, k).unwrap(),
                MatRef::row_major(&at, k, m).unwrap().t(),
            ];
            let b_views = [
                MatRef::row_major(&b, k, n).unwrap(),
                MatRef::row_major(&bt, n, k).unwrap().t(),
            ];
            for a_view in a_views {
                for b_view in b_views {
                    let mut c = vec![f32::NAN; m * n];
                    let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
                    gemm.f32(&Serial, out, a_view, b_view, Epilogue::default(), &mut scratch)
                        .unwrap();
                    assert_same(&c, &expected, n, &format!("{isa} f32 {m} x {n} x {k}"));
                }
            }
        }
    }
}
