//! Working memory of the caller's, so that repeated calls allocate nothing.

use crate::storage::Storage;

/// Reusable working memory: panels of operands and blocks of accumulators. It grows on first use and is kept.
#[derive(Debug, Default)]
pub struct Scratch {
    storage: Storage,
}

impl Scratch {
    /// Empty working memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// A pointer to at least `bytes` bytes, initialised and aligned to a cache line. Contents are unspecified.
    pub(crate) fn reserve(&mut self, bytes: usize) -> *mut u8 {
        if self.storage.bytes() < bytes {
            // The old memory goes first, so that the two never add up.
            self.storage = Storage::default();
            self.storage = Storage::zeroed(bytes);
        }
        self.storage.base()
    }
}

/// `bytes` rounded up to whole cache lines.
pub(crate) fn whole_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}
