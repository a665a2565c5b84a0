//! Packing of A into tiles of 16 rows and 32 columns, and the 16 x 16 transpose of 32-bit words behind every packing that turns
//! rows into columns.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::x86_64::*;

use super::Strip;
use crate::pack::K_BLOCK;

/// Rows of a tile.
const ROWS: usize = 16;

/// 16 x 16 words.
pub(crate) type Words = [[u32; 16]; 16];

/// `to[i][j] = from[j][i]`.
///
/// # Safety
/// The processor has AVX-512 F; `from` is readable and `to` writable.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn transpose(to: *mut Words, from: *const Words) {
    // SAFETY: sixteen rows of sixteen words on both sides.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); 16];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_si512(from.cast::<__m512i>().add(i));
        }
        let rows = turned(rows);
        for (i, row) in rows.iter().enumerate() {
            _mm512_storeu_si512(to.cast::<__m512i>().add(i), *row);
        }
    }
}

/// The transpose of sixteen rows of words.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn turned(mut a: [__m512i; 16]) -> [__m512i; 16] {
    // Words of neighbouring rows, pairs of words of rows two apart: 4 x 4 blocks turned within each 128-bit lane.
    let mut b = [_mm512_setzero_si512(); 16];
    for i in 0..8 {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for i in 0..4 {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    // Row group g (rows 4g ..) column c of each lane l now holds column 4l + c: gather the lanes of four groups.
    for c in 0..4 {
        let (r0, r1, r2, r3) = (a[c], a[4 + c], a[8 + c], a[12 + c]);
        let low01 = _mm512_shuffle_i32x4::<0b01_00_01_00>(r0, r1);
        let high01 = _mm512_shuffle_i32x4::<0b11_10_11_10>(r0, r1);
        let low23 = _mm512_shuffle_i32x4::<0b01_00_01_00>(r2, r3);
        let high23 = _mm512_shuffle_i32x4::<0b11_10_11_10>(r2, r3);
        b[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(low01, low23);
        b[4 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(low01, low23);
        b[8 + c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(high01, high23);
        b[12 + c] = _mm512_shuffle_i32x4::<0b11_01_11_01>(high01, high23);
    }
    b
}

/// Packs a strip of 16-bit elements into `tiles` tiles for each block of 32 columns: tile t holds rows `16 t ..` of the strip.
///
/// # Safety
/// As [`Strip`] promises for 16-bit elements and `strip = 16 * tiles`; the processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_pairs(s: &Strip, tiles: usize) {
    let a = s.a.cast::<u16>();
    if s.col_stride == 1 {
        // SAFETY: the same promises.
        unsafe { copy_rows(s.panel.cast(), a, s.rows, tiles * ROWS, s.depth, s.row_stride) };
        return;
    }
    for block in 0..s.depth.div_ceil(K_BLOCK) {
        let depth = K_BLOCK.min(s.depth - block * K_BLOCK);
        for t in 0..tiles {
            let rows = s.rows.saturating_sub(t * ROWS).min(ROWS);
            // SAFETY: rows and columns below are those of the strip; masks keep loads inside of it.
            unsafe {
                let to = s.panel.cast::<Words>().add(block * tiles + t);
                let from = a.add(t * ROWS * s.row_stride * usize::from(rows > 0) + block * K_BLOCK * s.col_stride);
                if s.row_stride == 1 {
                    turn_columns(to, from, rows, depth, s.col_stride);
                } else {
                    gather(to, from, rows, depth, s.row_stride, s.col_stride);
                }
            }
        }
    }
}

/// Rows that are contiguous in memory: each is read from its first element to its last, so that hardware prefetching follows.
///
/// # Safety
/// `depth` elements of `rows` rows are readable; the panel has `strip` rows of 64 bytes for each block of 32 elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_rows(to: *mut __m512i, from: *const u16, rows: usize, strip: usize, depth: usize, row_stride: usize) {
    let (whole, rest) = (depth / K_BLOCK, depth % K_BLOCK);
    // SAFETY: the mask covers the readable elements of the last block.
    unsafe {
        for r in 0..rows {
            let row = from.add(r * row_stride);
            for block in 0..whole {
                let line = _mm512_loadu_si512(row.add(block * K_BLOCK).cast());
                _mm512_store_si512(to.add(block * strip + r), line);
            }
            if rest > 0 {
                let line = _mm512_maskz_loadu_epi16((1 << rest) - 1, row.add(whole * K_BLOCK).cast());
                _mm512_store_si512(to.add(whole * strip + r), line);
            }
        }
        for r in rows..strip {
            for block in 0..depth.div_ceil(K_BLOCK) {
                _mm512_store_si512(to.add(block * strip + r), _mm512_setzero_si512());
            }
        }
    }
}

/// Columns that are contiguous in memory: pairs of columns are interleaved, then turned.
///
/// # Safety
/// `rows <= 16` elements of `depth <= 32` columns are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn turn_columns(to: *mut Words, from: *const u16, rows: usize, depth: usize, col_stride: usize) {
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits are set")]
    let mask = ((1u32 << rows) - 1) as u16;
    let mut pairs: Words = [[0; 16]; 16];
    // SAFETY: the mask covers the readable elements; a column past the depth is not read.
    unsafe {
        for (p, pair) in pairs.iter_mut().enumerate() {
            let column = |k: usize| {
                if k < depth {
                    _mm512_maskz_cvtepu16_epi32(mask, load_masked(from.add(k * col_stride), mask))
                } else {
                    _mm512_setzero_si512()
                }
            };
            let (even, odd) = (column(2 * p), column(2 * p + 1));
            let both = _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd));
            _mm512_storeu_si512(pair.as_mut_ptr().cast(), both);
        }
        transpose(to, &raw const pairs);
    }
}

/// Sixteen 16-bit elements, those of the mask from memory.
///
/// # Safety
/// The elements of the mask are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_masked(from: *const u16, mask: u16) -> __m256i {
    // SAFETY: a masked load touches the elements of its mask only.
    _mm512_castsi512_si256(unsafe { _mm512_maskz_loadu_epi16(u32::from(mask), from.cast()) })
}

/// Any strides.
///
/// # Safety
/// `rows <= 16` rows of `depth <= 32` elements are readable.
unsafe fn gather(to: *mut Words, from: *const u16, rows: usize, depth: usize, row_stride: usize, col_stride: usize) {
    // SAFETY: inside of the strip and of the tile.
    unsafe {
        to.write([[0; 16]; 16]);
        for r in 0..rows {
            for k in 0..depth {
                *to.cast::<u16>().add(r * K_BLOCK + k) = *from.add(r * row_stride + k * col_stride);
            }
        }
    }
}
