//! A batch without padding gives what a padded batch with a mask gives.
//!
//! The padded encoder here is the textbook's, in double precision and without any of the crate's operations: every row
//! has the longest sequence's length, padding tokens are computed like any other, and attention is told by a mask not
//! to look at them.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that says what it measured"
)]

mod common;

use azulejo_bert::Serial;
use azulejo_bert::config::Architecture;
use azulejo_bert::model::Model;
use azulejo_bert::precision::Precision;
use common::{Fixture, norm};

/// A padded batch: (rows, longest) each, and the padded hidden states (rows, longest, h).
struct Padded<'a> {
    model: &'a Model,
    ids: Vec<Vec<usize>>,
    types: Vec<Vec<usize>>,
    mask: Vec<Vec<bool>>,
}

type Rows = Vec<Vec<f64>>; // (tokens, width)

impl Padded<'_> {
    fn param(&self, name: &str) -> Vec<f64> {
        let param = self.model.params().find(name).unwrap_or_else(|| panic!("{name}"));
        self.model.weights()[param.range.clone()]
            .iter()
            .map(|&w| f64::from(w))
            .collect()
    }

    fn linear(&self, x: &Rows, name: &str) -> Rows {
        let (weight, bias) = (
            self.param(&format!("{name}.weight")),
            self.param(&format!("{name}.bias")),
        );
        let k = x[0].len();
        let one = |x: &Vec<f64>| {
            bias.iter()
                .enumerate()
                .map(|(n, b)| b + dot(x, &weight[n * k..(n + 1) * k]))
                .collect()
        };
        x.iter().map(one).collect()
    }

    fn layer_norm(&self, x: &Rows, name: &str) -> Rows {
        let (weight, bias) = (
            self.param(&format!("{name}.weight")),
            self.param(&format!("{name}.bias")),
        );
        let one = |x: &Vec<f64>| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let deviation = (variance + f64::from(self.model.config().layer_norm_eps)).sqrt();
            x.iter()
                .zip(weight.iter().zip(&bias))
                .map(|(x, (w, b))| (x - mean) / deviation * w + b)
                .collect()
        };
        x.iter().map(one).collect()
    }

    fn attention(&self, q: &Rows, k: &Rows, v: &Rows, mask: &[bool]) -> Rows {
        let (heads, width) = (self.model.config().heads, self.model.config().head_width());
        let n = q.len();
        let mut out = vec![vec![0.0; heads * width]; n];
        for head in 0..heads {
            let part = head * width..(head + 1) * width;
            for i in 0..n {
                let score = |j: usize| {
                    let hidden = if mask[j] { 0.0 } else { f64::from(f32::MIN) };
                    dot(&q[i][part.clone()], &k[j][part.clone()]) / (width as f64).sqrt() + hidden
                };
                let scores: Vec<f64> = (0..n).map(score).collect();
                let max = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                for j in 0..n {
                    let p = (scores[j] - max).exp() / sum;
                    for c in part.clone() {
                        out[i][c] += p * v[j][c];
                    }
                }
            }
        }
        out
    }

    /// Logits of row `b`, padding included: (longest, 2).
    fn logits(&self, b: usize) -> Rows {
        let config = self.model.config();
        let (prefix, h) = (config.architecture.name(), config.hidden);
        let bert = config.architecture == Architecture::Bert;
        let embeddings = format!("{prefix}.embeddings");
        let table = |name: &str| self.param(&format!("{embeddings}.{name}_embeddings.weight"));
        let (words, positions) = (table("word"), table("position"));
        let types = if bert { table("token_type") } else { vec![0.0; 2 * h] };
        let embed = |(i, &id): (usize, &usize)| {
            let kind = self.types[b][i];
            (0..h)
                .map(|c| words[id * h + c] + positions[i * h + c] + types[kind * h + c])
                .collect()
        };
        let mut x: Rows = self.ids[b].iter().enumerate().map(embed).collect();
        x = self.layer_norm(&x, &format!("{embeddings}.LayerNorm"));
        let names: [&str; 8] = if bert {
            [
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ]
        } else {
            [
                "attention.q_lin",
                "attention.k_lin",
                "attention.v_lin",
                "attention.out_lin",
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ]
        };
        let stack = if bert { "encoder.layer" } else { "transformer.layer" };
        for layer in 0..config.layers {
            let at = |i: usize| format!("{prefix}.{stack}.{layer}.{}", names[i]);
            let (q, k, v) = (
                self.linear(&x, &at(0)),
                self.linear(&x, &at(1)),
                self.linear(&x, &at(2)),
            );
            let context = self.attention(&q, &k, &v, &self.mask[b]);
            x = self.layer_norm(&add(&self.linear(&context, &at(3)), &x), &at(4));
            let u = self.linear(&x, &at(5));
            let g: Rows = u.iter().map(|u| u.iter().map(|&u| gelu(u)).collect()).collect();
            x = self.layer_norm(&add(&self.linear(&g, &at(6)), &x), &at(7));
        }
        self.linear(&x, "qa_outputs")
    }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn add(x: &Rows, y: &Rows) -> Rows {
    x.iter()
        .zip(y)
        .map(|(x, y)| x.iter().zip(y).map(|(x, y)| x + y).collect())
        .collect()
}

