//! GELU in its exact form, where it does not follow a product at once.

use crate::ops::linear::{gelu, gelu_grad};
use crate::ops::{BLOCK, Context, share};
use crate::precision::Operand;

/// `g = gelu(u)`. g, u of one length
pub(crate) fn forward(cx: Context, g: &mut [f32], u: &[f32], h: usize) {
    share(cx.exec, g.chunks_mut(BLOCK * h).zip(u.chunks(BLOCK * h)), |(g, u)| {
        for (g, &u) in g.iter_mut().zip(u) {
            *g = gelu(u);
        }
    });
}

/// `d_u = d_g gelu'(u)`, rounded for the next product.
pub(crate) fn backward<T: Operand>(cx: Context, d_u: &mut [T], d_g: &[f32], u: &[f32], h: usize) {
    share(
        cx.exec,
        d_u.chunks_mut(BLOCK * h)
            .zip(d_g.chunks(BLOCK * h))
            .zip(u.chunks(BLOCK * h)),
        |((d_u, d_g), u)| {
            for ((d_u, d_g), &u) in d_u.iter_mut().zip(d_g).zip(u) {
                *d_u = T::from_f32(d_g * gelu_grad(u));
            }
        },
    );
}
