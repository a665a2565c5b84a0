//! What stands on top of the encoder: each head computes its loss and the gradient of the encoder's output at once.

use super::pass::{Input, Pass, Site, two};
use crate::acts::{Stats, Stream, VocabularyActs};
use crate::error::{Error, Result};
use crate::ops::layer_norm::Outputs;
use crate::ops::{column_sums, embedding, layer_norm, linear, span_loss, vocabulary_loss};
use crate::params::HeadRanges;
use crate::precision::Operand;
use azulejo_allocator::Lease;

impl<T: Operand> Pass<'_, T> {
    // The answer head: two logits a token, and their loss.

    pub(super) fn span_head(
        &self,
        grads: &mut [f32],
        x: Stream<T>,
        input: Input,
        weight: f32,
    ) -> Result<(f32, Lease<f32>)> {
        let (t, h) = (input.batch.tokens(), self.config.hidden);
        let (cx, at) = (self.cx, self.span());
        let mut x = x.x;
        let mut logits = self.take("logits", 2 * t)?;
        let mut d_logits = self.take("d logits", 2 * t)?;
        let mut d_x = self.take("d encoder output", t * h)?;
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

    pub(super) fn vocabulary_head(
        &self,
        grads: &mut [f32],
        x: Stream<T>,
        targets: &[(usize, u32)],
        input: Input,
        weight: f32,
    ) -> Result<(f32, Lease<f32>)> {
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
            x: self.operand("masked tokens", m * h)?,
            u: self.take("masked before GELU", m * h)?,
            g: self.take("masked after GELU", m * h)?,
            stats: self.stats(m)?,
            y: self.operand("masked after LayerNorm", m * h)?,
        };
        let mut y = self.take("masked after LayerNorm", m * h)?;
        let mut logits = self.take("vocabulary logits", m * v)?;
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

        let mut d_logits = self.operand("d vocabulary logits", m * v)?;
        let loss = vocabulary_loss::loss_forward_backward(cx, &mut d_logits, &logits, targets, weight)?;

        let mut d_y = y;
        let mut d_g = self.take("d masked after GELU", m * h)?;
        let mut d_u = self.operand("d masked before GELU", m * h)?;
        let mut d_masked = self.take("d masked tokens", m * h)?;
        let mut d_x = self.take("d encoder output", t * h)?;
        linear::backward_weight(cx, &mut grads[table.clone()], &d_logits, &acts.y, v)?;
        column_sums::add(cx, &mut grads[decoder_bias.clone()], &d_logits)?;
        linear::backward_input(cx, &mut d_y, &d_logits, &words, None)?;
        let (d_gamma, d_beta) = two(grads, &norm.weight, &norm.bias);
        layer_norm::backward(
            cx,
            &mut d_g,
            d_gamma,
            d_beta,
            &d_y,
            self.saved(&acts.g, &acts.stats, norm),
        )?;
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
}
