//! Kernels on 512-bit registers.
//!
//! bf16 without tiles is f32 arithmetic on widened operands (on several server cores VDPBF16PS has half its rate and another order).
//! The order is the tile unit's: for each block of 32 k an even and an odd chain from zero, their sum, then the sum onto C. Six rows, two
//! vectors of columns and two chains take 24 registers, so C lives in the first-level cache and is touched once a block:
//!
//! ```text
//! for strip of 6 rows:
//!     for block of K:                               384 multiply-adds, 24 additions; 192 + 64 + 12 loads
//!         for pair of k:
//!             for row of 6:  e[row] += a[row, k] * b[k, 0..32]
//!             for row of 6:  o[row] += a[row, k + 1] * b[k + 1, 0..32]
//!         C[row] += e[row] + o[row]
//! ```
//!
//! Two ports execute all of the arithmetic: at best 384 of 408 cycles' worth, 94.1 % of the peak, are multiply-adds; 93.7 % were
//! measured with everything in cache. Widening B in the inner loop would take 64 more.
//!
//! f32 has one chain an element, twelve rows of two vectors, and nothing to add.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "kernels work on raw panels, aligned by the driver"
)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::offset_of;

use super::transpose::turned;
use super::{Columns, FLUSHING, Hint, PANEL_COLS, PANEL_DEPTH, Panel, PanelKernel, Rows};
use crate::pack::TILE_LEN;

/// Rows of a bf16 strip.
const STRIP: usize = 6;
/// Rows of an f32 strip.
const F32_STRIP: usize = 12;

pub(crate) static BF16: PanelKernel = PanelKernel {
    name: "avx512-bf16-fma6x32",
    strip: STRIP,
    element: 2,
    pack_rows: pack_rows::<2, STRIP>,
    pack_columns: pack_columns_bf16,
    run: run_bf16,
};

pub(crate) static F32: PanelKernel = PanelKernel {
    name: "avx512-f32-12x32",
    strip: F32_STRIP,
    element: 4,
    pack_rows: pack_rows::<4, F32_STRIP>,
    pack_columns: pack_columns_f32,
    run: run_f32,
};

/// Lanes of a vector.
const LANES: usize = 16;

/// The first `n` of 16 lanes.
fn first(n: usize) -> __mmask16 {
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bits are set")]
    let mask = ((1u32 << n.min(LANES)) - 1) as u16;
    mask
}

/// The first `n` of up to 16 elements (bf16 if they have 2 bytes, f32 if 4) as f32, zeros behind them.
///
/// # Safety
/// `n.min(16)` elements are readable; the processor has AVX-512 F, BW and VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn widened<const BYTES: usize>(from: *const u8, n: usize) -> __m512 {
    // SAFETY: a masked load touches the elements of its mask only.
    unsafe {
        match (BYTES, n >= LANES) {
            (2, true) => upper_halves(_mm256_loadu_si256(from.cast())),
            (2, false) => upper_halves(_mm256_maskz_loadu_epi16(first(n), from.cast())),
            (_, true) => _mm512_loadu_ps(from.cast()),
            (_, false) => _mm512_maskz_loadu_ps(first(n), from.cast()),
        }
    }
}

/// Sixteen bf16 as f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn upper_halves(x: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
}

/// The transpose of sixteen rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned_f32(rows: [__m512; LANES]) -> [__m512; LANES] {
    let mut words = [_mm512_setzero_si512(); LANES];
    for i in 0..LANES {
        words[i] = _mm512_castps_si512(rows[i]);
    }
    let words = turned(words);
    let mut columns = rows;
    for i in 0..LANES {
        columns[i] = _mm512_castsi512_ps(words[i]);
    }
    columns
}

/// One element as f32.
///
/// # Safety
/// It is readable.
#[inline]
unsafe fn widened_one<const BYTES: usize>(from: *const u8) -> f32 {
    // SAFETY: by the same promise.
    unsafe {
        if BYTES == 2 {
            f32::from_bits(u32::from(from.cast::<u16>().read()) << 16)
        } else {
            from.cast::<f32>().read()
        }
    }
}

