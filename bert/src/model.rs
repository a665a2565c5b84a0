//! The encoder with its head: forward and backward as straight lists that mirror each other.
//!
//! A micro-batch is `t` tokens without padding. The residual stream is `f32`; what a matrix product reads is rounded
//! once, where it is produced. The backward pass of each part stands below its forward pass; read upwards it is the
//! same list.

use crate::acts::{EmbeddingActs, LayerActs, Stream, VocabularyActs};
use crate::batch::Batch;
use crate::buffers::{Buf, Buffers};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ops::dropout::{Dropout, Tokens};
use crate::ops::linear::Weight;
use crate::ops::{
    Context, Executor, attention, column_sums, dropout, embedding, gelu, layer_norm, linear, span_loss, vocabulary_loss,
};
use crate::params::{Head, HeadRanges, Linear, Params};
use crate::precision::{Operand, Precision};
use half::bf16;
use std::fmt;
use std::ops::Range;

/// Called with a range of the flat gradient buffer that is final, and the whole buffer; ranges come from the end of
/// the buffer to its start, adjoin each other and cover it.
pub type OnReady<'a> = dyn FnMut(Range<usize>, &mut [f32]) + 'a;

/// What a micro-batch needs to know about its place in the training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Number of the optimiser step.
    pub step: u64,
    /// Factor of the loss in the gradients: 1 for one micro-batch a step.
    pub weight: f32,
}

/// Start and end logits of every token of a batch. `(t)` each
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    /// Of the answer's first token.
    pub start: Vec<f32>,
    /// Of its last token.
    pub end: Vec<f32>,
}

/// A model: its sizes, its weights, and the weights as the matrix products read them.
pub struct Model {
    config: Config,
    params: Params,
    weights: Vec<f32>, // (params.total())
    prepared: Prepared,
    buffers: Buffers,
}

enum Prepared {
    F32(Weights<f32>),
    Bf16(Weights<bf16>),
}

struct Weights<T> {
    layers: Vec<LayerWeights<T>>,
    vocabulary: Option<VocabularyWeights<T>>,
}

struct LayerWeights<T> {
    qkv: Weight<T>,  // (3h, h)
    out: Weight<T>,  // (h, h)
    up: Weight<T>,   // (f, h)
    down: Weight<T>, // (h, f)
}

struct VocabularyWeights<T> {
    dense: Weight<T>, // (h, h)
    words: Weight<T>, // (v, h): the embedding table
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Model");
        debug
            .field("config", &self.config)
            .field("head", &self.params.head())
            .field("precision", &self.precision());
        debug.field("parameters", &self.params.total()).finish_non_exhaustive()
    }
}

