//! The row kernels against definitions in f64, against finite differences, and against each other on every
//! instruction set bit for bit.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints what it ran on"
)]

use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::rows::{
    AdamW, AdamWVariant, Branch, BranchOut, LayerNormOut, LayerNormParams, LayerNormSaved, Prologue, Rows,
};
use azulejo_amx::{Isa, RowDropout, report};
use half::bf16;

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

    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn bits16(x: &[bf16]) -> Vec<u32> {
    x.iter().map(|x| u32::from(x.to_bits())).collect()
}

fn narrow(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|&x| bf16::from_f32(x)).collect()
}

fn all() -> Vec<Rows> {
    println!("{}", report());
    Isa::available()
        .into_iter()
        .map(|isa| Rows::new(isa).unwrap())
        .collect()
}

fn best() -> Rows {
    *all().last().unwrap()
}

/// The addresses of rows that begin in the middle of a sample.
fn addresses(n: usize) -> Vec<RowId> {
    (0..n)
        .map(|i| RowId {
            sample: 7 + i as u64 / 5,
            row: (3 + i % 5) as u32,
        })
        .collect()
}

fn adamw(variant: AdamWVariant, step: u64) -> AdamW {
    AdamW {
        variant,
        learning_rate: 1e-2,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
        step,
        gradient_scale: 0.5,
    }
}

