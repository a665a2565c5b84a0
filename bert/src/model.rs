//! The encoder with its head: forward and backward as straight lists that mirror each other.
//!
//! A micro-batch is `t` tokens without padding. The residual stream is `f32`; what a matrix product reads is rounded
//! once, where it is produced. The backward pass of each part stands below its forward pass; read upwards it is the
//! same list.

use crate::acts::{EmbeddingActs, LayerActs, Stats, Stream, VocabularyActs};
use crate::batch::Batch;
use crate::buffers::{Buf, Buffers};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ops::layer_norm::{Outputs, Saved, Sublayer, SublayerGradients};
use crate::ops::{Context, Tokens, column_sums, embedding, layer_norm, linear, span_loss, try_share, vocabulary_loss};
use crate::params::{Head, HeadRanges, Linear, Norm, Params};
use crate::precision::{Operand, Precision};
use azulejo_amx::attention::{Attention, AttentionSaved, Sequences};
use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::rows::{LayerNormParams, Rows};
use azulejo_amx::{Executor, Gemm, Isa, MatRef};
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
    gemm: Gemm,
    rows: Rows,
    buffers: Buffers,
}

enum Prepared {
    F32(Weights<f32>),
    Bf16(Weights<bf16>),
}

struct Weights<T: Operand> {
    layers: Vec<LayerWeights<T>>,
    vocabulary: Option<VocabularyWeights<T>>,
}

struct LayerWeights<T: Operand> {
    qkv: T::Prepared,  // (3h, h)
    out: T::Prepared,  // (h, h)
    up: T::Prepared,   // (f, h)
    down: T::Prepared, // (h, f)
}

struct VocabularyWeights<T: Operand> {
    dense: T::Prepared, // (h, h)
    words: T::Prepared, // (v, h): the embedding table
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
    /// A model with weights that are all zero; [`update`](Model::update) gives it others. It computes with the best
    /// instruction set of this processor, or the one that the environment variable `AZULEJO_ISA` names.
    pub fn new(config: Config, head: Head, precision: Precision) -> Result<Model> {
        Model::with_isa(config, head, precision, Isa::best()?)
    }

    /// The same with an instruction set of the caller's choice. In either precision it never changes a result.
    pub fn with_isa(config: Config, head: Head, precision: Precision, isa: Isa) -> Result<Model> {
        let params = Params::new(&config, head);
        let weights = vec![0.0; params.total()];
        let prepared = match precision {
            Precision::F32 => Prepared::F32(Weights::new(&config, head)),
            Precision::Bf16 => Prepared::Bf16(Weights::new(&config, head)),
        };
        let (gemm, rows) = (Gemm::with_isa(isa)?, Rows::new(isa)?);
        Ok(Model {
            config,
            params,
            weights,
            prepared,
            gemm,
            rows,
            buffers: Buffers::new(),
        })
    }

