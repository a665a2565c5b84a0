//! What is done to flat buffers of gradients, by all workers together. Every element is independent, so that the number of
//! workers never changes a result.

use crate::clip::PIECE;
use crate::ops::share;
use azulejo_amx::Executor;

/// x = 0
pub(crate) fn zero(exec: &dyn Executor, x: &mut [f32]) {
    share(exec, x.chunks_mut(PIECE), |x| x.fill(0.0));
}

/// to = from. Of one length.
pub(crate) fn copy(exec: &dyn Executor, to: &mut [f32], from: &[f32]) {
    assert_eq!(to.len(), from.len(), "elements to copy");
    share(exec, to.chunks_mut(PIECE).zip(from.chunks(PIECE)), |(to, from)| {
        to.copy_from_slice(from)
    });
}

/// to += from. Of one length.
pub(crate) fn add(exec: &dyn Executor, to: &mut [f32], from: &[f32]) {
    assert_eq!(to.len(), from.len(), "elements to add");
    share(exec, to.chunks_mut(PIECE).zip(from.chunks(PIECE)), |(to, from)| {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from;
        }
    });
}

/// to = factor from. Of one length.
pub(crate) fn scale(exec: &dyn Executor, to: &mut [f32], from: &[f32], factor: f32) {
    assert_eq!(to.len(), from.len(), "elements to scale");
    share(exec, to.chunks_mut(PIECE).zip(from.chunks(PIECE)), |(to, from)| {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * factor;
        }
    });
}
