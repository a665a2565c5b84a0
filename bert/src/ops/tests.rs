//! Every operation's backward against differences of its forward, in `f32`.
//!
//! With fixed weights c, the loss is sum(c y). Its change along a random direction of an input must be that direction
//! times the gradient which backward computes from d_y = c.

use super::layer_norm::{self, Outputs, Saved, Sublayer, SublayerGradients};
use super::{Context, Tokens, embedding, linear, span_loss, vocabulary_loss};
use crate::batch::Batch;
use crate::buffers::Buffers;
use azulejo_allocator::StepArena;
use azulejo_amx::attention::{Attention, AttentionSaved, Sequences};
use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::rows::{LayerNormParams, Rows};
use azulejo_amx::{Gemm, Isa, Serial};

/// Tokens, widths: 70 is more than one block of rows, the others are not multiples of a vector.
const T: usize = 70;
const H: usize = 18;
const F: usize = 23;

fn context<'a>(buffers: &'a Buffers, arena: &'a StepArena) -> Context<'a> {
    let isa = Isa::best().unwrap();
    Context {
        exec: &Serial,
        gemm: Gemm::with_isa(isa).unwrap(),
        rows: Rows::new(isa).unwrap(),
        buffers,
        arena,
    }
}

/// Numbers in -1..1 that follow from the seed.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let number = |i: u64| {
        let x = (seed << 32 | (i + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..n as u64).map(number).collect()
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// Compares `grad` with the change of `loss` along three directions from `x`.
fn check(what: &str, x: &[f32], grad: &[f32], loss: impl Fn(&[f32]) -> f64) {
    // The error of a central difference falls with its square; the rounding of values of about 1, summed over a
    // thousand of them, is 1e-6 and grows with its inverse.
    const STEP: f32 = 1.0 / 128.0;
    for seed in 100..103 {
        let along = numbers(seed, x.len());
        let moved = |sign: f32| -> Vec<f32> { x.iter().zip(&along).map(|(x, a)| x + sign * STEP * a).collect() };
        let numeric = (loss(&moved(1.0)) - loss(&moved(-1.0))) / f64::from(2.0 * STEP);
        let exact = dot(&along, grad);
        let bound = 2e-3 * dot(grad, grad).sqrt() * (1.0 + dot(&along, &along).sqrt() * f64::from(STEP)) + 1e-3;
        assert!(
            (numeric - exact).abs() < bound,
            "{what}: {numeric} by differences, {exact}, bound {bound}"
        );
    }
}

#[test]
fn linear_layers() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let (x, w, b, c) = (numbers(1, T * H), numbers(2, F * H), numbers(3, F), numbers(4, T * F));
    let forward = |x: &[f32], w: &[f32], b: &[f32]| {
        let mut y = vec![0.0; T * F];
        linear::forward(
            cx,
            &mut y,
            x,
            &linear::Layer {
                weight: w,
                bias: b,
                prepared: &(),
            },
        )
        .unwrap();
        dot(&y, &c)
    };
    let layer = linear::Layer {
        weight: &w,
        bias: &b,
        prepared: &(),
    };
    let (mut d_x, mut d_w, mut d_b) = (vec![0.0; T * H], vec![0.0; F * H], vec![0.0; F]);
    linear::backward_input(cx, &mut d_x, &c, &layer, None).unwrap();
    linear::backward_parameters(cx, &mut d_w, &mut d_b, &c, &x).unwrap();
    check("x", &x, &d_x, |x| forward(x, &w, &b));
    check("weight", &w, &d_w, |w| forward(&x, w, &b));
    check("bias", &b, &d_b, |b| forward(&x, &w, b));

    let mut with_residual = vec![0.0; T * H];
    linear::backward_input(cx, &mut with_residual, &c, &layer, Some(&x)).unwrap();
    for ((sum, d_x), x) in with_residual.iter().zip(&d_x).zip(&x) {
        assert_eq!(*sum, d_x + x);
    }
    // Gradients of parameters accumulate.
    let once = d_w.clone();
    linear::backward_weight(cx, &mut d_w, &c, &x, F).unwrap();
    for (twice, once) in d_w.iter().zip(&once) {
        assert!((twice - 2.0 * once).abs() <= once.abs() * f32::EPSILON);
    }
}

