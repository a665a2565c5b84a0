//! Kernels on tiles: those of bf16 with TDPBUSD (unsigned A) or TDPBSSD (signed A), 64 k a product. Both add modulo 2^32 without
//! saturation. Tile state lives inside one `asm!` block, from the load of the configuration to the release.
//!
//! ```text
//! load configuration
//! for pair of column groups:                          strips of more than 16 rows: 2 x 2 tiles of C
//!     C00 C01 C10 C11 = 0, or from C
//!     for block of K:                                 4 tile loads for 4 products of 16 cycles
//!         A0, B0, B1, A1                              A from the first-level cache, B from the second
//!         C00 += A0 B0; C01 += A0 B1; C10 += A1 B0; C11 += A1 B1
//!     store C, between the products of the next pair's first block
//! release
//! ```
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "kernels work on raw panels"
)]

use std::arch::asm;
use std::mem::offset_of;

use super::{Block, ByteKernel, Panel};

/// Rows of a tile.
const TILE_ROWS: usize = 16;

pub(crate) static INT8: ByteKernel = ByteKernel {
    strip: 2 * TILE_ROWS,
    panel: Panel::Bytes { biased: false },
    // 16 blocks of 2 KiB: 32 of the 48 KiB of a first-level cache.
    chunk: 16,
    run,
};

/// The 64 bytes that LDTILECFG reads: palette 1, every tile with 16 rows of 64 bytes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