impl Model {
    /// A model with weights that are all zero; [`update`](Model::update) gives it others.
    pub fn new(config: Config, head: Head, precision: Precision) -> Model {
        let params = Params::new(&config, head);
        let weights = vec![0.0; params.total()];
        let prepared = match precision {
            Precision::F32 => Prepared::F32(Weights::new(&config, head)),
            Precision::Bf16 => Prepared::Bf16(Weights::new(&config, head)),
        };
        Model {
            config,
            params,
            weights,
            prepared,
            buffers: Buffers::new(),
        }
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The table of its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The type that its matrix products read.
    pub fn precision(&self) -> Precision {
        match self.prepared {
            Prepared::F32(_) => Precision::F32,
            Prepared::Bf16(_) => Precision::Bf16,
        }
    }

    /// All weights, in the order of [`params`](Model::params).
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The pools of scratch memory.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Lets `change` write the weights, then renews what the matrix products read: once for an optimiser step, not
    /// for each micro-batch.
    pub fn update<R>(&mut self, exec: &dyn Executor, change: impl FnOnce(&mut [f32]) -> R) -> R {
        let result = change(&mut self.weights);
        match &mut self.prepared {
            Prepared::F32(prepared) => prepared.renew(exec, &self.params, &self.weights),
            Prepared::Bf16(prepared) => prepared.renew(exec, &self.params, &self.weights),
        }
        result
    }

    /// The answer logits of every token, without dropout.
    pub fn forward(&self, exec: &dyn Executor, batch: &Batch) -> Result<Logits> {
        self.expect_head(Head::QuestionAnswering)?;
        let mut logits = match &self.prepared {
            Prepared::F32(prepared) => self.pass(exec, prepared).logits(batch),
            Prepared::Bf16(prepared) => self.pass(exec, prepared).logits(batch),
        }?;
        let end = logits.split_off(batch.tokens());
        Ok(Logits { start: logits, end })
    }

    /// Forward and backward over one micro-batch: adds the gradient of `step.weight` times the loss to `grads` and
    /// returns the loss. After an error `grads` holds a part of the gradient.
    pub fn train_micro_batch(
        &self,
        exec: &dyn Executor,
        batch: &Batch,
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        self.expect_head(Head::QuestionAnswering)?;
        match &self.prepared {
            Prepared::F32(prepared) => self.pass(exec, prepared).train(batch, None, step, grads, on_ready),
            Prepared::Bf16(prepared) => self.pass(exec, prepared).train(batch, None, step, grads, on_ready),
        }
    }

    /// The same for masked language modelling: `targets` are places among the batch's tokens, and the token that
    /// each should be. The span labels are not read.
    pub fn train_micro_batch_mlm(
        &self,
        exec: &dyn Executor,
        batch: &Batch,
        targets: &[(usize, u32)],
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        self.expect_head(Head::MaskedLanguage)?;
        let targets = Some(targets);
        match &self.prepared {
            Prepared::F32(prepared) => self.pass(exec, prepared).train(batch, targets, step, grads, on_ready),
            Prepared::Bf16(prepared) => self.pass(exec, prepared).train(batch, targets, step, grads, on_ready),
        }
    }

    fn expect_head(&self, expected: Head) -> Result<()> {
        if self.params.head() == expected {
            return Ok(());
        }
        Err(Error::Config {
            reason: format!("expected a model with head {expected:?}, got {:?}", self.params.head()),
        })
    }

    fn pass<'a, T>(&'a self, exec: &'a dyn Executor, prepared: &'a Weights<T>) -> Pass<'a, T> {
        Pass {
            cx: Context {
                exec,
                buffers: &self.buffers,
            },
            config: &self.config,
            params: &self.params,
            weights: &self.weights,
            prepared,
        }
    }
}

impl<T: Operand> Weights<T> {
    fn new(config: &Config, head: Head) -> Weights<T> {
        let (h, f) = (config.hidden, config.intermediate);
        let layer = |_| LayerWeights {
            qkv: Weight::new(3 * h, h),
            out: Weight::new(h, h),
            up: Weight::new(f, h),
            down: Weight::new(h, f),
        };
        let vocabulary = (head == Head::MaskedLanguage).then(|| VocabularyWeights {
            dense: Weight::new(h, h),
            words: Weight::new(config.vocabulary, h),
        });
        Weights {
            layers: (0..config.layers).map(layer).collect(),
            vocabulary,
        }
    }

    fn renew(&mut self, _exec: &dyn Executor, params: &Params, weights: &[f32]) {
        for (prepared, layer) in self.layers.iter_mut().zip(&params.layers) {
            prepared.qkv.prepare(&weights[layer.qkv.weight.clone()]);
            prepared.out.prepare(&weights[layer.out.weight.clone()]);
            prepared.up.prepare(&weights[layer.up.weight.clone()]);
            prepared.down.prepare(&weights[layer.down.weight.clone()]);
        }
        if let (Some(prepared), HeadRanges::MaskedLanguage { dense, .. }) = (&mut self.vocabulary, &params.head_ranges)
        {
            prepared.dense.prepare(&weights[dense.weight.clone()]);
            prepared.words.prepare(&weights[params.embeddings.words.clone()]);
        }
    }
}

/// One forward, or one forward and backward, of one model in one precision.
struct Pass<'a, T> {
    cx: Context<'a>,
    config: &'a Config,
    params: &'a Params,
    weights: &'a [f32],
    prepared: &'a Weights<T>,
}

/// A micro-batch during a pass.
#[derive(Clone, Copy)]
struct Input<'a> {
    batch: &'a Batch,
    tokens: Tokens<'a>,
    token_types: &'a [u32], // (t), empty when the model has none
    step: Option<Step>,     // none: no dropout
}

