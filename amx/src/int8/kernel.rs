//! The contract between the loops of `driver` and the kernel of an instruction set.
//!
//! Every kernel computes 32-bit sums modulo 2^32 of exact products, so all of them give the same bits whatever their order. They
//! differ in how many rows they take at a time and in what the panel of A holds:
//!
//! ```text
//! bytes   VNNI, tiles: [block of 64 k][row of the strip][64 bytes]; a unit that takes A as unsigned gets signed A plus 128
//! words   the others:  [block of 64 k][row of the strip][64 16-bit numbers]
//! ```

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

/// What an element of the panel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Panel {
    /// The bytes of A; with `biased`, signed ones plus 128.
    Bytes {
        /// Whether the kernel reads every byte as unsigned.
        biased: bool,
    },
    /// The elements of A widened to 16 bits.
    Words,
}

/// The kernel of one instruction set.
#[derive(Debug)]
pub(crate) struct ByteKernel {
    /// Rows of a strip.
    pub(crate) strip: usize,
    /// What `run` reads.
    pub(crate) panel: Panel,
    /// Most blocks of K in a chunk, so that the panel stays in the first-level cache.
    pub(crate) chunk: usize,
    /// Multiplies a panel with groups of columns.
    pub(crate) run: unsafe fn(&Block),
}

impl ByteKernel {
    /// Bytes of the panel for each block of K.
    pub(crate) fn panel_bytes(&self) -> usize {
        let element = match self.panel {
            Panel::Bytes { .. } => 1,
            Panel::Words => 2,
        };
        element * self.strip * super::pack::K_BLOCK
    }
}

/// What `run` reads and writes.
///
/// Promises of the driver:
/// * `panel` holds `k_blocks` blocks of the kernel's strip in its layout, aligned to 64; rows past `rows` may hold anything, elements
///   past K are zero in it or in B.
/// * `b + g * group_bytes` points to `k_blocks` consecutive tiles of the packed B for each `g < groups`.
/// * `c` has `groups` groups of `strip` rows of 16 32-bit accumulators, aligned to 64; rows past `rows` may be written with
///   anything.
/// * `1 <= rows <= strip`, `1 <= k_blocks`, `1 <= groups`.
/// * With `first` the accumulators start from zero, otherwise from what C holds.
/// * `signed` says whether the bytes of the panel are signed; never with a biased panel.
/// * The processor has the kernel's instructions.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) panel: *const u8,
    pub(crate) b: *const u8,
    pub(crate) group_bytes: usize,
    pub(crate) k_blocks: usize,
    pub(crate) groups: usize,
    pub(crate) c: *mut u8,
    pub(crate) rows: usize,
    pub(crate) first: bool,
    pub(crate) signed: bool,
}