pub(crate) static FULL_TILES: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// # Safety
/// As [`Block`] promises; the processor has AMX-INT8 and the process may use tile data.
unsafe fn run(block: &Block) {
    // SAFETY: the same promises.
    unsafe {
        match (block.signed, block.rows > TILE_ROWS) {
            (false, true) => unsigned::run_2x2(block),
            (false, false) => unsigned::run_1x4(block),
            (true, true) => signed::run_2x2(block),
            (true, false) => signed::run_1x4(block),
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
}

/// One block of K on 2 x 2 tiles, and what interleaves with the products. B is loaded with the hint that it will not be used again soon:
/// it comes from the second-level cache and leaves the first one to A.
macro_rules! step {
    ($tdp:literal, $c0:literal, $c1:literal, $c2:literal, $c3:literal) => {
        concat!(
            "tileloadd tmm4, [{pa} + {s64}]\n",
            "tileloaddt1 tmm6, [{pb} + {s64}]\n",
            "tileloaddt1 tmm7, [{pb2} + {s64}]\n",
            $c0,
            $tdp,
            " tmm0, tmm4, tmm6\n",
            // The lines a page ahead: their translation is known when they are loaded.
            "prefetcht0 [{pb} + 4096]\n",
            "prefetcht0 [{pb2} + 4096]\n",
            $c1,
            $tdp,
            " tmm1, tmm4, tmm7\n",
            "tileloadd tmm5, [{pa} + {s64} + 1024]\n",
            $c2,
            $tdp,
            " tmm2, tmm5, tmm6\n",
            "add {pa}, 2048\n",
            "add {pb}, 1024\n",
            "add {pb2}, 1024\n",
            $c3,
            $tdp,
            " tmm3, tmm5, tmm7\n",
        )
    };
}

/// One block of K on 1 x 1 tiles in the 1 x 4 kernel.
macro_rules! one {
    ($tdp:literal, $b:literal, $at:literal, $c:literal) => {
        concat!(
            "tileloaddt1 ",
            $b,
            ", [",
            $at,
            " + {s64}]\n",
            $tdp,
            " ",
            $c,
            ", tmm4, ",
            $b,
            "\n"
        )
    };
}

macro_rules! kernels {
    ($tdp:literal) => {
        use super::*;

        /// # Safety
        /// As [`super::run`], and the strip has more than 16 rows.
        ///
        /// C of a pair is 4 KiB: column group 0 rows 0..16, rows 16..32, then column group 1.
        pub(super) unsafe fn run_2x2(block: &Block) {
            let mut state = State {
                panel: block.panel,
                group_bytes: block.group_bytes,
                k_blocks: block.k_blocks,
                pairs: block.groups / 2,
                odd: block.groups % 2,
                first: usize::from(block.first),
            };
            // SAFETY:
            // * Loads of A read `k_blocks` blocks of 2 KiB at `panel`, loads of B as many tiles of 1 KiB in each group, loads and
            //   stores of C 2 KiB a group: all inside of what `Block` promises. Prefetches may point anywhere.
            // * The configuration is a static of 64 bytes that the instruction accepts; all tiles are declared as clobbered and
            //   released before the end, so that no state outlives the block.
            unsafe {
                asm!(
                    "ldtilecfg [{k}]",
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
                    "jmp 4f",
                    "2:",
                    "tileloadd tmm0, [{c} + {s64}]",
                    "tileloadd tmm1, [{c} + {s64} + 2048]",
                    "tileloadd tmm2, [{c} + {s64} + 1024]",
                    "tileloadd tmm3, [{c} + {s64} + 3072]",
                    "jmp 4f",
                    "3:",
                    "test {k}, {k}",
                    "jz 5f",
                    "4:",
                    step!($tdp, "", "", "", ""),
                    "dec {k}",
                    "jnz 4b",
                    "5:",
                    "mov {k}, [{st} + {group}]",
                    "lea {b}, [{b} + 2 * {k}]",
                    "dec qword ptr [{st} + {pairs}]",
                    "jz 7f",
                    "mov {pa}, [{st} + {panel}]",
                    "mov {pb}, {b}",
                    "mov {pb2}, {b}",
                    "add {pb2}, {k}",
                    "mov {k}, [{st} + {blocks}]",
                    "dec {k}",
                    "cmp qword ptr [{st} + {first}], 0",
                    "je 6f",
                    step!(
                        $tdp,
                        "tilestored [{c} + {s64}], tmm0\ntilezero tmm0\n",
                        "tilestored [{c} + {s64} + 2048], tmm1\ntilezero tmm1\n",
                        "tilestored [{c} + {s64} + 1024], tmm2\ntilezero tmm2\n",
                        "tilestored [{c} + {s64} + 3072], tmm3\ntilezero tmm3\n"
                    ),
                    "add {c}, 4096",
                    "jmp 3b",
                    "6:",
                    step!(
                        $tdp,
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
                    "tileloaddt1 tmm6, [{b} + {s64}]",
                    concat!($tdp, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{pa} + {s64} + 1024]",
                    concat!($tdp, " tmm2, tmm5, tmm6"),
                    "add {pa}, 2048",
                    "add {b}, 1024",
                    "dec {k}",
                    "jnz 5b",
                    "tilestored [{c} + {s64}], tmm0",
                    "tilestored [{c} + {s64} + 1024], tmm2",
                    "9:",
                    "tilerelease",
                    st = in(reg) &raw mut state,
                    k = inout(reg) &raw const FULL_TILES => _,
                    b = inout(reg) block.b => _,
                    c = inout(reg) block.c => _,
                    s64 = out(reg) _,
                    pa = out(reg) _,
                    pb = out(reg) _,
                    pb2 = out(reg) _,
                    first = const offset_of!(State, first),
                    panel = const offset_of!(State, panel),
                    group = const offset_of!(State, group_bytes),
                    blocks = const offset_of!(State, k_blocks),
                    pairs = const offset_of!(State, pairs),
                    odd = const offset_of!(State, odd),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }

        /// # Safety
        /// As [`super::run`], and the strip has at most 16 rows.
        pub(super) unsafe fn run_1x4(block: &Block) {
            let (fours, ones) = (block.groups / 4, block.groups % 4);
            // SAFETY: as in `run_2x2`, with one tile of A a block and 16 rows of C.
            unsafe {
                asm!(
                    "ldtilecfg [{g}]",
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
                    one!($tdp, "tmm5", "{b}", "tmm0"),
                    one!($tdp, "tmm6", "{g}", "tmm1"),
                    one!($tdp, "tmm7", "{pb2}", "tmm2"),
                    // The fourth group is as far behind the third as the second behind the first.
                    "mov {pb}, {pb2}",
                    "add {pb}, [{blk} + {group}]",
                    one!($tdp, "tmm5", "{pb}", "tmm3"),
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
                    one!($tdp, "tmm5", "{pb}", "tmm0"),
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
                    ones = inout(reg) ones => _,
                    fours = inout(reg) fours => _,
                    b = inout(reg) block.b => _,
                    c = inout(reg) block.c => _,
                    g = inout(reg) &raw const FULL_TILES => _,
                    s64 = out(reg) _,
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
    };
}

/// A is unsigned.
mod unsigned {
    kernels!("tdpbusd");
}

/// A is signed.
mod signed {
    kernels!("tdpbssd");
}