impl Input<'_> {
    /// The dropout of one place. Layer 0 is the embeddings, layer i + 1 the encoder's layer i, the last one the head.
    fn dropout(&self, rate: f32, layer: usize, site: Site) -> Option<Dropout> {
        let step = self.step.filter(|_| rate > 0.0)?;
        Dropout::new(rate, step.seed, step.step, layer as u32, site as u32)
    }
}

/// The places of dropout in a layer.
#[derive(Clone, Copy)]
enum Site {
    Whole = 0,
    Probabilities = 1,
    AttentionOutput = 2,
    FeedForwardOutput = 3,
}

impl<'a, T: Operand> Pass<'a, T> {
    fn logits(&self, batch: &Batch) -> Result<Vec<f32>> {
        batch.check(self.config)?;
        let (sequence, token_types) = self.token_rows(batch);
        let input = Input {
            batch,
            tokens: Tokens {
                batch,
                sequence: &sequence,
            },
            token_types: &token_types,
            step: None,
        };
        let (mut x, _) = self.embed(input);
        for layer in 0..self.config.layers {
            (x, _) = self.layer_forward(layer, x, input);
        }
        let span = self.span();
        let mut logits = vec![0.0; 2 * batch.tokens()]; // (2, t)
        span_loss::logits_forward(self.cx, &mut logits, &x.x, self.of(&span.weight), self.of(&span.bias));
        Ok(logits)
    }

    fn train(
        &self,
        batch: &Batch,
        targets: Option<&[(usize, u32)]>,
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        batch.check(self.config)?;
        if grads.len() != self.params.total() {
            return Err(Error::Length {
                what: "gradients",
                expected: self.params.total(),
                got: grads.len(),
            });
        }
        let (sequence, token_types) = self.token_rows(batch);
        let input = Input {
            batch,
            tokens: Tokens {
                batch,
                sequence: &sequence,
            },
            token_types: &token_types,
            step: Some(step),
        };

        let (mut x, embedding_acts) = self.embed(input);
        let mut layers = Vec::with_capacity(self.config.layers);
        for layer in 0..self.config.layers {
            let acts;
            (x, acts) = self.layer_forward(layer, x, input);
            layers.push(acts);
        }
        let (loss, mut d_x) = match targets {
            None => self.span_head(grads, x, input, step.weight),
            Some(targets) => self.vocabulary_head(grads, x, targets, input, step.weight)?,
        };
        if !loss.is_finite() {
            return Err(not_finite(self.first_bad_activation(&embedding_acts, &layers), batch));
        }
        let mut ready = self.params.total();
        for (layer, acts) in layers.into_iter().enumerate().rev() {
            let range = self.params.layers[layer].range();
            on_ready(range.end..ready, grads);
            ready = range.end;
            d_x = self.layer_backward(layer, grads, d_x, acts, input);
            if !all_finite(&d_x) {
                let tensor = format!("the gradient of the input of encoder layer {layer}");
                return Err(not_finite(tensor, batch));
            }
        }
        let first = self.params.embeddings.norm.bias.end;
        on_ready(first..ready, grads);
        self.embed_backward(grads, d_x, embedding_acts, input);
        on_ready(0..first, grads);
        Ok(loss)
    }

    // Embeddings: sum of table rows, LayerNorm, dropout.

    fn embed(&self, input: Input) -> (Stream<'a, T>, EmbeddingActs<'a>) {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let at = &self.params.embeddings;
        let mut acts = EmbeddingActs {
            sum: self.take("embedding sum", t * h),
            stats: self.take("statistics", 2 * t),
        };
        let mut x = self.stream(t);

        let words = (self.of(&at.words), &input.batch.ids[..]);
        let positions = (self.of(&at.positions), &input.batch.positions[..]);
        match &at.token_types {
            None => embedding::forward(self.cx, &mut acts.sum, &[words, positions], h),
            Some(types) => {
                let types = (self.of(types), input.token_types);
                embedding::forward(self.cx, &mut acts.sum, &[words, positions, types], h);
            }
        }
        let (gamma, beta) = (self.of(&at.norm.weight), self.of(&at.norm.bias));
        let eps = self.config.layer_norm_eps;
        layer_norm::forward(
            self.cx,
            &mut x.x,
            &mut x.rounded,
            &mut acts.stats,
            &acts.sum,
            gamma,
            beta,
            eps,
        );
        let dropped = input.dropout(self.config.hidden_dropout, 0, Site::Whole);
        dropout::forward(self.cx, &mut x.x, &mut x.rounded, dropped, input.tokens, h);
        (x, acts)
    }

