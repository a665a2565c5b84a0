//! A product whose accumulators stay where the kernel leaves them: in strips of rows, groups of sixteen columns after each
//! other. The passes over scores read them there, eight rows of sixteen columns from eight neighbouring lines, and a copy of
//! every (block, n) matrix is saved.
#![expect(unsafe_code, reason = "calls the kernels that `gemm` calls, with the same promises")]

use half::bf16;

use super::passes::{GROUP, Layout};
use crate::kernel::{Block, BlockKernel, Strip};
use crate::matrix::MatRef;
use crate::pack::{PackedRef, TILE_COLS};

/// Strips that rows take, with room for whole groups.
fn strips(kernel: &BlockKernel, rows: usize) -> usize {
    rows.next_multiple_of(GROUP).div_ceil(kernel.strip)
}

/// Accumulators of a product of so many rows and columns.
pub(crate) fn len(kernel: &BlockKernel, rows: usize, cols: usize) -> usize {
    strips(kernel, rows) * kernel.strip * cols.next_multiple_of(TILE_COLS)
}

/// Bytes of the panel.
pub(crate) fn panel_len(kernel: &BlockKernel, depth: usize) -> usize {
    depth.div_ceil(kernel.k_block).min(kernel.chunk) * kernel.panel_bytes
}

/// Where the accumulators of a product with so many columns lie.
pub(crate) fn layout(kernel: &BlockKernel, cols: usize) -> Layout {
    Layout {
        strip: kernel.strip,
        strip_stride: kernel.strip * cols.next_multiple_of(TILE_COLS),
        row_stride: TILE_COLS,
        chunk_stride: TILE_COLS * kernel.strip,
    }
}

/// c = a b, with the sums of [`crate::Gemm::bf16`].
///
/// # Panics
/// When the shapes do not fit, or `c` or `panel` is too short or not aligned to a cache line.
pub(crate) fn product(kernel: &BlockKernel, c: &mut [f32], panel: &mut [u8], a: MatRef<'_, bf16>, b: PackedRef<'_>) {
    let (rows, depth) = a.shape();
    let groups = b.n().div_ceil(TILE_COLS);
    let k_blocks = depth.div_ceil(kernel.k_block);
    let strip_len = kernel.strip * groups * TILE_COLS;
    assert_eq!(depth, b.k(), "depth of the operands");
    assert!(
        c.len() >= len(kernel, rows, b.n()) && panel.len() >= panel_len(kernel, depth),
        "room"
    );
    assert!(
        c.as_ptr().addr().is_multiple_of(64) && panel.as_ptr().addr().is_multiple_of(64),
        "alignment"
    );
    for (i, row) in (0..rows).step_by(kernel.strip).enumerate() {
        let c = &mut c[i * strip_len..][..strip_len];
        for k_block in (0..k_blocks).step_by(kernel.chunk) {
            let blocks = kernel.chunk.min(k_blocks - k_block);
            let k = k_block * kernel.k_block;
            let live = kernel.strip.min(rows - row);
            let strip = Strip {
                panel: panel.as_mut_ptr(),
                a: a.data()
                    .as_ptr()
                    .wrapping_add(row * a.row_stride() + k * a.col_stride())
                    .cast(),
                rows: live,
                depth: (blocks * kernel.k_block).min(depth - k),
                row_stride: a.row_stride(),
                col_stride: a.col_stride(),
            };
            let direct = kernel.reads_rows
                && live == kernel.strip
                && a.col_stride() == 1
                && groups > 1
                && strip.depth.is_multiple_of(kernel.k_block);
            if !direct {
                // SAFETY: the strip's rows and columns are inside of the view, and the panel has room for the chunk.
                unsafe { (kernel.pack_a)(&strip) };
            }
            let block = Block {
                panel: panel.as_ptr(),
                a: if direct { strip.a } else { std::ptr::null() },
                a_stride: a.row_stride() * size_of::<bf16>(),
                ahead: strip.a.wrapping_add(kernel.strip * a.row_stride() * size_of::<bf16>()),
                b: b.data().as_ptr().cast::<u8>().wrapping_add(k_block * kernel.tile_bytes),
                group_bytes: k_blocks * kernel.tile_bytes,
                k_blocks: blocks,
                groups,
                c: c.as_mut_ptr().cast(),
                rows: live,
                first: k_block == 0,
            };
            // SAFETY: the panel was just packed or the strip can be read in place, B is packed with this many blocks, C is a
            // strip of this many groups and aligned, and a `Gemm` only holds kernels of an instruction set that was checked.
            unsafe { (kernel.run)(&block) };
        }
    }
}
