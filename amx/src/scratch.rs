//! Working memory of the caller's, so that repeated calls allocate nothing.

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

const LINE: usize = 64;

/// Reusable working memory: panels of operands and blocks of accumulators. It grows on first use and is kept.
#[derive(Debug, Default)]
pub struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// Empty working memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.lines.len() * LINE
    }

    /// A pointer to at least `bytes` bytes, aligned to a cache line. Contents are unspecified.
    pub(crate) fn reserve(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines = Vec::new();
            self.lines = vec![Line([0; LINE]); lines];
        }
        self.lines.as_mut_ptr().cast()
    }
}

/// `bytes` rounded up to whole cache lines.
pub(crate) fn whole_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE)
}
