//! What a forward pass keeps for its backward pass.

use crate::precision::Operand;
use azulejo_allocator::Lease;

/// The residual stream between two layers: exact, and as the next product reads it.
pub(crate) struct Stream<T: Operand> {
    pub(crate) x: Lease<f32>,     // (t, h)
    pub(crate) rounded: Lease<T>, // (t, h)
}

/// Of the embeddings.
pub(crate) struct EmbeddingActs {
    pub(crate) sum: Lease<f32>, // (t, h)
    pub(crate) stats: Stats,
}

/// Mean and 1 / deviation of the rows that a LayerNorm saw.
pub(crate) struct Stats {
    pub(crate) mean: Lease<f32>, // (t)
    pub(crate) rstd: Lease<f32>, // (t)
}

/// Of one encoder layer.
pub(crate) struct LayerActs<T: Operand> {
    pub(crate) x: Lease<T>,       // (t, h): the layer's input
    pub(crate) qkv: Lease<T>,     // (t, 3h)
    pub(crate) lse: Lease<f32>,   // (t, a): of the attention scores
    pub(crate) context: Lease<T>, // (t, h)
    pub(crate) sum: Lease<f32>,   // (t, h): attention branch plus residual
    pub(crate) stats: Stats,
    pub(crate) middle: Lease<T>,       // (t, h): the feed-forward part's input
    pub(crate) u: Lease<T>,            // (t, f): before GELU
    pub(crate) g: Lease<T>,            // (t, f): after it
    pub(crate) output_sum: Lease<f32>, // (t, h): feed-forward branch plus residual
    pub(crate) output_stats: Stats,
}

/// Of the masked language model's head; `m` masked tokens.
pub(crate) struct VocabularyActs<T: Operand> {
    pub(crate) x: Lease<T>,   // (m, h)
    pub(crate) u: Lease<f32>, // (m, h)
    pub(crate) g: Lease<f32>, // (m, h)
    pub(crate) stats: Stats,
    pub(crate) y: Lease<T>, // (m, h)
}
