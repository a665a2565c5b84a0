//! The masked language model's loss: the mean cross-entropy over the chosen tokens.

use crate::ops::{Context, share};

/// Returns the mean loss and replaces the logits by the gradient of `weight` times it.
/// logits `(m, v)`, targets `(m)`
pub(crate) fn forward_backward(
    cx: Context,
    logits: &mut [f32],
    targets: &[(usize, u32)],
    v: usize,
    weight: f32,
) -> f32 {
    let mut losses = cx.buffers.take::<f32>("losses of masked tokens", targets.len());
    let scale = weight / targets.len() as f32;
    share(
        cx.exec,
        logits.chunks_mut(v).zip(&mut losses[..]).zip(targets),
        |((row, loss), &(_, target))| {
            let max = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
            let total: f32 = row.iter().map(|x| (x - max).exp()).sum();
            *loss = total.ln() + max - row[target as usize];
            for x in row.iter_mut() {
                *x = (*x - max).exp() / total * scale;
            }
            row[target as usize] -= scale;
        },
    );
    losses.iter().sum::<f32>() / targets.len() as f32
}