/// # Safety
/// As [`Rows`] promises; the processor has AVX-512 F, BW and VL.
unsafe fn pack_rows<const BYTES: usize, const STRIP: usize>(p: &Rows) {
    // SAFETY: the same promises.
    unsafe { pack_rows_inner::<BYTES, STRIP>(p) }
}

/// # Safety
/// As [`pack_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_rows_inner<const BYTES: usize, const STRIP: usize>(p: &Rows) {
    let blocks = p.depth.div_ceil(PANEL_DEPTH);
    // Where the block of a row begins, and where an element lies.
    let to = |row: usize, block: usize| {
        let strip_block = row / STRIP * blocks + block;
        p.to.wrapping_add((strip_block * STRIP + row % STRIP) * PANEL_DEPTH)
    };
    let from = |row: usize, k: usize| p.from.wrapping_add((row * p.row_stride + k * p.col_stride) * BYTES);
    // SAFETY: elements of A below `rows` and `depth` only, by masks or by loops; a block of a row has 32 f32.
    unsafe {
        if p.col_stride == 1 {
            // Block after block of a strip, so that the panel is written from its first byte to its last.
            for strip in (0..p.rows).step_by(STRIP) {
                for block in 0..blocks {
                    for row in strip..p.rows.min(strip + STRIP) {
                        for half in [0, LANES] {
                            let k = block * PANEL_DEPTH + half;
                            let x = widened::<BYTES>(from(row, k), p.depth.saturating_sub(k));
                            _mm512_store_ps(to(row, block).add(half), x);
                        }
                    }
                }
            }
        } else if p.row_stride == 1 {
            for k0 in (0..blocks * PANEL_DEPTH).step_by(LANES) {
                for row in (0..p.rows).step_by(LANES) {
                    let live = LANES.min(p.rows - row);
                    let mut columns = [_mm512_setzero_ps(); LANES];
                    for (i, column) in columns.iter_mut().enumerate() {
                        if k0 + i < p.depth {
                            *column = widened::<BYTES>(from(row, k0 + i), live);
                        }
                    }
                    let turned = turned_f32(columns);
                    for i in 0..live {
                        _mm512_store_ps(to(row + i, k0 / PANEL_DEPTH).add(k0 % PANEL_DEPTH), turned[i]);
                    }
                }
            }
        } else {
            for row in 0..p.rows {
                for k in 0..blocks * PANEL_DEPTH {
                    let x = if k < p.depth {
                        widened_one::<BYTES>(from(row, k))
                    } else {
                        0.0
                    };
                    to(row, k / PANEL_DEPTH).add(k % PANEL_DEPTH).write(x);
                }
            }
        }
    }
}

/// # Safety
/// As [`Columns`] promises; the processor has AVX-512 F, BW and VL.
unsafe fn pack_columns_bf16(p: &Columns) {
    // SAFETY: the same promises.
    unsafe {
        if p.tiled {
            pack_tiles(p);
        } else {
            pack_columns::<2>(p);
        }
    }
}

/// # Safety
/// As [`Columns`] promises; the processor has AVX-512 F, BW and VL.
unsafe fn pack_columns_f32(p: &Columns) {
    // SAFETY: the same promises.
    unsafe { pack_columns::<4>(p) }
}

/// Tiles of the packed form: a row of pairs is a row of even k and one of odd k.
///
/// # Safety
/// As [`Columns`] promises with `tiled`; the processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn pack_tiles(p: &Columns) {
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for side in 0..PANEL_COLS / LANES {
        let from = p.from.cast::<u16>().wrapping_add(side * p.col_stride);
        let to = p.to.wrapping_add(side * LANES);
        for pair in 0..p.depth / 2 {
            // SAFETY: a tile has sixteen rows of 64 bytes, tiles follow each other down K; the panel has 32 f32 for each k.
            unsafe {
                let both = if side * LANES < p.cols {
                    _mm512_loadu_si512(from.add(pair * TILE_LEN / 16).cast())
                } else {
                    _mm512_setzero_si512()
                };
                let to = to.add(2 * pair * PANEL_COLS);
                _mm512_store_ps(to, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)));
                _mm512_store_ps(to.add(PANEL_COLS), _mm512_castsi512_ps(_mm512_and_si512(both, upper)));
            }
        }
    }
}

