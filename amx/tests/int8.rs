//! 8-bit products: random shapes, strides, zero points, scales and thread counts between guard pages; overflow; each error, provoked once.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may end on an error")]

mod common;

use azulejo_amx::int8::{
    Byte, Dequantize, GemmInt8, Int8Kernel, MAX_EXACT_K, OutInt32, PackedInt8, PackedInt8Mut, PackedInt8Ref, Per,
    Requantize, ZeroPoints,
};
use azulejo_amx::{Epilogue, Error, Executor, Gelu, Isa, MatMut, MatRef, Out, Scratch, Serial};
use common::guard::Guarded;
use common::int8::{Values, oracle};
use common::{Random, assert_same};
use half::bf16;

/// As many threads as asked for, made for each call.
struct Threads(usize);

impl Executor for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for worker in 0..self.0 {
                scope.spawn(move || task(worker));
            }
        });
    }
}

/// A strided matrix whose last element is the last one before a guard page (or the first one behind one).
struct Case<T> {
    memory: Guarded<T>,
    rows: usize,
    cols: usize,
    strides: (usize, usize),
}

impl<T: Byte> Case<T> {
    fn new(random: &mut Random, rows: usize, cols: usize, values: Values) -> Self {
        let gap = random.below(4);
        let strides = match random.below(3) {
            0 => (cols + gap, 1),
            1 => (1, rows + gap),
            _ => (2 * cols + gap, 2),
        };
        let len = if rows == 0 || cols == 0 {
            0
        } else {
            (rows - 1) * strides.0 + (cols - 1) * strides.1 + 1
        };
        let bytes: Vec<T> = (0..len).map(|_| values.byte(random)).collect();
        Self {
            memory: Guarded::new(&bytes, random.below(2) == 0),
            rows,
            cols,
            strides,
        }
    }

    fn view(&self) -> MatRef<'_, T> {
        let (row_stride, col_stride) = self.strides;
        MatRef::strided(self.memory.slice(), self.rows, self.cols, row_stride, col_stride)
            .expect("the memory has the extent")
    }
}

/// One value, or one for each of `n`, or the default.
fn per<'a, T: Copy>(random: &mut Random, default: T, values: &'a [T]) -> Per<'a, T> {
    match random.below(3) {
        0 => Per::Tensor(default),
        1 if !values.is_empty() => Per::Tensor(values[0]),
        _ => Per::Channel(values),
    }
}

/// The value of row or column i.
fn at<T: Copy>(per: &Per<'_, T>, i: usize) -> T {
    match per {
        Per::Tensor(value) => *value,
        Per::Channel(values) => values[i],
    }
}

fn int<T: Byte + Into<i64>>(byte: T) -> i32 {
    i32::try_from(byte.into()).expect("a byte")
}

/// The documented steps in plain f32.
fn numbers(sums: &[i32], m: usize, n: usize, how: &Dequantize<'_>) -> Vec<f32> {
    let mut x = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            let sum = sums[i * n + j].wrapping_add(how.bias.map_or(0, |bias| bias[j]));
            x.push(sum as f32 * (at(&how.a_scale, i) * at(&how.b_scale, j)));
        }
    }
    x
}

fn bytes<O: Byte>(x: &[f32], n: usize, how: &Requantize<'_>) -> Vec<O> {
    let (least, most) = O::RANGE;
    x.iter()
        .enumerate()
        .map(|(i, &x)| {
            let x = match how.bias {
                Some(bias) => x + bias[i % n],
                None => x,
            };
            // In f64 the zero point is added exactly; not-a-number fails the comparison.
            let q = f64::from(x.round_ties_even()) + f64::from(how.zero);
            let q = if q > f64::from(least) {
                q.min(f64::from(most))
            } else {
                f64::from(least)
            };
            bytemuck::cast((q as i32).to_le_bytes()[0])
        })
        .collect()
}

