//! How the shipped encoder was pre-trained.
//!
//! Training a small encoder from plain random weights on questions alone never leaves chance: which sentence a
//! question is about has to be found by heads that match words and heads that stay within a sentence, and neither gets
//! a signal before the other works. Two things help both at once:
//!
//! * the first weights: half of the heads of each layer start with equal query and key projections of the words, so
//!   that they attend to equal words; the other half with equal projections of the position, so that they attend to
//!   their neighbourhood. All of it is trained from there;
//! * a dense signal: besides the answer's two ends, every word of the passage is asked whether the question holds it,
//!   whether it is of the kind that the question asks for, and whether its sentence is the one asked about.
//!
//! The text is the training part's. The heads of these questions are dropped in the end: what ships is the encoder.

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use azulejo_bert::batch::Batch;
use azulejo_bert::checkpoint::write_safetensors;
use azulejo_bert::config::Config;
use azulejo_bert::model::{Model, Step};
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::{Error, Executor, Result};
use serde_json::{Value, json};

use super::generate::{Part, Passage, SLOTS};
use super::random::Random;
use super::vocabulary::{CLS, SEP, Vocabulary, pieces};

const HIDDEN: usize = 128;
const LAYERS: usize = 3;
const HEADS: usize = 4;
const HEAD_WIDTH: usize = HIDDEN / HEADS;
const POSITIONS: usize = 160;
/// How many of the hidden numbers carry the position at the start.
const PLACES: usize = 32;
/// Seed of the shipped encoder.
pub const SEED: u64 = 1;
/// Optimiser steps of the shipped encoder.
pub const STEPS: u64 = 2400;
/// How many losses of a run are kept beside the encoder, so that a test can hold it to this code.
pub const CURVE: usize = 8;
/// Sequences a step.
const SEQUENCES: usize = 32;
const LEARNING_RATE: f64 = 1e-3;

/// What the last layer is asked of each token, and in which row of the head's weights.
const START: usize = 0;
const END: usize = 1;
const IN_QUESTION: usize = 2;
const IN_SENTENCE: usize = 3;
const OF_KIND: usize = 4;
const ROWS: usize = 5;
/// Weight of the three yes-or-no questions.
const DENSE: f32 = 2.0;

/// Losses of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// What is minimised.
    pub total: f32,
    /// Mean cross-entropy of the answer's two ends.
    pub span: f32,
    /// Mean cross-entropies: held by the question, in the sentence asked about, of the kind asked for.
    pub dense: [f32; 3],
    /// Share of answers whose first piece had the highest logit.
    pub found: f32,
}

/// A sequence's labels: the token ranges of the passage, of its asked sentence and of the answer.
struct Labels {
    passage: Range<usize>,
    sentence: Range<usize>,
    answer: Range<usize>,
    in_question: Vec<bool>, // (tokens of the passage)
    of_kind: Vec<bool>,     // (tokens of the passage)
}

/// The heads' weights and their Adam moments.
#[derive(Debug)]
struct Heads {
    weights: Vec<f32>, // (ROWS, HIDDEN), then biases (ROWS)
    grads: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
}

/// A pre-training run.
#[derive(Debug)]
pub struct Pretraining {
    model: Model,
    optimiser: AdamW,
    heads: Heads,
    grads: Vec<f32>,
    random: Random,
    vocabulary: Vocabulary,
    seed: u64,
    done: u64,
    steps: u64,
}

fn config() -> Result<Config> {
    Config::from_value(json!({
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": pieces().len(),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 4 * HIDDEN,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
    }))
}