    /// The name of the kernel that multiplies matrices.
    pub fn kernel_name(&self) -> &'static str {
        match self.prepared {
            Prepared::F32(_) => self.gemm.f32_kernel_name(),
            Prepared::Bf16(_) => self.gemm.kernel_name(),
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

    /// The row operations of the model's instruction set.
    pub(crate) fn rows(&self) -> Rows {
        self.rows
    }

    /// The pools of scratch memory.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Lets `change` write the weights, then renews what the matrix products read: once for an optimiser step, not
    /// for each micro-batch.
    pub fn update<R>(&mut self, exec: &dyn Executor, change: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
        let result = change(&mut self.weights);
        match &mut self.prepared {
            Prepared::F32(prepared) => prepared.renew(exec, &self.config, &self.params, &self.weights)?,
            Prepared::Bf16(prepared) => prepared.renew(exec, &self.config, &self.params, &self.weights)?,
        }
        Ok(result)
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

    fn pass<'a, T: Operand>(&'a self, exec: &'a dyn Executor, prepared: &'a Weights<T>) -> Pass<'a, T> {
        Pass {
            cx: Context {
                exec,
                gemm: self.gemm,
                rows: self.rows,
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
            qkv: T::prepared(3 * h, h),
            out: T::prepared(h, h),
            up: T::prepared(f, h),
            down: T::prepared(h, f),
        };
        let vocabulary = (head == Head::MaskedLanguage).then(|| VocabularyWeights {
            dense: T::prepared(h, h),
            words: T::prepared(config.vocabulary, h),
        });
        Weights {
            layers: (0..config.layers).map(layer).collect(),
            vocabulary,
        }
    }

    /// Prepares every weight again.
    fn renew(&mut self, exec: &dyn Executor, config: &Config, params: &Params, weights: &[f32]) -> Result<()> {
        let (h, f) = (config.hidden, config.intermediate);
        let layers = self.layers.iter_mut().zip(&params.layers).flat_map(|(to, at)| {
            [
                (&mut to.qkv, &at.qkv.weight, h),
                (&mut to.out, &at.out.weight, h),
                (&mut to.up, &at.up.weight, h),
                (&mut to.down, &at.down.weight, f),
            ]
        });
        let head = match (&mut self.vocabulary, &params.head_ranges) {
            (Some(to), HeadRanges::MaskedLanguage { dense, .. }) => Some([
                (&mut to.dense, &dense.weight, h),
                (&mut to.words, &params.embeddings.words, h),
            ]),
            _ => None,
        };
        try_share(exec, layers.chain(head.into_iter().flatten()), |(to, from, k)| {
            T::prepare(to, MatRef::row_major(&weights[from.clone()], from.len() / k, k)?)
        })
    }
}

/// One forward, or one forward and backward, of one model in one precision.
struct Pass<'a, T: Operand> {
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
        let (ids, token_types) = self.token_rows(batch);
        let input = Input {
            batch,
            tokens: Tokens { ids: &ids },
            token_types: &token_types,
            step: None,
        };
        let (mut x, _) = self.embed(input);
        for layer in 0..self.config.layers {
            (x, _) = self.layer_forward(layer, x, input)?;
        }
        let span = self.span();
        let mut logits = vec![0.0; 2 * batch.tokens()]; // (2, t)
        span_loss::logits_forward(self.cx, &mut logits, &x.x, self.of(&span.weight), self.of(&span.bias))?;
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
        let (ids, token_types) = self.token_rows(batch);
        let input = Input {
            batch,
            tokens: Tokens { ids: &ids },
            token_types: &token_types,
            step: Some(step),
        };

        let (mut x, embedding_acts) = self.embed(input);
        let mut layers = Vec::with_capacity(self.config.layers);
        for layer in 0..self.config.layers {
            let acts;
            (x, acts) = self.layer_forward(layer, x, input)?;
            layers.push(acts);
        }
        let (loss, mut d_x) = match targets {
            None => self.span_head(grads, x, input, step.weight)?,
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
            d_x = self.layer_backward(layer, grads, d_x, acts, input)?;
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
            stats: self.stats(t),
        };
        let mut x = self.stream(t);