/// x -> GELU(x W1^T + b1) W2^T: backward goes through the second product and the GELU at once.
#[test]
fn gelu_between_products() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let (x, up, bias) = (numbers(1, T * H), numbers(2, F * H), numbers(3, F));
    let (down, zero, c) = (numbers(4, H * F), vec![0.0; H], numbers(5, T * H));
    let up_layer = linear::Layer {
        weight: &up,
        bias: &bias,
        prepared: &(),
    };
    let down_layer = linear::Layer {
        weight: &down,
        bias: &zero,
        prepared: &(),
    };
    let (mut u, mut g) = (vec![0.0; T * F], vec![0.0; T * F]);
    let forward = |bias: &[f32]| {
        let (mut u, mut g, mut y) = (vec![0.0; T * F], vec![0.0; T * F], vec![0.0; T * H]);
        linear::forward_gelu(
            cx,
            &mut g,
            &mut u,
            &x,
            &linear::Layer {
                weight: &up,
                bias,
                prepared: &(),
            },
        )
        .unwrap();
        linear::forward(cx, &mut y, &g, &down_layer).unwrap();
        dot(&y, &c)
    };
    linear::forward_gelu(cx, &mut g, &mut u, &x, &up_layer).unwrap();
    let (mut d_u, mut d_up, mut d_bias) = (vec![0.0; T * F], vec![0.0; F * H], vec![0.0; F]);
    linear::backward_input_gelu(cx, &mut d_u, &c, &down_layer, &u).unwrap();
    linear::backward_parameters(cx, &mut d_up, &mut d_bias, &d_u, &x).unwrap();
    check("bias below GELU", &bias, &d_bias, forward);

    let u = numbers(6, T * H);
    let mut d = vec![0.0; T * H];
    vocabulary_loss::gelu_backward(cx, &mut d, &c, &u, H);
    check("GELU alone", &u, &d, |u| {
        let mut g = vec![0.0; T * H];
        vocabulary_loss::gelu_forward(cx, &mut g, u, H);
        dot(&g, &c)
    });
}

/// A LayerNorm's outputs for tests.
struct Norm {
    y: Vec<f32>,
    rounded: Vec<f32>,
    mean: Vec<f32>,
    rstd: Vec<f32>,
}

impl Norm {
    fn new() -> Norm {
        Norm {
            y: vec![0.0; T * H],
            rounded: vec![0.0; T * H],
            mean: vec![0.0; T],
            rstd: vec![0.0; T],
        }
    }

    fn out(&mut self) -> Outputs<'_, f32> {
        Outputs {
            y: &mut self.y,
            rounded: &mut self.rounded,
            mean: &mut self.mean,
            rstd: &mut self.rstd,
        }
    }
}

#[test]
fn layer_norms() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let (x, gamma, beta, c) = (numbers(1, T * H), numbers(2, H), numbers(3, H), numbers(4, T * H));
    let forward = |x: &[f32], gamma: &[f32], beta: &[f32]| {
        let mut norm = Norm::new();
        layer_norm::forward(cx, norm.out(), x, LayerNormParams { gamma, beta, eps: 1e-5 });
        assert_eq!(norm.y, norm.rounded);
        dot(&norm.y, &c)
    };
    let mut norm = Norm::new();
    layer_norm::forward(
        cx,
        norm.out(),
        &x,
        LayerNormParams {
            gamma: &gamma,
            beta: &beta,
            eps: 1e-5,
        },
    );
    let saved = Saved {
        x: &x,
        mean: &norm.mean,
        rstd: &norm.rstd,
        gamma: &gamma,
    };
    let (mut d_x, mut d_gamma, mut d_beta) = (vec![0.0; T * H], vec![0.0; H], vec![0.0; H]);
    layer_norm::backward(cx, &mut d_x, &mut d_gamma, &mut d_beta, &c, saved).unwrap();
    check("x", &x, &d_x, |x| forward(x, &gamma, &beta));
    check("gamma", &gamma, &d_gamma, |gamma| forward(&x, gamma, &beta));
    check("beta", &beta, &d_beta, |beta| forward(&x, &gamma, beta));
}

