//! The kernel in plain Rust: oracle, fallback and explanation.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use super::{Block, ByteKernel, Panel};
use crate::int8::pack::{K_BLOCK, TILE_BYTES, TILE_COLS};

/// Rows of a strip.
const STRIP: usize = 4;

pub(crate) static INT8: ByteKernel = ByteKernel {
    strip: STRIP,
    panel: Panel::Words,
    // 64 blocks of 512 bytes.
    chunk: 64,
    run,
};

/// # Safety
/// As [`Block`] promises.
unsafe fn run(block: &Block) {
    for g in 0..block.groups {
        for r in 0..block.rows {
            // SAFETY: C has this row of 16 accumulators, and nothing else refers to it.
            let c: &mut [i32; TILE_COLS] = unsafe { &mut *block.c.cast::<[i32; TILE_COLS]>().add(g * STRIP + r) };
            let mut acc = if block.first { [0; TILE_COLS] } else { *c };
            for kb in 0..block.k_blocks {
                // SAFETY: the panel has four rows of 64 words for each block.
                let a: &[i16; K_BLOCK] = unsafe { &*block.panel.cast::<[i16; K_BLOCK]>().add(kb * STRIP + r) };
                // SAFETY: a group has `k_blocks` tiles.
                let b: &[i8; TILE_BYTES] =
                    unsafe { &*block.b.add(g * block.group_bytes).cast::<[i8; TILE_BYTES]>().add(kb) };
                for (k, &a) in a.iter().enumerate() {
                    for (c, acc) in acc.iter_mut().enumerate() {
                        let b = b[(k / 4 * TILE_COLS + c) * 4 + k % 4];
                        *acc = acc.wrapping_add(i32::from(a) * i32::from(b));
                    }
                }
            }
            *c = acc;
        }
    }
}
