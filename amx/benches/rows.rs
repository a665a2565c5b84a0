//! Bandwidth of the row kernels and speed of attention, one thread: one JSON line a kernel.
//!
//! `cargo bench -p azulejo-amx --bench rows -- [--isa NAME] [--smoke] [WORD]`: WORD selects kernels whose name and shape contain it,
//! `--smoke` runs everything once. Every kernel is measured on a block of rows that stays in the second-level cache and on one
//! that does not; `bytes` counts each array once for each time it is read or written by definition. The copy at the top is
//! what the machine gives a plain copy of the same sizes. Times are the least of many short runs, so that other work on
//! the machine matters little.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program that prints its measurements"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use azulejo_amx::attention::{Activation, Attention, AttentionSaved, AttentionScratch, Sequences};
use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::rows::{
    AdamW, AdamWVariant, Branch, BranchOut, LayerNormOut, LayerNormParams, LayerNormSaved, Prologue, Rows,
};
use azulejo_amx::{Gemm, Isa, RowDropout, Serial};
use half::bf16;

struct Bench {
    smoke: bool,
    filter: String,
    isa: Isa,
}

impl Bench {
    /// Prints the least time of `run`, as bytes and flops a second.
    fn time(&self, name: &str, shape: &str, bytes: usize, flops: usize, mut run: impl FnMut()) {
        if !format!("{name} {shape}").contains(&self.filter) {
            return;
        }
        run();
        let (mut best, mut runs) = (f64::INFINITY, 0);
        let begin = Instant::now();
        let limit = Duration::from_millis(if self.smoke { 0 } else { 150 });
        while runs == 0 || (begin.elapsed() < limit && runs < 2000) {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
            runs += 1;
        }
        println!(
            "{{\"bench\":\"rows\",\"isa\":\"{}\",\"kernel\":\"{name}\",\"shape\":\"{shape}\",\"us\":{:.2},\"gb_per_s\":{:.2},\
             \"gflop_per_s\":{:.2},\"runs\":{runs}}}",
            self.isa,
            best * 1e6,
            bytes as f64 / best * 1e-9,
            flops as f64 / best * 1e-9,
        );
    }
}

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn narrow(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|&x| bf16::from_f32(x)).collect()
}

fn main() {
    let mut bench = Bench {
        smoke: false,
        filter: String::new(),
        isa: Isa::best().unwrap(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--smoke" => bench.smoke = true,
            "--isa" => bench.isa = args.next().unwrap_or_default().parse().unwrap(),
            // What cargo adds, and the project's spelling for machine-readable output, which is the only one here.
            "--bench" | "--json" => {}
            word => bench.filter = word.to_owned(),
        }
    }
    // 64 rows are the block that threads are given; 8192 do not fit any cache that is one core's own.
    for count in if bench.smoke { vec![64] } else { vec![64, 8192] } {
        row_kernels(&bench, count, 768);
    }
    for (heads, n, d) in [(12, 384, 64), (12, 170, 32), (12, 128, 64)] {
        attention::<bf16>(&bench, "bf16", heads, n, d);
    }
    attention::<f32>(&bench, "f32", 12, if bench.smoke { 64 } else { 384 }, 64);
}