/// x times the normal distribution function, by the error function's series; it converges everywhere, and below 6
/// loses no more than half of the 16 digits.
fn gelu(x: f64) -> f64 {
    let z = (x / std::f64::consts::SQRT_2).clamp(-6.0, 6.0);
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    0.5 * x * (1.0 + sum * std::f64::consts::FRAC_2_SQRT_PI)
}

#[test]
fn packed_equals_padded() {
    for name in ["bert_qa", "distilbert_qa"] {
        let fixture = Fixture::read(name);
        for number in 0..3 {
            let batch = fixture.batch(number);
            let longest = batch.ranges().map(|r| r.len()).max().unwrap();
            // One token more than the longest, so that every row has padding.
            let pad = |values: Vec<usize>| {
                values
                    .into_iter()
                    .chain(std::iter::repeat(0))
                    .take(longest + 1)
                    .collect()
            };
            for (precision, bound) in [(Precision::F32, 2e-5), (Precision::Bf16, 1e-1)] {
                let model = fixture.model(precision);
                let padded = Padded {
                    model: &model,
                    ids: batch
                        .ranges()
                        .map(|r| pad(batch.ids[r].iter().map(|&i| i as usize).collect()))
                        .collect(),
                    types: batch
                        .ranges()
                        .map(|r| pad(batch.token_types[r].iter().map(|&i| usize::from(i)).collect()))
                        .collect(),
                    mask: batch
                        .ranges()
                        .map(|r| (0..=longest).map(|i| i < r.len()).collect())
                        .collect(),
                };
                let packed = model.forward(&Serial, &batch).unwrap();
                let (mut errors, mut values) = (Vec::new(), Vec::new());
                for (b, range) in batch.ranges().enumerate() {
                    let logits = padded.logits(b);
                    for (i, token) in range.enumerate() {
                        errors.push(f64::from(packed.start[token]) - logits[i][0]);
                        errors.push(f64::from(packed.end[token]) - logits[i][1]);
                        values.extend([logits[i][0], logits[i][1]]);
                    }
                }
                // The bounds of the fixtures' logits, against their root mean square.
                let scale = norm(values.iter().copied()) / (values.len() as f64).sqrt();
                let worst = errors.iter().fold(0.0f64, |m, e| m.max(e.abs())) / scale;
                println!("{name} batch {number} {precision:?}: {worst:.2e}");
                assert!(
                    worst < bound,
                    "{name} batch {number} {precision:?}: {worst:e}, bound {bound:e}"
                );
            }
        }
    }
}
