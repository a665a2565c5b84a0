//! The contract between the loops of `gemm` and the kernel of an instruction set.
//!
//! A product is cut into *strips* of rows. For each strip and each chunk of K the driver calls `pack_a`, which lays the
//! strip's elements out as the kernel reads them (the panel, small enough for the first-level cache), and then `run`, which
//! multiplies the panel with groups of 16 columns of the packed B and keeps 32-bit accumulators in C:
//!
//! ```text
//! for chunk of K:
//!     for strip of rows:
//!         pack_a(panel, A[strip, chunk])
//!         run:  for group of 16 columns:  C[strip, group] (+)= panel * B[chunk, group]
//! ```

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

/// MXCSR of the bf16 kernels on vector registers: nearest even, denormals taken and flushed as zero, exceptions masked: what the tile
/// unit always does. It is only ever loaded inside of an `asm!` block that restores what was there.
#[cfg(target_arch = "x86_64")]
static FLUSHING: u32 = 0x9fc0;

/// The bf16 and the f32 kernel of an instruction set.
#[cfg(target_arch = "x86_64")]
pub(crate) fn of(isa: Isa) -> (&'static BlockKernel, &'static BlockKernel) {
    match isa {
        Isa::Portable => (&portable::BF16, &portable::F32),
        Isa::Avx2 => (&avx2::BF16, &avx2::F32),
        Isa::Avx512 => (&avx512::BF16, &avx512::F32),
        Isa::Amx => (&amx::BF16, &avx512::F32),
    }
}

/// The bf16 and the f32 kernel of an instruction set.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn of(_: Isa) -> (&'static BlockKernel, &'static BlockKernel) {
    (&portable::BF16, &portable::F32)
}