#[test]
fn sublayer_ends() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let ids: Vec<RowId> = (0..T as u32).map(|row| RowId { sample: 5, row }).collect();
    let tokens = Tokens { ids: &ids };
    let dropout = Dropout::new(0.3, 1, 2, 3, 4);
    let (x, bias, residual) = (numbers(1, T * H), numbers(2, H), numbers(3, T * H));
    let (gamma, beta, c) = (numbers(4, H), numbers(5, H), numbers(6, T * H));
    let params = LayerNormParams {
        gamma: &gamma,
        beta: &beta,
        eps: 1e-5,
    };
    let run = |x: &[f32], bias: &[f32], residual: &[f32]| {
        let (mut sum, mut norm) = (x.to_vec(), Norm::new());
        let sublayer = Sublayer {
            bias,
            residual,
            dropout,
            tokens,
        };
        layer_norm::forward_sublayer(cx, norm.out(), &mut sum, sublayer, params);
        (sum, norm)
    };
    let forward = |x: &[f32], bias: &[f32], residual: &[f32]| dot(&run(x, bias, residual).1.y, &c);
    let (sum, norm) = run(&x, &bias, &residual);
    let saved = Saved {
        x: &sum,
        mean: &norm.mean,
        rstd: &norm.rstd,
        gamma: &gamma,
    };
    let (mut d_sum, mut d_branch) = (vec![0.0; T * H], vec![0.0; T * H]);
    let (mut d_gamma, mut d_beta, mut d_bias) = (vec![0.0; H], vec![0.0; H], vec![0.0; H]);
    let gradients = SublayerGradients {
        d_gamma: &mut d_gamma,
        d_beta: &mut d_beta,
        d_bias: &mut d_bias,
    };
    layer_norm::backward_sublayer(cx, &mut d_sum, &mut d_branch, gradients, &c, saved, dropout, tokens).unwrap();
    check("branch", &x, &d_branch, |x| forward(x, &bias, &residual));
    check("bias", &bias, &d_bias, |bias| forward(&x, bias, &residual));
    check("residual", &residual, &d_sum, |residual| forward(&x, &bias, residual));
}

#[test]
fn embeddings() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    // More rows than a thread takes at a time, most of them unread; row 0 is read and has no gradient.
    const ROWS: usize = 600;
    let index: Vec<u32> = (0..T as u32).map(|i| (i * i * 37) % ROWS as u32).collect();
    assert!(index.contains(&0) && index.iter().any(|&i| i > 512));
    let (words, types, c) = (numbers(1, ROWS * H), numbers(2, 2 * H), numbers(3, T * H));
    let kinds: Vec<u32> = (0..T as u32).map(|i| i % 2).collect();
    let forward = |words: &[f32], types: &[f32]| {
        let mut x = vec![0.0; T * H];
        embedding::sum_forward(cx, &mut x, &[(words, &index), (types, &kinds)], H);
        dot(&x, &c)
    };
    let (mut d_words, mut d_types) = (vec![0.0; ROWS * H], vec![0.0; 2 * H]);
    embedding::sum_backward(cx, &mut d_types, &c, &kinds, None, H).unwrap();
    check("types", &types, &d_types, |types| forward(&words, types));
    embedding::sum_backward(cx, &mut d_words, &c, &index, Some(0), H).unwrap();
    assert!(d_words[..H].iter().all(|&d| d == 0.0), "the padding row");
    embedding::sum_backward(cx, &mut d_words[..H], &c, &index, None, H).unwrap();
    check("words", &words, &d_words, |words| forward(words, &types));
}

#[test]
fn dropout_after_embeddings() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let ids: Vec<RowId> = (0..T as u32).map(|row| RowId { sample: 9, row }).collect();
    let tokens = Tokens { ids: &ids };
    let dropout = Dropout::new(0.3, 1, 2, 0, 0);
    let (x, gamma, beta, c) = (numbers(1, T * H), numbers(2, H), numbers(3, H), numbers(4, T * H));
    let params = LayerNormParams {
        gamma: &gamma,
        beta: &beta,
        eps: 1e-5,
    };
    let run = |x: &[f32]| {
        let mut norm = Norm::new();
        embedding::norm_forward(cx, norm.out(), x, params, dropout, tokens);
        assert_eq!(norm.y, norm.rounded);
        norm
    };
    let norm = run(&x);
    let dropped = norm.y.iter().filter(|&&y| y == 0.0).count() as f64 / (T * H) as f64;
    assert!(
        (dropped - 0.3).abs() < 5.0 * (0.21 / (T * H) as f64).sqrt(),
        "{dropped} were dropped"
    );
    let saved = Saved {
        x: &x,
        mean: &norm.mean,
        rstd: &norm.rstd,
        gamma: &gamma,
    };
    let (mut d_x, mut d_gamma, mut d_beta) = (vec![0.0; T * H], vec![0.0; H], vec![0.0; H]);
    let mut d_y = c.clone();
    embedding::norm_backward(
        cx,
        &mut d_x,
        &mut d_gamma,
        &mut d_beta,
        &mut d_y,
        saved,
        dropout,
        tokens,
    )
    .unwrap();
    check("x", &x, &d_x, |x| dot(&run(x).y, &c));
}

