//! The loops around a kernel: the output is cut into tiles that workers claim, a tile into strips of rows.
//!
//! ```text
//! for tile of the output (rows x columns), on whichever worker claims it:
//!     for strip of rows:
//!         for chunk of K:
//!             pack the strip's A into a panel                       first-level cache
//!             for slice of 128 columns:
//!                 C[slice] (+)= panel * B[chunk, slice]             B streams from the second-level cache
//!                 after the last chunk: zero points, epilogue       C[slice] is in the first-level cache
//! ```
#![expect(
    unsafe_code,
    reason = "panels and accumulators live in raw scratch, aligned to cache lines"
)]

use super::epilogue::{Byte, FinishStrip, Store, ZeroPoints};
use super::kernel::{Block, ByteKernel, Panel};
use super::pack::{K_BLOCK, PackedInt8Ref, TILE_BYTES, TILE_COLS};
use crate::epilogue::CHUNK;
use crate::error::Result;
use crate::executor::Executor;
use crate::matrix::MatRef;
use crate::parallel::{Seats, for_each_tile};
use crate::scratch::{Scratch, whole_lines};
use crate::simd::{Kernel, Lanes, Level};

/// The most rows a kernel's strip has.
const MAX_STRIP: usize = 32;
/// What the second-level cache (2 MiB) may hold of B.
const MAX_B_BYTES: usize = 5 << 18;
/// Rows of a tile: many, so that B is read often once it is in cache.
const MAX_ROWS: usize = 3072;
/// Columns of a tile.
const MAX_COLS: usize = 2048;

/// How one call is cut.
#[derive(Debug)]
struct Plan {
    /// Blocks of K in all, and in a chunk.
    k_blocks: usize,
    chunk: usize,
    /// Rows and columns of a tile, and how many tiles there are of each.
    tile_rows: usize,
    tile_cols: usize,
    row_tiles: usize,
    col_tiles: usize,
    /// Columns of C: with several chunks of K, the sums of all columns wait for the last one.
    c_cols: usize,
    seats: usize,
    /// The panel, then C.
    panel_bytes: usize,
    seat_bytes: usize,
}

/// `total` cut into the fewest equal parts of at most `most`, each a multiple of `unit`.
fn even_part(total: usize, most: usize, unit: usize) -> usize {
    let parts = total.div_ceil(most).max(1);
    total.div_ceil(parts).next_multiple_of(unit).max(unit)
}

impl Plan {
    fn new(kernel: &ByteKernel, m: usize, n: usize, k: usize, seats: usize) -> Self {
        let k_blocks = k.div_ceil(K_BLOCK);
        let chunk = even_part(k_blocks, kernel.chunk, 1);
        // Columns whose B, all of K, stays in cache.
        let cached_cols = MAX_B_BYTES / (k_blocks * TILE_BYTES).max(1) * TILE_COLS / CHUNK * CHUNK;
        let tile_cols = even_part(n, cached_cols.clamp(CHUNK, MAX_COLS), CHUNK);
        let col_tiles = n.div_ceil(tile_cols);
        let mut tile_rows = even_part(m, MAX_ROWS, kernel.strip);
        if seats > 1 {
            // Four tiles a worker even out their speeds.
            let wanted = (4 * seats).div_ceil(col_tiles.max(1));
            tile_rows = tile_rows
                .min(m.div_ceil(wanted).next_multiple_of(kernel.strip))
                .max(kernel.strip);
        }
        let row_tiles = m.div_ceil(tile_rows);
        let c_cols = if chunk == k_blocks { CHUNK } else { tile_cols };
        let panel_bytes = whole_lines(chunk * kernel.panel_bytes());
        Self {
            k_blocks,
            chunk,
            tile_rows,
            tile_cols,
            row_tiles,
            col_tiles,
            c_cols,
            seats: seats.min(row_tiles * col_tiles).max(1),
            panel_bytes,
            seat_bytes: panel_bytes + whole_lines(4 * kernel.strip * c_cols),
        }
    }
}

/// One product, after all checks.
#[derive(Debug)]
pub(crate) struct Product<'a, A> {
    pub(crate) level: Level,
    pub(crate) kernel: &'static ByteKernel,
    pub(crate) a: MatRef<'a, A>,
    pub(crate) b: PackedInt8Ref<'a>,
    pub(crate) zero: ZeroPoints<'a>,
}