/// Everything the module computes on rows of one width, as bits.
fn everything(rows: Rows, count: usize, width: usize, seed: u64) -> Vec<(&'static str, Vec<u32>)> {
    let mut numbers = Numbers(seed);
    let n = count * width;
    let (x, residual, d_y) = (numbers.vec(n), numbers.vec(n), numbers.vec(n));
    let (gamma, beta, bias) = (numbers.vec(width), numbers.vec(width), numbers.vec(width));
    let ids = addresses(count);
    let dropout = RowDropout {
        dropout: Dropout::new(0.2, seed, 1, 2, 3).unwrap(),
        rows: &ids,
    };
    let params = LayerNormParams {
        gamma: &gamma,
        beta: &beta,
        eps: 1e-12,
    };
    let prologue = Prologue {
        bias: Some(&bias),
        dropout: Some(dropout),
        residual: Some(&residual),
    };
    let mut out = Vec::new();

    let (mut y, mut z) = (vec![0.0; n], vec![bf16::ZERO; n]);
    let (mut mean, mut rstd) = (vec![0.0; count], vec![0.0; count]);
    let mut sum = x.clone();
    rows.residual_layer_norm_forward(
        LayerNormOut {
            f32: Some(&mut y),
            bf16: Some(&mut z),
            mean: Some(&mut mean),
            rstd: Some(&mut rstd),
        },
        &mut sum,
        prologue,
        params,
    );
    // The narrow result is the wide one rounded, and the two forms of forward agree.
    assert_eq!(bits16(&narrow(&y)), bits16(&z));
    let mut again = x.clone();
    rows.add_bias_dropout_residual(&mut again, prologue, width);
    assert_eq!(bits(&again), bits(&sum));
    let mut y2 = vec![0.0; n];
    rows.layer_norm_forward(
        LayerNormOut {
            f32: Some(&mut y2),
            ..Default::default()
        },
        &sum,
        params,
    );
    assert_eq!(bits(&y2), bits(&y));
    out.extend([
        ("sum", bits(&sum)),
        ("layer norm", bits(&y)),
        ("mean", bits(&mean)),
        ("rstd", bits(&rstd)),
    ]);

    let (mut d_x, mut d_gamma, mut d_beta) = (vec![0.0; n], vec![0.5; width], vec![-0.5; width]);
    let saved = LayerNormSaved {
        x: &sum,
        mean: &mean,
        rstd: &rstd,
        gamma: &gamma,
    };
    rows.layer_norm_backward(&mut d_x, &mut d_gamma, &mut d_beta, &d_y, saved);
    out.extend([
        ("d_x", bits(&d_x)),
        ("d_gamma", bits(&d_gamma)),
        ("d_beta", bits(&d_beta)),
    ]);
    rows.layer_norm_backward(&mut d_x, &mut d_gamma, &mut d_beta, &narrow(&d_y), saved);
    out.extend([("d_x of bf16", bits(&d_x)), ("d_gamma of bf16", bits(&d_gamma))]);

    let (mut d_branch, mut d_bias) = (vec![bf16::ZERO; n], vec![0.0; width]);
    rows.branch_backward(
        Branch {
            d_out: BranchOut::Bf16(&mut d_branch),
            dropout: Some(dropout),
            d_bias: Some(&mut d_bias),
        },
        &d_x,
        width,
    );
    out.extend([("d_branch", bits16(&d_branch)), ("d_bias", bits(&d_bias))]);
    // The branch's gradient is the dropout of d_x, and its bias gradient the column sums of that.
    let mut masked = vec![0.0; n];
    rows.dropout(&mut masked, &d_x, width, dropout);
    assert_eq!(bits16(&narrow(&masked)), bits16(&d_branch));
    let mut sums = vec![0.0; width];
    rows.column_sums(&mut sums, &masked);
    assert_eq!(bits(&sums), bits(&d_bias));
    let mut wide_branch = vec![0.0; n];
    rows.branch_backward(
        Branch {
            d_out: BranchOut::F32(&mut wide_branch),
            dropout: Some(dropout),
            d_bias: None,
        },
        &d_x,
        width,
    );
    assert_eq!(bits(&wide_branch), bits(&masked));
    rows.column_sums(&mut sums, &d_branch);
    out.push(("column sums of bf16", bits(&sums)));

    let mut p = x.clone();
    let lse: Vec<f32> = p.chunks_mut(width).map(|row| rows.softmax_row(row, 0.7)).collect();
    let mut d_p = d_y.clone();
    for (d_p, p) in d_p.chunks_mut(width).zip(p.chunks(width)) {
        rows.softmax_backward_row(d_p, p, 0.7);
    }
    out.extend([
        ("softmax", bits(&p)),
        ("lse", bits(&lse)),
        ("softmax backward", bits(&d_p)),
    ]);
    let loss = rows.cross_entropy_row(Some(&mut d_x[..width]), &x[..width], width / 2, 0.25);
    out.extend([("loss", vec![loss.to_bits()]), ("d_logits", bits(&d_x[..width]))]);

    let mut g = vec![bf16::ZERO; n];
    rows.gelu(&mut g, &x);
    rows.gelu_backward(&mut y, &d_y, &narrow(&x));
    out.extend([("gelu", bits16(&g)), ("gelu backward", bits(&y))]);
    let mut y3 = d_y.clone();
    rows.gelu_backward_in_place(&mut y3, &narrow(&x));
    assert_eq!(bits(&y3), bits(&y));
    rows.add(&mut y, &g);
    rows.axpy(&mut y, 0.3, &x);
    rows.scale(&mut y, -1.7);
    rows.to_bf16(&mut z, &y);
    out.extend([("add, axpy, scale", bits(&y)), ("to bf16", bits16(&z))]);
    rows.to_f32(&mut y, &z);
    let square = rows.sum_squares(&y).to_bits();
    out.push(("sum of squares", vec![square as u32, (square >> 32) as u32]));

    for variant in [AdamWVariant::Torch, AdamWVariant::Hf] {
        let (mut w, mut m) = (x.clone(), residual.clone());
        let mut v: Vec<f32> = d_y.iter().map(|x| x * x).collect();
        rows.adamw(&mut w, &mut m, &mut v, &y, &adamw(variant, 3));
        out.extend([("w", bits(&w)), ("m", bits(&m)), ("v", bits(&v))]);
    }
    out
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let kernels = all();
    let mut cases: Vec<(usize, usize)> = (1..130).map(|width| (1 + width % 9, width)).collect();
    cases.extend([(5, 256), (3, 384), (2, 768), (1, 1000), (70, 33)]);
    for (count, width) in cases {
        let want = everything(kernels[0], count, width, 11 + width as u64);
        for &rows in &kernels[1..] {
            for ((name, got), (_, want)) in everything(rows, count, width, 11 + width as u64).iter().zip(&want) {
                assert_eq!(got, want, "{name} of {count} x {width} on {}", rows.isa());
            }
        }
    }
}