/// # Safety
/// As [`Columns`] promises without `tiled`; the processor has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_columns<const BYTES: usize>(p: &Columns) {
    let depth = p.depth.next_multiple_of(PANEL_DEPTH);
    let from = |k: usize, col: usize| p.from.wrapping_add((k * p.row_stride + col * p.col_stride) * BYTES);
    // SAFETY: elements of B below `depth` and `cols` only, by masks or by loops; the panel has 32 f32 for each k of whole blocks.
    unsafe {
        if p.col_stride == 1 {
            for k in 0..p.depth {
                for col in [0, LANES] {
                    let x = widened::<BYTES>(from(k, col), p.cols.saturating_sub(col));
                    _mm512_store_ps(p.to.add(k * PANEL_COLS + col), x);
                }
            }
        } else if p.row_stride == 1 {
            for k in (0..p.depth).step_by(LANES) {
                for col in [0, LANES] {
                    let mut columns = [_mm512_setzero_ps(); LANES];
                    for (i, column) in columns.iter_mut().enumerate() {
                        if col + i < p.cols {
                            *column = widened::<BYTES>(from(k, col + i), p.depth - k);
                        }
                    }
                    let turned = turned_f32(columns);
                    for i in 0..LANES {
                        _mm512_store_ps(p.to.add((k + i) * PANEL_COLS + col), turned[i]);
                    }
                }
            }
        } else {
            for k in 0..p.depth {
                for col in 0..PANEL_COLS {
                    let x = if col < p.cols {
                        widened_one::<BYTES>(from(k, col))
                    } else {
                        0.0
                    };
                    p.to.add(k * PANEL_COLS + col).write(x);
                }
            }
        }
        p.to.add(p.depth * PANEL_COLS)
            .write_bytes(0, (depth - p.depth) * PANEL_COLS);
    }
}

/// What the bf16 kernel keeps in memory.
#[repr(C)]
struct Walk {
    strips: usize,
    b: *const f32,
    b_end: *const f32,
    /// Zeros to begin from, or null.
    zeros: *const f32,
    /// Bytes from the end of a strip's blocks to the next strip.
    skip: usize,
    /// The outputs of the strip, and bytes to those of the next one.
    out: *const u8,
    out_strip: usize,
    flushing: u32,
    saved: u32,
}

/// A strip of zeros.
#[repr(align(64))]
struct Zeros([f32; STRIP * PANEL_COLS]);

static ZEROS: Zeros = Zeros([0.0; STRIP * PANEL_COLS]);

/// One k of each row: `$first` where a chain begins from zero.
macro_rules! step {
    ($k:literal first $([$r:literal $x:literal $y:literal])*) => {
        concat!(
            "vmovaps zmm24, [{pb} + 128*", $k, "]\n",
            "vmovaps zmm25, [{pb} + 128*", $k, " + 64]\n",
            $(
                "vbroadcastss zmm", $x, ", dword ptr [{pa} + 128*", $r, " + 4*", $k, " - 384]\n",
                "vbroadcastss zmm", $y, ", dword ptr [{pa} + 128*", $r, " + 4*", $k, " - 384]\n",
                "vfmadd213ps zmm", $x, ", zmm24, zmm31\n",
                "vfmadd213ps zmm", $y, ", zmm25, zmm31\n",
            )*
        )
    };
    ($k:literal $([$r:literal $x:literal $y:literal])*) => {
        concat!(
            "vmovaps zmm24, [{pb} + 128*", $k, "]\n",
            "vmovaps zmm25, [{pb} + 128*", $k, " + 64]\n",
            $(
                "vbroadcastss zmm26, dword ptr [{pa} + 128*", $r, " + 4*", $k, " - 384]\n",
                "vfmadd231ps zmm", $x, ", zmm26, zmm24\n",
                "vfmadd231ps zmm", $y, ", zmm26, zmm25\n",
            )*
        )
    };
}