/// All outputs of one random product on one kernel.
fn product<A: Byte + Into<i64>, O: Byte + std::fmt::Debug + PartialEq>(kernel: Int8Kernel, seed: u64) {
    let gemm = GemmInt8::with_kernel(kernel).unwrap();
    let random = &mut Random::new(seed);
    let mut scratch = Scratch::new();
    let (m, n, k) = (random.below(131), random.below(131), random.below(131));
    let values = [Values::Any, Values::Extreme][random.below(2)];
    let (a, b) = (
        Case::<A>::new(random, m, k, values),
        Case::<i8>::new(random, k, n, values),
    );
    let what = format!(
        "{kernel}, seed {seed}: {m} x {n} x {k}, {values:?}, strides {:?} {:?}",
        a.strides, b.strides
    );
    let exec = Threads(1 + random.below(3));
    let za: Vec<i32> = (0..m).map(|_| int(values.byte::<A>(random))).collect();
    let zb: Vec<i32> = (0..n).map(|_| int(values.byte::<i8>(random))).collect();
    let sa: Vec<f32> = (0..m).map(|_| random.symmetric()).collect();
    let sb: Vec<f32> = (0..n).map(|_| random.symmetric() / 64.0).collect();
    let bias: Vec<i32> = (0..n).map(|_| (random.symmetric() * 2e9) as i32).collect();
    let float_bias: Vec<f32> = (0..n).map(|_| 99.0 * random.symmetric()).collect();
    let zero = ZeroPoints {
        a: per(random, 0, &za),
        b: per(random, 0, &zb),
    };
    let dequantize = Dequantize {
        zero,
        a_scale: per(random, 1.0, &sa),
        b_scale: per(random, 1.0, &sb),
        bias: (random.below(2) == 0).then_some(&bias),
    };

    let mut packed = Guarded::new(&vec![0x55_u8; PackedInt8::len(k, n)], random.below(2) == 0);
    let mut packed = PackedInt8Mut::new(packed.slice_mut(), k, n).unwrap();
    packed.pack(b.view()).unwrap();
    packed.as_ref().verify().unwrap();
    let sums = oracle(a.view(), b.view(), &zero);

    let row_stride = n + random.below(3);
    let len = if m * n == 0 { 0 } else { (m - 1) * row_stride + n };
    let at_end = random.below(2) == 0;
    for add in [false, true] {
        let mut c = Guarded::new(&vec![i32::MAX - 7; len], at_end);
        let out = MatMut::strided(c.slice_mut(), m, n, row_stride).unwrap();
        let out = if add { OutInt32::Add(out) } else { OutInt32::Set(out) };
        gemm.i32(&exec, out, a.view(), packed.as_ref(), zero, &mut scratch)
            .unwrap();
        for (i, &got) in c.slice().iter().enumerate() {
            let (row, col) = (i / row_stride, i % row_stride);
            let expected = match col < n {
                true if add => sums[row * n + col].wrapping_add(i32::MAX - 7),
                true => sums[row * n + col],
                // Between the rows nothing is written.
                false => i32::MAX - 7,
            };
            assert_eq!(got, expected, "{what}, element ({row}, {col}), add {add}");
        }
    }

    let expected = numbers(&sums, m, n, &dequantize);
    let mut c = Guarded::new(&vec![f32::NAN; m * n], at_end);
    let out = Out::f32(MatMut::row_major(c.slice_mut(), m, n).unwrap());
    gemm.f32(
        &exec,
        out,
        a.view(),
        packed.as_ref(),
        dequantize,
        Epilogue::default(),
        &mut scratch,
    )
    .unwrap();
    assert_same(c.slice(), &expected, n, &what);

    let requantize = Requantize {
        dequantize,
        bias: (random.below(2) == 0).then_some(&float_bias),
        zero: O::RANGE.0 + (random.next() % 256) as i32,
    };
    let mut c = Guarded::new(&vec![values.byte::<O>(random); len], at_end);
    let untouched = c.slice().to_vec();
    let out = MatMut::strided(c.slice_mut(), m, n, row_stride).unwrap();
    gemm.requantized(&exec, out, a.view(), packed.as_ref(), requantize, &mut scratch)
        .unwrap();
    let expected = bytes::<O>(&expected, n, &requantize);
    for (i, got) in c.slice().iter().enumerate() {
        let (row, col) = (i / row_stride, i % row_stride);
        let expected = if col < n { expected[row * n + col] } else { untouched[i] };
        assert_eq!(*got, expected, "{what}, element ({row}, {col}), requantised");
    }
}