fn row_kernels(bench: &Bench, count: usize, width: usize) {
    let rows = Rows::new(bench.isa).unwrap();
    let n = count * width;
    let shape = format!("{count}x{width}");
    let (mut x, y, z) = (numbers(n, 1), numbers(n, 2), numbers(n, 3));
    let (x16, y16) = (narrow(&y), narrow(&z));
    let (mut out, mut out16) = (vec![0.0_f32; n], vec![bf16::ZERO; n]);
    let (gamma, beta) = (numbers(width, 4), numbers(width, 5));
    let (mut mean, mut rstd) = (vec![0.0; count], vec![0.0; count]);
    let ids: Vec<RowId> = (0..count)
        .map(|i| RowId {
            sample: i as u64 / 100,
            row: i as u32 % 100,
        })
        .collect();
    let dropout = RowDropout {
        dropout: Dropout::new(0.1, 1, 2, 3, 4).unwrap(),
        rows: &ids,
    };
    let params = LayerNormParams {
        gamma: &gamma,
        beta: &beta,
        eps: 1e-12,
    };

    bench.time("copy f32", &shape, 8 * n, 0, || out.copy_from_slice(black_box(&y)));
    bench.time("to_bf16", &shape, 6 * n, 0, || rows.to_bf16(&mut out16, black_box(&y)));
    bench.time("to_f32", &shape, 6 * n, 0, || rows.to_f32(&mut out, black_box(&x16)));
    bench.time("layer_norm_forward f32+bf16", &shape, 10 * n, 8 * n, || {
        let to = LayerNormOut {
            f32: Some(&mut out),
            bf16: Some(&mut out16),
            mean: Some(&mut mean),
            rstd: Some(&mut rstd),
        };
        rows.layer_norm_forward(to, black_box(&y), params);
    });
    for (name, dropout) in [
        ("residual_layer_norm, dropout", Some(dropout)),
        ("residual_layer_norm", None),
    ] {
        x.copy_from_slice(&y);
        bench.time(name, &shape, 18 * n, 11 * n, || {
            let to = LayerNormOut {
                f32: Some(&mut out),
                bf16: Some(&mut out16),
                mean: Some(&mut mean),
                rstd: Some(&mut rstd),
            };
            let prologue = Prologue {
                bias: Some(&beta),
                dropout,
                residual: Some(&z),
            };
            rows.residual_layer_norm_forward(to, black_box(&mut x), prologue, params);
        });
    }
    let (mut d_gamma, mut d_beta) = (vec![0.0; width], vec![0.0; width]);
    let saved = LayerNormSaved {
        x: &y,
        mean: &mean,
        rstd: &rstd,
        gamma: &gamma,
    };
    bench.time("layer_norm_backward", &shape, 12 * n, 14 * n, || {
        rows.layer_norm_backward(&mut out, &mut d_gamma, &mut d_beta, black_box(&z), saved);
    });
    for (name, dropout) in [("branch_backward, dropout", Some(dropout)), ("branch_backward", None)] {
        bench.time(name, &shape, 6 * n, 2 * n, || {
            let branch = Branch {
                d_out: BranchOut::Bf16(&mut out16),
                dropout,
                d_bias: Some(&mut d_beta),
            };
            rows.branch_backward(branch, black_box(&z), width);
        });
    }
    bench.time("dropout", &shape, 8 * n, n, || {
        rows.dropout(&mut out, black_box(&y), width, dropout);
    });
    bench.time("gelu f32 to bf16", &shape, 6 * n, 0, || {
        rows.gelu(&mut out16, black_box(&y));
    });
    bench.time("gelu_backward bf16", &shape, 6 * n, 0, || {
        rows.gelu_backward(&mut out16, black_box(&x16), &y16);
    });
    bench.time("add", &shape, 12 * n, n, || rows.add(black_box(&mut out), &y));
    bench.time("column_sums f32", &shape, 4 * n, n, || {
        rows.column_sums(&mut d_beta, black_box(&y));
    });
    bench.time("column_sums bf16", &shape, 2 * n, n, || {
        rows.column_sums(&mut d_beta, black_box(&x16));
    });
    bench.time("sum_squares", &shape, 4 * n, 2 * n, || {
        black_box(rows.sum_squares(black_box(&y)));
    });
    x.copy_from_slice(&y);
    bench.time("softmax_row", &shape, 8 * n, 0, || {
        for row in x.chunks_exact_mut(width) {
            black_box(rows.softmax_row(row, 1.0));
        }
    });
    bench.time("softmax_backward_row", &shape, 12 * n, 4 * n, || {
        for (row, p) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            rows.softmax_backward_row(row, p, 1.0);
        }
    });
    let (mut m, mut v) = (vec![0.0; n], vec![0.1; n]);
    let step = AdamW {
        variant: AdamWVariant::Torch,
        learning_rate: 1e-5,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.01,
        step: 3,
        gradient_scale: 1.0,
    };
    bench.time("adamw", &shape, 28 * n, 14 * n, || {
        rows.adamw(&mut x, &mut m, &mut v, black_box(&y), &step);
    });
}

trait Narrow: Activation {
    fn from_f32(x: &[f32]) -> Vec<Self>;
}

impl Narrow for f32 {
    fn from_f32(x: &[f32]) -> Vec<f32> {
        x.to_vec()
    }
}

impl Narrow for bf16 {
    fn from_f32(x: &[f32]) -> Vec<bf16> {
        narrow(x)
    }
}

fn attention<T: Narrow>(bench: &Bench, kind: &str, heads: usize, n: usize, d: usize) {
    let h = heads * d;
    let attention = Attention::new(Gemm::with_isa(bench.isa).unwrap());
    let (qkv, d_out) = (T::from_f32(&numbers(n * 3 * h, 1)), T::from_f32(&numbers(n * h, 2)));
    let (mut out, mut lse) = (vec![T::default(); n * h], vec![0.0; n * heads]);
    let mut d_qkv = vec![T::default(); n * 3 * h];
    let mut scratch = AttentionScratch::new();
    let cu_seqlens = [0, n as u32];
    let shape = format!("{heads}x{n}x{d}");
    let flops = 4 * n * n * h;
    let element = size_of::<T>();
    for (name, dropout) in [("", None), (", dropout", Dropout::new(0.1, 1, 2, 3, 4))] {
        let sequences = Sequences {
            heads,
            width: d,
            cu_seqlens: &cu_seqlens,
            dropout: dropout.map(|d| (d, &[7][..])),
        };
        let forward = format!("attention_forward {kind}{name}");
        bench.time(&forward, &shape, 4 * n * h * element, flops, || {
            let qkv = black_box(&qkv);
            attention
                .forward(&Serial, &mut out, &mut lse, qkv, sequences, &mut scratch)
                .unwrap();
        });
        let saved = AttentionSaved {
            out: &out,
            lse: &lse,
            qkv: &qkv,
        };
        let backward = format!("attention_backward {kind}{name}");
        bench.time(&backward, &shape, 8 * n * h * element, flops * 5 / 2, || {
            let d_out = black_box(&d_out);
            attention
                .backward(&Serial, &mut d_qkv, d_out, saved, sequences, &mut scratch)
                .unwrap();
        });
    }
}
