//! Kernels on tiles. Tile state lives inside one `asm!` block, from the load of the configuration to the release: nothing
//! else in the process ever sees it, and nothing has to be restored.
//!
//! A strip has 32 rows, two tiles; a step works on 2 x 2 tiles of C:
//!
//! ```text
//! load configuration
//! for pair of column groups:
//!     C00 C01 C10 C11 = 0, or from C
//!     for block of K:                      4 tile loads for 4 products of 16 cycles
//!         A0, B0, B1, A1                   A from the first-level cache, B from the second
//!         C00 += A0 B0; C01 += A0 B1; C10 += A1 B0; C11 += A1 B1
//!     store C
//! release
//! ```
//!
//! A strip with at most 16 rows works on 1 x 4 tiles. The products bound both as long as B comes from the second-level cache:
//! 2 KiB of B for 64 cycles of products.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::asm;

use super::{Block, BlockKernel, Strip};
use crate::kernel::transpose::pack_pairs;
use crate::pack::{K_BLOCK, TILE_LEN};

/// Rows of a tile.
const TILE_ROWS: usize = 16;

pub(crate) static BF16: BlockKernel = BlockKernel {
    name: "amx-bf16-2x2",
    strip: 2 * TILE_ROWS,
    k_block: K_BLOCK,
    tile_bytes: 2 * TILE_LEN,
    panel_bytes: 2 * 2 * TILE_LEN,
    // 16 blocks of 2 KiB: 32 of the 48 KiB of a first-level cache.
    chunk: 16,
    pack_a,
    run,
};

/// The 64 bytes that LDTILECFG reads: palette 1, every tile with 16 rows of 64 bytes.
#[derive(Debug)]
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static FULL_TILES: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Panel: for each block of K two tiles, rows 0..16 and rows 16..32 of the strip, 32 elements a row.
///
/// # Safety
/// As [`Strip`] promises.
unsafe fn pack_a(s: &Strip) {
    // SAFETY: the same promises.
    unsafe { pack_pairs(s, 2) }
}

/// # Safety
/// As [`Block`] promises; the processor has AMX-BF16 and the process may use tile data.
unsafe fn run(block: &Block) {
    // SAFETY: the same promises.
    unsafe {
        if block.rows > TILE_ROWS {
            run_2x2(block);
        } else {
            run_1x4(block);
        }
    }
}