#[test]
fn attention() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let attention = Attention::new(cx.gemm);
    let sequences = Sequences {
        heads: 3,
        width: H / 3,
        cu_seqlens: &[0, 1, 40, T as u32],
        dropout: Dropout::new(0.2, 1, 2, 3, 1).map(|d| (d, &[4u64, 5, 6][..])),
    };
    let (qkv, c) = (numbers(1, T * 3 * H), numbers(2, T * H));
    let run = |qkv: &[f32]| {
        let (mut out, mut lse) = (vec![0.0; T * H], vec![0.0; T * 3]);
        attention
            .forward(&Serial, &mut out, &mut lse, qkv, sequences, &mut cx.buffers.attention())
            .unwrap();
        (out, lse)
    };
    let (out, lse) = run(&qkv);
    let mut d_qkv = vec![0.0; T * 3 * H];
    let saved = AttentionSaved {
        out: &out,
        lse: &lse,
        qkv: &qkv,
    };
    attention
        .backward(&Serial, &mut d_qkv, &c, saved, sequences, &mut cx.buffers.attention())
        .unwrap();
    check("query, key, value", &qkv, &d_qkv, |qkv| dot(&run(qkv).0, &c));
}

#[test]
fn answer_head() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let mut batch = Batch::new();
    batch.push(&[1; 30], &[], 3, 29, 0);
    batch.push(&[1; 1], &[], 0, 0, 1);
    batch.push(&[1; 39], &[], 1000, 17, 2); // an ignored start
    let (x, weight, bias) = (numbers(1, T * H), numbers(2, 2 * H), numbers(3, 2));
    let forward = |x: &[f32], weight: &[f32], bias: &[f32]| {
        let (mut logits, mut d_logits) = (vec![0.0; 2 * T], vec![0.0; 2 * T]);
        span_loss::logits_forward(cx, &mut logits, x, weight, bias).unwrap();
        // A loss near 1 leaves too few digits for its difference, so it is taken 64 times.
        (
            64.0 * f64::from(span_loss::loss_forward_backward(
                cx,
                &mut d_logits,
                &logits,
                &batch,
                64.0,
            )),
            d_logits,
        )
    };
    let (_, d_logits) = forward(&x, &weight, &bias);
    assert!(
        d_logits[31..T].iter().all(|&d| d == 0.0),
        "an ignored label has no gradient"
    );
    let (mut d_x, mut d_weight, mut d_bias) = (vec![0.0; T * H], vec![0.0; 2 * H], vec![0.0; 2]);
    span_loss::logits_backward(cx, &mut d_x, &mut d_weight, &mut d_bias, &d_logits, &x, &weight).unwrap();
    check("x", &x, &d_x, |x| forward(x, &weight, &bias).0);
    check("weight", &weight, &d_weight, |weight| forward(&x, weight, &bias).0);
    // Adding a number to all logits changes no probability.
    assert!(d_bias.iter().all(|d| d.abs() < 1e-4), "{d_bias:?}");

    let mut none = Batch::new();
    none.push(&[1; 70], &[], 70, 99, 0);
    let mut d_logits = vec![1.0; 2 * T];
    let loss = span_loss::loss_forward_backward(cx, &mut d_logits, &vec![0.5; 2 * T], &none, 1.0);
    assert!(
        loss == 0.0 && d_logits.iter().all(|&d| d == 0.0),
        "nothing to learn, loss {loss}"
    );
}

#[test]
fn vocabulary() {
    let (buffers, arena) = (Buffers::new(), StepArena::new());
    let cx = context(&buffers, &arena);
    let targets: Vec<(usize, u32)> = (0..9).map(|i| (i, (i * 5 % F) as u32)).collect();
    let logits = numbers(1, targets.len() * F);
    let mut d_logits = vec![0.0f32; logits.len()];
    let loss = |d_logits: &mut [f32], logits: &[f32]| {
        vocabulary_loss::loss_forward_backward(cx, d_logits, logits, &targets, 64.0).unwrap()
    };
    loss(&mut d_logits, &logits);
    check("logits", &logits, &d_logits, |logits| {
        64.0 * f64::from(loss(&mut vec![0.0; logits.len()], logits))
    });
}
