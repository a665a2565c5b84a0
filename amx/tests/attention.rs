//! Attention against its definition in f64 and finite differences, and against itself: every instruction set, any number
//! of threads and any company in the batch give the same bits.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints what it ran on"
)]

use azulejo_amx::attention::{Activation, Attention, AttentionSaved, AttentionScratch, Sequences, dropout_group};
use azulejo_amx::rng::Dropout;
use azulejo_amx::{Executor, Gemm, Isa, Serial, report};
use half::bf16;

/// Threads that live for one call.
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

/// A small generator of our own: the tests need reproducible numbers, not good ones.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn vec<T: Value>(&mut self, n: usize, size: f32) -> Vec<T> {
        (0..n).map(|_| T::from_f32(self.next() * size)).collect()
    }
}

/// What the tests need of a number.
trait Value: Activation {
    fn from_f32(x: f32) -> Self;
    fn to_f64(self) -> f64;
    /// Relative error of one rounding.
    const EPS: f64;
}

impl Value for f32 {
    fn from_f32(x: f32) -> Self {
        x
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    const EPS: f64 = 6e-8;
}

impl Value for bf16 {
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
    fn to_f64(self) -> f64 {
        self.to_f64()
    }
    const EPS: f64 = 1.0 / 256.0;
}

/// One batch: lengths, sizes and values.
struct Case<T> {
    heads: usize,
    width: usize,
    cu_seqlens: Vec<u32>,
    samples: Vec<u64>,
    dropout: Option<Dropout>,
    qkv: Vec<T>,
    d_out: Vec<T>,
}

impl<T: Value> Case<T> {
    fn new(lengths: &[u32], heads: usize, width: usize, dropout: Option<Dropout>, seed: u64) -> Self {
        let mut cu_seqlens = vec![0];
        for n in lengths {
            cu_seqlens.push(cu_seqlens.last().unwrap() + n);
        }
        let t = *cu_seqlens.last().unwrap() as usize;
        let mut numbers = Numbers(seed);
        Case {
            heads,
            width,
            samples: (0..lengths.len() as u64).map(|s| 1000 + 3 * s).collect(),
            dropout,
            qkv: numbers.vec(t * 3 * heads * width, 1.5),
            d_out: numbers.vec(t * heads * width, 1.0),
            cu_seqlens,
        }
    }

    fn sequences(&self) -> Sequences<'_> {
        Sequences {
            heads: self.heads,
            width: self.width,
            cu_seqlens: &self.cu_seqlens,
            dropout: self.dropout.map(|d| (d, self.samples.as_slice())),
        }
    }

    /// Output, statistics, gradient.
    fn run(&self, gemm: Gemm, exec: &dyn Executor, scratch: &mut AttentionScratch) -> (Vec<T>, Vec<f32>, Vec<T>) {
        let h = self.heads * self.width;
        let t = *self.cu_seqlens.last().unwrap() as usize;
        let attention = Attention::new(gemm);
        let mut out = vec![T::from_f32(f32::NAN); t * h];
        let mut lse = vec![f32::NAN; t * self.heads];
        attention
            .forward(exec, &mut out, &mut lse, &self.qkv, self.sequences(), scratch)
            .unwrap();
        let mut d_qkv = vec![T::from_f32(f32::NAN); t * 3 * h];
        let saved = AttentionSaved {
            out: &out,
            lse: &lse,
            qkv: &self.qkv,
        };
        attention
            .backward(exec, &mut d_qkv, &self.d_out, saved, self.sequences(), scratch)
            .unwrap();
        (out, lse, d_qkv)
    }