/// # Safety
/// As [`run`], and the strip has more than 16 rows.
unsafe fn run_2x2(block: &Block) {
    let (pairs, odd) = (block.groups / 2, block.groups % 2);
    // SAFETY:
    // * Loads of A read `k_blocks` blocks of 2 KiB at `panel`, loads of B as many tiles of 1 KiB in each group, loads and stores
    //   of C 32 rows of 16 * groups accumulators: all inside of what `Block` promises.
    // * The configuration is a static of 64 bytes that the instruction accepts; all tiles are declared as clobbered and released
    //   before the end, so that no state outlives the block.
    unsafe {
        asm!(
            "ldtilecfg [{cfg}]",
            "mov {s64:e}, 64",
            "test {pairs}, {pairs}",
            "jz 6f",
            // A pair of column groups.
            "2:",
            "lea {c2}, [{ldc} + {ldc}]",
            "lea {c2}, [{c2} + {c2}]",
            "lea {c2}, [{c} + 4 * {c2}]",
            "cmp byte ptr [{blk} + {first}], 0",
            "je 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 4f",
            "3:",
            "tileloadd tmm0, [{c} + {ldc}]",
            "tileloadd tmm1, [{c} + {ldc} + 64]",
            "tileloadd tmm2, [{c2} + {ldc}]",
            "tileloadd tmm3, [{c2} + {ldc} + 64]",
            "4:",
            "mov {pa}, [{blk} + {panel}]",
            "mov {pb}, {b}",
            "mov {pb2}, {b}",
            "add {pb2}, [{blk} + {group}]",
            "mov {k}, [{blk} + {blocks}]",
            // A block of K.
            "5:",
            "tileloadd tmm4, [{pa} + {s64}]",
            "tileloadd tmm6, [{pb} + {s64}]",
            "tileloadd tmm7, [{pb2} + {s64}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{pa} + {s64} + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {pa}, 2048",
            "add {pb}, 1024",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {pb2}, 1024",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {k}",
            "jnz 5b",
            "tilestored [{c} + {ldc}], tmm0",
            "tilestored [{c} + {ldc} + 64], tmm1",
            "tilestored [{c2} + {ldc}], tmm2",
            "tilestored [{c2} + {ldc} + 64], tmm3",
            "add {c}, 128",
            "mov {b}, {pb2}",
            // pb2 ended one group of B blocks behind where the chunk began: go on to the next pair.
            "mov {k}, [{blk} + {blocks}]",
            "shl {k}, 10",
            "sub {b}, {k}",
            "add {b}, [{blk} + {group}]",
            "dec {pairs}",
            "jnz 2b",
            "6:",
            "test {odd}, {odd}",
            "jz 9f",
            // The last group alone: two chains.
            "lea {c2}, [{ldc} + {ldc}]",
            "lea {c2}, [{c2} + {c2}]",
            "lea {c2}, [{c} + 4 * {c2}]",
            "cmp byte ptr [{blk} + {first}], 0",
            "je 7f",
            "tilezero tmm0",
            "tilezero tmm2",
            "jmp 8f",
            "7:",
            "tileloadd tmm0, [{c} + {ldc}]",
            "tileloadd tmm2, [{c2} + {ldc}]",
            "8:",
            "mov {pa}, [{blk} + {panel}]",
            "mov {k}, [{blk} + {blocks}]",
            "5:",
            "tileloadd tmm4, [{pa} + {s64}]",
            "tileloadd tmm6, [{b} + {s64}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{pa} + {s64} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {pa}, 2048",
            "add {b}, 1024",
            "dec {k}",
            "jnz 5b",
            "tilestored [{c} + {ldc}], tmm0",
            "tilestored [{c2} + {ldc}], tmm2",
            "9:",
            "tilerelease",
            blk = in(reg) block,
            cfg = in(reg) &raw const FULL_TILES,
            odd = in(reg) odd,
            pairs = inout(reg) pairs => _,
            b = inout(reg) block.b => _,
            c = inout(reg) block.c => _,
            ldc = in(reg) block.ldc * 4,
            s64 = out(reg) _,
            c2 = out(reg) _,
            pa = out(reg) _,
            pb = out(reg) _,
            pb2 = out(reg) _,
            k = out(reg) _,
            first = const std::mem::offset_of!(Block, first),
            panel = const std::mem::offset_of!(Block, panel),
            group = const std::mem::offset_of!(Block, group_bytes),
            blocks = const std::mem::offset_of!(Block, k_blocks),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As [`run`], and the strip has at most 16 rows.
unsafe fn run_1x4(block: &Block) {
    let (fours, ones) = (block.groups / 4, block.groups % 4);
    // SAFETY: as in `run_2x2`, with one tile of A a block and 16 rows of C.
    unsafe {
        asm!(
            "ldtilecfg [{cfg}]",
            "mov {s64:e}, 64",
            "test {fours}, {fours}",
            "jz 6f",
            "2:",
            "cmp byte ptr [{blk} + {first}], 0",
            "je 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 4f",
            "3:",
            "tileloadd tmm0, [{c} + {ldc}]",
            "tileloadd tmm1, [{c} + {ldc} + 64]",
            "tileloadd tmm2, [{c} + {ldc} + 128]",
            "tileloadd tmm3, [{c} + {ldc} + 192]",
            "4:",
            "mov {pa}, [{blk} + {panel}]",
            "mov {g}, [{blk} + {group}]",
            "lea {pb2}, [{b} + 2 * {g}]",
            "add {g}, {b}",
            "mov {k}, [{blk} + {blocks}]",
            "5:",
            "tileloadd tmm4, [{pa} + {s64}]",
            "tileloadd tmm5, [{b} + {s64}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{g} + {s64}]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloadd tmm7, [{pb2} + {s64}]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            // The fourth group is as far behind the third as the second behind the first.
            "mov {pb}, {pb2}",
            "add {pb}, [{blk} + {group}]",
            "tileloadd tmm5, [{pb} + {s64}]",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "add {pa}, 2048",
            "add {b}, 1024",
            "add {g}, 1024",
            "add {pb2}, 1024",
            "dec {k}",
            "jnz 5b",
            "tilestored [{c} + {ldc}], tmm0",
            "tilestored [{c} + {ldc} + 64], tmm1",
            "tilestored [{c} + {ldc} + 128], tmm2",
            "tilestored [{c} + {ldc} + 192], tmm3",
            "add {c}, 256",
            // b ended `k_blocks` tiles behind the first group.
            "mov {k}, [{blk} + {blocks}]",
            "shl {k}, 10",
            "sub {b}, {k}",
            "mov {k}, [{blk} + {group}]",
            "lea {b}, [{b} + 4 * {k}]",
            "dec {fours}",
            "jnz 2b",
            "6:",
            "test {ones}, {ones}",
            "jz 9f",
            "7:",
            "cmp byte ptr [{blk} + {first}], 0",
            "je 3f",
            "tilezero tmm0",
            "jmp 8f",
            "3:",
            "tileloadd tmm0, [{c} + {ldc}]",
            "8:",
            "mov {pa}, [{blk} + {panel}]",
            "mov {pb}, {b}",
            "mov {k}, [{blk} + {blocks}]",
            "5:",
            "tileloadd tmm4, [{pa} + {s64}]",
            "tileloadd tmm5, [{pb} + {s64}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "add {pa}, 2048",
            "add {pb}, 1024",
            "dec {k}",
            "jnz 5b",
            "tilestored [{c} + {ldc}], tmm0",
            "add {c}, 64",
            "add {b}, [{blk} + {group}]",
            "dec {ones}",
            "jnz 7b",
            "9:",
            "tilerelease",
            blk = in(reg) block,
            cfg = in(reg) &raw const FULL_TILES,
            ones = inout(reg) ones => _,
            fours = inout(reg) fours => _,
            b = inout(reg) block.b => _,
            c = inout(reg) block.c => _,
            ldc = in(reg) block.ldc * 4,
            s64 = out(reg) _,
            g = out(reg) _,
            pa = out(reg) _,
            pb = out(reg) _,
            pb2 = out(reg) _,
            k = out(reg) _,
            first = const std::mem::offset_of!(Block, first),
            panel = const std::mem::offset_of!(Block, panel),
            group = const std::mem::offset_of!(Block, group_bytes),
            blocks = const std::mem::offset_of!(Block, k_blocks),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
