//! The answer head: two logits a token, and the mean of two cross-entropies, each over the tokens of one sequence.

use crate::batch::Batch;
use crate::error::Result;
use crate::ops::linear::{dense, dense_mut};
use crate::ops::{Context, column_sums};
use azulejo_amx::{Epilogue, Out};

/// `logits = W x^T + b`. logits `(2, t)`, x `(t, h)`, weight `(2, h)`, bias `(2)`
pub(crate) fn logits_forward(cx: Context, logits: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) -> Result<()> {
    let h = weight.len() / 2;
    let t = x.len() / h;
    let mut pairs = cx.take::<f32>("pairs of logits", 2 * t)?; // (t, 2)
    let out = Out::f32(dense_mut(&mut pairs, 2)?);
    let epilogue = Epilogue {
        bias: Some(bias),
        ..Default::default()
    };
    let (x, weight) = (dense(x, h)?, dense(weight, h)?);
    cx.with_scratch(|scratch| cx.gemm.f32(cx.exec, out, x, weight.t(), epilogue, scratch))?;
    let (start, end) = logits.split_at_mut(t);
    for ((pair, start), end) in pairs.chunks(2).zip(start).zip(end) {
        (*start, *end) = (pair[0], pair[1]);
    }
    Ok(())
}

/// d_x `(t, h)`, d_weight `(2, h)`, d_bias `(2)`, d_logits `(2, t)`, x `(t, h)`, weight `(2, h)`
pub(crate) fn logits_backward(
    cx: Context,
    d_x: &mut [f32],
    d_weight: &mut [f32],
    d_bias: &mut [f32],
    d_logits: &[f32],
    x: &[f32],
    weight: &[f32],
) -> Result<()> {
    let h = weight.len() / 2;
    let t = x.len() / h;
    let mut pairs = cx.take::<f32>("pairs of logits", 2 * t)?; // (t, 2)
    for (pair, (start, end)) in pairs.chunks_mut(2).zip(d_logits[..t].iter().zip(&d_logits[t..])) {
        pair.copy_from_slice(&[*start, *end]);
    }
    column_sums::add::<f32>(cx, d_bias, &pairs)?;
    let (d_y, x, weight) = (dense(&pairs, 2)?, dense(x, h)?, dense(weight, h)?);
    let (d_x, d_weight) = (Out::f32(dense_mut(d_x, h)?), Out::add_f32(dense_mut(d_weight, h)?));
    cx.with_scratch(|scratch| {
        cx.gemm
            .f32(cx.exec, d_weight, d_y.t(), x, Epilogue::default(), scratch)?;
        cx.gemm.f32(cx.exec, d_x, d_y, weight, Epilogue::default(), scratch)
    })?;
    Ok(())
}

/// Returns the loss of the micro-batch and writes the gradient of `weight` times the loss.
///
/// The softmax is over the sequence's own tokens. A label outside its sequence is ignored, and each of the two means is
/// over the sequences that are left; without any, that mean is 0. d_logits, logits `(2, t)`: start, then end.
pub(crate) fn loss_forward_backward(
    cx: Context,
    d_logits: &mut [f32],
    logits: &[f32],
    batch: &Batch,
    weight: f32,
) -> f32 {
    let t = batch.tokens();
    let mut loss = 0.0;
    let halves = d_logits.chunks_mut(t).zip(logits.chunks(t));
    for (labels, (d_logits, logits)) in [&batch.starts, &batch.ends].into_iter().zip(halves) {
        let labels = || labels.iter().map(|&label| label as usize).zip(batch.ranges());
        let count = labels().filter(|(label, range)| *label < range.len()).count();
        let scale = weight / (2 * count) as f32;
        let mut sum = 0.0;
        for (label, range) in labels() {
            let (d_logits, logits) = (&mut d_logits[range.clone()], &logits[range]);
            if label < logits.len() {
                sum += cx.rows.cross_entropy_row(Some(d_logits), logits, label, scale);
            } else {
                d_logits.fill(0.0);
            }
        }
        if count > 0 {
            loss += 0.5 * sum / count as f32;
        }
    }
    loss
}
