//! The contract between the loops and the kernel of an instruction set.
//!
//! In the loops of `strips`, a product is cut into *strips* of rows. For each strip and each chunk of K the driver calls `pack_a`, which lays the
//! strip's elements out as the kernel reads them (the panel, small enough for the first-level cache), and then `run`, which
//! multiplies the panel with groups of 16 columns of the packed B and keeps 32-bit accumulators in C:
//!
//! ```text
//! for chunk of K:
//!     for strip of rows:
//!         pack_a(panel, A[strip, chunk])
//!         run:  for group of 16 columns:  C[strip, group] (+)= panel * B[chunk, group]
//! ```
//!
//! In those of `panels`, `pack_rows` lays out all rows of a tile, `pack_columns` 32 columns of B (the panel, small enough for the
//! first-level cache), and `run` multiplies all strips of rows with the panel.

use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod model;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod transpose;

/// The kernel of one instruction set and element type.
#[derive(Debug)]
pub(crate) struct BlockKernel {
    /// `{isa}-{types}-{variant}`.
    pub(crate) name: &'static str,
    /// Rows of a strip.
    pub(crate) strip: usize,
    /// Depth of a block of K in the packed B.
    pub(crate) k_block: usize,
    /// Bytes of one block of 16 columns of the packed B.
    pub(crate) tile_bytes: usize,
    /// Bytes of the panel for each block of K.
    pub(crate) panel_bytes: usize,
    /// Most blocks of K in a chunk, so that the panel stays in the first-level cache.
    pub(crate) chunk: usize,
    /// Whether `run` can take whole strips of contiguous rows in place, see [`Block::a`].
    pub(crate) reads_rows: bool,
    /// Lays a strip out.
    pub(crate) pack_a: unsafe fn(&Strip),
    /// Multiplies a panel with groups of columns.
    pub(crate) run: unsafe fn(&Block),
}

/// What `pack_a` reads and writes.
///
/// Promises of the driver:
/// * `a` points to element (0, 0) of the strip's chunk; elements (i, j) with `i < rows`, `j < depth` are readable at
///   `a + i * row_stride + j * col_stride` (in elements of the kernel's type).
/// * `1 <= rows <= strip`, `1 <= depth`.
/// * `panel` has `depth.div_ceil(k_block) * panel_bytes` bytes, aligned to 64; all of it is written, zeros past the edges.
#[derive(Debug)]
pub(crate) struct Strip {
    pub(crate) panel: *mut u8,
    pub(crate) a: *const u8,
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

/// What `run` reads and writes.
///
/// Promises of the driver:
/// * `panel` was written by `pack_a` for `k_blocks` blocks of K; or, for a kernel that `reads_rows`, `a` is not null and points to
///   `strip` rows of `k_blocks` whole blocks of contiguous elements, `a_stride` bytes apart, `panel` has room for them and `groups` is
///   at least 2.
/// * `ahead` is where memory lies that will be wanted soon; it is only a hint.
/// * `b + g * group_bytes` points to `k_blocks` consecutive blocks of the packed B for each `g < groups`.
/// * `c` has `groups` groups of `strip` rows of 16 32-bit accumulators, aligned to 64; rows past `rows` may be written with
///   anything.
/// * With `first` the accumulators start from zero, otherwise from what C holds.
/// * The processor has the kernel's instructions.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) panel: *const u8,
    pub(crate) a: *const u8,
    pub(crate) a_stride: usize,
    pub(crate) ahead: *const u8,
    pub(crate) b: *const u8,
    pub(crate) group_bytes: usize,
    pub(crate) k_blocks: usize,
    pub(crate) groups: usize,
    pub(crate) c: *mut u8,
    pub(crate) rows: usize,
    pub(crate) first: bool,
}

/// The kernel of one instruction set and element type that works on vectors: it keeps 32 columns of B in the first-level cache, widened
/// to f32, and streams strips of A, widened too, from the second. See [`crate::panels`] for the loops around it.
#[derive(Debug)]
pub(crate) struct PanelKernel {
    /// `{isa}-{types}-{variant}`.
    pub(crate) name: &'static str,
    /// Rows of a strip.
    pub(crate) strip: usize,
    /// Bytes of an element of A and of a strided B.
    pub(crate) element: usize,
    /// Lays rows of A out.
    pub(crate) pack_rows: unsafe fn(&Rows),
    /// Lays columns of B out.
    pub(crate) pack_columns: unsafe fn(&Columns),
    /// Multiplies strips with a panel.
    pub(crate) run: unsafe fn(&Panel),
}

