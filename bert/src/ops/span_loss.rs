//! The answer head's loss: the mean of two cross-entropies, each over the tokens of one sequence.

use crate::batch::Batch;
use crate::ops::Context;

/// `logits = W x^T + b`. logits `(2, t)`, x `(t, h)`, weight `(2, h)`, bias `(2)`
pub(crate) fn logits_forward(_cx: Context, logits: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) {
    let h = weight.len() / 2;
    let t = x.len() / h;
    for ((logits, weight), bias) in logits.chunks_mut(t).zip(weight.chunks(h)).zip(bias) {
        for (logit, x) in logits.iter_mut().zip(x.chunks(h)) {
            *logit = x.iter().zip(weight).map(|(x, w)| x * w).sum::<f32>() + bias;
        }
    }
}

/// d_x `(t, h)`, d_weight `(2, h)`, d_bias `(2)`, d_logits `(2, t)`
pub(crate) fn logits_backward(
    _cx: Context,
    d_x: &mut [f32],
    d_weight: &mut [f32],
    d_bias: &mut [f32],
    d_logits: &[f32],
    x: &[f32],
    weight: &[f32],
) {
    let h = weight.len() / 2;
    let t = x.len() / h;
    for (i, (d_x, x)) in d_x.chunks_mut(h).zip(x.chunks(h)).enumerate() {
        let (start, end) = (d_logits[i], d_logits[t + i]);
        for c in 0..h {
            d_x[c] = start * weight[c] + end * weight[h + c];
            d_weight[c] += start * x[c];
            d_weight[h + c] += end * x[c];
        }
        d_bias[0] += start;
        d_bias[1] += end;
    }
}

/// Returns the loss of the micro-batch and writes the gradient of `weight` times the loss.
///
/// A label outside its sequence is ignored, and each of the two means is over the sequences that are left; without
/// any, that mean is 0. d_logits, logits `(2, t)`: start, then end.
pub(crate) fn forward_backward(_cx: Context, d_logits: &mut [f32], logits: &[f32], batch: &Batch, weight: f32) -> f32 {
    let t = batch.tokens();
    let mut loss = 0.0;
    for (labels, (d_logits, logits)) in [&batch.starts, &batch.ends]
        .into_iter()
        .zip(d_logits.chunks_mut(t).zip(logits.chunks(t)))
    {
        let counted = |(&label, range): (&u32, &std::ops::Range<usize>)| (label as usize) < range.len();
        let count = labels
            .iter()
            .zip(batch.ranges())
            .filter(|(l, r)| counted((l, r)))
            .count();
        let mut sum = 0.0;
        for (label, range) in labels.iter().zip(batch.ranges()) {
            let (d, x) = (&mut d_logits[range.clone()], &logits[range.clone()]);
            if !counted((label, &range)) {
                d.fill(0.0);
                continue;
            }
            let label = *label as usize;
            let scale = weight / (2 * count) as f32;
            let max = x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
            let total: f32 = x.iter().map(|x| (x - max).exp()).sum();
            sum += total.ln() + max - x[label];
            for (d, x) in d.iter_mut().zip(x) {
                *d = (x - max).exp() / total * scale;
            }
            d[label] -= scale;
        }
        if count > 0 {
            loss += 0.5 * sum / count as f32;
        }
    }
    loss
}