impl<A: Byte> Product<'_, A> {
    pub(crate) fn run<T: Store>(&self, exec: &dyn Executor, store: &T, scratch: &mut Scratch) -> Result<()> {
        let (m, k) = self.a.shape();
        let n = self.b.n();
        if m == 0 || n == 0 {
            return Ok(());
        }
        let plan = Plan::new(self.kernel, m, n, k, exec.threads().max(1));
        let base = scratch.reserve(plan.seat_bytes * plan.seats);
        let seats = Seats::new(base, plan.seat_bytes);
        for_each_tile(exec, plan.seats, plan.row_tiles * plan.col_tiles, &|seat, tile| {
            // Tiles of one column follow each other, so that B stays in cache.
            let row = tile % plan.row_tiles * plan.tile_rows;
            let col = tile / plan.row_tiles * plan.tile_cols;
            // SAFETY: `for_each_tile` gives out seats below `plan.seats`, each to one worker.
            let scratch = unsafe { seats.seat(seat) };
            let rows = plan.tile_rows.min(m - row);
            for strip in (0..rows).step_by(self.kernel.strip) {
                let live = self.kernel.strip.min(rows - strip);
                self.strip(&plan, scratch, store, (row + strip, live), col);
            }
        })
    }

    /// All columns of a tile for one strip: its first row, its rows. `scratch` has the bytes of a seat.
    fn strip<T: Store>(&self, plan: &Plan, scratch: *mut u8, store: &T, (row, rows): (usize, usize), col: usize) {
        let kernel = self.kernel;
        let (n, k) = (self.b.n(), self.a.cols());
        let tile_cols = plan.tile_cols.min(n - col);
        // SAFETY: the panel and C lie one after the other in the seat's scratch.
        let all_c = unsafe { scratch.add(plan.panel_bytes) };
        let mut row_sums = [0; MAX_STRIP];
        let needs_row_sums = self.zero.needs_row_sums();
        if needs_row_sums {
            self.level.run(RowSums {
                sums: &mut row_sums[..rows],
                a: self.a,
                row,
            });
        }
        let biased = A::SIGNED && kernel.panel == Panel::Bytes { biased: true };
        for k_block in (0..plan.k_blocks.max(1)).step_by(plan.chunk) {
            let k_blocks = plan.chunk.min(plan.k_blocks - k_block);
            let last = k_block + k_blocks == plan.k_blocks;
            let panel_bytes = k_blocks * kernel.panel_bytes();
            // SAFETY: the seat's panel has this many bytes, initialised, and belongs to this thread.
            let panel = unsafe { std::slice::from_raw_parts_mut(scratch, panel_bytes) };
            self.level.run(PackA {
                panel,
                kernel,
                a: self.a,
                row,
                rows,
                k: k_block * K_BLOCK,
                depth: (k_blocks * K_BLOCK).min(k - k_block * K_BLOCK),
                flip: if biased { 0x80 } else { 0 },
            });
            for slice in (0..tile_cols).step_by(CHUNK) {
                let cols = CHUNK.min(tile_cols - slice);
                let groups = cols.div_ceil(TILE_COLS);
                let group = (col + slice) / TILE_COLS;
                let c = if plan.c_cols == CHUNK {
                    all_c
                } else {
                    // SAFETY: C has the groups of the tile.
                    unsafe { all_c.add(4 * slice * kernel.strip) }
                };
                let b = &self.b.tiles()[group * self.b.group_bytes()..];
                if k_blocks == 0 {
                    // SAFETY: C has a strip of sums, of which all bits are valid.
                    unsafe { c.write_bytes(0, 4 * groups * TILE_COLS * kernel.strip) };
                } else {
                    let block = Block {
                        panel: scratch,
                        b: b[k_block * TILE_BYTES..].as_ptr(),
                        group_bytes: self.b.group_bytes(),
                        k_blocks,
                        groups,
                        c,
                        rows,
                        first: k_block == 0,
                        signed: A::SIGNED,
                    };
                    // SAFETY: the panel was just packed, B and C are as `Block` promises, and a kernel is only chosen for an
                    // instruction set that was checked.
                    unsafe { (kernel.run)(&block) };
                }
                if last {
                    FinishStrip {
                        c: c.cast(),
                        strip: kernel.strip,
                        row,
                        rows,
                        col: col + slice,
                        cols,
                        b: self.b,
                        zero: self.zero,
                        panel_bias: if biased { 128 } else { 0 },
                        row_sums: needs_row_sums.then_some(&row_sums[..rows]),
                    }
                    .run(self.level, store);
                }
            }
        }
    }
}

