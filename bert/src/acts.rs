//! What a forward pass keeps for its backward pass.

use crate::buffers::Buf;
use crate::precision::Operand;

/// The residual stream between two layers: exact, and as the next product reads it.
pub(crate) struct Stream<'a, T: Operand> {
    pub(crate) x: Buf<'a, f32>,     // (t, h)
    pub(crate) rounded: Buf<'a, T>, // (t, h)
}

/// Of the embeddings.
pub(crate) struct EmbeddingActs<'a> {
    pub(crate) sum: Buf<'a, f32>, // (t, h)
    pub(crate) stats: Stats<'a>,
}

/// Mean and 1 / deviation of the rows that a LayerNorm saw.
pub(crate) struct Stats<'a> {
    pub(crate) mean: Buf<'a, f32>, // (t)
    pub(crate) rstd: Buf<'a, f32>, // (t)
}

/// Of one encoder layer.
pub(crate) struct LayerActs<'a, T: Operand> {
    pub(crate) x: Buf<'a, T>,       // (t, h): the layer's input
    pub(crate) qkv: Buf<'a, T>,     // (t, 3h)
    pub(crate) lse: Buf<'a, f32>,   // (t, a): of the attention scores
    pub(crate) context: Buf<'a, T>, // (t, h)
    pub(crate) sum: Buf<'a, f32>,   // (t, h): attention branch plus residual
    pub(crate) stats: Stats<'a>,
    pub(crate) middle: Buf<'a, T>,       // (t, h): the feed-forward part's input
    pub(crate) u: Buf<'a, T>,            // (t, f): before GELU
    pub(crate) g: Buf<'a, T>,            // (t, f): after it
    pub(crate) output_sum: Buf<'a, f32>, // (t, h): feed-forward branch plus residual
    pub(crate) output_stats: Stats<'a>,
}

/// Of the masked language model's head; `m` masked tokens.
pub(crate) struct VocabularyActs<'a, T: Operand> {
    pub(crate) x: Buf<'a, T>,   // (m, h)
    pub(crate) u: Buf<'a, f32>, // (m, h)
    pub(crate) g: Buf<'a, f32>, // (m, h)
    pub(crate) stats: Stats<'a>,
    pub(crate) y: Buf<'a, T>, // (m, h)
}