/// The even k of the list along one set of registers, the odd ones along the other.
macro_rules! steps {
    (@ $k:literal [$($row:tt)*]) => { step!($k $($row)*) };
    ($even:tt $odd:tt $($k:literal $l:literal),*) => { concat!($(steps!(@ $k $even), steps!(@ $l $odd)),*) };
}

/// The end of a block for one vector: the chains' sum onto C.
macro_rules! finish {
    ($($e:literal $o:literal $at:literal),*) => {
        concat!($(
            "vaddps zmm", $e, ", zmm", $e, ", zmm", $o, "\n",
            "vaddps zmm", $e, ", zmm", $e, ", [{from} + ", $at, "]\n",
            "vmovaps [{c} + ", $at, "], zmm", $e, "\n",
        )*)
    };
}

/// A kernel of so many rows.
macro_rules! rows {
    ($name:ident, $rows:literal, [$($even:tt)*], [$($odd:tt)*], $finish:expr) => {
        /// Strips of this many rows.
        ///
        /// # Safety
        /// As [`Panel`] promises, for the rows of `walk.strips` strips; `walk` was made for the panel, and the processor has AVX-512 F.
        unsafe fn $name(p: &Panel, walk: &mut Walk) {
            // SAFETY:
            // * Loads of A read the rows of each block of a strip, loads of B 32 floats for each k of the blocks, loads and stores of C
            //   as many rows of 128 bytes: all inside of what `Panel` promises. Prefetches may point anywhere.
            // * MXCSR is changed and restored inside of the block; every vector register used is declared.
            unsafe {
                asm!(
                    "stmxcsr [{walk} + {saved}]",
                    "ldmxcsr [{walk} + {flushing}]",
                    "vpxor xmm15, xmm15, xmm15",
                    "vmovaps zmm31, zmm15",
                    "2:",
                    "mov {pb}, [{walk} + {b}]",
                    "mov {out}, [{walk} + {strip_out}]",
                    "mov {from}, [{walk} + {zeros}]",
                    "test {from}, {from}",
                    "cmovz {from}, {c}",
                    "3:",
                    step!(0 first $($even)*),
                    step!(1 first $($odd)*),
                    // What is wanted next comes a line or two a block, so that it never fills the queue of misses.
                    "prefetcht1 [{next}]",
                    "prefetcht1 [{next} + {next_second}]",
                    "add {next}, {next_stride}",
                    steps!([$($even)*] [$($odd)*] 2 3, 4 5, 6 7, 8 9, 10 11, 12 13, 14 15),
                    "prefetchw [{out}]",
                    "prefetchw [{out} + {out_second}]",
                    "add {out}, {out_stride}",
                    steps!([$($even)*] [$($odd)*] 16 17, 18 19, 20 21, 22 23, 24 25, 26 27, 28 29, 30 31),
                    $finish,
                    "mov {from}, {c}",
                    "add {pa}, 768",
                    "add {pb}, 4096",
                    "cmp {pb}, [{walk} + {b_end}]",
                    "jne 3b",
                    "mov {out}, [{walk} + {out_strip}]",
                    "add [{walk} + {strip_out}], {out}",
                    "add {pa}, [{walk} + {skip}]",
                    concat!("add {c}, 128*", $rows),
                    "dec qword ptr [{walk} + {strips}]",
                    "jnz 2b",
                    "ldmxcsr [{walk} + {saved}]",
                    walk = in(reg) &raw mut *walk,
                    strips = const offset_of!(Walk, strips),
                    b = const offset_of!(Walk, b),
                    b_end = const offset_of!(Walk, b_end),
                    zeros = const offset_of!(Walk, zeros),
                    skip = const offset_of!(Walk, skip),
                    strip_out = const offset_of!(Walk, out),
                    out_strip = const offset_of!(Walk, out_strip),
                    flushing = const offset_of!(Walk, flushing),
                    saved = const offset_of!(Walk, saved),
                    pa = inout(reg) p.a.wrapping_byte_add(384) => _,
                    pb = out(reg) _,
                    c = inout(reg) p.c => _,
                    from = out(reg) _,
                    next = inout(reg) p.next.at => _,
                    next_second = in(reg) p.next.second,
                    next_stride = in(reg) p.next.stride,
                    out = out(reg) _,
                    out_second = in(reg) p.out.second,
                    out_stride = in(reg) p.out.stride,
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                    out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                    out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _, out("zmm16") _, out("zmm17") _,
                    out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm31") _,
                    options(nostack),
                );
            }
        }
    };
}