#[test]
fn every_output_between_guard_pages() {
    for kernel in Int8Kernel::available() {
        for seed in 0..60 {
            match seed % 4 {
                0 => product::<u8, u8>(kernel, seed),
                1 => product::<i8, i8>(kernel, seed),
                2 => product::<u8, i8>(kernel, seed),
                _ => product::<i8, u8>(kernel, seed),
            }
        }
    }
}

/// One row and one column of equal bytes, deep enough to reach the ends of 32 bits.
fn deep<A: Byte + Into<i64>>(kernel: Int8Kernel, a: Values, b: Values, k: usize) -> (i64, i32) {
    let random = &mut Random::new(1);
    let (a, b): (Vec<A>, Vec<i8>) = (vec![a.byte(random); k], vec![b.byte(random); k]);
    let exact = if k == 0 {
        0
    } else {
        k as i64 * a[0].into() * i64::from(b[0])
    };
    let packed = PackedInt8::from_i8(MatRef::row_major(&b, k, 1).unwrap());
    let mut c = [0];
    GemmInt8::with_kernel(kernel)
        .unwrap()
        .i32(
            &Serial,
            OutInt32::Set(MatMut::row_major(&mut c, 1, 1).unwrap()),
            MatRef::row_major(&a, 1, k).unwrap(),
            packed.as_ref(),
            ZeroPoints::default(),
            &mut Scratch::new(),
        )
        .unwrap();
    (exact, c[0])
}

#[test]
fn sums_are_exact_up_to_the_documented_depth_and_wrap_beyond() {
    use Values::{Least, Most};
    for kernel in Int8Kernel::available() {
        for (b, k) in [(Least, MAX_EXACT_K.u8_i8), (Most, MAX_EXACT_K.u8_i8)] {
            let (exact, got) = deep::<u8>(kernel, Most, b, k);
            assert_eq!(exact, i64::from(got), "{kernel}, u8, K {k}");
        }
        let (exact, got) = deep::<i8>(kernel, Least, Least, MAX_EXACT_K.i8_i8);
        assert_eq!(exact, i64::from(got), "{kernel}, i8, K {}", MAX_EXACT_K.i8_i8);

        let (exact, got) = deep::<u8>(kernel, Most, Least, MAX_EXACT_K.u8_i8 + 1);
        assert!(exact < i64::from(i32::MIN), "the bound is tight");
        assert_eq!(exact as i32, got, "{kernel}, u8");
        let (exact, got) = deep::<i8>(kernel, Least, Least, MAX_EXACT_K.i8_i8 + 1);
        assert!(exact > i64::from(i32::MAX), "the bound is tight");
        assert_eq!(exact as i32, got, "{kernel}, i8");
        let (exact, got) = deep::<u8>(kernel, Most, Most, 3 * MAX_EXACT_K.u8_i8);
        assert_eq!(exact as i32, got, "{kernel}, u8, far beyond");
    }
}

/// Several tiles of rows and columns and several chunks of K.
#[test]
fn threads_kernels_and_blocking_agree() {
    let (m, n, k) = (77, 2200, 4200);
    let random = &mut Random::new(3);
    let a: Vec<u8> = (0..m * k).map(|_| Values::Any.byte(random)).collect();
    let b: Vec<i8> = (0..k * n).map(|_| Values::Any.byte(random)).collect();
    let (a, b) = (
        MatRef::row_major(&a, m, k).unwrap(),
        MatRef::row_major(&b, k, n).unwrap(),
    );
    let packed = PackedInt8::from_i8(b);
    let zero = ZeroPoints {
        a: Per::Tensor(3),
        b: Per::Tensor(-5),
    };
    // The reference on a sample of the columns.
    let sample = [0, 15, 16, 127, 128, 1023, 1100, 2047, 2048, 2199];
    let mut reference: Option<Vec<i32>> = None;
    // The portable kernel would take most of the suite's time; `every_isa` compares it with the reference.
    for kernel in Int8Kernel::available()
        .into_iter()
        .filter(|&kernel| kernel > Int8Kernel::Portable)
    {
        let gemm = GemmInt8::with_kernel(kernel).unwrap();
        let mut scratch = Scratch::new();
        for threads in [1, 2, 3, 8] {
            let mut c = vec![-1; m * n];
            let out = OutInt32::Set(MatMut::row_major(&mut c, m, n).unwrap());
            gemm.i32(&Threads(threads), out, a, packed.as_ref(), zero, &mut scratch)
                .unwrap();
            match &reference {
                None => {
                    for col in sample {
                        let expected = oracle(a, b.sub(0..k, col..col + 1).unwrap(), &zero);
                        for i in 0..m {
                            assert_eq!(c[i * n + col], expected[i], "{kernel}, ({i}, {col})");
                        }
                    }
                    reference = Some(c);
                }
                Some(reference) => assert!(c == *reference, "{kernel}, {threads} threads"),
            }
        }
    }
}