    /// Output, statistics and gradient by definition, in f64.
    fn reference(&self) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let (a, d) = (self.heads, self.width);
        let h = a * d;
        let t = *self.cu_seqlens.last().unwrap() as usize;
        let (mut out, mut lse, mut d_qkv) = (vec![0.0; t * h], vec![0.0; t * a], vec![0.0; t * 3 * h]);
        let scale = 1.0 / (d as f64).sqrt();
        for s in 0..self.samples.len() {
            let first = self.cu_seqlens[s] as usize;
            let n = self.cu_seqlens[s + 1] as usize - first;
            for head in 0..a {
                let at = |part: usize, i: usize, c: usize| (first + i) * 3 * h + part * h + head * d + c;
                let x = |part: usize, i: usize, c: usize| self.qkv[at(part, i, c)].to_f64();
                for i in 0..n {
                    let scores: Vec<f64> = (0..n)
                        .map(|j| (0..d).map(|c| x(0, i, c) * x(1, j, c)).sum::<f64>() * scale)
                        .collect();
                    let max = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
                    let total = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
                    lse[(first + i) * a + head] = total;
                    let mask = |j: usize| match self.dropout {
                        None => 1.0,
                        Some(dropout) => {
                            let group = dropout_group(self.samples[s], head, n, i);
                            let keeps = dropout.keeps_in_group(group, (i % 8) as u32, j as u32);
                            if keeps { f64::from(dropout.scale()) } else { 0.0 }
                        }
                    };
                    let p: Vec<f64> = scores.iter().map(|s| (s - total).exp()).collect();
                    let d_o = |c: usize| self.d_out[(first + i) * h + head * d + c].to_f64();
                    for c in 0..d {
                        out[(first + i) * h + head * d + c] = (0..n).map(|j| p[j] * mask(j) * x(2, j, c)).sum();
                    }
                    let d_p: Vec<f64> = (0..n)
                        .map(|j| mask(j) * (0..d).map(|c| d_o(c) * x(2, j, c)).sum::<f64>())
                        .collect();
                    let common: f64 = (0..n).map(|j| p[j] * d_p[j]).sum();
                    for j in 0..n {
                        let d_s = p[j] * (d_p[j] - common) * scale;
                        for c in 0..d {
                            d_qkv[at(0, i, c)] += d_s * x(1, j, c);
                            d_qkv[at(1, j, c)] += d_s * x(0, i, c);
                            d_qkv[at(2, j, c)] += p[j] * mask(j) * d_o(c);
                        }
                    }
                }
            }
        }
        (out, lse, d_qkv)
    }
}

/// The greatest difference against the size of the wanted values.
fn distance<T: Value>(got: &[T], want: &[f64]) -> f64 {
    let size = want.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
    let worst = got.iter().zip(want).map(|(g, w)| (g.to_f64() - w).abs());
    // A NaN must not vanish in the maximum.
    worst.fold(0.0_f64, |a, b| if b <= a { a } else { b }) / size
}

fn dropout() -> Option<Dropout> {
    Dropout::new(0.15, 99, 3, 1, 2)
}

fn check<T: Value>(lengths: &[u32], heads: usize, width: usize, dropout: Option<Dropout>) {
    let case = Case::<T>::new(lengths, heads, width, dropout, 7 + width as u64);
    let (out, lse, d_qkv) = case.run(Gemm::new().unwrap(), &Serial, &mut AttentionScratch::new());
    let (want_out, want_lse, want_d) = case.reference();
    let name = format!("{lengths:?}, {heads} heads of {width}, {}", std::any::type_name::<T>());
    // In units of the largest value: probabilities, their gradients and the result are rounded once each (a factor of 2 for
    // the mask's scale and cancellation), and an f32 sum of up to 384 terms adds some 40 roundings of its own.
    let bound = 4.0 * T::EPS + 200.0 * 6e-8;
    let worst = [
        distance(&out, &want_out),
        distance(&lse, &want_lse),
        distance(&d_qkv, &want_d),
    ];
    assert!(
        worst[0] <= bound && worst[1] <= 1e-5 && worst[2] <= bound,
        "{name}: {worst:?}, bound {bound}"
    );
}