rows!(
    run1,
    1,
    [[0 0 1]],
    [[0 12 13]],
    finish!(0 12 0, 1 13 64)
);
rows!(
    run2,
    2,
    [[0 0 1] [1 2 3]],
    [[0 12 13] [1 14 15]],
    finish!(0 12 0, 1 13 64, 2 14 128, 3 15 192)
);
rows!(
    run3,
    3,
    [[0 0 1] [1 2 3] [2 4 5]],
    [[0 12 13] [1 14 15] [2 16 17]],
    finish!(0 12 0, 1 13 64, 2 14 128, 3 15 192, 4 16 256, 5 17 320)
);
rows!(
    run4,
    4,
    [[0 0 1] [1 2 3] [2 4 5] [3 6 7]],
    [[0 12 13] [1 14 15] [2 16 17] [3 18 19]],
    finish!(0 12 0, 1 13 64, 2 14 128, 3 15 192, 4 16 256, 5 17 320, 6 18 384, 7 19 448)
);
rows!(
    run5,
    5,
    [[0 0 1] [1 2 3] [2 4 5] [3 6 7] [4 8 9]],
    [[0 12 13] [1 14 15] [2 16 17] [3 18 19] [4 20 21]],
    finish!(0 12 0, 1 13 64, 2 14 128, 3 15 192, 4 16 256, 5 17 320, 6 18 384, 7 19 448, 8 20 512, 9 21 576)
);
rows!(
    run6,
    6,
    [[0 0 1] [1 2 3] [2 4 5] [3 6 7] [4 8 9] [5 10 11]],
    [[0 12 13] [1 14 15] [2 16 17] [3 18 19] [4 20 21] [5 22 23]],
    finish!(0 12 0, 1 13 64, 2 14 128, 3 15 192, 4 16 256, 5 17 320, 6 18 384, 7 19 448, 8 20 512, 9 21 576, 10 22 640, 11 23 704)
);

/// # Safety
/// As [`Panel`] promises; the processor has AVX-512 F.
unsafe fn run_bf16(p: &Panel) {
    let k_blocks = p.depth.div_ceil(PANEL_DEPTH);
    let (whole, rest) = (p.rows / STRIP, p.rows % STRIP);
    let mut walk = Walk {
        strips: whole,
        b: p.b,
        b_end: p.b.wrapping_add(k_blocks * PANEL_DEPTH * PANEL_COLS),
        zeros: if p.first { ZEROS.0.as_ptr() } else { std::ptr::null() },
        skip: p.strip_bytes - k_blocks * STRIP * PANEL_DEPTH * 4,
        out: p.out.at,
        out_strip: STRIP * p.out.stride,
        flushing: FLUSHING,
        saved: 0,
    };
    // SAFETY: the same promises, for the whole strips and for the last one.
    unsafe {
        if whole > 0 {
            run6(p, &mut walk);
        }
        let tail = from_row(p, whole * STRIP, STRIP);
        walk.strips = 1;
        match rest {
            1 => run1(&tail, &mut walk),
            2 => run2(&tail, &mut walk),
            3 => run3(&tail, &mut walk),
            4 => run4(&tail, &mut walk),
            5 => run5(&tail, &mut walk),
            _ => {}
        }
    }
}