    fn embed_backward(&self, grads: &mut [f32], mut d_x: Buf<f32>, acts: EmbeddingActs, input: Input) {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let at = &self.params.embeddings;
        let dropped = input.dropout(self.config.hidden_dropout, 0, Site::Whole);
        dropout::scale(self.cx, &mut d_x, dropped, input.tokens, h);
        let mut d_sum = self.take("d embedding sum", t * h);
        let (d_gamma, d_beta) = two(grads, &at.norm.weight, &at.norm.bias);
        let gamma = self.of(&at.norm.weight);
        layer_norm::backward(
            self.cx,
            &mut d_sum,
            d_gamma,
            d_beta,
            &d_x,
            &acts.sum,
            &acts.stats,
            gamma,
        );
        if let Some(types) = &at.token_types {
            embedding::backward(self.cx, &mut grads[types.clone()], &d_sum, input.token_types, None, h);
        }
        embedding::backward(
            self.cx,
            &mut grads[at.positions.clone()],
            &d_sum,
            &input.batch.positions,
            None,
            h,
        );
        let padding = Some(self.config.padding_id);
        embedding::backward(
            self.cx,
            &mut grads[at.words.clone()],
            &d_sum,
            &input.batch.ids,
            padding,
            h,
        );
    }

    // An encoder layer: attention with its residual and LayerNorm, feed-forward with its residual and LayerNorm.

    fn layer_forward(&self, layer: usize, input_x: Stream<'a, T>, input: Input) -> (Stream<'a, T>, LayerActs<'a, T>) {
        let (cx, c, at) = (self.cx, self.config, &self.params.layers[layer]);
        let weight = &self.prepared.layers[layer];
        let (t, h, f) = (input.batch.tokens(), c.hidden, c.intermediate);
        let (masks, probabilities) = self.dropouts(layer, input);
        let Stream {
            x: residual,
            rounded: x,
        } = input_x;

        let mut qkv = self.operand("query, key, value", t * 3 * h);
        let mut attention_stats = self.take("attention statistics", t * c.heads);
        let mut context = self.operand("attention output", t * h);
        let mut sum = self.take("attention sum", t * h);
        let mut stats = self.take("statistics", 2 * t);
        let mut middle = self.stream(t);
        linear::forward_rounded(cx, &mut qkv, &x, &weight.qkv, self.of(&at.qkv.bias));
        let shape = attention::Shape {
            heads: c.heads,
            width: c.head_width(),
        };
        attention::forward(
            cx,
            &mut context,
            &mut attention_stats,
            &qkv,
            input.batch,
            shape,
            probabilities,
        );
        linear::forward(cx, &mut sum, &context, &weight.out, self.of(&at.out.bias));
        dropout::add_residual(cx, &mut sum, &residual, masks.0, input.tokens, h);
        drop(residual);
        let (gamma, beta) = (self.of(&at.attention_norm.weight), self.of(&at.attention_norm.bias));
        let eps = c.layer_norm_eps;
        layer_norm::forward(
            cx,
            &mut middle.x,
            &mut middle.rounded,
            &mut stats,
            &sum,
            gamma,
            beta,
            eps,
        );

        let Stream {
            x: residual,
            rounded: middle,
        } = middle;
        let mut u = self.operand("before GELU", t * f);
        let mut g = self.operand("after GELU", t * f);
        let mut output_sum = self.take("output sum", t * h);
        let mut output_stats = self.take("statistics", 2 * t);
        let mut y = self.stream(t);
        linear::forward_gelu(cx, &mut g, &mut u, &middle, &weight.up, self.of(&at.up.bias));
        linear::forward(cx, &mut output_sum, &g, &weight.down, self.of(&at.down.bias));
        dropout::add_residual(cx, &mut output_sum, &residual, masks.1, input.tokens, h);
        let (gamma, beta) = (self.of(&at.output_norm.weight), self.of(&at.output_norm.bias));
        layer_norm::forward(
            cx,
            &mut y.x,
            &mut y.rounded,
            &mut output_stats,
            &output_sum,
            gamma,
            beta,
            eps,
        );

        let acts = LayerActs {
            x,
            qkv,
            attention_stats,
            context,
            sum,
            stats,
            middle,
            u,
            g,
            output_sum,
            output_stats,
        };
        (y, acts)
    }