#[test]
fn one_row_attends_to_itself() {
    let case = Case::<f32>::new(&[1], 1, 4, None, 1);
    let (out, lse, d_qkv) = case.run(Gemm::new().unwrap(), &Serial, &mut AttentionScratch::new());
    assert_eq!(out, case.qkv[8..12]);
    assert_eq!(d_qkv[8..12], case.d_out[..4]);
    assert_eq!(d_qkv[..8], [0.0; 8]);
    assert!(lse[0].is_finite());
}

#[test]
fn against_the_definition_in_f64() {
    println!("{}", report());
    for dropout in [None, dropout()] {
        for (heads, width) in [(3, 16), (2, 32), (1, 64), (2, 7), (3, 20)] {
            check::<f32>(&[1, 37, 5, 16, 33], heads, width, dropout);
            check::<bf16>(&[1, 37, 5, 16, 33], heads, width, dropout);
        }
        check::<f32>(&[129, 0, 300], 2, 16, dropout);
        check::<bf16>(&[129, 0, 300], 2, 16, dropout);
        check::<bf16>(&[257], 1, 64, dropout);
    }
}

#[test]
fn the_gradient_is_the_slope_of_the_output() {
    // The reference's gradient against central differences of its own output: then everything compared with it is checked.
    let case = Case::<f32>::new(&[3, 5], 2, 3, dropout(), 5);
    let (_, _, d_qkv) = case.reference();
    let loss = |qkv: Vec<f32>| {
        let case = Case {
            heads: case.heads,
            width: case.width,
            cu_seqlens: case.cu_seqlens.clone(),
            samples: case.samples.clone(),
            dropout: case.dropout,
            d_out: case.d_out.clone(),
            qkv,
        };
        case.reference()
            .0
            .iter()
            .zip(&case.d_out)
            .map(|(o, &d)| o * f64::from(d))
            .sum::<f64>()
    };
    for i in 0..case.qkv.len() {
        let (mut above, mut below) = (case.qkv.clone(), case.qkv.clone());
        above[i] += 1.0 / 1024.0;
        below[i] -= 1.0 / 1024.0;
        let step = f64::from(above[i]) - f64::from(below[i]);
        let slope = (loss(above) - loss(below)) / step;
        // h^2 / 6 of a third derivative of some tens.
        assert!((slope - d_qkv[i]).abs() <= 1e-5, "{i}: {slope} against {}", d_qkv[i]);
    }
}

fn same_everywhere<T: Value>(lengths: &[u32], heads: usize, width: usize) {
    let case = Case::<T>::new(lengths, heads, width, dropout(), 13);
    let bytes = |(out, lse, d): &(Vec<T>, Vec<f32>, Vec<T>)| {
        let (out, lse, d): (&[u8], &[u8], &[u8]) = (
            bytemuck::cast_slice(out),
            bytemuck::cast_slice(lse),
            bytemuck::cast_slice(d),
        );
        [out.to_vec(), lse.to_vec(), d.to_vec()]
    };
    let want = bytes(&case.run(
        Gemm::with_isa(Isa::Portable).unwrap(),
        &Serial,
        &mut AttentionScratch::new(),
    ));
    for isa in Isa::available() {
        let gemm = Gemm::with_isa(isa).unwrap();
        // Scratch that has seen other shapes must not matter.
        let mut scratch = AttentionScratch::new();
        Case::<T>::new(&[50, 3], 1, 24, None, 3).run(gemm, &Threads(2), &mut scratch);
        for threads in [1, 2, 5] {
            let got = bytes(&case.run(gemm, &Threads(threads), &mut scratch));
            assert!(got == want, "{isa}, {threads} threads, {}", std::any::type_name::<T>());
        }
    }
}

#[test]
fn the_same_bits_on_every_instruction_set_and_number_of_threads() {
    println!("{}", report());
    same_everywhere::<bf16>(&[19, 40, 1, 133], 2, 16);
    same_everywhere::<bf16>(&[35], 1, 64);
    same_everywhere::<bf16>(&[9, 8], 2, 7);
    same_everywhere::<f32>(&[19, 40, 1, 133], 2, 16);
    same_everywhere::<f32>(&[9, 8], 2, 7);
}

