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
    reason = "kernels work on raw panels"
)]

use std::arch::asm;
use std::mem::offset_of;

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
    reads_rows: true,
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

/// What the 2 x 2 kernel keeps in memory.
#[derive(Debug)]
#[repr(C)]
struct State {
    panel: *const u8,
    group_bytes: usize,
    k_blocks: usize,
    pairs: usize,
    odd: usize,
    first: usize,
    a: *const u8,
    a_stride: usize,
    /// Where the next lines to fetch ahead lie.
    ahead: *const u8,
}

/// The step of a block of K on 2 x 2 tiles: loads of A, what follows a load of A, and what interleaves with the products. B is loaded
/// with the hint that it will not be used again soon: it comes from the second-level cache and leaves the first one to A.
macro_rules! step {
    ($a0:literal, $a1:literal, $c0:literal, $c1:literal, $c2:literal, $c3:literal) => {
        concat!(
            $a0,
            "tileloaddt1 tmm6, [{pb} + {s64}]\n",
            "tileloaddt1 tmm7, [{pb2} + {s64}]\n",
            $c0,
            "tdpbf16ps tmm0, tmm4, tmm6\n",
            // The lines a page ahead: their translation is known when they are loaded.
            "prefetcht0 [{pb} + 4096]\n",
            "prefetcht0 [{pb2} + 4096]\n",
            $c1,
            "tdpbf16ps tmm1, tmm4, tmm7\n",
            $a1,
            $c2,
            "tdpbf16ps tmm2, tmm5, tmm6\n",
            "add {pa}, 2048\n",
            "add {pb}, 1024\n",
            "add {pb2}, 1024\n",
            // What the driver wants in the second-level cache: a line a step.
            "mov {t}, [{st} + {ahead}]\n",
            "prefetcht1 [{t}]\n",
            "add {t}, 64\n",
            "mov [{st} + {ahead}], {t}\n",
            $c3,
            "tdpbf16ps tmm3, tmm5, tmm7\n",
        )
    };
    ($c0:literal, $c1:literal, $c2:literal, $c3:literal) => {
        step!(
            "tileloadd tmm4, [{pa} + {s64}]\n",
            "tileloadd tmm5, [{pa} + {s64} + 1024]\n",
            $c0,
            $c1,
            $c2,
            $c3
        )
    };
}

