//! Kernels on 512-bit registers.
//!
//! bf16 without tiles is f32 arithmetic on widened operands (on several server cores VDPBF16PS has half its rate and another order).
//! The order is the tile unit's: for each block of 32 k an even and an odd chain from zero, their sum, then the sum onto C. Twelve rows
//! and two chains take 24 registers, so C lives in the first-level cache and is touched once a block:
//!
//! ```text
//! for group of 16 columns:
//!     for block of K:                               384 multiply-adds, 32 expansions, 24 additions
//!         for pair of k:  b = 16 column pairs; even = b << 16; odd = b & 0xffff0000
//!             for row of 12:  e[row] += a[row, k] * even; o[row] += a[row, k + 1] * odd
//!         C[row] += e[row] + o[row]
//! ```
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::transpose::{Words, transpose};
use super::{Block, BlockKernel, FLUSHING, Strip};
use crate::pack::{K_BLOCK, TILE_COLS, TILE_LEN};

/// Rows of a strip.
const STRIP: usize = 12;

pub(crate) static BF16: BlockKernel = BlockKernel {
    name: "avx512-bf16-fma12",
    strip: STRIP,
    k_block: K_BLOCK,
    tile_bytes: 2 * TILE_LEN,
    panel_bytes: 4 * STRIP * K_BLOCK,
    // 16 blocks of 1.5 KiB: half of the first-level cache.
    chunk: 16,
    reads_rows: false,
    pack_a: pack_bf16,
    run: run_bf16,
};

pub(crate) static F32: BlockKernel = BlockKernel {
    name: "avx512-f32-12x32",
    strip: STRIP,
    k_block: 1,
    tile_bytes: 4 * TILE_COLS,
    panel_bytes: 4 * STRIP,
    // 12 KiB of A and 32 KiB of B.
    chunk: 256,
    reads_rows: false,
    pack_a: pack_f32,
    run: run_f32,
};

/// The first `n` of 16 lanes.
fn first(n: usize) -> __mmask16 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits are set")]
    let mask = ((1u32 << n.min(16)) - 1) as u16;
    mask
}

/// Panel: for each pair of k, the rows' elements of the even k, then those of the odd k, widened to f32.
///
/// # Safety
/// As [`Strip`] promises; the processor has AVX-512 F, BW, DQ and VL.
unsafe fn pack_bf16(s: &Strip) {
    // SAFETY: the same promises.
    unsafe { pack_bf16_inner(s) }
}

/// # Safety
/// As [`pack_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack_bf16_inner(s: &Strip) {
    let (a, panel) = (s.a.cast::<u16>(), s.panel.cast::<f32>());
    let mut rows: Words = [[0; 16]; 16];
    let mut pairs: Words = [[0; 16]; 16];
    for block in 0..s.depth.div_ceil(K_BLOCK) {
        let k0 = block * K_BLOCK;
        let depth = K_BLOCK.min(s.depth - k0);
        // SAFETY: elements of the strip only, by masks or by loops; the panel has 24 floats for each pair of k.
        unsafe {
            let from = a.add(k0 * s.col_stride);
            if s.col_stride == 1 {
                let mask = if depth == K_BLOCK { u32::MAX } else { (1 << depth) - 1 };
                for r in 0..s.rows {
                    let row = _mm512_maskz_loadu_epi16(mask, from.add(r * s.row_stride).cast());
                    _mm512_storeu_si512(rows[r].as_mut_ptr().cast(), row);
                }
                transpose(&raw mut pairs, &raw const rows);
            } else {
                for (p, pair) in pairs.iter_mut().enumerate() {
                    for (r, word) in pair.iter_mut().enumerate().take(s.rows) {
                        let at = |k: usize| {
                            if k < depth {
                                u32::from(*from.add(r * s.row_stride + k * s.col_stride))
                            } else {
                                0
                            }
                        };
                        *word = at(2 * p) | at(2 * p + 1) << 16;
                    }
                }
            }
            for (p, pair) in pairs.iter().enumerate() {
                let both = _mm512_loadu_si512(pair.as_ptr().cast());
                let to = panel.add((block * K_BLOCK / 2 + p) * 2 * STRIP);
                let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both));
                let odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32.cast_signed())));
                _mm512_mask_storeu_ps(to, first(STRIP), even);
                _mm512_mask_storeu_ps(to.add(STRIP), first(STRIP), odd);
            }
        }
    }
}