/// The epilogue of the other products follows the scale: the same bits as an f32 product of one column with a residual.
#[test]
fn numbers_take_the_epilogue() {
    let (m, n, k) = (19, 150, 70);
    let random = &mut Random::new(4);
    let a: Vec<i8> = (0..m * k).map(|_| Values::Any.byte(random)).collect();
    let b: Vec<i8> = (0..k * n).map(|_| Values::Any.byte(random)).collect();
    let bias: Vec<f32> = (0..n).map(|_| random.symmetric()).collect();
    let (a, b) = (
        MatRef::row_major(&a, m, k).unwrap(),
        MatRef::row_major(&b, k, n).unwrap(),
    );
    let packed = PackedInt8::from_i8(b);
    let dequantize = Dequantize {
        a_scale: Per::Tensor(0.01),
        b_scale: Per::Tensor(0.003),
        ..Dequantize::default()
    };
    let x = numbers(&oracle(a, b, &dequantize.zero), m, n, &dequantize);
    for kernel in Int8Kernel::available() {
        let (mut c, mut half, mut saved) = (vec![0.0f32; m * n], vec![bf16::ZERO; m * n], vec![0.0f32; m * n]);
        let out = Out::both(
            MatMut::row_major(&mut c, m, n).unwrap(),
            MatMut::row_major(&mut half, m, n).unwrap(),
        );
        let epilogue = Epilogue {
            bias: Some(&bias),
            gelu: Some(Gelu {
                save_f32: Some(MatMut::row_major(&mut saved, m, n).unwrap()),
                ..Gelu::default()
            }),
            ..Epilogue::default()
        };
        GemmInt8::with_kernel(kernel)
            .unwrap()
            .f32(
                &Serial,
                out,
                a,
                packed.as_ref(),
                dequantize,
                epilogue,
                &mut Scratch::new(),
            )
            .unwrap();
        let argument: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + bias[i % n]).collect();
        assert_same(&saved, &argument, n, &format!("{kernel}, argument of GELU"));
        for i in 0..m * n {
            // GELU lies between 0 and its argument, and never more than 0.17 below zero.
            let (low, high) = (argument[i].clamp(-0.17, 0.0), argument[i].max(0.0));
            assert!((low..=high).contains(&c[i]), "{kernel}, {} for {}", c[i], argument[i]);
            assert_eq!(half[i], bf16::from_f32(c[i]), "{kernel}");
        }
    }
}

/// Values that are no numbers, or too great for a byte.
#[test]
fn requantising_saturates() {
    let (a, b) = ([1i8], [1i8, -1, 0, 127]);
    let packed = PackedInt8::from_i8(MatRef::row_major(&b, 1, 4).unwrap());
    for kernel in Int8Kernel::available() {
        let gemm = GemmInt8::with_kernel(kernel).unwrap();
        let run = |scale: f32, zero: i32| {
            let mut c = [9u8; 4];
            let requantize = Requantize {
                dequantize: Dequantize {
                    a_scale: Per::Tensor(scale),
                    ..Dequantize::default()
                },
                zero,
                ..Requantize::default()
            };
            let out = MatMut::row_major(&mut c, 1, 4).unwrap();
            let a = MatRef::row_major(&a, 1, 1).unwrap();
            gemm.requantized(&Serial, out, a, packed.as_ref(), requantize, &mut Scratch::new())
                .unwrap();
            c
        };
        assert_eq!(run(0.5, 10), [10, 10, 10, 74], "{kernel}: ties go to even");
        assert_eq!(run(1.5, 10), [12, 8, 10, 200], "{kernel}: ties go to even");
        assert_eq!(run(1e30, 10), [255, 0, 10, 255], "{kernel}");
        assert_eq!(
            run(f32::INFINITY, 10),
            [255, 0, 0, 255],
            "{kernel}: 0 times infinity is no number"
        );
        assert_eq!(run(f32::NAN, 10), [0; 4], "{kernel}");
    }
}

