//! Random shapes, strides, epilogues and thread counts, with operands between guard pages. Seeds are printed on failure.

#![cfg(target_os = "linux")]

mod common;

use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::{
    DGelu, Epilogue, Executor, Gelu, Gemm, MatMut, MatRef, Out, Packed, PackedMut, RowDropout, Scratch, Serial,
};
use common::guard::Guarded;
use common::{Random, assert_same, available, oracle_bf16, oracle_f32};
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

impl<T: Copy + 'static> Case<T> {
    fn new(random: &mut Random, rows: usize, cols: usize, value: impl Fn(&mut Random) -> T) -> Self {
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
        let values: Vec<T> = (0..len).map(|_| value(random)).collect();
        Self {
            memory: Guarded::new(&values, random.below(2) == 0),
            rows,
            cols,
            strides,
        }
    }

    fn view(&self) -> MatRef<'_, T> {
        MatRef::strided(
            self.memory.slice(),
            self.rows,
            self.cols,
            self.strides.0,
            self.strides.1,
        )
        .expect("the memory has the extent")
    }
}

#[test]
fn bf16_products_between_guard_pages() {
    for isa in available() {
        let gemm = Gemm::with_isa(isa).unwrap();
        let mut scratch = Scratch::new();
        for seed in 0..40 {
            let random = &mut Random::new(seed);
            let (m, n, k) = (random.below(70), random.below(70), random.below(131));
            let value = |r: &mut Random| bf16::from_f32(r.symmetric());
            let (a, b) = (Case::new(random, m, k, value), Case::new(random, k, n, value));
            let expected = oracle_bf16(m, n, k, |i, p| a.view().at(i, p), |p, j| b.view().at(p, j));
            let what = format!(
                "{isa}, seed {seed}: {m} x {n} x {k}, strides {:?} {:?}",
                a.strides, b.strides
            );
            let row_stride = n + random.below(3);
            let len = if m * n == 0 { 0 } else { (m - 1) * row_stride + n };
            let threads = 1 + random.below(3);
            let mut packed = Guarded::new(&vec![bf16::ZERO; Packed::len(k, n)], random.below(2) == 0);
            let mut packed = PackedMut::new(packed.slice_mut(), k, n).unwrap();
            packed.pack_bf16(b.view()).unwrap();
            for way in 0..2 {
                let mut c = Guarded::new(&vec![7.5f32; len], random.below(2) == 0);
                let mut half = Guarded::new(&vec![bf16::ONE; len], random.below(2) == 0);
                let out = Out::both(
                    MatMut::strided(c.slice_mut(), m, n, row_stride).unwrap(),
                    MatMut::strided(half.slice_mut(), m, n, row_stride).unwrap(),
                );
                let exec = Threads(threads);
                if way == 0 {
                    gemm.bf16(&exec, out, a.view(), packed.as_ref(), Epilogue::default(), &mut scratch)
                        .unwrap();
                } else {
                    gemm.bf16_unpacked(&exec, out, a.view(), b.view(), Epilogue::default(), &mut scratch)
                        .unwrap();
                }
                for i in 0..if n > 0 { m } else { 0 } {
                    let row = &c.slice()[i * row_stride..][..n];
                    assert_same(row, &expected[i * n..][..n], n, &what);
                    let halves: Vec<f32> = half.slice()[i * row_stride..][..n].iter().map(|x| x.to_f32()).collect();
                    let rounded: Vec<f32> = expected[i * n..][..n]
                        .iter()
                        .map(|&x| bf16::from_f32(x).to_f32())
                        .collect();
                    assert_same(&halves, &rounded, n, &what);
                    // Between the rows nothing is written.
                    if i + 1 < m {
                        assert!(
                            c.slice()[i * row_stride + n..(i + 1) * row_stride]
                                .iter()
                                .all(|&x| x == 7.5),
                            "{what}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn f32_products_between_guard_pages() {
    for isa in available() {
        let gemm = Gemm::with_isa(isa).unwrap();
        let mut scratch = Scratch::new();
        for seed in 0..40 {
            let random = &mut Random::new(seed);
            let (m, n, k) = (random.below(70), random.below(70), random.below(90));
            let (a, b) = (
                Case::new(random, m, k, |r| r.symmetric()),
                Case::new(random, k, n, |r| r.symmetric()),
            );
            let mut expected = oracle_f32(m, n, k, |i, p| a.view().at(i, p), |p, j| b.view().at(p, j));
            let start: Vec<f32> = (0..m * n).map(|_| random.symmetric()).collect();
            for (e, s) in expected.iter_mut().zip(&start) {
                *e += s;
            }
            let mut c = Guarded::new(&start, random.below(2) == 0);
            let out = Out::add_f32(MatMut::row_major(c.slice_mut(), m, n).unwrap());
            let exec = Threads(1 + random.below(3));
            gemm.f32(&exec, out, a.view(), b.view(), Epilogue::default(), &mut scratch)
                .unwrap();
            assert_same(c.slice(), &expected, n, &format!("{isa}, seed {seed}: {m} x {n} x {k}"));
        }
    }
}

/// Large enough for several tiles, chunks and strips: threads, instruction sets and blocking change no bit.
#[test]
fn threads_and_instruction_sets_agree() {
    let (m, n, k) = (150, 530, 2100);
    let random = &mut Random::new(3);
    let a: Vec<bf16> = (0..m * k).map(|_| bf16::from_f32(random.symmetric())).collect();
    let b: Vec<bf16> = (0..k * n).map(|_| bf16::from_f32(random.symmetric())).collect();
    let (a, b) = (
        MatRef::row_major(&a, m, k).unwrap(),
        MatRef::row_major(&b, k, n).unwrap(),
    );
    let mut reference: Option<Vec<f32>> = None;
    // The portable kernel would take most of the suite's time; `every_isa` compares it with the oracle.
    for isa in available().into_iter().filter(|&isa| isa > azulejo_amx::Isa::Portable) {
        let gemm = Gemm::with_isa(isa).unwrap();
        let mut scratch = Scratch::new();
        for threads in [1, 2, 3, 8] {
            let mut c = vec![f32::NAN; m * n];
            let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
            gemm.bf16_unpacked(&Threads(threads), out, a, b, Epilogue::default(), &mut scratch)
                .unwrap();
            match &reference {
                None => reference = Some(c),
                Some(reference) => assert_same(&c, reference, n, &format!("{isa}, {threads} threads")),
            }
        }
    }
}

fn erf(x: f64) -> f64 {
    // The series converges for the arguments of this test.
    let (mut term, mut sum) = (x, x);
    for i in 1..200 {
        let i = f64::from(i);
        term *= -x * x / i;
        sum += term / (2.0 * i + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Every operation of the epilogue against f64, and the same bits on every instruction set.
#[test]
fn epilogues() {
    let (m, n, k) = (37, 275, 40);
    let random = &mut Random::new(5);
    let a: Vec<bf16> = (0..m * k).map(|_| bf16::from_f32(random.symmetric())).collect();
    let b: Vec<bf16> = (0..k * n).map(|_| bf16::from_f32(random.symmetric())).collect();
    let bias: Vec<f32> = (0..n).map(|_| random.symmetric()).collect();
    let residual: Vec<f32> = (0..m * n).map(|_| random.symmetric()).collect();
    let pre: Vec<f32> = (0..m * n).map(|_| 3.0 * random.symmetric()).collect();
    let pre_half: Vec<bf16> = pre.iter().map(|&x| bf16::from_f32(x)).collect();
    let ids: Vec<RowId> = (0..m)
        .map(|i| RowId {
            sample: i as u64 / 5,
            row: i as u32 % 5,
        })
        .collect();
    let dropout = Dropout::new(0.25, 1, 2, 3, 4).unwrap();
    let product = oracle_bf16(m, n, k, |i, p| a[i * k + p], |p, j| b[p * n + j]);
    let a = MatRef::row_major(&a, m, k).unwrap();
    let packed = Packed::from_bf16(MatRef::row_major(&b, k, n).unwrap());
    let gelu = |x: f64| x * 0.5 * (1.0 + erf(x / 2f64.sqrt()));
    let d_gelu =
        |x: f64| 0.5 * (1.0 + erf(x / 2f64.sqrt())) + x * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let mut reference: Vec<Vec<f32>> = Vec::new();
    for isa in available() {
        let gemm = Gemm::with_isa(isa).unwrap();
        let mut scratch = Scratch::new();
        for kind in 0..6 {
            let mut saved = vec![0.0f32; m * n];
            let mut saved_half = vec![bf16::ZERO; m * n];
            let mut c = vec![0.0f32; m * n];
            let mut epilogue = Epilogue {
                alpha: Some(0.75),
                bias: Some(&bias),
                ..Epilogue::default()
            };
            match kind {
                1 | 5 => {
                    epilogue.gelu = Some(Gelu {
                        save_f32: Some(MatMut::row_major(&mut saved, m, n).unwrap()),
                        save_bf16: Some(MatMut::row_major(&mut saved_half, m, n).unwrap()),
                    });
                }
                2 => epilogue.d_gelu = Some(DGelu::F32(MatRef::row_major(&pre, m, n).unwrap())),
                3 => epilogue.d_gelu = Some(DGelu::Bf16(MatRef::row_major(&pre_half, m, n).unwrap())),
                _ => {}
            }
            if kind >= 4 {
                epilogue.dropout = Some(RowDropout { dropout, rows: &ids });
                epilogue.residual = Some(MatRef::row_major(&residual, m, n).unwrap());
            }
            let out = Out::f32(MatMut::row_major(&mut c, m, n).unwrap());
            gemm.bf16(&Serial, out, a, packed.as_ref(), epilogue, &mut scratch)
                .unwrap();
            for i in 0..m * n {
                let x = f64::from(product[i]) * 0.75 + f64::from(bias[i % n]);
                let x = match kind {
                    1 | 5 => gelu(x),
                    2 => x * d_gelu(f64::from(pre[i])),
                    3 => x * d_gelu(f64::from(pre_half[i].to_f32())),
                    _ => x,
                };
                let column = (i % n) as u32;
                let kept = if dropout.keeps(ids[i / n], column) {
                    f64::from(dropout.scale())
                } else {
                    0.0
                };
                let x = if kind >= 4 {
                    x * kept + f64::from(residual[i])
                } else {
                    x
                };
                // A handful of f32 operations on values below 16, each within half a unit of 2^-20.
                assert!(
                    (f64::from(c[i]) - x).abs() < 8e-6,
                    "{isa} kind {kind} element {i}: {} for {x}",
                    c[i]
                );
                if kind == 1 {
                    let argument = product[i] * 0.75 + bias[i % n];
                    assert_eq!(saved[i].to_bits(), argument.to_bits(), "{isa} saved {i}");
                    assert_eq!(saved_half[i], bf16::from_f32(argument), "{isa} saved {i}");
                }
            }
            match reference.get(kind) {
                None => reference.push(c),
                Some(reference) => assert_same(&c, reference, n, &format!("{isa}, kind {kind}")),
            }
        }
    }
}