/// What is left of the work from a row on that begins a strip.
fn from_row(p: &Panel, row: usize, strip: usize) -> Panel {
    Panel {
        a: p.a.wrapping_byte_add(row / strip * p.strip_bytes),
        c: p.c.wrapping_add(row * PANEL_COLS),
        rows: p.rows - row,
        out: Hint {
            at: p.out.at.wrapping_add(row * p.out.stride),
            ..p.out
        },
        ..*p
    }
}

/// # Safety
/// As [`Panel`] promises; the processor has AVX-512 F.
unsafe fn run_f32(p: &Panel) {
    let (whole, rest) = (p.rows / F32_STRIP, p.rows % F32_STRIP);
    // SAFETY: the same promises, for the whole strips and for the last one.
    unsafe {
        f32_strips::<F32_STRIP>(p, whole);
        let tail = &from_row(p, whole * F32_STRIP, F32_STRIP);
        match rest {
            1 => f32_strips::<1>(tail, 1),
            2 => f32_strips::<2>(tail, 1),
            3 => f32_strips::<3>(tail, 1),
            4 => f32_strips::<4>(tail, 1),
            5 => f32_strips::<5>(tail, 1),
            6 => f32_strips::<6>(tail, 1),
            7 => f32_strips::<7>(tail, 1),
            8 => f32_strips::<8>(tail, 1),
            9 => f32_strips::<9>(tail, 1),
            10 => f32_strips::<10>(tail, 1),
            11 => f32_strips::<11>(tail, 1),
            _ => {}
        }
    }
}

/// Strips of R rows: one chain for each element.
///
/// # Safety
/// As [`Panel`] promises, for the rows of these strips; the processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn f32_strips<const R: usize>(p: &Panel, strips: usize) {
    let mut next = p.next.at;
    for strip in 0..strips {
        // SAFETY: a strip has twelve rows of 32 floats for each block, of which R are read up to the depth; the panel has 32 floats for
        // each k, C 32 for each row. Prefetches may point anywhere.
        unsafe {
            let c = p.c.add(strip * R * PANEL_COLS);
            let a = p.a.byte_add(strip * p.strip_bytes);
            let mut acc = [[_mm512_setzero_ps(); 2]; R];
            if !p.first {
                for (r, row) in acc.iter_mut().enumerate() {
                    *row = [
                        _mm512_load_ps(c.add(r * PANEL_COLS)),
                        _mm512_load_ps(c.add(r * PANEL_COLS + LANES)),
                    ];
                }
            }
            for block in 0..p.depth.div_ceil(PANEL_DEPTH) {
                let k0 = block * PANEL_DEPTH;
                let (a, b) = (a.add(k0 * F32_STRIP), p.b.add(k0 * PANEL_COLS));
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(p.next.second).cast());
                next = next.wrapping_add(p.next.stride);
                for row in 2 * block..R.min(2 * block + 2) {
                    let out = p.out.at.wrapping_add((strip * R + row) * p.out.stride);
                    _mm_prefetch::<_MM_HINT_ET0>(out.cast());
                    _mm_prefetch::<_MM_HINT_ET0>(out.wrapping_add(p.out.second).cast());
                }
                for k in 0..PANEL_DEPTH.min(p.depth - k0) {
                    let columns = [
                        _mm512_load_ps(b.add(k * PANEL_COLS)),
                        _mm512_load_ps(b.add(k * PANEL_COLS + LANES)),
                    ];
                    for (r, row) in acc.iter_mut().enumerate() {
                        let element = _mm512_set1_ps(*a.add(r * PANEL_DEPTH + k));
                        for (acc, column) in row.iter_mut().zip(columns) {
                            *acc = _mm512_fmadd_ps(element, column, *acc);
                        }
                    }
                }
            }
            for (r, row) in acc.iter().enumerate() {
                _mm512_store_ps(c.add(r * PANEL_COLS), row[0]);
                _mm512_store_ps(c.add(r * PANEL_COLS + LANES), row[1]);
            }
        }
    }
}