impl Pretraining {
    /// A run of `steps` steps.
    pub fn new(exec: &dyn Executor, seed: u64, steps: u64) -> Result<Self> {
        let config = config()?;
        let mut model = Model::new(config, Head::QuestionAnswering, Precision::Bf16)?;
        let mut random = Random::new(seed);
        let first = first_weights(&model, &mut random);
        model.update(exec, |weights| weights.copy_from_slice(&first))?;
        let settings = Settings {
            beta2: 0.98,
            weight_decay: 0.01,
            ..Settings::default()
        };
        let optimiser = AdamW::new(settings, model.params());
        let grads = vec![0.0; model.params().total()];
        let zeros = || vec![0.0; ROWS * HIDDEN + ROWS];
        let mut heads = Heads {
            weights: zeros(),
            grads: zeros(),
            m: zeros(),
            v: zeros(),
        };
        heads.weights[..ROWS * HIDDEN].fill_with(|| 0.02 * random.normal() as f32);
        Ok(Self {
            model,
            optimiser,
            heads,
            grads,
            random,
            vocabulary: Vocabulary::default(),
            seed,
            done: 0,
            steps,
        })
    }

    /// Steps done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Short warm-up, then straight down.
    fn learning_rate(&self) -> f64 {
        let warm = ((self.done + 1) as f64 / 200.0).min(1.0);
        let left = 1.0 - self.done as f64 / self.steps as f64;
        LEARNING_RATE * warm * left.max(0.02)
    }

    /// One optimiser step on fresh text.
    pub fn step(&mut self, exec: &dyn Executor) -> Result<Losses> {
        let mut batch = Batch::new();
        let labels: Vec<Labels> = (0..SEQUENCES)
            .map(|i| self.push_sequence(&mut batch, i as u64))
            .collect();
        let tokens = batch.tokens();
        self.grads.fill(0.0);
        self.heads.grads.fill(0.0);
        let mut losses = None;
        let heads = &mut self.heads;
        let step = Step {
            seed: self.seed,
            step: self.done,
            weight: 1.0,
        };
        let mut objective = |hidden: &[f32], d_hidden: &mut [f32]| {
            let found = heads.forward_backward(&batch, &labels, tokens, hidden, d_hidden);
            losses = Some(found);
            found.total
        };
        let batch = &batch;
        self.model
            .train_micro_batch_with(exec, batch, &mut objective, step, &mut self.grads, &mut |_, _| {})?;
        let rate = self.learning_rate();
        self.optimiser.update(exec, &mut self.model, &self.grads, rate)?;
        self.done += 1;
        self.heads.update(rate, self.done);
        losses.ok_or_else(|| Error::Config {
            reason: "expected the objective to be called".into(),
        })
    }

    fn push_sequence(&mut self, batch: &mut Batch, index: u64) -> Labels {
        let random = &mut self.random;
        let facts = 4 + random.below(2);
        let passage = Passage::generate(random, Part::Train, facts);
        let (fact, slot) = (random.below(facts), SLOTS[random.below(SLOTS.len())]);
        let question = passage.ask(random, fact, slot);
        let asked = self.vocabulary.encode(&question.text);
        let text = self.vocabulary.encode(&passage.context);

        let first = asked.len() + 2;
        let mut ids = vec![CLS];
        ids.extend(asked.iter().map(|(id, _)| *id));
        ids.push(SEP);
        ids.extend(text.iter().map(|(id, _)| *id));
        ids.push(SEP);
        let types: Vec<u8> = (0..ids.len()).map(|i| u8::from(i >= first)).collect();
        let tokens = |bytes: &Range<usize>| {
            let start = text.partition_point(|(_, at)| at.start < bytes.start);
            let end = text.partition_point(|(_, at)| at.end <= bytes.end);
            first + start..first + end
        };
        let of_kind = |at: &Range<usize>| {
            let words = passage.facts.iter().map(|fact| &fact.words[slot as usize]);
            words.into_iter().any(|range| range.contains(&at.start))
        };
        let answer = tokens(&passage.answer_range(&question));
        batch.push(&ids, &types, answer.start as u32, answer.end as u32 - 1, index);
        Labels {
            passage: first..first + text.len(),
            sentence: tokens(&passage.facts[fact].sentence),
            answer,
            in_question: text
                .iter()
                .map(|(id, _)| asked.iter().any(|(other, _)| id == other))
                .collect(),
            of_kind: text.iter().map(|(_, at)| of_kind(at)).collect(),
        }
    }