#[test]
fn packed_bytes_can_be_stored_and_mapped() {
    let (k, n) = (70, 20);
    let random = &mut Random::new(5);
    let b: Vec<i8> = (0..k * n).map(|_| Values::Any.byte(random)).collect();
    let b = MatRef::row_major(&b, k, n).unwrap();
    let packed = PackedInt8::from_i8(b);
    assert_eq!(PackedInt8::len(k, n), 2 * 2 * 1024 + 2 * 64);
    // At an odd address: the kernels ask for no alignment.
    let mut file = vec![0u8; 1];
    file.extend_from_slice(packed.as_ref().data());
    let mapped = PackedInt8Ref::new(&file[1..], k, n).unwrap();
    mapped.verify().unwrap();
    let a: Vec<u8> = (0..3 * k).map(|_| Values::Any.byte(random)).collect();
    let a = MatRef::row_major(&a, 3, k).unwrap();
    let expected = oracle(a, b, &ZeroPoints::default());
    for kernel in Int8Kernel::available() {
        let mut c = vec![0; 3 * n];
        let out = OutInt32::Set(MatMut::row_major(&mut c, 3, n).unwrap());
        GemmInt8::with_kernel(kernel)
            .unwrap()
            .i32(&Serial, out, a, mapped, ZeroPoints::default(), &mut Scratch::new())
            .unwrap();
        assert_eq!(c, expected, "{kernel}");
    }
}

