//! The norm of the whole gradient, in an order that its length alone decides, and the factor that limits it.

use crate::ops::share;
use azulejo_amx::Executor;
use azulejo_amx::rows::Rows;

/// Elements of one partial sum: 256 KiB, which a core's own cache holds.
pub(crate) const PIECE: usize = 1 << 16;

/// The Euclidean norm of a flat buffer; not finite when an element is not, or its square overflows. `partial` is working
/// memory.
pub(crate) fn global_norm(exec: &dyn Executor, rows: Rows, partial: &mut Vec<f64>, grads: &[f32]) -> f64 {
    partial.resize(grads.len().div_ceil(PIECE), 0.0);
    share(exec, partial.iter_mut().zip(grads.chunks(PIECE)), |(partial, piece)| {
        *partial = rows.sum_squares(piece)
    });
    partial.iter().sum::<f64>().sqrt()
}

/// What gradients of this norm are multiplied by so that their norm is at most `max_norm`, as
/// `torch.nn.utils.clip_grad_norm_` has it.
pub(crate) fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}