#[test]
fn blocks_of_rows_may_be_cut_anywhere() {
    let rows = best();
    let mut numbers = Numbers(5);
    for width in [7, 48, 130, 384] {
        let count = 11;
        let (x, d_y, gamma) = (
            numbers.vec(count * width),
            numbers.vec(count * width),
            numbers.vec(width),
        );
        let (mean, rstd) = (numbers.vec(count), numbers.vec(count));
        let run = |cuts: &[usize]| {
            let (mut d_x, mut d_gamma, mut d_beta) = (vec![0.0; count * width], vec![0.0; width], vec![0.0; width]);
            let mut sums = vec![0.0; width];
            for cut in cuts.windows(2) {
                let (block, range) = (cut[0]..cut[1], cut[0] * width..cut[1] * width);
                let saved = LayerNormSaved {
                    x: &x[range.clone()],
                    mean: &mean[block.clone()],
                    rstd: &rstd[block],
                    gamma: &gamma,
                };
                rows.layer_norm_backward(
                    &mut d_x[range.clone()],
                    &mut d_gamma,
                    &mut d_beta,
                    &d_y[range.clone()],
                    saved,
                );
                rows.column_sums(&mut sums, &x[range]);
            }
            [bits(&d_x), bits(&d_gamma), bits(&d_beta), bits(&sums)]
        };
        assert_eq!(run(&[0, 11]), run(&[0, 1, 2, 5, 11]), "width {width}");
    }
}

/// Layer normalisation in f64.
fn layer_norm(x: &[f64], gamma: &[f32], beta: &[f32], eps: f64) -> Vec<f64> {
    let width = gamma.len();
    let mut y = Vec::new();
    for x in x.chunks(width) {
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
        let rstd = 1.0 / (variance + eps).sqrt();
        y.extend((0..width).map(|j| (x[j] - mean) * rstd * f64::from(gamma[j]) + f64::from(beta[j])));
    }
    y
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// The derivative of `f` in each coordinate of x by central differences in f64; their error is about h^2.
fn differences(x: &[f32], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let h = 1e-5;
    let mut x = wide(x);
    (0..x.len())
        .map(|i| {
            let at = x[i];
            x[i] = at + h;
            let above = f(&x);
            x[i] = at - h;
            let below = f(&x);
            x[i] = at;
            (above - below) / (2.0 * h)
        })
        .collect()
}

/// Each element within `bound` of the greatest wanted one (or of 1).
#[track_caller]
fn assert_near(name: &str, got: &[f32], want: &[f64], bound: f64) {
    let size = want.iter().fold(1.0_f64, |a, b| a.max(b.abs()));
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let near = (f64::from(got) - want).abs() <= bound * size;
        assert!(near, "{name} {i}: {got} against {want}, within {bound} of {size}");
    }
}

#[test]
fn layer_norm_against_f64_and_finite_differences() {
    let rows = best();
    let mut numbers = Numbers(17);
    for (count, width) in [(1, 3), (3, 17), (6, 48), (2, 131)] {
        let n = count * width;
        let (x, d_y, gamma, beta) = (numbers.vec(n), numbers.vec(n), numbers.vec(width), numbers.vec(width));
        let eps = 1e-5;
        let (mut y, mut mean, mut rstd) = (vec![0.0; n], vec![0.0; count], vec![0.0; count]);
        rows.layer_norm_forward(
            LayerNormOut {
                f32: Some(&mut y),
                bf16: None,
                mean: Some(&mut mean),
                rstd: Some(&mut rstd),
            },
            &x,
            LayerNormParams {
                gamma: &gamma,
                beta: &beta,
                eps: eps as f32,
            },
        );
        // A sum of n numbers below 1 in chains is off by at most n / 64 + 10 roundings of 6e-8; 1e-5 leaves room for the
        // division by a deviation of a few tenths.
        assert_near("y", &y, &layer_norm(&wide(&x), &gamma, &beta, eps), 1e-5);

        let (mut d_x, mut d_gamma, mut d_beta) = (vec![0.0; n], vec![0.0; width], vec![0.0; width]);
        let saved = LayerNormSaved {
            x: &x,
            mean: &mean,
            rstd: &rstd,
            gamma: &gamma,
        };
        rows.layer_norm_backward(&mut d_x, &mut d_gamma, &mut d_beta, &d_y, saved);
        let loss = |y: &[f64]| y.iter().zip(&d_y).map(|(y, &d)| y * f64::from(d)).sum::<f64>();
        assert_near(
            "d_x",
            &d_x,
            &differences(&x, |x| loss(&layer_norm(x, &gamma, &beta, eps))),
            2e-5,
        );
        let unit = layer_norm(&wide(&x), &vec![1.0; width], &vec![0.0; width], eps);
        let with = |g: &[f64], b: &[f64]| {
            let y: Vec<f64> = unit
                .iter()
                .enumerate()
                .map(|(i, u)| u * g[i % width] + b[i % width])
                .collect();
            loss(&y)
        };
        assert_near(
            "d_gamma",
            &d_gamma,
            &differences(&gamma, |g| with(g, &wide(&beta))),
            2e-5,
        );
        assert_near("d_beta", &d_beta, &differences(&beta, |b| with(&wide(&gamma), b)), 2e-5);
    }
}