#[test]
fn each_error() {
    let gemm = GemmInt8::new().unwrap();
    let mut scratch = Scratch::new();
    let short = vec![0u8; 1087];
    assert_eq!(
        PackedInt8Ref::new(&short, 64, 16).err(),
        Some(Error::Extent {
            needed: 1088,
            available: 1087
        })
    );
    let b = PackedInt8::new(3, 4);
    let wrong = MatRef::row_major(&[0i8; 12], 4, 3).unwrap().shape();
    assert_eq!(
        PackedInt8::new(3, 4).pack(MatRef::row_major(&[0i8; 12], 4, 3).unwrap()),
        Err(Error::Shape {
            what: "operand to pack",
            expected: (3, 4),
            got: wrong
        })
    );
    let a = [1u8; 6];
    let a = MatRef::row_major(&a, 2, 3).unwrap();
    let mut c = [1i32; 8];
    let mut sums = |rows: usize, b: &PackedInt8, zero: ZeroPoints<'_>| {
        let out = OutInt32::Set(MatMut::row_major(&mut c, rows, 8 / rows).unwrap());
        gemm.i32(&Serial, out, a, b.as_ref(), zero, &mut scratch).err()
    };
    let plain = ZeroPoints::default();
    assert_eq!(
        sums(2, &PackedInt8::new(5, 4), plain),
        Some(Error::Shape {
            what: "operand b",
            expected: (3, 4),
            got: (5, 4)
        })
    );
    assert_eq!(
        sums(4, &b, plain),
        Some(Error::Shape {
            what: "i32 output",
            expected: (2, 4),
            got: (4, 2)
        })
    );
    let zero_a = |a| ZeroPoints { a, ..plain };
    let zero_b = |b| ZeroPoints { b, ..plain };
    assert_eq!(
        sums(2, &b, zero_a(Per::Tensor(256))),
        Some(Error::ZeroPoint {
            what: "zero point of a",
            value: 256,
            least: 0,
            most: 255
        })
    );
    assert_eq!(
        sums(2, &b, zero_b(Per::Channel(&[0, 0, -129, 0]))),
        Some(Error::ZeroPoint {
            what: "zero point of b",
            value: -129,
            least: -128,
            most: 127
        })
    );
    assert_eq!(
        sums(2, &b, zero_a(Per::Channel(&[0; 3]))),
        Some(Error::Shape {
            what: "zero point of a",
            expected: (1, 2),
            got: (1, 3)
        })
    );
    assert!(matches!(
        sums(2, &b, zero_b(Per::Channel(&[]))),
        Some(Error::Shape { .. })
    ));
    assert_eq!(c, [1; 8], "a refused call writes nothing");

    let mut x = [1.0f32; 8];
    let mut numbers = |dequantize: Dequantize<'_>, bias: &[f32]| {
        let out = Out::f32(MatMut::row_major(&mut x, 2, 4).unwrap());
        let epilogue = Epilogue {
            bias: Some(bias),
            ..Epilogue::default()
        };
        gemm.f32(&Serial, out, a, b.as_ref(), dequantize, epilogue, &mut scratch)
            .err()
    };
    let plain = Dequantize::default();
    let scales = Dequantize {
        a_scale: Per::Channel(&[1.0; 3]),
        ..plain
    };
    assert!(matches!(
        numbers(scales, &[0.0; 4]),
        Some(Error::Shape { what: "scale of a", .. })
    ));
    let scales = Dequantize {
        b_scale: Per::Channel(&[1.0; 3]),
        ..plain
    };
    assert!(matches!(
        numbers(scales, &[0.0; 4]),
        Some(Error::Shape { what: "scale of b", .. })
    ));
    let bias = Dequantize {
        bias: Some(&[1; 5]),
        ..plain
    };
    assert!(matches!(
        numbers(bias, &[0.0; 4]),
        Some(Error::Shape {
            what: "32-bit bias",
            ..
        })
    ));
    assert!(matches!(
        numbers(plain, &[0.0; 3]),
        Some(Error::Shape { what: "bias", .. })
    ));
    assert_eq!(x, [1.0; 8], "a refused call writes nothing");
    let nothing = gemm.f32(
        &Serial,
        Out::default(),
        a,
        b.as_ref(),
        plain,
        Epilogue::default(),
        &mut scratch,
    );
    assert_eq!(nothing, Err(Error::NoOutput));

    let mut q = [1i8; 8];
    let mut quantised = |requantize: Requantize<'_>, rows: usize| {
        let out = MatMut::row_major(&mut q, rows, 8 / rows).unwrap();
        gemm.requantized(&Serial, out, a, b.as_ref(), requantize, &mut scratch)
            .err()
    };
    let zero = Requantize {
        zero: 128,
        ..Requantize::default()
    };
    let refused = quantised(zero, 2);
    assert_eq!(
        refused.as_ref().map(ToString::to_string).as_deref(),
        Some("zero point of the output: expected -128 to 127, got 128")
    );
    let bias = Requantize {
        bias: Some(&[]),
        ..Requantize::default()
    };
    assert!(matches!(quantised(bias, 2), Some(Error::Shape { what: "bias", .. })));
    assert!(matches!(
        quantised(Requantize::default(), 8),
        Some(Error::Shape {
            what: "8-bit output",
            ..
        })
    ));
    assert_eq!(q, [1; 8], "a refused call writes nothing");

    for kernel in Int8Kernel::ALL {
        match (kernel.check(), GemmInt8::with_kernel(kernel)) {
            (Ok(()), Ok(gemm)) => assert_eq!((gemm.kernel(), gemm.isa()), (kernel, kernel.isa())),
            (Err(reason), Err(error)) => assert_eq!(
                error,
                Error::IsaUnavailable {
                    isa: kernel.isa(),
                    reason
                }
            ),
            (check, made) => panic!("{kernel}: {check:?}, {made:?}"),
        }
    }
    for isa in Isa::available() {
        assert_eq!(GemmInt8::with_isa(isa).unwrap().isa(), isa);
    }
}

/// An executor that runs nothing.
struct Never;

impl Executor for Never {
    fn threads(&self) -> usize {
        2
    }

    fn run(&self, _: &(dyn Fn(usize) + Sync)) {}
}

#[test]
fn an_executor_that_does_nothing_is_an_error() {
    let (a, b) = (vec![1u8; 100 * 8], PackedInt8::new(8, 300));
    let mut c = vec![0; 100 * 300];
    let out = OutInt32::Set(MatMut::row_major(&mut c, 100, 300).unwrap());
    let a = MatRef::row_major(&a, 100, 8).unwrap();
    let zero = ZeroPoints::default();
    let never = GemmInt8::new()
        .unwrap()
        .i32(&Never, out, a, b.as_ref(), zero, &mut Scratch::new());
    assert!(matches!(never, Err(Error::Executor { done: 0, .. })), "{never:?}");
}

