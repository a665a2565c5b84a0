//! What the model is fed: one window over a question and its context, in tokens.

/// One window: `[CLS] question [SEP] part of the context [SEP]`, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Token ids, `(t)`.
    pub ids: Vec<u32>,
    /// 0 up to and including the first `[SEP]`, 1 after it, `(t)`.
    pub token_types: Vec<u8>,
    /// For tokens of the context, their code points `[start, end)` in it; `None` elsewhere, `(t)`.
    pub offsets: Vec<Option<(u32, u32)>>,
    /// Index of the question in its data set.
    pub example: usize,
    /// Label: index in this window of the answer's first token, or 0 (`[CLS]`) if the window does not hold the answer.
    pub start: u32,
    /// Label: index in this window of the answer's last token, or 0.
    pub end: u32,
}

impl Feature {
    /// Tokens in the window.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// A window always has its three special tokens, so this is false for every window made by this crate.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