/// One row of both chains: the accumulators and where the row's elements lie.
macro_rules! row {
    ($e:literal, $o:literal, $at_e:literal, $at_o:literal) => {
        concat!(
            "vfmadd231ps zmm",
            $e,
            ", zmm25, dword ptr [{pa} + ",
            $at_e,
            "]{{1to16}}\n",
            "vfmadd231ps zmm",
            $o,
            ", zmm24, dword ptr [{pa} + ",
            $at_o,
            "]{{1to16}}\n",
        )
    };
}

/// The end of a block for one row.
macro_rules! finish {
    ($e:literal, $o:literal, $at:literal) => {
        concat!(
            "vaddps zmm",
            $e,
            ", zmm",
            $e,
            ", zmm",
            $o,
            "\n",
            "vaddps zmm",
            $e,
            ", zmm",
            $e,
            ", [{c} + ",
            $at,
            "]\n",
            "vmovups [{c} + ",
            $at,
            "], zmm",
            $e,
            "\n",
            "vpxord zmm",
            $e,
            ", zmm",
            $e,
            ", zmm",
            $e,
            "\n",
            "vpxord zmm",
            $o,
            ", zmm",
            $o,
            ", zmm",
            $o,
            "\n",
        )
    };
}

macro_rules! zero {
    ($($r:literal)*) => { concat!($("vpxord zmm", $r, ", zmm", $r, ", zmm", $r, "\n"),*) };
}

/// # Safety
/// As [`Block`] promises; the processor has AVX-512 F.
unsafe fn run_bf16(block: &Block) {
    for g in 0..block.groups {
        let mut saved = 0u32;
        // SAFETY:
        // * Loads of A read 24 floats for each pair of k, loads of B 64 bytes for each pair of k of the group, loads and stores of C
        //   twelve rows of 64 bytes: all inside of what `Block` promises.
        // * MXCSR is changed and restored inside of the block; every vector register used is declared.
        unsafe {
            let c = block.c.add(g * STRIP * 4 * TILE_COLS);
            if block.first {
                c.write_bytes(0, STRIP * 4 * TILE_COLS);
            }
            asm!(
                "stmxcsr [{saved}]",
                "ldmxcsr [{pairs}]",
                "mov {pairs:e}, 0xffff0000",
                "vpbroadcastd zmm26, {pairs:e}",
                zero!("0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11"),
                zero!("12" "13" "14" "15" "16" "17" "18" "19" "20" "21" "22" "23"),
                "2:",
                "mov {pairs:e}, 16",
                "3:",
                "vmovups zmm24, [{pb}]",
                "vpslld zmm25, zmm24, 16",
                "vpandd zmm24, zmm24, zmm26",
                row!("0", "12", "0", "48"),
                row!("1", "13", "4", "52"),
                row!("2", "14", "8", "56"),
                row!("3", "15", "12", "60"),
                row!("4", "16", "16", "64"),
                row!("5", "17", "20", "68"),
                row!("6", "18", "24", "72"),
                row!("7", "19", "28", "76"),
                row!("8", "20", "32", "80"),
                row!("9", "21", "36", "84"),
                row!("10", "22", "40", "88"),
                row!("11", "23", "44", "92"),
                "add {pa}, 96",
                "add {pb}, 64",
                "dec {pairs:e}",
                "jnz 3b",
                finish!("0", "12", "0"),
                finish!("1", "13", "64"),
                finish!("2", "14", "128"),
                finish!("3", "15", "192"),
                finish!("4", "16", "256"),
                finish!("5", "17", "320"),
                finish!("6", "18", "384"),
                finish!("7", "19", "448"),
                finish!("8", "20", "512"),
                finish!("9", "21", "576"),
                finish!("10", "22", "640"),
                finish!("11", "23", "704"),
                "dec {k}",
                "jnz 2b",
                "ldmxcsr [{saved}]",
                saved = in(reg) &raw mut saved,
                pairs = inout(reg) &raw const FLUSHING => _,
                pa = inout(reg) block.panel => _,
                pb = inout(reg) block.b.add(g * block.group_bytes) => _,
                c = in(reg) c,
                k = inout(reg) block.k_blocks => _,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                out("zmm24") _, out("zmm25") _, out("zmm26") _,
                options(nostack),
            );
        }
    }
}