    fn layer_backward(
        &self,
        layer: usize,
        grads: &mut [f32],
        d_y: Buf<'a, f32>,
        acts: LayerActs<T>,
        input: Input,
    ) -> Buf<'a, f32> {
        let (cx, c, at) = (self.cx, self.config, &self.params.layers[layer]);
        let weight = &self.prepared.layers[layer];
        let (t, h, f) = (input.batch.tokens(), c.hidden, c.intermediate);
        let (masks, probabilities) = self.dropouts(layer, input);

        let mut d_sum = self.take("d output sum", t * h);
        let mut d_branch = self.operand("d branch", t * h);
        let mut d_u = self.operand("d before GELU", t * f);
        let mut d_middle = self.take("d middle", t * h);
        let (d_gamma, d_beta) = two(grads, &at.output_norm.weight, &at.output_norm.bias);
        let gamma = self.of(&at.output_norm.weight);
        layer_norm::backward(
            cx,
            &mut d_sum,
            d_gamma,
            d_beta,
            &d_y,
            &acts.output_sum,
            &acts.output_stats,
            gamma,
        );
        drop(d_y);
        dropout::backward(cx, &mut d_branch, &d_sum, masks.1, input.tokens, h);
        linear::backward_input_gelu(cx, &mut d_u, &d_branch, &weight.down, &acts.u);
        self.weight_gradient(grads, &at.down, &d_branch, &acts.g, f);
        linear::backward_input(cx, &mut d_middle, &d_u, &weight.up, Some(&d_sum));
        self.weight_gradient(grads, &at.up, &d_u, &acts.middle, h);
        drop(d_u);

