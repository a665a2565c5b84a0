//! Kernels on 512-bit registers: VPDPBUSD where the processor has it, else VPMADDWD on widened operands.
//!
//! ```text
//! VNNI, 12 rows x 32 columns in 24 registers
//! for block of 64 k:  for quad of k:
//!     b0, b1 = 16 column quads of two groups
//!     for row:  a = the row's quad in every lane;  acc[row] += a . b0, a . b1        24 products, 14 loads
//! ```
//!
//! VPDPBUSD adds to 32 bits modulo 2^32 without saturation (VPDPBUSDS is the other one). It takes A as unsigned.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::x86_64::*;

use super::avx2::add_pairs;
use super::{Block, ByteKernel, Panel};
use crate::int8::pack::{K_BLOCK, TILE_BYTES, TILE_COLS};

/// Rows of a strip with VNNI.
const STRIP: usize = 12;

pub(crate) static VNNI: ByteKernel = ByteKernel {
    strip: STRIP,
    panel: Panel::Bytes { biased: true },
    // 32 blocks of 768 bytes: half of the first-level cache.
    chunk: 32,
    run: run_vnni,
};

/// # Safety
/// As [`Block`] promises; the processor has AVX-512 F and VNNI.
unsafe fn run_vnni(block: &Block) {
    // SAFETY: the same promises; at most `rows` rows rounded up to those of a strip are computed.
    unsafe {
        match block.rows {
            1 => vnni_groups::<1, 4>(block),
            2 => vnni_groups::<2, 4>(block),
            3..=4 => vnni_groups::<4, 4>(block),
            5..=6 => vnni_groups::<6, 4>(block),
            7..=8 => vnni_groups::<8, 2>(block),
            _ => vnni_groups::<12, 2>(block),
        }
    }
}

/// All groups, G at a time.
///
/// # Safety
/// As [`run_vnni`]; `rows <= R <= STRIP`.
unsafe fn vnni_groups<const R: usize, const G: usize>(block: &Block) {
    let mut group = 0;
    // SAFETY: the same promises; groups past the last are never touched.
    unsafe {
        while group + G <= block.groups {
            vnni_block::<R, G>(block, group);
            group += G;
        }
        while group < block.groups {
            vnni_block::<R, 1>(block, group);
            group += 1;
        }
    }
}

/// R rows of G groups.
///
/// # Safety
/// As [`vnni_groups`]; `group + G <= groups`.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni_block<const R: usize, const G: usize>(block: &Block, group: usize) {
    // SAFETY: the panel has 12 rows of 64 bytes for each block, a group of B a tile for each block, a group of C 12 rows of 16.
    unsafe {
        let c = block.c.cast::<i32>().add(group * STRIP * TILE_COLS);
        let mut acc = [[_mm512_setzero_si512(); G]; R];
        if !block.first {
            for (r, row) in acc.iter_mut().enumerate() {
                for (g, acc) in row.iter_mut().enumerate() {
                    *acc = _mm512_load_si512(c.add((g * STRIP + r) * TILE_COLS).cast());
                }
            }
        }
        let mut a = block.panel;
        let mut b = block.b.add(group * block.group_bytes);
        for _ in 0..block.k_blocks {
            for q in 0..K_BLOCK / 4 {
                let mut columns = [_mm512_setzero_si512(); G];
                for (g, columns) in columns.iter_mut().enumerate() {
                    *columns = _mm512_loadu_si512(b.add(g * block.group_bytes + 64 * q).cast());
                }
                for (r, row) in acc.iter_mut().enumerate() {
                    let quad = _mm512_set1_epi32(a.add(K_BLOCK * r + 4 * q).cast::<i32>().read());
                    for (acc, columns) in row.iter_mut().zip(columns) {
                        *acc = _mm512_dpbusd_epi32(*acc, quad, columns);
                    }
                }
            }
            a = a.add(STRIP * K_BLOCK);
            b = b.add(TILE_BYTES);
        }
        for (r, row) in acc.iter().enumerate() {
            for (g, acc) in row.iter().enumerate() {
                _mm512_store_si512(c.add((g * STRIP + r) * TILE_COLS).cast(), *acc);
            }
        }
    }
}

/// Rows of a strip without VNNI.
const WORD_STRIP: usize = 8;

pub(crate) static WORDS: ByteKernel = ByteKernel {
    strip: WORD_STRIP,
    panel: Panel::Words,
    // 16 blocks of 1 KiB.
    chunk: 16,
    run: run_words,
};

/// # Safety
/// As [`Block`] promises; the processor has AVX-512 F and BW.
unsafe fn run_words(block: &Block) {
    for group in 0..block.groups {
        // SAFETY: the same promises.
        unsafe {
            match block.rows {
                1 => words_group::<1>(block, group),
                2 => words_group::<2>(block, group),
                3..=4 => words_group::<4>(block, group),
                _ => words_group::<8>(block, group),
            }
        }
    }
}

/// R rows of a group: each register holds two sums, of the even and of the odd pairs of k, of eight columns.
///
/// # Safety
/// As [`run_words`]; `rows <= R <= WORD_STRIP` and `group < groups`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn words_group<const R: usize>(block: &Block, group: usize) {
    // SAFETY: the panel has 8 rows of 64 words for each block, a group of B a tile for each block, a group of C 8 rows of 16.
    unsafe {
        let mut acc = [[_mm512_setzero_si512(); 2]; R];
        let mut a = block.panel.cast::<i64>();
        let mut b = block.b.add(group * block.group_bytes);
        for _ in 0..block.k_blocks {
            for q in 0..K_BLOCK / 4 {
                let low = _mm512_cvtepi8_epi16(_mm256_loadu_si256(b.add(64 * q).cast()));
                let high = _mm512_cvtepi8_epi16(_mm256_loadu_si256(b.add(64 * q + 32).cast()));
                for (r, row) in acc.iter_mut().enumerate() {
                    let quad = _mm512_set1_epi64(a.add(K_BLOCK / 4 * r + q).read());
                    row[0] = _mm512_add_epi32(row[0], _mm512_madd_epi16(quad, low));
                    row[1] = _mm512_add_epi32(row[1], _mm512_madd_epi16(quad, high));
                }
            }
            a = a.add(WORD_STRIP * K_BLOCK / 4);
            b = b.add(TILE_BYTES);
        }
        for (r, row) in acc.iter().enumerate() {
            let mut sums = [0; 2 * TILE_COLS];
            _mm512_storeu_si512(sums.as_mut_ptr().cast(), row[0]);
            _mm512_storeu_si512(sums.as_mut_ptr().add(TILE_COLS).cast(), row[1]);
            let c = &mut *block.c.cast::<[i32; TILE_COLS]>().add(group * WORD_STRIP + r);
            add_pairs(c, &sums, block.first);
        }
    }
}