        let words = (self.of(&at.words), &input.batch.ids[..]);
        let positions = (self.of(&at.positions), &input.batch.positions[..]);
        match &at.token_types {
            None => embedding::sum_forward(self.cx, &mut acts.sum, &[words, positions], h),
            Some(types) => {
                let types = (self.of(types), input.token_types);
                embedding::sum_forward(self.cx, &mut acts.sum, &[words, positions, types], h);
            }
        }
        let dropout = input.dropout(self.config.hidden_dropout, 0, Site::Whole);
        let out = outputs(&mut x, &mut acts.stats);
        embedding::norm_forward(self.cx, out, &acts.sum, self.norm(&at.norm), dropout, input.tokens);
        (x, acts)
    }

    fn embed_backward(&self, grads: &mut [f32], mut d_x: Buf<f32>, acts: EmbeddingActs, input: Input) {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let at = &self.params.embeddings;
        let mut d_sum = self.take("d embedding sum", t * h);

        let dropout = input.dropout(self.config.hidden_dropout, 0, Site::Whole);
        let (d_gamma, d_beta) = two(grads, &at.norm.weight, &at.norm.bias);
        let saved = self.saved(&acts.sum, &acts.stats, &at.norm);
        embedding::norm_backward(
            self.cx,
            &mut d_sum,
            d_gamma,
            d_beta,
            &mut d_x,
            saved,
            dropout,
            input.tokens,
        );
        if let Some(types) = &at.token_types {
            embedding::sum_backward(self.cx, &mut grads[types.clone()], &d_sum, input.token_types, None, h);
        }
        embedding::sum_backward(
            self.cx,
            &mut grads[at.positions.clone()],
            &d_sum,
            &input.batch.positions,
            None,
            h,
        );
        let padding = Some(self.config.padding_id);
        embedding::sum_backward(
            self.cx,
            &mut grads[at.words.clone()],
            &d_sum,
            &input.batch.ids,
            padding,
            h,
        );
    }

    // An encoder layer: attention with its residual and LayerNorm, feed-forward with its residual and LayerNorm.

    fn layer_forward(
        &self,
        layer: usize,
        input_x: Stream<'a, T>,
        input: Input,
    ) -> Result<(Stream<'a, T>, LayerActs<'a, T>)> {
        let (cx, c, at) = (self.cx, self.config, &self.params.layers[layer]);
        let (t, h, f) = (input.batch.tokens(), c.hidden, c.intermediate);
        let weight = &self.prepared.layers[layer];
        let (masks, attention) = (self.dropouts(layer, input), Attention::new(cx.gemm));

        let Stream {
            x: residual,
            rounded: x,
        } = input_x;
        let mut qkv = self.operand("query, key, value", t * 3 * h);
        let mut lse = self.take("attention statistics", t * c.heads);
        let mut context = self.operand("attention output", t * h);
        let mut sum = self.take("attention sum", t * h);
        let mut stats = self.stats(t);
        let mut middle = self.stream(t);
        linear::forward_rounded(cx, &mut qkv, &x, &self.linear(&at.qkv, &weight.qkv))?;
        let sequences = self.sequences(input, masks.probabilities);
        attention.forward(
            cx.exec,
            &mut context,
            &mut lse,
            &qkv,
            sequences,
            &mut cx.buffers.attention(),
        )?;
        linear::forward_without_bias(cx, &mut sum, &context, &self.linear(&at.out, &weight.out))?;
        let branch = self.sublayer(&at.out, &residual, masks.attention, input);
        let out = outputs(&mut middle, &mut stats);
        layer_norm::forward_sublayer(cx, out, &mut sum, branch, self.norm(&at.attention_norm));
        drop(residual);

        let Stream {
            x: residual,
            rounded: middle,
        } = middle;
        let mut u = self.operand("before GELU", t * f);
        let mut g = self.operand("after GELU", t * f);
        let mut output_sum = self.take("output sum", t * h);
        let mut output_stats = self.stats(t);
        let mut y = self.stream(t);
        linear::forward_gelu(cx, &mut g, &mut u, &middle, &self.linear(&at.up, &weight.up))?;
        linear::forward_without_bias(cx, &mut output_sum, &g, &self.linear(&at.down, &weight.down))?;
        let branch = self.sublayer(&at.down, &residual, masks.feed_forward, input);
        let out = outputs(&mut y, &mut output_stats);
        layer_norm::forward_sublayer(cx, out, &mut output_sum, branch, self.norm(&at.output_norm));

        Ok((
            y,
            LayerActs {
                x,
                qkv,
                lse,
                context,
                sum,
                stats,
                middle,
                u,
                g,
                output_sum,
                output_stats,
            },
        ))
    }

    fn layer_backward(
        &self,
        layer: usize,
        grads: &mut [f32],
        d_y: Buf<'a, f32>,
        acts: LayerActs<T>,
        input: Input,
    ) -> Result<Buf<'a, f32>> {
        let (cx, c, at) = (self.cx, self.config, &self.params.layers[layer]);
        let (t, h, f) = (input.batch.tokens(), c.hidden, c.intermediate);
        let weight = &self.prepared.layers[layer];
        let (masks, attention) = (self.dropouts(layer, input), Attention::new(cx.gemm));

        let mut d_sum = self.take("d sum", t * h);
        let mut d_branch = self.operand("d branch", t * h);
        let mut d_u = self.operand("d before GELU", t * f);
        let mut d_middle = d_y;
        let saved = self.saved(&acts.output_sum, &acts.output_stats, &at.output_norm);
        let gradients = sublayer_gradients(grads, &at.down, &at.output_norm);
        layer_norm::backward_sublayer(
            cx,
            &mut d_sum,
            &mut d_branch,
            gradients,
            &d_middle,
            saved,
            masks.feed_forward,
            input.tokens,
        );
        linear::backward_input_gelu(cx, &mut d_u, &d_branch, &self.linear(&at.down, &weight.down), &acts.u)?;
        linear::backward_weight(cx, &mut grads[at.down.weight.clone()], &d_branch, &acts.g, h)?;
        linear::backward_input(cx, &mut d_middle, &d_u, &self.linear(&at.up, &weight.up), Some(&d_sum))?;
        let (d_weight, d_bias) = two(grads, &at.up.weight, &at.up.bias);
        linear::backward_parameters(cx, d_weight, d_bias, &d_u, &acts.middle)?;
        drop(d_u);

        let mut d_context = self.operand("d attention output", t * h);
        let mut d_qkv = self.operand("d query, key, value", t * 3 * h);
        let saved = self.saved(&acts.sum, &acts.stats, &at.attention_norm);
        let gradients = sublayer_gradients(grads, &at.out, &at.attention_norm);
        layer_norm::backward_sublayer(
            cx,
            &mut d_sum,
            &mut d_branch,
            gradients,
            &d_middle,
            saved,
            masks.attention,
            input.tokens,
        );
        linear::backward_input_rounded(cx, &mut d_context, &d_branch, &self.linear(&at.out, &weight.out))?;
        linear::backward_weight(cx, &mut grads[at.out.weight.clone()], &d_branch, &acts.context, h)?;
        let saved = AttentionSaved {
            out: &acts.context,
            lse: &acts.lse,
            qkv: &acts.qkv,
        };
        let sequences = self.sequences(input, masks.probabilities);
        attention.backward(
            cx.exec,
            &mut d_qkv,
            &d_context,
            saved,
            sequences,
            &mut cx.buffers.attention(),
        )?;
        let mut d_x = d_middle;
        linear::backward_input(cx, &mut d_x, &d_qkv, &self.linear(&at.qkv, &weight.qkv), Some(&d_sum))?;
        let (d_weight, d_bias) = two(grads, &at.qkv.weight, &at.qkv.bias);
        linear::backward_parameters(cx, d_weight, d_bias, &d_qkv, &acts.x)?;
        Ok(d_x)
    }

    // The answer head: two logits a token, and their loss.

    fn span_head(&self, grads: &mut [f32], x: Stream<'a, T>, input: Input, weight: f32) -> Result<(f32, Buf<'a, f32>)> {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let (cx, at) = (self.cx, self.span());
        let mut x = x.x;
        let mut logits = self.take("logits", 2 * t);
        let mut d_logits = self.take("d logits", 2 * t);
        let mut d_x = self.take("d encoder output", t * h);
        let dropout = input.dropout(self.config.head_dropout, self.config.layers + 1, Site::Whole);

        embedding::drop_rows(cx, &mut x, dropout, input.tokens, h);
        span_loss::logits_forward(cx, &mut logits, &x, self.of(&at.weight), self.of(&at.bias))?;
        let loss = span_loss::loss_forward_backward(cx, &mut d_logits, &logits, input.batch, weight);
        let (d_weight, d_bias) = two(grads, &at.weight, &at.bias);
        span_loss::logits_backward(cx, &mut d_x, d_weight, d_bias, &d_logits, &x, self.of(&at.weight))?;
        embedding::drop_rows(cx, &mut d_x, dropout, input.tokens, h);
        Ok((loss, d_x))
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

        let table = &self.params.embeddings.words;
        let words = linear::Layer {
            weight: self.of(table),
            bias: self.of(decoder_bias),
            prepared: &prepared.words,
        };
        let dense_layer = self.linear(dense, &prepared.dense);
        let mut acts = VocabularyActs {
            x: self.operand("masked tokens", m * h),
            u: self.take("masked before GELU", m * h),
            g: self.take("masked after GELU", m * h),
            stats: self.stats(m),
            y: self.operand("masked after LayerNorm", m * h),
        };
        let mut y = self.take("masked after LayerNorm", m * h);
        let mut logits = self.take("vocabulary logits", m * v);
        for (to, &(place, _)) in acts.x.chunks_mut(h).zip(targets) {
            to.copy_from_slice(&x.rounded[place * h..][..h]);
        }
        linear::forward(cx, &mut acts.u, &acts.x, &dense_layer)?;
        vocabulary_loss::gelu_forward(cx, &mut acts.g, &acts.u, h);
        let Stats { mean, rstd } = &mut acts.stats;
        let out = Outputs {
            y: &mut y,
            rounded: &mut acts.y,
            mean,
            rstd,
        };
        layer_norm::forward(cx, out, &acts.g, self.norm(norm));
        linear::forward(cx, &mut logits, &acts.y, &words)?;

        let mut d_logits = self.operand("d vocabulary logits", m * v);
        let loss = vocabulary_loss::loss_forward_backward(cx, &mut d_logits, &logits, targets, weight);

        let mut d_y = y;
        let mut d_g = self.take("d masked after GELU", m * h);
        let mut d_u = self.operand("d masked before GELU", m * h);
        let mut d_masked = self.take("d masked tokens", m * h);
        let mut d_x = self.take("d encoder output", t * h);
        linear::backward_weight(cx, &mut grads[table.clone()], &d_logits, &acts.y, v)?;
        column_sums::add(cx, &mut grads[decoder_bias.clone()], &d_logits);
        linear::backward_input(cx, &mut d_y, &d_logits, &words, None)?;
        let (d_gamma, d_beta) = two(grads, &norm.weight, &norm.bias);
        layer_norm::backward(
            cx,
            &mut d_g,
            d_gamma,
            d_beta,
            &d_y,
            self.saved(&acts.g, &acts.stats, norm),
        );
        vocabulary_loss::gelu_backward(cx, &mut d_u, &d_g, &acts.u, h);
        linear::backward_input(cx, &mut d_masked, &d_u, &dense_layer, None)?;
        let (d_weight, d_bias) = two(grads, &dense.weight, &dense.bias);
        linear::backward_parameters(cx, d_weight, d_bias, &d_u, &acts.x)?;
        d_x.fill(0.0);
        for (d, &(place, _)) in d_masked.chunks(h).zip(targets) {
            cx.rows.add(&mut d_x[place * h..][..h], d);
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

    fn linear<'w>(&'w self, at: &Linear, prepared: &'w T::Prepared) -> linear::Layer<'w, T> {
        linear::Layer {
            weight: self.of(&at.weight),
            bias: self.of(&at.bias),
            prepared,
        }
    }

    fn norm(&self, at: &Norm) -> LayerNormParams<'a> {
        LayerNormParams {
            gamma: self.of(&at.weight),
            beta: self.of(&at.bias),
            eps: self.config.layer_norm_eps,
        }
    }

    fn saved<'s>(&'s self, x: &'s [f32], stats: &'s Stats, at: &Norm) -> Saved<'s> {
        Saved {
            x,
            mean: &stats.mean,
            rstd: &stats.rstd,
            gamma: self.of(&at.weight),
        }
    }

    fn sublayer<'s>(
        &'s self,
        branch: &Linear,
        residual: &'s [f32],
        dropout: Option<Dropout>,
        input: Input<'s>,
    ) -> Sublayer<'s> {
        Sublayer {
            bias: self.of(&branch.bias),
            residual,
            dropout,
            tokens: input.tokens,
        }
    }

    fn sequences<'s>(&self, input: Input<'s>, dropout: Option<Dropout>) -> Sequences<'s> {
        Sequences {
            heads: self.config.heads,
            width: self.config.head_width(),
            cu_seqlens: &input.batch.cu_seqlens,
            dropout: dropout.map(|dropout| (dropout, &input.batch.sample_index[..])),
        }
    }

    fn dropouts(&self, layer: usize, input: Input) -> LayerDropouts {
        let (c, layer) = (self.config, layer + 1);
        LayerDropouts {
            probabilities: input.dropout(c.attention_dropout, layer, Site::Probabilities),
            attention: input.dropout(c.attention_output_dropout(), layer, Site::AttentionOutput),
            feed_forward: input.dropout(c.hidden_dropout, layer, Site::FeedForwardOutput),
        }
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

    fn stats(&self, t: usize) -> Stats<'a> {
        Stats {
            mean: self.take("means", t),
            rstd: self.take("deviations", t),
        }
    }

    /// The mask address of each token, and its token type as a table row (empty without token types). `(t)` each
    fn token_rows(&self, batch: &Batch) -> (Buf<'a, RowId>, Buf<'a, u32>) {
        let mut ids = self.cx.buffers.take::<RowId>("mask addresses", batch.tokens());
        for (range, &sample) in batch.ranges().zip(&batch.sample_index) {
            for (row, id) in ids[range].iter_mut().enumerate() {
                *id = RowId {
                    sample,
                    row: row as u32,
                };
            }
        }
        let typed = if self.config.token_types > 0 { batch.tokens() } else { 0 };
        let mut types = self.cx.buffers.take::<u32>("token types", typed);
        for (to, &from) in types.iter_mut().zip(&batch.token_types) {
            *to = u32::from(from);
        }
        (ids, types)
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

/// The dropouts of an encoder layer.
struct LayerDropouts {
    probabilities: Option<Dropout>,
    attention: Option<Dropout>,
    feed_forward: Option<Dropout>,
}

/// Where a LayerNorm writes.
fn outputs<'s, T: Operand>(y: &'s mut Stream<T>, stats: &'s mut Stats) -> Outputs<'s, T> {
    Outputs {
        y: &mut y.x,
        rounded: &mut y.rounded,
        mean: &mut stats.mean,
        rstd: &mut stats.rstd,
    }
}

/// The gradients that a sublayer's end adds to: its last bias, which the LayerNorm follows in the table.
fn sublayer_gradients<'g>(grads: &'g mut [f32], branch: &Linear, norm: &Norm) -> SublayerGradients<'g> {
    let (front, back) = grads.split_at_mut(norm.weight.start);
    let (d_gamma, d_beta) = back[..norm.weight.len() + norm.bias.len()].split_at_mut(norm.weight.len());
    SublayerGradients {
        d_gamma,
        d_beta,
        d_bias: &mut front[branch.bias.clone()],
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
