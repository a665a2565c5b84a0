//! Kernels on 256-bit registers: VPDPBUSD (AVX-VNNI) where the processor has it, else VPMADDWD on widened operands.
//!
//! The usual route without VNNI, VPMADDUBSW, saturates its sums of two products to 16 bits: 255 * 127 * 2 does not fit. VPMADDWD on
//! operands widened to 16 bits is exact for every input, at half the rate.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::x86_64::*;

use super::{Block, ByteKernel, Panel};
use crate::int8::pack::{K_BLOCK, TILE_BYTES, TILE_COLS};

/// Rows of a strip with VNNI: twelve registers of sums.
const STRIP: usize = 6;

pub(crate) static VNNI: ByteKernel = ByteKernel {
    strip: STRIP,
    panel: Panel::Bytes { biased: true },
    // 64 blocks of 384 bytes: half of the first-level cache.
    chunk: 64,
    run: run_vnni,
};

/// # Safety
/// As [`Block`] promises; the processor has AVX2 and AVX-VNNI.
unsafe fn run_vnni(block: &Block) {
    for group in 0..block.groups {
        // SAFETY: the same promises.
        unsafe {
            match block.rows {
                1 => vnni_group::<1>(block, group),
                2 => vnni_group::<2>(block, group),
                3..=4 => vnni_group::<4>(block, group),
                _ => vnni_group::<6>(block, group),
            }
        }
    }
}

/// R rows of a group.
///
/// # Safety
/// As [`run_vnni`]; `rows <= R <= STRIP` and `group < groups`.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn vnni_group<const R: usize>(block: &Block, group: usize) {
    // SAFETY: the panel has 6 rows of 64 bytes for each block, a group of B a tile for each block, a group of C 6 rows of 16.
    unsafe {
        let c = block.c.cast::<i32>().add(group * STRIP * TILE_COLS);
        let mut acc = [[_mm256_setzero_si256(); 2]; R];
        if !block.first {
            for (r, row) in acc.iter_mut().enumerate() {
                *row = [
                    _mm256_load_si256(c.add(r * TILE_COLS).cast()),
                    _mm256_load_si256(c.add(r * TILE_COLS + 8).cast()),
                ];
            }
        }
        let mut a = block.panel;
        let mut b = block.b.add(group * block.group_bytes);
        for _ in 0..block.k_blocks {
            for q in 0..K_BLOCK / 4 {
                let low = _mm256_loadu_si256(b.add(64 * q).cast());
                let high = _mm256_loadu_si256(b.add(64 * q + 32).cast());
                for (r, row) in acc.iter_mut().enumerate() {
                    let quad = _mm256_set1_epi32(a.add(K_BLOCK * r + 4 * q).cast::<i32>().read());
                    row[0] = _mm256_dpbusd_avx_epi32(row[0], quad, low);
                    row[1] = _mm256_dpbusd_avx_epi32(row[1], quad, high);
                }
            }
            a = a.add(STRIP * K_BLOCK);
            b = b.add(TILE_BYTES);
        }
        for (r, row) in acc.iter().enumerate() {
            _mm256_store_si256(c.add(r * TILE_COLS).cast(), row[0]);
            _mm256_store_si256(c.add(r * TILE_COLS + 8).cast(), row[1]);
        }
    }
}

/// Rows of a strip without VNNI: twelve registers of sums.
const WORD_STRIP: usize = 3;

pub(crate) static WORDS: ByteKernel = ByteKernel {
    strip: WORD_STRIP,
    panel: Panel::Words,
    // 64 blocks of 384 bytes.
    chunk: 64,
    run: run_words,
};

/// # Safety
/// As [`Block`] promises; the processor has AVX2.
unsafe fn run_words(block: &Block) {
    for group in 0..block.groups {
        // SAFETY: the same promises.
        unsafe {
            match block.rows {
                1 => words_group::<1>(block, group),
                _ => words_group::<3>(block, group),
            }
        }
    }
}

/// R rows of a group: each register holds two sums, of the even and of the odd pairs of k, of four columns.
///
/// # Safety
/// As [`run_words`]; `rows <= R <= WORD_STRIP` and `group < groups`.
#[target_feature(enable = "avx2")]
unsafe fn words_group<const R: usize>(block: &Block, group: usize) {
    // SAFETY: the panel has 3 rows of 64 words for each block, a group of B a tile for each block, a group of C 3 rows of 16.
    unsafe {
        let mut acc = [[_mm256_setzero_si256(); 4]; R];
        let mut a = block.panel.cast::<i64>();
        let mut b = block.b.add(group * block.group_bytes);
        for _ in 0..block.k_blocks {
            for q in 0..K_BLOCK / 4 {
                for j in 0..4 {
                    let columns = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(64 * q + 16 * j).cast()));
                    for (r, row) in acc.iter_mut().enumerate() {
                        let quad = _mm256_set1_epi64x(a.add(K_BLOCK / 4 * r + q).read());
                        row[j] = _mm256_add_epi32(row[j], _mm256_madd_epi16(quad, columns));
                    }
                }
            }
            a = a.add(WORD_STRIP * K_BLOCK / 4);
            b = b.add(TILE_BYTES);
        }
        for (r, row) in acc.iter().enumerate() {
            let mut sums = [0; 2 * TILE_COLS];
            for (j, acc) in row.iter().enumerate() {
                _mm256_storeu_si256(sums.as_mut_ptr().add(8 * j).cast(), *acc);
            }
            let c = &mut *block.c.cast::<[i32; TILE_COLS]>().add(group * WORD_STRIP + r);
            add_pairs(c, &sums, block.first);
        }
    }
}

/// Two sums a column become one; added to C unless it is the `first` chunk.
#[inline(always)]
pub(super) fn add_pairs(c: &mut [i32; TILE_COLS], sums: &[i32; 2 * TILE_COLS], first: bool) {
    for (c, [even, odd]) in c.iter_mut().zip(sums.as_chunks::<2>().0) {
        let sum = even.wrapping_add(*odd);
        *c = if first { sum } else { c.wrapping_add(sum) };
    }
}
