//! The encoder: forward and backward as straight lists that mirror each other.
//!
//! A micro-batch is `t` tokens without padding. The residual stream is `f32`; what a matrix product reads is rounded
//! once, where it is produced. The backward pass of each part stands below its forward pass; read upwards it is the
//! same list.

use super::{CustomObjective, Logits, OnReady, Step, Weights};
use crate::acts::{EmbeddingActs, LayerActs, Stats, Stream};
use crate::batch::Batch;
use crate::buffers::Loan;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ops::layer_norm::{Outputs, Saved, Sublayer, SublayerGradients};
use crate::ops::{Context, Tokens, embedding, layer_norm, linear, span_loss};
use crate::params::{HeadRanges, Linear, Norm, Params};
use crate::precision::Operand;
use azulejo_allocator::Lease;
use azulejo_amx::attention::{Attention, AttentionSaved, Sequences};
use azulejo_amx::rng::{Dropout, RowId};
use azulejo_amx::rows::LayerNormParams;
use std::ops::Range;

/// One forward, or one forward and backward, of one model in one precision.
pub(super) struct Pass<'a, T: Operand> {
    pub(super) cx: Context<'a>,
    pub(super) config: &'a Config,
    pub(super) params: &'a Params,
    pub(super) weights: &'a [f32],
    pub(super) prepared: &'a Weights<T>,
}

/// What the loss of a micro-batch is about.
pub(super) enum Objective<'a, 'b> {
    Span,
    Vocabulary(&'a [(usize, u32)]),
    Custom(&'a mut CustomObjective<'b>),
}

/// A micro-batch during a pass.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) batch: &'a Batch,
    pub(super) tokens: Tokens<'a>,
    step: Option<Step>, // none: no dropout
}

impl Input<'_> {
    /// The dropout of one place. Layer 0 is the embeddings, layer i + 1 the encoder's layer i, the last one the head.
    pub(super) fn dropout(&self, rate: f32, layer: usize, site: Site) -> Option<Dropout> {
        let step = self.step.filter(|_| rate > 0.0)?;
        Dropout::new(rate, step.seed, step.step, layer as u32, site as u32)
    }
}

/// The places of dropout in a layer.
#[derive(Clone, Copy)]
pub(super) enum Site {
    Whole = 0,
    Probabilities = 1,
    AttentionOutput = 2,
    FeedForwardOutput = 3,
}

impl<'a, T: Operand> Pass<'a, T> {
    pub(super) fn logits(&self, batch: &Batch, logits: &mut Logits) -> Result<()> {
        batch.check(self.config)?;
        let ids = self.row_ids(batch);
        let input = Input {
            batch,
            tokens: Tokens { ids: &ids },
            step: None,
        };
        let (mut x, _) = self.embed(input)?;
        for layer in 0..self.config.layers {
            (x, _) = self.layer_forward(layer, x, input)?;
        }
        let (span, t) = (self.span(), batch.tokens());
        let mut both = self.take("logits", 2 * t)?; // (2, t)
        span_loss::logits_forward(self.cx, &mut both, &x.x, self.of(&span.weight), self.of(&span.bias))?;
        let (start, end) = both.split_at(t);
        for (to, from) in [(&mut logits.start, start), (&mut logits.end, end)] {
            to.clear();
            to.extend_from_slice(from);
        }
        Ok(())
    }