    /// Writes the encoder as a folder in Hugging Face's layout: weights, sizes, vocabulary, tokenizer settings.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let encoder = self
            .model
            .params()
            .iter()
            .filter(|param| !param.name.starts_with("qa_outputs"));
        let weights = self.model.weights();
        let tensors: Vec<_> = encoder
            .map(|param| (param.name.as_str(), &param.shape[..], &weights[param.range.clone()]))
            .collect();
        let mut file = io::BufWriter::new(fs::File::create(dir.join("model.safetensors"))?);
        write_safetensors(&mut file, &tensors)?;
        file.flush()?;
        let pretty = |value: Value| format!("{value:#}\n");
        fs::write(dir.join("config.json"), pretty(self.model.config().to_json()))?;
        let tokenizer = json!({
            "tokenizer_class": "BertTokenizer", "do_lower_case": true, "model_max_length": POSITIONS,
            "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]",
            "mask_token": "[MASK]",
        });
        fs::write(dir.join("tokenizer_config.json"), pretty(tokenizer))?;
        fs::write(dir.join("vocab.txt"), pieces().join("\n") + "\n")
    }
}

/// The structured start that the module's introduction describes.
fn first_weights(model: &Model, random: &mut Random) -> Vec<f32> {
    let params = model.params();
    let mut weights = params.initialise(model.config(), random.next_u64());
    for param in params {
        let values = &mut weights[param.range.clone()];
        let mut normal = |deviation: f64| (deviation * random.normal()) as f32;
        let name = param.name.as_str();
        if name.ends_with("word_embeddings.weight") {
            for row in values.chunks_mut(HIDDEN) {
                row[..PLACES].fill(0.0);
                row[PLACES..].fill_with(|| normal(0.05));
            }
        } else if name.ends_with("token_type_embeddings.weight") {
            values.chunks_mut(HIDDEN).for_each(|row| row[..PLACES].fill(0.0));
        } else if name.ends_with("position_embeddings.weight") {
            values.fill(0.0);
            for (place, row) in values.chunks_mut(HIDDEN).enumerate() {
                for wave in 0..PLACES / 2 {
                    // Wave lengths from 12 to 400 tokens, evenly on a logarithmic scale.
                    let length = 12.0 * (400.0f64 / 12.0).powf(wave as f64 / (PLACES / 2 - 1) as f64);
                    let (sin, cos) = (std::f64::consts::TAU * place as f64 / length).sin_cos();
                    row[2 * wave] = (0.05 * std::f64::consts::SQRT_2 * sin) as f32;
                    row[2 * wave + 1] = (0.05 * std::f64::consts::SQRT_2 * cos) as f32;
                }
            }
        } else if name.ends_with("query.weight") {
            for (out, row) in values.chunks_mut(HIDDEN).enumerate() {
                let matching = out / HEAD_WIDTH < HEADS / 2;
                row.fill_with(|| normal(if matching { 0.09 } else { 0.009 }));
                if matching {
                    row[..PLACES].fill(0.0);
                } else {
                    row[out % HEAD_WIDTH] += 1.5;
                }
            }
        } else if name.ends_with("attention.output.dense.weight")
            || name.ends_with("value.weight")
            || name.ends_with("intermediate.dense.weight")
        {
            values.fill_with(|| normal(0.06));
        } else if name.ends_with("output.dense.weight") {
            values.fill_with(|| normal(0.03));
        }
    }
    for param in params {
        if let Some(query) = params.find(&param.name.replace("key.weight", "query.weight"))
            && param.name.ends_with("key.weight")
        {
            weights.copy_within(query.range.clone(), param.range.start);
        }
    }
    weights
}