/// Columns of a panel of B.
pub(crate) const PANEL_COLS: usize = 32;
/// Depth of a block of the strips and panels of a [`PanelKernel`].
pub(crate) const PANEL_DEPTH: usize = 32;

/// What `pack_rows` reads and writes.
///
/// Promises of the driver:
/// * `from` points to element (0, 0); elements (i, j) with `i < rows`, `j < depth` are readable at
///   `from + i * row_stride + j * col_stride` (in elements of the kernel's type). `1 <= rows`, `1 <= depth`.
/// * `to` has room for whole strips and blocks. Strips follow each other, within a strip blocks of 32 columns, within a block the strip's
///   rows of 32 f32. Elements past the depth are written as zeros, rows past `rows` are not written.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) to: *mut f32,
    pub(crate) from: *const u8,
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

/// What `pack_columns` reads and writes.
///
/// Promises of the driver:
/// * Not `tiled`: elements (i, j) with `i < depth`, `j < cols` are readable at `from + i * row_stride + j * col_stride` (in elements of the
///   kernel's type). `tiled`, of the bf16 kernels only: `from` points to a tile of the packed form, tiles of 16 columns are `col_stride`
///   elements apart, and `depth` is a whole number of tiles.
/// * `1 <= cols <= 32`, `1 <= depth`. `to` has 32 f32 for each k up to a whole block; zeros are written past the edges.
#[derive(Debug)]
pub(crate) struct Columns {
    pub(crate) to: *mut f32,
    pub(crate) from: *const u8,
    pub(crate) depth: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
    pub(crate) tiled: bool,
}

/// What `run` reads and writes.
///
/// Promises of the driver:
/// * `a` points to a block of the first strip as `pack_rows` laid them out, strips are `strip_bytes` apart and have blocks for `depth`
///   from there on; `b` is a panel of `depth`, `c` has `rows` rows of 32 accumulators, all aligned to 64.
/// * With `first` the accumulators start from zero, otherwise from what C holds.
/// * Memory at `next` will be read soon, a step for each block of each strip; memory at `out` will be written soon, a step a row.
/// * The processor has the kernel's instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    pub(crate) a: *const f32,
    pub(crate) strip_bytes: usize,
    pub(crate) b: *const f32,
    pub(crate) c: *mut f32,
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) first: bool,
    pub(crate) next: Hint,
    pub(crate) out: Hint,
}

/// Memory to fetch ahead: `at` and `second` bytes behind it, then `stride` bytes further, and so on. It may point anywhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hint {
    pub(crate) at: *const u8,
    pub(crate) second: usize,
    pub(crate) stride: usize,
}

impl Hint {
    /// `at`, which is in cache, again and again.
    pub(crate) fn nothing(at: *const u8) -> Self {
        Self {
            at,
            second: 0,
            stride: 0,
        }
    }
}

/// A kernel, by the loops that it needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loops {
    /// A strip of A in the first-level cache.
    Strips(&'static BlockKernel),
    /// A panel of B in the first-level cache.
    Panels(&'static PanelKernel),
}

impl Loops {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Strips(kernel) => kernel.name,
            Self::Panels(kernel) => kernel.name,
        }
    }
}

/// MXCSR of the bf16 kernels on vector registers: nearest even, denormals taken and flushed as zero, exceptions masked: what the tile
/// unit always does. It is only ever loaded inside of an `asm!` block that restores what was there.
#[cfg(target_arch = "x86_64")]
static FLUSHING: u32 = 0x9fc0;

/// The bf16 and the f32 kernel of an instruction set.
#[cfg(target_arch = "x86_64")]
pub(crate) fn of(isa: Isa) -> (Loops, Loops) {
    use Loops::{Panels, Strips};
    match isa {
        Isa::Portable => (Strips(&portable::BF16), Strips(&portable::F32)),
        Isa::Avx2 => (Strips(&avx2::BF16), Strips(&avx2::F32)),
        Isa::Avx512 => (Panels(&avx512::BF16), Panels(&avx512::F32)),
        Isa::Amx => (Strips(&amx::BF16), Panels(&avx512::F32)),
    }
}

/// The bf16 and the f32 kernel of an instruction set.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn of(_: Isa) -> (Loops, Loops) {
    (Loops::Strips(&portable::BF16), Loops::Strips(&portable::F32))
}