#[test]
fn a_large_mean_does_not_cancel() {
    let rows = best();
    let width = 768;
    let x: Vec<f32> = Numbers(3).vec(width).iter().map(|x| 1000.0 + x).collect();
    let (gamma, beta) = (vec![1.0; width], vec![0.0; width]);
    let mut y = vec![0.0; width];
    rows.layer_norm_forward(
        LayerNormOut {
            f32: Some(&mut y),
            ..Default::default()
        },
        &x,
        LayerNormParams {
            gamma: &gamma,
            beta: &beta,
            eps: 1e-12,
        },
    );
    // The mean is off by a few units of its last place, 2^-14, against a deviation of 0.58.
    assert_near("y", &y, &layer_norm(&wide(&x), &gamma, &beta, 1e-12), 3e-4);
}

#[test]
fn softmax_and_cross_entropy_against_f64_and_finite_differences() {
    let rows = best();
    let mut numbers = Numbers(23);
    for width in [1, 5, 16, 37, 131] {
        let x: Vec<f32> = numbers.vec(width).iter().map(|x| x * 20.0).collect();
        let d_p = numbers.vec(width);
        let scale = 0.3_f32;
        let softmax = |x: &[f64], scale: f64| -> (Vec<f64>, f64) {
            let greatest = x.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b * scale));
            let sum: f64 = x.iter().map(|x| (x * scale - greatest).exp()).sum();
            (
                x.iter().map(|x| (x * scale - greatest).exp() / sum).collect(),
                greatest + sum.ln(),
            )
        };
        // Arguments up to 20 are off by 2^-20 after rounding, and so are the exponentials, relatively.
        let (want, want_lse) = softmax(&wide(&x), f64::from(scale));
        let mut p = x.clone();
        let lse = rows.softmax_row(&mut p, scale);
        assert_near("p", &p, &want, 2e-6);
        assert_near("lse", &[lse], &[want_lse], 1e-6);
        let mut d_x = d_p.clone();
        rows.softmax_backward_row(&mut d_x, &p, scale);
        let loss = |x: &[f64]| -> f64 {
            softmax(x, f64::from(scale))
                .0
                .iter()
                .zip(&d_p)
                .map(|(p, &d)| p * f64::from(d))
                .sum()
        };
        assert_near("d_x", &d_x, &differences(&x, loss), 2e-6);

        let target = width / 3;
        let mut d_logits = vec![0.0; width];
        let got = rows.cross_entropy_row(Some(&mut d_logits), &x, target, 0.5);
        let entropy = |x: &[f64]| softmax(x, 1.0).1 - x[target];
        assert_near("loss", &[got], &[entropy(&wide(&x))], 2e-6);
        assert_near("d_logits", &d_logits, &differences(&x, |x| 0.5 * entropy(x)), 2e-6);
        assert_eq!(rows.cross_entropy_row(None, &x, target, 1.0).to_bits(), got.to_bits());
    }
    // The minus infinities of a masked row have probability zero and do no harm.
    let mut row = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
    rows.softmax_row(&mut row, 1.0);
    assert_eq!(row, [0.0, 0.5, 0.0, 0.5]);
}

#[test]
fn gelu_against_finite_differences_of_its_own_values() {
    let rows = best();
    let x: Vec<f32> = (-400..400_i16).map(|i| f32::from(i) / 64.0).collect();
    let ones = vec![1.0_f32; x.len()];
    let mut d_x = vec![0.0; x.len()];
    rows.gelu_backward(&mut d_x, &ones, &x);
    let h = 1.0 / 64.0;
    let shifted = |by: f32| {
        let x: Vec<f32> = x.iter().map(|x| x + by).collect();
        let mut y = vec![0.0; x.len()];
        rows.gelu(&mut y, &x);
        y
    };
    let (above, below) = (shifted(h), shifted(-h));
    for i in 0..x.len() {
        let slope = f64::from(above[i] - below[i]) / f64::from(2.0 * h);
        // The third derivative is at most 1.2 and contributes h^2 / 6; the values are off by 2.5e-7 abs(x).
        let bound = 5e-5 + 2.5e-7 * f64::from(x[i].abs() + 1.0) / f64::from(h);
        assert!(
            (slope - f64::from(d_x[i])).abs() <= bound,
            "gelu'({}): {} against {slope}",
            x[i],
            d_x[i]
        );
    }
}