/// Whatever is asked for, the answer is an error that names a reason and leaves the output alone, or the right numbers.
#[test]
fn any_call_is_refused_or_right() {
    let random = &mut Random::new(77);
    let kernels = Int8Kernel::available();
    let mut scratch = Scratch::new();
    let (mut refused, mut right) = (0, 0);
    for round in 0..4000 {
        let kernel = kernels[round % kernels.len()];
        let gemm = GemmInt8::with_kernel(kernel).unwrap();
        let (m, n, k) = (random.below(20), random.below(40), random.below(70));
        // Most sizes and values are as they should be; each is sometimes not.
        let mut near = |x: usize| if random.below(16) == 0 { x + random.below(3) } else { x };
        let (a_cols, rows, cols) = (near(k), near(m), near(n));
        let lens = [near(m), near(n), near(m), near(n), near(n), near(n)];
        let values = [Values::Any, Values::Extreme][random.below(2)];
        let a: Vec<i8> = (0..m * a_cols).map(|_| values.byte(random)).collect();
        let b: Vec<i8> = (0..k * n).map(|_| values.byte(random)).collect();
        let zero_value = |random: &mut Random| {
            let value = int(values.byte::<i8>(random));
            if random.below(200) == 0 { value + 300 } else { value }
        };
        let za: Vec<i32> = (0..lens[0]).map(|_| zero_value(random)).collect();
        let zb: Vec<i32> = (0..lens[1]).map(|_| zero_value(random)).collect();
        let sa: Vec<f32> = (0..lens[2]).map(|_| random.symmetric()).collect();
        let sb: Vec<f32> = (0..lens[3]).map(|_| random.symmetric()).collect();
        let bias: Vec<i32> = (0..lens[4]).map(|_| random.next() as i32).collect();
        let float_bias: Vec<f32> = (0..lens[5]).map(|_| random.symmetric()).collect();
        let requantize = Requantize {
            dequantize: Dequantize {
                zero: ZeroPoints {
                    a: per(random, 0, &za),
                    b: per(random, 0, &zb),
                },
                a_scale: per(random, 1.0, &sa),
                b_scale: per(random, 1.0, &sb),
                bias: (random.below(2) == 0).then_some(&bias),
            },
            bias: (random.below(2) == 0).then_some(&float_bias),
            zero: zero_value(random),
        };
        let dequantize = requantize.dequantize;
        // What the call must say, from the documentation alone.
        let fits = |per: &Per<'_, i32>, len: usize| match per {
            Per::Tensor(zero) => (-128..=127).contains(zero),
            Per::Channel(zeros) => zeros.len() == len && zeros.iter().all(|zero| (-128..=127).contains(zero)),
        };
        let sized = |per: &Per<'_, f32>, len: usize| !matches!(per, Per::Channel(scales) if scales.len() != len);
        let valid = a_cols == k
            && (rows, cols) == (m, n)
            && fits(&dequantize.zero.a, m)
            && fits(&dequantize.zero.b, n)
            && sized(&dequantize.a_scale, m)
            && sized(&dequantize.b_scale, n)
            && dequantize.bias.is_none_or(|bias| bias.len() == n)
            && requantize.bias.is_none_or(|bias| bias.len() == n)
            && (-128..=127).contains(&requantize.zero);
        let mut c = vec![77i8; rows * cols];
        let a = MatRef::row_major(&a, m, a_cols).unwrap();
        let b = MatRef::row_major(&b, k, n).unwrap();
        let packed = PackedInt8::from_i8(b);
        let out = MatMut::row_major(&mut c, rows, cols).unwrap();
        let threads = Threads(1 + random.below(2));
        let result = gemm.requantized(&threads, out, a, packed.as_ref(), requantize, &mut scratch);
        assert_eq!(
            result.is_ok(),
            valid,
            "{kernel}, round {round}: {result:?} for {requantize:?}, {m} x {n} x {k}"
        );
        match result {
            Err(error) => {
                assert!(
                    c.iter().all(|&x| x == 77),
                    "{kernel}, round {round}: a refused call writes nothing"
                );
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
            Ok(()) => {
                let x = numbers(&oracle(a, b, &dequantize.zero), m, n, &dequantize);
                assert_eq!(
                    c,
                    bytes::<i8>(&x, n, &requantize),
                    "{kernel}, round {round}: {m} x {n} x {k}"
                );
                right += 1;
            }
        }
    }
    assert!(refused > 500 && right > 500, "{refused} refused, {right} right");
}