/// # Safety
/// As [`run`], and the strip has more than 16 rows.
///
/// C of a pair is 4 KiB: column group 0 rows 0..16, rows 16..32, then column group 1. The accumulators of a pair are stored between
/// the products of the next pair's first step: a store waits for its product, and by then the product is done. Where A was not packed
/// ahead, the first pair reads it in place and leaves the panel behind for the others.
unsafe fn run_2x2(block: &Block) {
    let mut state = State {
        panel: block.panel,
        group_bytes: block.group_bytes,
        k_blocks: block.k_blocks,
        pairs: block.groups / 2,
        odd: block.groups % 2,
        first: usize::from(block.first),
        a: block.a,
        a_stride: block.a_stride,
        ahead: block.ahead,
    };
    // SAFETY:
    // * Loads of A read `k_blocks` blocks of 2 KiB at `panel`, or 32 rows of `64 * k_blocks` bytes at `a` (then the same panel is
    //   written before it is read), loads of B as many tiles of 1 KiB in each group, loads and stores of C 2 KiB a group: all inside
    //   of what `Block` promises. Prefetches may point anywhere.
    // * The configuration is a static of 64 bytes that the instruction accepts; all tiles are declared as clobbered and released
    //   before the end, so that no state outlives the block.
    unsafe {
        asm!(
            "ldtilecfg [{t}]",
            "mov {s64:e}, 64",
            "cmp qword ptr [{st} + {pairs}], 0",
            "je 8f",
            "mov {pa}, [{st} + {panel}]",
            "mov {pb}, {b}",
            "mov {pb2}, {b}",
            "add {pb2}, [{st} + {group}]",
            "mov {k}, [{st} + {blocks}]",
            "cmp qword ptr [{st} + {first}], 0",
            "je 2f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 20f",
            "2:",
            "tileloadd tmm0, [{c} + {s64}]",
            "tileloadd tmm1, [{c} + {s64} + 2048]",
            "tileloadd tmm2, [{c} + {s64} + 1024]",
            "tileloadd tmm3, [{c} + {s64} + 3072]",
            "20:",
            "mov {a}, [{st} + {a_ptr}]",
            "test {a}, {a}",
            "jz 3f",
            // The first pair reads A in place.
            "mov {as_}, [{st} + {a_stride}]",
            "mov {a2}, {as_}",
            "shl {a2}, 4",
            "add {a2}, {a}",
            "21:",
            step!(
                "tileloadd tmm4, [{a} + {as_}]\ntilestored [{pa} + {s64}], tmm4\n",
                "tileloadd tmm5, [{a2} + {as_}]\ntilestored [{pa} + {s64} + 1024], tmm5\n",
                "",
                "add {a}, 64\n",
                "",
                "add {a2}, 64\n"
            ),
            "dec {k}",
            "jnz 21b",
            "3:",
            "test {k}, {k}",
            "jz 5f",
            "4:",
            step!("", "", "", ""),
            "dec {k}",
            "jnz 4b",
            "5:",
            "dec qword ptr [{st} + {pairs}]",
            "jz 7f",
            "mov {k}, [{st} + {group}]",
            "lea {b}, [{b} + 2 * {k}]",
            "mov {pa}, [{st} + {panel}]",
            "mov {pb}, {b}",
            "mov {pb2}, {b}",
            "add {pb2}, {k}",
            "mov {k}, [{st} + {blocks}]",
            "dec {k}",
            "cmp qword ptr [{st} + {first}], 0",
            "je 6f",
            step!(
                "tilestored [{c} + {s64}], tmm0\ntilezero tmm0\n",
                "tilestored [{c} + {s64} + 2048], tmm1\ntilezero tmm1\n",
                "tilestored [{c} + {s64} + 1024], tmm2\ntilezero tmm2\n",
                "tilestored [{c} + {s64} + 3072], tmm3\ntilezero tmm3\n"
            ),
            "add {c}, 4096",
            "jmp 3b",
            "6:",
            step!(
                "tilestored [{c} + {s64}], tmm0\ntileloadd tmm0, [{c} + {s64} + 4096]\n",
                "tilestored [{c} + {s64} + 2048], tmm1\ntileloadd tmm1, [{c} + {s64} + 6144]\n",
                "tilestored [{c} + {s64} + 1024], tmm2\ntileloadd tmm2, [{c} + {s64} + 5120]\n",
                "tilestored [{c} + {s64} + 3072], tmm3\ntileloadd tmm3, [{c} + {s64} + 7168]\n"
            ),
            "add {c}, 4096",
            "jmp 3b",
            "7:",
            "tilestored [{c} + {s64}], tmm0",
            "tilestored [{c} + {s64} + 2048], tmm1",
            "tilestored [{c} + {s64} + 1024], tmm2",
            "tilestored [{c} + {s64} + 3072], tmm3",
            "add {c}, 4096",
            "mov {k}, [{st} + {group}]",
            "lea {b}, [{b} + 2 * {k}]",
            "8:",
            "cmp qword ptr [{st} + {odd}], 0",
            "je 9f",
            // The last group alone: two chains.
            "cmp qword ptr [{st} + {first}], 0",
            "je 2f",
            "tilezero tmm0",
            "tilezero tmm2",
            "jmp 3f",
            "2:",
            "tileloadd tmm0, [{c} + {s64}]",
            "tileloadd tmm2, [{c} + {s64} + 1024]",
            "3:",
            "mov {pa}, [{st} + {panel}]",
            "mov {k}, [{st} + {blocks}]",
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
            "tilestored [{c} + {s64}], tmm0",
            "tilestored [{c} + {s64} + 1024], tmm2",
            "9:",
            "tilerelease",
            st = in(reg) &raw mut state,
            t = inout(reg) &raw const FULL_TILES => _,
            b = inout(reg) block.b => _,
            c = inout(reg) block.c => _,
            s64 = out(reg) _,
            a = out(reg) _,
            a2 = out(reg) _,
            as_ = out(reg) _,
            pa = out(reg) _,
            pb = out(reg) _,
            pb2 = out(reg) _,
            k = out(reg) _,
            first = const offset_of!(State, first),
            panel = const offset_of!(State, panel),
            group = const offset_of!(State, group_bytes),
            blocks = const offset_of!(State, k_blocks),
            pairs = const offset_of!(State, pairs),
            odd = const offset_of!(State, odd),
            a_ptr = const offset_of!(State, a),
            a_stride = const offset_of!(State, a_stride),
            ahead = const offset_of!(State, ahead),
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
            "tileloadd tmm0, [{c} + {s64}]",
            "tileloadd tmm1, [{c} + {s64} + 2048]",
            "tileloadd tmm2, [{c} + {s64} + 4096]",
            "tileloadd tmm3, [{c} + {s64} + 6144]",
            "4:",
            "mov {pa}, [{blk} + {panel}]",
            "mov {g}, [{blk} + {group}]",
            "lea {pb2}, [{b} + 2 * {g}]",
            "add {g}, {b}",
            "mov {k}, [{blk} + {blocks}]",
            "5:",
            "tileloadd tmm4, [{pa} + {s64}]",
            "tileloaddt1 tmm5, [{b} + {s64}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "tileloaddt1 tmm6, [{g} + {s64}]",
            "tdpbf16ps tmm1, tmm4, tmm6",
            "tileloaddt1 tmm7, [{pb2} + {s64}]",
            "tdpbf16ps tmm2, tmm4, tmm7",
            // The fourth group is as far behind the third as the second behind the first.
            "mov {pb}, {pb2}",
            "add {pb}, [{blk} + {group}]",
            "tileloaddt1 tmm5, [{pb} + {s64}]",
            "tdpbf16ps tmm3, tmm4, tmm5",
            "add {pa}, 2048",
            "add {b}, 1024",
            "add {g}, 1024",
            "add {pb2}, 1024",
            "dec {k}",
            "jnz 5b",
            "tilestored [{c} + {s64}], tmm0",
            "tilestored [{c} + {s64} + 2048], tmm1",
            "tilestored [{c} + {s64} + 4096], tmm2",
            "tilestored [{c} + {s64} + 6144], tmm3",
            "add {c}, 8192",
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
            "tileloadd tmm0, [{c} + {s64}]",
            "8:",
            "mov {pa}, [{blk} + {panel}]",
            "mov {pb}, {b}",
            "mov {k}, [{blk} + {blocks}]",
            "5:",
            "tileloadd tmm4, [{pa} + {s64}]",
            "tileloaddt1 tmm5, [{pb} + {s64}]",
            "tdpbf16ps tmm0, tmm4, tmm5",
            "add {pa}, 2048",
            "add {pb}, 1024",
            "dec {k}",
            "jnz 5b",
            "tilestored [{c} + {s64}], tmm0",
            "add {c}, 2048",
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
            s64 = out(reg) _,
            g = out(reg) _,
            pa = out(reg) _,
            pb = out(reg) _,
            pb2 = out(reg) _,
            k = out(reg) _,
            first = const offset_of!(Block, first),
            panel = const offset_of!(Block, panel),
            group = const offset_of!(Block, group_bytes),
            blocks = const offset_of!(Block, k_blocks),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