    pub(super) fn train(
        &self,
        batch: &Batch,
        objective: Objective,
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
        let ids = self.row_ids(batch);
        let input = Input {
            batch,
            tokens: Tokens { ids: &ids },
            step: Some(step),
        };

        let (mut x, embedding_acts) = self.embed(input)?;
        let mut layers = self.prepared.no_acts();
        for layer in 0..self.config.layers {
            let acts;
            (x, acts) = self.layer_forward(layer, x, input)?;
            layers.push(acts);
        }
        let (loss, mut d_x) = match objective {
            Objective::Span => self.span_head(grads, x, input, step.weight)?,
            Objective::Vocabulary(targets) => self.vocabulary_head(grads, x, targets, input, step.weight)?,
            Objective::Custom(objective) => {
                let mut d_x = self.take("d encoder output", x.x.len())?;
                d_x.fill(0.0);
                (objective(&x.x, &mut d_x), d_x)
            }
        };
        if !loss.is_finite() {
            return Err(not_finite(self.first_bad_activation(&embedding_acts, &layers), batch));
        }
        let mut ready = self.params.total();
        for (layer, acts) in layers.drain(..).enumerate().rev() {
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
        self.embed_backward(grads, d_x, embedding_acts, input)?;
        on_ready(0..first, grads);
        self.prepared.keep_acts(layers);
        Ok(loss)
    }

    // Embeddings: sum of table rows, LayerNorm, dropout.

    fn embed(&self, input: Input) -> Result<(Stream<T>, EmbeddingActs)> {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let at = &self.params.embeddings;
        let mut acts = EmbeddingActs {
            sum: self.take("embedding sum", t * h)?,
            stats: self.stats(t)?,
        };
        let mut x = self.stream(t)?;

        let words = (self.of(&at.words), &input.batch.ids[..]);
        let positions = (self.of(&at.positions), &input.batch.positions[..]);
        match &at.token_types {
            None => embedding::sum_forward(self.cx, &mut acts.sum, &[words, positions], h),
            Some(types) => {
                let rows = self.type_rows(input.batch)?;
                let types = (self.of(types), &rows[..]);
                embedding::sum_forward(self.cx, &mut acts.sum, &[words, positions, types], h);
            }
        }
        let dropout = input.dropout(self.config.hidden_dropout, 0, Site::Whole);
        let out = outputs(&mut x, &mut acts.stats);
        embedding::norm_forward(self.cx, out, &acts.sum, self.norm(&at.norm), dropout, input.tokens);
        Ok((x, acts))
    }

    fn embed_backward(&self, grads: &mut [f32], mut d_x: Lease<f32>, acts: EmbeddingActs, input: Input) -> Result<()> {
        let (cx, t, h) = (self.cx, input.batch.tokens(), self.config.hidden);
        let at = &self.params.embeddings;
        let mut d_sum = self.take("d embedding sum", t * h)?;

        let dropout = input.dropout(self.config.hidden_dropout, 0, Site::Whole);
        let (d_gamma, d_beta) = two(grads, &at.norm.weight, &at.norm.bias);
        let saved = self.saved(&acts.sum, &acts.stats, &at.norm);
        embedding::norm_backward(cx, &mut d_sum, d_gamma, d_beta, &mut d_x, saved, dropout, input.tokens)?;
        if let Some(types) = &at.token_types {
            let rows = self.type_rows(input.batch)?;
            embedding::sum_backward(cx, &mut grads[types.clone()], &d_sum, &rows, None, h)?;
        }
        let positions = &input.batch.positions;
        embedding::sum_backward(cx, &mut grads[at.positions.clone()], &d_sum, positions, None, h)?;
        let padding = Some(self.config.padding_id);
        embedding::sum_backward(cx, &mut grads[at.words.clone()], &d_sum, &input.batch.ids, padding, h)
    }

    // An encoder layer: attention with its residual and LayerNorm, feed-forward with its residual and LayerNorm.

    fn layer_forward(&self, layer: usize, input_x: Stream<T>, input: Input) -> Result<(Stream<T>, LayerActs<T>)> {
        let (cx, c, at) = (self.cx, self.config, &self.params.layers[layer]);
        let (t, h, f) = (input.batch.tokens(), c.hidden, c.intermediate);
        let weight = &self.prepared.layers[layer];
        let (masks, attention) = (self.dropouts(layer, input), Attention::new(cx.gemm));

        let Stream {
            x: residual,
            rounded: x,
        } = input_x;
        let mut qkv = self.operand("query, key, value", t * 3 * h)?;
        let mut lse = self.take("attention statistics", t * c.heads)?;
        let mut context = self.operand("attention output", t * h)?;
        let mut sum = self.take("attention sum", t * h)?;
        let mut stats = self.stats(t)?;
        let mut middle = self.stream(t)?;
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
        let mut u = self.operand("before GELU", t * f)?;
        let mut g = self.operand("after GELU", t * f)?;
        let mut output_sum = self.take("output sum", t * h)?;
        let mut output_stats = self.stats(t)?;
        let mut y = self.stream(t)?;
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
        d_y: Lease<f32>,
        acts: LayerActs<T>,
        input: Input,
    ) -> Result<Lease<f32>> {
        let (cx, c, at) = (self.cx, self.config, &self.params.layers[layer]);
        let (t, h, f) = (input.batch.tokens(), c.hidden, c.intermediate);
        let weight = &self.prepared.layers[layer];
        let (masks, attention) = (self.dropouts(layer, input), Attention::new(cx.gemm));

        let mut d_sum = self.take("d sum", t * h)?;
        let mut d_branch = self.operand("d branch", t * h)?;
        let mut d_u = self.operand("d before GELU", t * f)?;
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
        )?;
        linear::backward_input_gelu(cx, &mut d_u, &d_branch, &self.linear(&at.down, &weight.down), &acts.u)?;
        linear::backward_weight(cx, &mut grads[at.down.weight.clone()], &d_branch, &acts.g, h)?;
        linear::backward_input(cx, &mut d_middle, &d_u, &self.linear(&at.up, &weight.up), Some(&d_sum))?;
        let (d_weight, d_bias) = two(grads, &at.up.weight, &at.up.bias);
        linear::backward_parameters(cx, d_weight, d_bias, &d_u, &acts.middle)?;
        drop(d_u);

        let mut d_context = self.operand("d attention output", t * h)?;
        let mut d_qkv = self.operand("d query, key, value", t * 3 * h)?;
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
        )?;
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