/// The sums of rows of A, modulo 2^32.
struct RowSums<'s, 'a, A> {
    sums: &'s mut [i32],
    a: MatRef<'a, A>,
    row: usize,
}

/// The value of an element of A.
#[inline(always)]
fn value<A: Byte>(element: A) -> i16 {
    let byte: u8 = bytemuck::cast(element);
    if A::SIGNED {
        i16::from(byte.cast_signed())
    } else {
        i16::from(byte)
    }
}

impl<A: Byte> Kernel for RowSums<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _: S) {
        let Self { sums, a, row } = self;
        let (rs, cs, k) = (a.row_stride(), a.col_stride(), a.cols());
        for (r, sum) in sums.iter_mut().enumerate() {
            let start = (row + r) * rs;
            *sum = if cs == 1 {
                let row = if k == 0 { &[] } else { &a.data()[start..][..k] };
                row.iter().fold(0i32, |sum, &x| sum.wrapping_add(i32::from(value(x))))
            } else {
                (0..k).fold(0i32, |sum, k| {
                    sum.wrapping_add(i32::from(value(a.data()[start + k * cs])))
                })
            };
        }
    }
}

/// Lays out a strip of A as the kernel's panel wants it. What lies past the strip's rows and past K is left as it is.
struct PackA<'p, 'a, A> {
    panel: &'p mut [u8],
    kernel: &'static ByteKernel,
    a: MatRef<'a, A>,
    row: usize,
    rows: usize,
    k: usize,
    depth: usize,
    /// Bits to change in every byte.
    flip: u8,
}

impl<A: Byte> Kernel for PackA<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _: S) {
        let flip = self.flip;
        match self.kernel.panel {
            Panel::Bytes { .. } => {
                let (panel, _) = self.panel.as_chunks_mut::<K_BLOCK>();
                fill(
                    panel,
                    self.kernel.strip,
                    &self.a,
                    self.row,
                    self.rows,
                    self.k,
                    self.depth,
                    |x| bytemuck::cast::<A, u8>(x) ^ flip,
                );
            }
            Panel::Words => {
                let (panel, _) = bytemuck::cast_slice_mut::<u8, i16>(self.panel).as_chunks_mut::<K_BLOCK>();
                fill(
                    panel,
                    self.kernel.strip,
                    &self.a,
                    self.row,
                    self.rows,
                    self.k,
                    self.depth,
                    value,
                );
            }
        }
    }
}

/// `panel[block * strip + r][i] = element(a[row + r][k + 64 * block + i])`.
#[inline(always)]
fn fill<A: Byte, E: Copy>(
    panel: &mut [[E; K_BLOCK]],
    strip: usize,
    a: &MatRef<'_, A>,
    row: usize,
    rows: usize,
    k: usize,
    depth: usize,
    element: impl Fn(A) -> E,
) {
    let (rs, cs) = (a.row_stride(), a.col_stride());
    if depth == 0 {
        return;
    }
    if cs == 1 {
        for r in 0..rows {
            let (whole, rest) = a.data()[(row + r) * rs + k..][..depth].as_chunks::<K_BLOCK>();
            for (block, from) in whole.iter().enumerate() {
                for (to, &from) in panel[block * strip + r].iter_mut().zip(from) {
                    *to = element(from);
                }
            }
            if !rest.is_empty() {
                for (to, &from) in panel[whole.len() * strip + r].iter_mut().zip(rest) {
                    *to = element(from);
                }
            }
        }
    } else {
        for d in 0..depth {
            let (block, i) = (d / K_BLOCK, d % K_BLOCK);
            let from = &a.data()[row * rs + (k + d) * cs..];
            for (r, to) in panel[block * strip..][..rows].iter_mut().enumerate() {
                to[i] = element(from[r * rs]);
            }
        }
    }
}