/// Panel: for each k the strip's column.
///
/// # Safety
/// As [`Strip`] promises; the processor has AVX-512 F.
unsafe fn pack_f32(s: &Strip) {
    // SAFETY: the same promises.
    unsafe { pack_f32_inner(s) }
}

/// # Safety
/// As [`pack_f32`].
#[target_feature(enable = "avx512f")]
unsafe fn pack_f32_inner(s: &Strip) {
    let (a, panel) = (s.a.cast::<f32>(), s.panel.cast::<f32>());
    // SAFETY: elements of the strip only, by masks or by loops; the panel has 12 floats for each k.
    unsafe {
        if s.col_stride == 1 {
            let mut rows: Words = [[0; 16]; 16];
            let mut columns: Words = [[0; 16]; 16];
            for k in (0..s.depth).step_by(16) {
                let depth = 16.min(s.depth - k);
                for r in 0..s.rows {
                    let row = _mm512_maskz_loadu_epi32(first(depth), a.add(r * s.row_stride + k).cast());
                    _mm512_storeu_si512(rows[r].as_mut_ptr().cast(), row);
                }
                transpose(&raw mut columns, &raw const rows);
                for (d, column) in columns.iter().enumerate().take(depth) {
                    let column = _mm512_loadu_ps(column.as_ptr().cast());
                    _mm512_mask_storeu_ps(panel.add((k + d) * STRIP), first(STRIP), column);
                }
            }
        } else if s.row_stride == 1 {
            for k in 0..s.depth {
                let column = _mm512_maskz_loadu_ps(first(s.rows), a.add(k * s.col_stride));
                _mm512_mask_storeu_ps(panel.add(k * STRIP), first(STRIP), column);
            }
        } else {
            super::portable::pack_f32::<STRIP>(s);
        }
    }
}

/// # Safety
/// As [`Block`] promises; the processor has AVX-512 F.
unsafe fn run_f32(block: &Block) {
    // SAFETY: the same promises; groups beyond the last are never touched.
    unsafe {
        for pair in 0..block.groups / 2 {
            f32_groups::<2>(block, 2 * pair);
        }
        if block.groups % 2 == 1 {
            f32_groups::<1>(block, block.groups - 1);
        }
    }
}

/// Twelve rows of G groups: one chain for each element.
///
/// # Safety
/// As [`run_f32`]; `group + G <= groups`.
#[target_feature(enable = "avx512f")]
unsafe fn f32_groups<const G: usize>(block: &Block, group: usize) {
    // SAFETY: the panel has 12 floats for each k, a group of B 16 floats for each k, a group of C 12 rows of 16.
    unsafe {
        let c = block.c.cast::<f32>().add(group * STRIP * TILE_COLS);
        let mut acc = [[_mm512_setzero_ps(); G]; STRIP];
        if !block.first {
            for (r, row) in acc.iter_mut().enumerate() {
                for (g, acc) in row.iter_mut().enumerate() {
                    *acc = _mm512_load_ps(c.add((g * STRIP + r) * TILE_COLS));
                }
            }
        }
        let mut b = [std::ptr::null::<f32>(); G];
        for (g, b) in b.iter_mut().enumerate() {
            *b = block.b.add((group + g) * block.group_bytes).cast();
        }
        let mut a = block.panel.cast::<f32>();
        for k in 0..block.k_blocks {
            let mut columns = [_mm512_setzero_ps(); G];
            for g in 0..G {
                columns[g] = _mm512_loadu_ps(b[g].add(k * TILE_COLS));
            }
            for (r, row) in acc.iter_mut().enumerate() {
                let element = _mm512_set1_ps(*a.add(r));
                for g in 0..G {
                    row[g] = _mm512_fmadd_ps(element, columns[g], row[g]);
                }
            }
            a = a.add(STRIP);
        }
        for (r, row) in acc.iter().enumerate() {
            for (g, acc) in row.iter().enumerate() {
                _mm512_store_ps(c.add((g * STRIP + r) * TILE_COLS), *acc);
            }
        }
    }
}