    // Small things.

    /// A parameter's values.
    pub(super) fn of(&self, range: &Range<usize>) -> &'a [f32] {
        &self.weights[range.clone()]
    }

    pub(super) fn span(&self) -> &'a Linear {
        match &self.params.head_ranges {
            HeadRanges::QuestionAnswering { span } => span,
            HeadRanges::MaskedLanguage { .. } => unreachable!("the public door checks the head"),
        }
    }

    pub(super) fn linear<'w>(&'w self, at: &Linear, prepared: &'w T::Prepared) -> linear::Layer<'w, T> {
        linear::Layer {
            weight: self.of(&at.weight),
            bias: self.of(&at.bias),
            prepared,
        }
    }

    pub(super) fn norm(&self, at: &Norm) -> LayerNormParams<'a> {
        LayerNormParams {
            gamma: self.of(&at.weight),
            beta: self.of(&at.bias),
            eps: self.config.layer_norm_eps,
        }
    }

    pub(super) fn saved<'s>(&'s self, x: &'s [f32], stats: &'s Stats, at: &Norm) -> Saved<'s> {
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

    pub(super) fn take(&self, name: &'static str, len: usize) -> Result<Lease<f32>> {
        self.cx.take(name, len)
    }

    pub(super) fn operand(&self, name: &'static str, len: usize) -> Result<Lease<T>> {
        self.cx.take(name, len)
    }

    fn stream(&self, t: usize) -> Result<Stream<T>> {
        let len = t * self.config.hidden;
        Ok(Stream {
            x: self.take("residual stream", len)?,
            rounded: self.operand("residual stream, rounded", len)?,
        })
    }

    pub(super) fn stats(&self, t: usize) -> Result<Stats> {
        Ok(Stats {
            mean: self.take("means", t)?,
            rstd: self.take("deviations", t)?,
        })
    }

    /// The address of each token's dropout masks. `(t)`
    fn row_ids(&self, batch: &Batch) -> Loan<'a, Vec<RowId>> {
        let mut ids = self.cx.buffers.rows();
        ids.clear();
        for (range, &sample) in batch.ranges().zip(&batch.sample_index) {
            ids.extend((0..range.len() as u32).map(|row| RowId { sample, row }));
        }
        ids
    }

    /// The token types as rows of their table. `(t)`
    fn type_rows(&self, batch: &Batch) -> Result<Lease<u32>> {
        let mut rows = self.cx.take("token types", batch.tokens())?;
        for (to, &from) in rows.iter_mut().zip(&batch.token_types) {
            *to = u32::from(from);
        }
        Ok(rows)
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
pub(super) fn two<'g>(
    grads: &'g mut [f32],
    first: &Range<usize>,
    second: &Range<usize>,
) -> (&'g mut [f32], &'g mut [f32]) {
    let (front, back) = grads.split_at_mut(second.start);
    (&mut front[first.clone()], &mut back[..second.len()])
}