        let mut d_context = self.operand("d attention output", t * h);
        let mut d_qkv = self.operand("d query, key, value", t * 3 * h);
        let mut d_x = self.take("d input", t * h);
        let (d_gamma, d_beta) = two(grads, &at.attention_norm.weight, &at.attention_norm.bias);
        let gamma = self.of(&at.attention_norm.weight);
        layer_norm::backward(
            cx,
            &mut d_sum,
            d_gamma,
            d_beta,
            &d_middle,
            &acts.sum,
            &acts.stats,
            gamma,
        );
        dropout::backward(cx, &mut d_branch, &d_sum, masks.0, input.tokens, h);
        linear::backward_input_rounded(cx, &mut d_context, &d_branch, &weight.out);
        self.weight_gradient(grads, &at.out, &d_branch, &acts.context, h);
        let shape = attention::Shape {
            heads: c.heads,
            width: c.head_width(),
        };
        attention::backward(
            cx,
            &mut d_qkv,
            &d_context,
            &acts.context,
            &acts.qkv,
            &acts.attention_stats,
            input.batch,
            shape,
            probabilities,
        );
        linear::backward_input(cx, &mut d_x, &d_qkv, &weight.qkv, Some(&d_sum));
        self.weight_gradient(grads, &at.qkv, &d_qkv, &acts.x, h);
        d_x
    }

    /// Adds to the gradients of a linear layer's weight and bias. d_y `(t, n)`, x `(t, k)`
    fn weight_gradient(&self, grads: &mut [f32], at: &Linear, d_y: &[T], x: &[T], k: usize) {
        linear::backward_weight(self.cx, &mut grads[at.weight.clone()], d_y, x, at.bias.len(), k);
        column_sums::add(self.cx, &mut grads[at.bias.clone()], d_y);
    }

    // The answer head: two logits a token, and their loss.

    fn span_head(&self, grads: &mut [f32], x: Stream<'a, T>, input: Input, weight: f32) -> (f32, Buf<'a, f32>) {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let (cx, at) = (self.cx, self.span());
        let mut x = x.x;
        let mut logits = self.take("logits", 2 * t);
        let mut d_logits = self.take("d logits", 2 * t);
        let mut d_x = self.take("d encoder output", t * h);
        let dropped = input.dropout(self.config.head_dropout, self.config.layers + 1, Site::Whole);
        dropout::scale(cx, &mut x, dropped, input.tokens, h);
        span_loss::logits_forward(cx, &mut logits, &x, self.of(&at.weight), self.of(&at.bias));
        let loss = span_loss::forward_backward(cx, &mut d_logits, &logits, input.batch, weight);
        let (d_weight, d_bias) = two(grads, &at.weight, &at.bias);
        span_loss::logits_backward(cx, &mut d_x, d_weight, d_bias, &d_logits, &x, self.of(&at.weight));
        dropout::scale(cx, &mut d_x, dropped, input.tokens, h);
        (loss, d_x)
    }

    // The masked language model's head: dense, GELU, LayerNorm, and the embedding table as the last projection.

    fn vocabulary_head(
        &self,
        grads: &mut [f32],
        x: Stream<'a, T>,
        targets: &[(usize, u32)],
        input: Input,
        weight: f32,
    ) -> Result<(f32, Buf<'a, f32>)> {
        let (cx, c) = (self.cx, self.config);
        let (t, m, h, v) = (input.batch.tokens(), targets.len(), c.hidden, c.vocabulary);
        let (
            Some(prepared),
            HeadRanges::MaskedLanguage {
                dense,
                norm,
                decoder_bias,
            },
        ) = (&self.prepared.vocabulary, &self.params.head_ranges)
        else {
            return Err(Error::Config {
                reason: "expected a masked language model".into(),
            });
        };
        if let Some((place, id)) = targets.iter().find(|(place, id)| *place >= t || *id as usize >= v) {
            let reason = format!("target {id} at token {place}, expected an id below {v} and a token below {t}");
            return Err(Error::Batch { reason });
        }
        if m == 0 {
            return Err(Error::Batch {
                reason: "no masked token".into(),
            });
        }

        let words = &self.params.embeddings.words;
        let (gamma, beta) = (self.of(&norm.weight), self.of(&norm.bias));
        let mut acts = VocabularyActs {
            x: self.operand("masked tokens", m * h),
            u: self.take("masked before GELU", m * h),
            g: self.take("masked after GELU", m * h),
            stats: self.take("masked statistics", 2 * m),
            y: self.operand("masked after LayerNorm", m * h),
        };
        let mut y = self.take("masked after LayerNorm", m * h);
        let mut logits = self.take("vocabulary logits", m * v);
        for (to, &(place, _)) in acts.x.chunks_mut(h).zip(targets) {
            to.copy_from_slice(&x.rounded[place * h..][..h]);
        }
        linear::forward(cx, &mut acts.u, &acts.x, &prepared.dense, self.of(&dense.bias));
        gelu::forward(cx, &mut acts.g, &acts.u, h);
        layer_norm::forward(
            cx,
            &mut y,
            &mut acts.y,
            &mut acts.stats,
            &acts.g,
            gamma,
            beta,
            c.layer_norm_eps,
        );
        linear::forward(cx, &mut logits, &acts.y, &prepared.words, self.of(decoder_bias));
        let loss = vocabulary_loss::forward_backward(cx, &mut logits, targets, v, weight);

        let d_logits = self.rounded("d vocabulary logits", &logits); // (m, v)
        let mut d_y = y; // (m, h)
        let mut d_g = self.take("d masked after GELU", m * h);
        let mut d_u = self.operand("d masked before GELU", m * h);
        let mut d_masked = self.take("d masked tokens", m * h);
        let mut d_x = self.take("d encoder output", t * h);
        linear::backward_weight(cx, &mut grads[words.clone()], &d_logits, &acts.y, v, h);
        column_sums::add(cx, &mut grads[decoder_bias.clone()], &d_logits);
        linear::backward_input(cx, &mut d_y, &d_logits, &prepared.words, None);
        let (d_gamma, d_beta) = two(grads, &norm.weight, &norm.bias);
        layer_norm::backward(cx, &mut d_g, d_gamma, d_beta, &d_y, &acts.g, &acts.stats, gamma);
        gelu::backward(cx, &mut d_u, &d_g, &acts.u, h);
        self.weight_gradient(grads, dense, &d_u, &acts.x, h);
        linear::backward_input(cx, &mut d_masked, &d_u, &prepared.dense, None);
        d_x.fill(0.0);
        for (d, &(place, _)) in d_masked.chunks(h).zip(targets) {
            for (d_x, d) in d_x[place * h..][..h].iter_mut().zip(d) {
                *d_x += d;
            }
        }
        Ok((loss, d_x))
    }

    // Small things.

    /// A parameter's values.
    fn of(&self, range: &Range<usize>) -> &'a [f32] {
        &self.weights[range.clone()]
    }

    fn span(&self) -> &'a Linear {
        match &self.params.head_ranges {
            HeadRanges::QuestionAnswering { span } => span,
            HeadRanges::MaskedLanguage { .. } => unreachable!("the public door checks the head"),
        }
    }

    /// Dropout after attention and after feed-forward, and of the attention probabilities.
    fn dropouts(&self, layer: usize, input: Input) -> ((Option<Dropout>, Option<Dropout>), Option<Dropout>) {
        let c = self.config;
        let attention = input.dropout(c.attention_output_dropout(), layer + 1, Site::AttentionOutput);
        let feed_forward = input.dropout(c.hidden_dropout, layer + 1, Site::FeedForwardOutput);
        (
            (attention, feed_forward),
            input.dropout(c.attention_dropout, layer + 1, Site::Probabilities),
        )
    }

    fn take(&self, name: &'static str, len: usize) -> Buf<'a, f32> {
        self.cx.buffers.take(name, len)
    }

    fn operand(&self, name: &'static str, len: usize) -> Buf<'a, T> {
        self.cx.buffers.take(name, len)
    }

    fn stream(&self, t: usize) -> Stream<'a, T> {
        let len = t * self.config.hidden;
        Stream {
            x: self.take("residual stream", len),
            rounded: self.operand("residual stream, rounded", len),
        }
    }

    fn rounded(&self, name: &'static str, x: &[f32]) -> Buf<'a, T> {
        let mut out = self.operand(name, x.len());
        for (out, &x) in out.iter_mut().zip(x) {
            *out = T::from_f32(x);
        }
        out
    }

    /// The sequence of each token, and its token type as a table row (empty without token types). `(t)` each
    fn token_rows(&self, batch: &Batch) -> (Buf<'a, u32>, Buf<'a, u32>) {
        let mut sequence = self.cx.buffers.take::<u32>("sequence of each token", batch.tokens());
        for (i, range) in batch.ranges().enumerate() {
            sequence[range].fill(i as u32);
        }
        let typed = if self.config.token_types > 0 { batch.tokens() } else { 0 };
        let mut types = self.cx.buffers.take::<u32>("token types", typed);
        for (to, &from) in types.iter_mut().zip(&batch.token_types) {
            *to = u32::from(from);
        }
        (sequence, types)
    }

    fn first_bad_activation(&self, embeddings: &EmbeddingActs, layers: &[LayerActs<T>]) -> String {
        if let Some(param) = self.params.iter().find(|p| !all_finite(&self.weights[p.range.clone()])) {
            return format!("the weight {}", param.name);
        }
        if !all_finite(&embeddings.sum) {
            return "the sum of the embeddings".into();
        }
        for (i, acts) in layers.iter().enumerate() {
            let parts: [(&str, &[f32]); 2] = [("attention", &acts.sum), ("feed-forward", &acts.output_sum)];
            if let Some((part, _)) = parts.into_iter().find(|(_, x)| !all_finite(x)) {
                return format!("the output of the {part} part of encoder layer {i}");
            }
        }
        "the loss".into()
    }
}

fn not_finite(tensor: String, batch: &Batch) -> Error {
    Error::NotFinite {
        tensor,
        samples: batch.sample_index.clone(),
    }
}

fn all_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}

/// Two parts of the gradients at once; the second follows the first.
fn two<'g>(grads: &'g mut [f32], first: &Range<usize>, second: &Range<usize>) -> (&'g mut [f32], &'g mut [f32]) {
    let (front, back) = grads.split_at_mut(second.start);
    (&mut front[first.clone()], &mut back[..second.len()])
}
