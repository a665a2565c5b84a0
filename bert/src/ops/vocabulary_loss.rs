//! The end of the masked language model's head: GELU and LayerNorm before the last projection, and the mean
//! cross-entropy over the chosen tokens after it.

use crate::error::Result;
use crate::ops::{BLOCK, Context, share, share_seats};
use crate::precision::Operand;

/// `g = gelu(u)`. g, u `(m, h)`
pub(crate) fn gelu_forward(cx: Context, g: &mut [f32], u: &[f32], h: usize) {
    share(cx.exec, g.chunks_mut(BLOCK * h).zip(u.chunks(BLOCK * h)), |(g, u)| {
        cx.rows.gelu(g, u)
    });
}

/// `d_u = d_g gelu'(u)`, rounded for the next product. d_u, d_g, u `(m, h)`
pub(crate) fn gelu_backward<T: Operand>(cx: Context, d_u: &mut [T], d_g: &[f32], u: &[f32], h: usize) {
    let inputs = d_g.chunks(BLOCK * h).zip(u.chunks(BLOCK * h));
    share(cx.exec, d_u.chunks_mut(BLOCK * h).zip(inputs), |(d_u, (d_g, u))| {
        cx.rows.gelu_backward(d_u, d_g, u)
    });
}

/// Returns the mean loss and writes the gradient of `weight` times it, rounded for the next product.
/// d_logits, logits `(m, v)`, targets `(m)`
pub(crate) fn loss_forward_backward<T: Operand>(
    cx: Context,
    d_logits: &mut [T],
    logits: &[f32],
    targets: &[(usize, u32)],
    weight: f32,
) -> Result<f32> {
    let m = targets.len();
    let v = logits.len() / m;
    let scale = weight / m as f32;
    let mut losses = cx.take::<f32>("losses of masked tokens", m)?;
    let mut exact = cx.take::<f32>("d logits of a token for each worker", cx.exec.threads() * v)?;
    let outputs = d_logits.chunks_mut(v).zip(logits.chunks(v)).zip(&mut losses[..]);
    share_seats(
        cx.exec,
        exact.chunks_mut(v),
        outputs.zip(targets),
        |exact, (((d_logits, logits), loss), &(_, target))| {
            *loss = cx
                .rows
                .cross_entropy_row(Some(&mut **exact), logits, target as usize, scale);
            cx.rows.convert(d_logits, exact);
        },
    );
    Ok(losses.iter().sum::<f32>() / m as f32)
}