impl Heads {
    /// The losses; adds their gradients to `d_hidden` and to the heads' own.
    fn forward_backward(
        &mut self,
        batch: &Batch,
        labels: &[Labels],
        tokens: usize,
        hidden: &[f32],
        d_hidden: &mut [f32],
    ) -> Losses {
        let (weights, biases) = self.weights.split_at(ROWS * HIDDEN);
        let mut logits = vec![0.0f32; tokens * ROWS];
        for (x, out) in hidden.chunks(HIDDEN).zip(logits.chunks_mut(ROWS)) {
            for row in 0..ROWS {
                out[row] = biases[row] + dot(&weights[row * HIDDEN..][..HIDDEN], x);
            }
        }
        let mut d_logits = vec![0.0f32; tokens * ROWS];
        let asked: usize = labels.iter().map(|label| label.passage.len()).sum();
        let (mut span, mut dense, mut found) = (0.0, [0.0; 3], 0.0);
        let each_end = 0.5 / labels.len() as f32;
        for (label, sequence) in labels.iter().zip(batch.ranges()) {
            let token = |at: usize| (sequence.start + at) * ROWS;
            for (row, right) in [(START, label.answer.start), (END, label.answer.end - 1)] {
                let logit = |at: usize| logits[token(at) + row];
                let highest = label.passage.clone().map(logit).fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = label.passage.clone().map(|at| (logit(at) - highest).exp()).sum();
                for at in label.passage.clone() {
                    d_logits[token(at) + row] = each_end * (logit(at) - highest).exp() / sum;
                }
                d_logits[token(right) + row] -= each_end;
                span += each_end * (sum.ln() + highest - logit(right));
                if row == START && logit(right) == highest {
                    found += 2.0 * each_end;
                }
            }
            for (i, at) in label.passage.clone().enumerate() {
                let truths = [label.in_question[i], label.sentence.contains(&at), label.of_kind[i]];
                for ((row, truth), loss) in [IN_QUESTION, IN_SENTENCE, OF_KIND]
                    .into_iter()
                    .zip(truths)
                    .zip(&mut dense)
                {
                    let z = logits[token(at) + row];
                    let truth = f32::from(u8::from(truth));
                    *loss += (z.max(0.0) - z * truth + (-z.abs()).exp().ln_1p()) / asked as f32;
                    d_logits[token(at) + row] = DENSE * (1.0 / (1.0 + (-z).exp()) - truth) / asked as f32;
                }
            }
        }
        let (d_weights, d_biases) = self.grads.split_at_mut(ROWS * HIDDEN);
        for ((x, d_x), d_out) in hidden
            .chunks(HIDDEN)
            .zip(d_hidden.chunks_mut(HIDDEN))
            .zip(d_logits.chunks(ROWS))
        {
            for row in 0..ROWS {
                d_biases[row] += d_out[row];
                add_scaled(d_x, &weights[row * HIDDEN..][..HIDDEN], d_out[row]);
                add_scaled(&mut d_weights[row * HIDDEN..][..HIDDEN], x, d_out[row]);
            }
        }
        let total = span + DENSE * dense.iter().sum::<f32>();
        Losses {
            total,
            span,
            dense,
            found,
        }
    }

    /// Adam as the model's own weights have it, without decay.
    fn update(&mut self, rate: f64, step: u64) {
        let correction = |beta: f64| 1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX));
        let (first, second) = (correction(0.9), correction(0.98));
        for (((w, g), m), v) in self
            .weights
            .iter_mut()
            .zip(&self.grads)
            .zip(&mut self.m)
            .zip(&mut self.v)
        {
            *m += 0.1 * (g - *m);
            *v += 0.02 * (g * g - *v);
            let mean = f64::from(*m) / first;
            let size = (f64::from(*v) / second).sqrt() + 1e-8;
            *w -= (rate * mean / size) as f32;
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum))
}

fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.mul_add(scale, *to);
    }
}