fn alone_as_in_company<T: Value>() {
    let case = Case::<T>::new(&[21, 160, 7, 64], 3, 16, dropout(), 29);
    let gemm = Gemm::new().unwrap();
    let h = case.heads * case.width;
    let (out, lse, d_qkv) = case.run(gemm, &Threads(2), &mut AttentionScratch::new());
    for s in 0..4 {
        let range = case.cu_seqlens[s] as usize..case.cu_seqlens[s + 1] as usize;
        let of = |width: usize| range.start * width..range.end * width;
        let alone = Case {
            heads: case.heads,
            width: case.width,
            cu_seqlens: vec![0, range.len() as u32],
            samples: vec![case.samples[s]],
            dropout: case.dropout,
            qkv: case.qkv[of(3 * h)].to_vec(),
            d_out: case.d_out[of(h)].to_vec(),
        };
        let (out_alone, lse_alone, d_alone) = alone.run(gemm, &Serial, &mut AttentionScratch::new());
        assert!(bytemuck::cast_slice::<T, u8>(&out_alone) == bytemuck::cast_slice::<T, u8>(&out[of(h)]));
        assert!(bytemuck::cast_slice::<f32, u8>(&lse_alone) == bytemuck::cast_slice::<f32, u8>(&lse[of(3)]));
        assert!(bytemuck::cast_slice::<T, u8>(&d_alone) == bytemuck::cast_slice::<T, u8>(&d_qkv[of(3 * h)]));
    }
}

#[test]
fn a_sequence_alone_gives_the_bits_it_gives_in_company() {
    alone_as_in_company::<bf16>();
    alone_as_in_company::<f32>();
}

#[test]
fn large_scores_stay_finite() {
    let mut case = Case::<bf16>::new(&[40], 1, 16, None, 3);
    for x in &mut case.qkv {
        *x = bf16::from_f32(x.to_f32() * 60.0);
    }
    let (out, lse, d_qkv) = case.run(Gemm::new().unwrap(), &Serial, &mut AttentionScratch::new());
    assert!(out.iter().all(|x| x.is_finite()) && lse.iter().all(|x| x.is_finite()));
    assert!(d_qkv.iter().all(|x| x.is_finite()));
}

#[test]
fn wrong_sizes_are_errors() {
    let case = Case::<f32>::new(&[4, 3], 2, 8, None, 1);
    let attention = Attention::new(Gemm::new().unwrap());
    let mut scratch = AttentionScratch::new();
    let (mut out, mut lse) = (vec![0.0; 7 * 16], vec![0.0; 14]);
    let mut forward = |out: &mut [f32], lse: &mut [f32], qkv: &[f32], sequences| {
        attention
            .forward(&Serial, out, lse, qkv, sequences, &mut scratch)
            .map_err(|error| error.to_string())
    };
    let good = case.sequences();
    assert_eq!(forward(&mut out, &mut lse, &case.qkv, good), Ok(()));
    let error = forward(&mut out[1..], &mut lse, &case.qkv, good).unwrap_err();
    assert!(
        error.contains("attention output") && error.contains("7 x 16"),
        "{error}"
    );
    assert!(
        forward(&mut out, &mut lse[1..], &case.qkv, good)
            .unwrap_err()
            .contains("statistics")
    );
    assert!(
        forward(&mut out, &mut lse, &case.qkv[3..], good)
            .unwrap_err()
            .contains("queries")
    );
    let samples = [1];
    let few = Sequences {
        dropout: dropout().map(|d| (d, samples.as_slice())),
        ..good
    };
    assert!(
        forward(&mut out, &mut lse, &case.qkv, few)
            .unwrap_err()
            .contains("sample indices")
    );
    for cu_seqlens in [&[][..], &[1, 7], &[0, 5, 4, 7]] {
        assert!(forward(&mut out, &mut lse, &case.qkv, Sequences { cu_seqlens, ..good }).is_err());
    }
}
