//! Kernels on 256-bit registers: those of AVX-512 at half the width, six rows at a time.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Block, BlockKernel, FLUSHING, Strip};
use crate::pack::{K_BLOCK, TILE_COLS, TILE_LEN};

/// Rows of a strip.
const STRIP: usize = 6;

pub(crate) static BF16: BlockKernel = BlockKernel {
    name: "avx2-bf16-fma6",
    strip: STRIP,
    k_block: K_BLOCK,
    tile_bytes: 2 * TILE_LEN,
    panel_bytes: 4 * STRIP * K_BLOCK,
    // 16 blocks of 768 bytes.
    chunk: 16,
    reads_rows: false,
    pack_a: pack_bf16,
    run: run_bf16,
};

pub(crate) static F32: BlockKernel = BlockKernel {
    name: "avx2-f32-6x16",
    strip: STRIP,
    k_block: 1,
    tile_bytes: 4 * TILE_COLS,
    panel_bytes: 4 * STRIP,
    // 6 KiB of A and 16 KiB of B.
    chunk: 256,
    reads_rows: false,
    pack_a: super::portable::pack_f32::<STRIP>,
    run: run_f32,
};

/// Panel: for each pair of k, the rows' elements of the even k, then those of the odd k, widened to f32.
///
/// # Safety
/// As [`Strip`] promises.
unsafe fn pack_bf16(s: &Strip) {
    let (a, panel) = (s.a.cast::<u16>(), s.panel.cast::<u32>());
    for k in 0..s.depth.next_multiple_of(K_BLOCK) {
        for r in 0..STRIP {
            let bits = if r < s.rows && k < s.depth {
                // SAFETY: (r, k) is inside of the strip's chunk.
                unsafe { u32::from(*a.add(r * s.row_stride + k * s.col_stride)) << 16 }
            } else {
                0
            };
            // SAFETY: the panel has `2 * STRIP` words for each pair of k.
            unsafe { *panel.add(k * STRIP + r) = bits };
        }
    }
}

/// One row of both chains.
macro_rules! row {
    ($e:literal, $o:literal, $at_e:literal, $at_o:literal) => {
        concat!(
            "vbroadcastss ymm14, dword ptr [{pa} + ",
            $at_e,
            "]\n",
            "vfmadd231ps ymm",
            $e,
            ", ymm12, ymm14\n",
            "vbroadcastss ymm14, dword ptr [{pa} + ",
            $at_o,
            "]\n",
            "vfmadd231ps ymm",
            $o,
            ", ymm13, ymm14\n",
        )
    };
}

/// The end of a block for one row.
macro_rules! finish {
    ($e:literal, $o:literal, $at:literal) => {
        concat!(
            "vaddps ymm",
            $e,
            ", ymm",
            $e,
            ", ymm",
            $o,
            "\n",
            "vaddps ymm",
            $e,
            ", ymm",
            $e,
            ", [{c} + ",
            $at,
            "]\n",
            "vmovups [{c} + ",
            $at,
            "], ymm",
            $e,
            "\n",
            "vxorps ymm",
            $e,
            ", ymm",
            $e,
            ", ymm",
            $e,
            "\n",
            "vxorps ymm",
            $o,
            ", ymm",
            $o,
            ", ymm",
            $o,
            "\n",
        )
    };
}

macro_rules! zero {
    ($($r:literal)*) => { concat!($("vxorps ymm", $r, ", ymm", $r, ", ymm", $r, "\n"),*) };
}

/// # Safety
/// As [`Block`] promises; the processor has AVX2 and FMA.
unsafe fn run_bf16(block: &Block) {
    for half in 0..2 * block.groups {
        let mut saved = 0u32;
        let (g, side) = (half / 2, half % 2 * 32);
        // SAFETY:
        // * Loads of A read 12 floats for each pair of k, loads of B 32 bytes for each pair of k of the group, loads and stores of C
        //   half of six rows of 64 bytes: all inside of what `Block` promises.
        // * MXCSR is changed and restored inside of the block; every vector register used is declared.
        unsafe {
            let c = block.c.add(g * STRIP * 4 * TILE_COLS + side);
            if block.first && side == 0 {
                c.write_bytes(0, STRIP * 4 * TILE_COLS);
            }
            asm!(
                "stmxcsr [{saved}]",
                "ldmxcsr [{pairs}]",
                "mov {pairs:e}, 0xffff0000",
                "vmovd xmm15, {pairs:e}",
                "vpbroadcastd ymm15, xmm15",
                zero!("0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11"),
                "2:",
                "mov {pairs:e}, 16",
                "3:",
                "vmovups ymm13, [{pb}]",
                "vpslld ymm12, ymm13, 16",
                "vandps ymm13, ymm13, ymm15",
                row!("0", "6", "0", "24"),
                row!("1", "7", "4", "28"),
                row!("2", "8", "8", "32"),
                row!("3", "9", "12", "36"),
                row!("4", "10", "16", "40"),
                row!("5", "11", "20", "44"),
                "add {pa}, 48",
                "add {pb}, 64",
                "dec {pairs:e}",
                "jnz 3b",
                finish!("0", "6", "0"),
                finish!("1", "7", "64"),
                finish!("2", "8", "128"),
                finish!("3", "9", "192"),
                finish!("4", "10", "256"),
                finish!("5", "11", "320"),
                "dec {k}",
                "jnz 2b",
                "ldmxcsr [{saved}]",
                saved = in(reg) &raw mut saved,
                pairs = inout(reg) &raw const FLUSHING => _,
                pa = inout(reg) block.panel => _,
                pb = inout(reg) block.b.add(g * block.group_bytes + side) => _,
                c = in(reg) c,
                k = inout(reg) block.k_blocks => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    }
}

/// # Safety
/// As [`Block`] promises; the processor has AVX2 and FMA.
unsafe fn run_f32(block: &Block) {
    for g in 0..block.groups {
        // SAFETY: the same promises.
        unsafe { f32_group(block, g) };
    }
}

/// Six rows of a group: one chain for each element.
///
/// # Safety
/// As [`run_f32`]; `group < groups`.
#[target_feature(enable = "avx2,fma")]
unsafe fn f32_group(block: &Block, group: usize) {
    // SAFETY: the panel has 6 floats for each k, a group of B 16 floats for each k, a group of C 6 rows of 16.
    unsafe {
        let c = block.c.cast::<f32>().add(group * STRIP * TILE_COLS);
        let mut acc = [[_mm256_setzero_ps(); 2]; STRIP];
        if !block.first {
            for (r, row) in acc.iter_mut().enumerate() {
                *row = [
                    _mm256_load_ps(c.add(r * TILE_COLS)),
                    _mm256_load_ps(c.add(r * TILE_COLS + 8)),
                ];
            }
        }
        let b = block.b.add(group * block.group_bytes).cast::<f32>();
        let mut a = block.panel.cast::<f32>();
        for k in 0..block.k_blocks {
            let low = _mm256_loadu_ps(b.add(k * TILE_COLS));
            let high = _mm256_loadu_ps(b.add(k * TILE_COLS + 8));
            for (r, row) in acc.iter_mut().enumerate() {
                let element = _mm256_broadcast_ss(&*a.add(r));
                row[0] = _mm256_fmadd_ps(element, low, row[0]);
                row[1] = _mm256_fmadd_ps(element, high, row[1]);
            }
            a = a.add(STRIP);
        }
        for (r, row) in acc.iter().enumerate() {
            _mm256_store_ps(c.add(r * TILE_COLS), row[0]);
            _mm256_store_ps(c.add(r * TILE_COLS + 8), row[1]);
        }
    }
}