#[test]
fn bf16_rounds_as_the_scalar_type_does() {
    let mut words: Vec<u32> = (0..u32::MAX).step_by(65_521 * 17).collect();
    for upper in [
        0x3f80_u32, 0x3f81, 0x0000, 0x0001, 0x8001, 0x7f7f, 0x7f80, 0x7f81, 0xff80, 0xffc1, 0x7fff,
    ] {
        words.extend([0x0000_u32, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| (upper << 16) | low));
    }
    let x: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
    for rows in all() {
        let mut z = vec![bf16::ZERO; x.len()];
        rows.to_bf16(&mut z, &x);
        for (z, &x) in z.iter().zip(&x) {
            assert_eq!(
                z.to_bits(),
                bf16::from_f32(x).to_bits(),
                "{:#x} on {}",
                x.to_bits(),
                rows.isa()
            );
        }
    }
}

#[test]
fn dropout_follows_its_definition() {
    for rows in all() {
        for width in [1, 16, 100, 128, 129, 300] {
            let ids = addresses(9);
            let dropout = Dropout::new(0.1, 42, 5, 1, 0).unwrap();
            let x = vec![3.0_f32; 9 * width];
            let mut out = vec![0.0_f32; 9 * width];
            rows.dropout(&mut out, &x, width, RowDropout { dropout, rows: &ids });
            for (i, &value) in out.iter().enumerate() {
                let keeps = dropout.keeps(ids[i / width], (i % width) as u32);
                assert_eq!(
                    value,
                    if keeps { 3.0 * dropout.scale() } else { 0.0 },
                    "{i} of width {width}"
                );
            }
        }
    }
}

#[test]
fn sums_of_squares_may_be_cut_at_blocks() {
    let rows = best();
    let x = Numbers(9).vec(4096 * 3 + 100);
    let whole = rows.sum_squares(&x);
    let parts: f64 = x.chunks(4096).map(|x| rows.sum_squares(x)).sum();
    assert_eq!(whole.to_bits(), parts.to_bits());
    let want: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    // 4096 terms over 64 chains: 64 + 6 roundings one after the other.
    assert!((whole - want).abs() <= 70.0 * 6e-8 * want, "{whole} against {want}");
    assert!(rows.sum_squares(&[1.0, f32::NAN]).is_nan());
}

/// The published updates, in f64, over several steps.
#[test]
fn adamw_against_f64() {
    let rows = best();
    for variant in [AdamWVariant::Torch, AdamWVariant::Hf] {
        let mut numbers = Numbers(31);
        let n = 53;
        let mut w = numbers.vec(n);
        let (mut m, mut v) = (vec![0.0; n], vec![0.0; n]);
        let (mut w64, mut m64, mut v64) = (wide(&w), vec![0.0; n], vec![0.0; n]);
        for t in 1..=20 {
            let g = numbers.vec(n);
            rows.adamw(&mut w, &mut m, &mut v, &g, &adamw(variant, t));
            let (c1, c2) = (1.0 - 0.9_f64.powi(t as i32), 1.0 - 0.999_f64.powi(t as i32));
            for i in 0..n {
                let g = f64::from(g[i]) * 0.5;
                m64[i] = 0.9 * m64[i] + 0.1 * g;
                v64[i] = 0.999 * v64[i] + 0.001 * g * g;
                match variant {
                    AdamWVariant::Torch => {
                        w64[i] -= 1e-2 * 0.1 * w64[i];
                        w64[i] -= 1e-2 / c1 * m64[i] / ((v64[i] / c2).sqrt() + 1e-8);
                    }
                    AdamWVariant::Hf => {
                        w64[i] -= 1e-2 * c2.sqrt() / c1 * m64[i] / (v64[i].sqrt() + 1e-8);
                        w64[i] -= 1e-2 * 0.1 * w64[i];
                    }
                }
            }
        }
        // Twenty steps of about ten roundings each, on numbers near 1.
        assert_near("w", &w, &w64, 200.0 * 6e-8);
        assert_near("m", &m, &m64, 200.0 * 6e-8);
        assert_near("v", &v, &v64, 200.0 * 6e-8);
    }
}
