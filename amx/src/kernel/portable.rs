//! Kernels in plain Rust: oracle, fallback and explanation. The bf16 kernel reads the panels of the tile kernel.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use half::bf16;

use super::model;
use super::{Block, BlockKernel, Strip};
use crate::pack::{K_BLOCK, TILE_COLS, TILE_LEN};

pub(crate) static BF16: BlockKernel = BlockKernel {
    name: "portable-bf16-model",
    strip: 16,
    k_block: K_BLOCK,
    tile_bytes: 2 * TILE_LEN,
    panel_bytes: 4 * 16 * K_BLOCK,
    chunk: 16,
    reads_rows: false,
    pack_a: pack_bf16::<16>,
    run: run_bf16,
};

/// Panel: for each block of K and each row, 32 elements widened to f32.
///
/// # Safety
/// As [`Strip`] promises.
unsafe fn pack_bf16<const STRIP: usize>(s: &Strip) {
    let blocks = s.depth.div_ceil(K_BLOCK);
    let (a, panel) = (s.a.cast::<bf16>(), s.panel.cast::<f32>());
    for block in 0..blocks {
        for r in 0..STRIP {
            for d in 0..K_BLOCK {
                let k = block * K_BLOCK + d;
                let value = if r < s.rows && k < s.depth {
                    // SAFETY: (r, k) is inside of the strip's chunk.
                    unsafe { (*a.add(r * s.row_stride + k * s.col_stride)).to_f32() }
                } else {
                    0.0
                };
                // SAFETY: the panel has `STRIP * 32` floats for each block.
                unsafe { *panel.add((block * STRIP + r) * K_BLOCK + d) = value };
            }
        }
    }
}

/// # Safety
/// As [`Block`] promises.
unsafe fn run_bf16(block: &Block) {
    for g in 0..block.groups {
        for r in 0..block.rows {
            // SAFETY: C has this row of 16 accumulators, and nothing else refers to it.
            let c: &mut [f32; TILE_COLS] = unsafe { &mut *block.c.cast::<[f32; TILE_COLS]>().add(g * 16 + r) };
            let mut acc = if block.first { [0.0; TILE_COLS] } else { *c };
            for kb in 0..block.k_blocks {
                // SAFETY: the panel has 16 rows of 32 floats for each block.
                let a: &[f32; K_BLOCK] = unsafe { &*block.panel.cast::<f32>().add((kb * 16 + r) * K_BLOCK).cast() };
                // SAFETY: a group has `k_blocks` tiles.
                let b: &[bf16; TILE_LEN] =
                    unsafe { &*block.b.add(g * block.group_bytes).cast::<[bf16; TILE_LEN]>().add(kb) };
                let (mut even, mut odd) = ([0.0; TILE_COLS], [0.0; TILE_COLS]);
                for p in 0..K_BLOCK / 2 {
                    for j in 0..TILE_COLS {
                        let pair = p * 2 * TILE_COLS + 2 * j;
                        even[j] = model::fma(a[2 * p], b[pair].to_f32(), even[j]);
                        odd[j] = model::fma(a[2 * p + 1], b[pair + 1].to_f32(), odd[j]);
                    }
                }
                for j in 0..TILE_COLS {
                    acc[j] = model::finish(acc[j], even[j], odd[j]);
                }
            }
            *c = acc;
        }
    }
}

/// Rows of a strip of the f32 kernel.
const F32_STRIP: usize = 8;

pub(crate) static F32: BlockKernel = BlockKernel {
    name: "portable-f32-fma",
    strip: F32_STRIP,
    k_block: 1,
    tile_bytes: 4 * TILE_COLS,
    panel_bytes: 4 * F32_STRIP,
    chunk: 256,
    reads_rows: false,
    pack_a: pack_f32::<F32_STRIP>,
    run: run_f32,
};

/// Panel: for each k the strip's column.
///
/// # Safety
/// As [`Strip`] promises.
pub(super) unsafe fn pack_f32<const STRIP: usize>(s: &Strip) {
    let (a, panel) = (s.a.cast::<f32>(), s.panel.cast::<f32>());
    for k in 0..s.depth {
        for r in 0..STRIP {
            let value = if r < s.rows {
                // SAFETY: (r, k) is inside of the strip's chunk.
                unsafe { *a.add(r * s.row_stride + k * s.col_stride) }
            } else {
                0.0
            };
            // SAFETY: the panel has `STRIP` floats for each k.
            unsafe { *panel.add(k * STRIP + r) = value };
        }
    }
}

/// # Safety
/// As [`Block`] promises.
unsafe fn run_f32(block: &Block) {
    for g in 0..block.groups {
        for r in 0..block.rows {
            // SAFETY: C has this row of 16 accumulators, and nothing else refers to it.
            let c: &mut [f32; TILE_COLS] = unsafe { &mut *block.c.cast::<[f32; TILE_COLS]>().add(g * F32_STRIP + r) };
            let mut acc = if block.first { [0.0; TILE_COLS] } else { *c };
            for k in 0..block.k_blocks {
                // SAFETY: the panel has `F32_STRIP` floats for each k.
                let a = unsafe { *block.panel.cast::<f32>().add(k * F32_STRIP + r) };
                // SAFETY: a group has `k_blocks` rows of 16 columns.
                let b: &[f32; TILE_COLS] =
                    unsafe { &*block.b.add(g * block.group_bytes).cast::<[f32; TILE_COLS]>().add(k) };
                for j in 0..TILE_COLS {
                    acc[j] = a.mul_add(b[j], acc[j]);
                }
            }
            *c = acc;
        }
    }
}
