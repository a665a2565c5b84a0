//! The loops of the kernels that keep a strip of A in the first-level cache and stream B.
//!
//! ```text
//! for tile of the output (rows x columns), on whichever worker claims it:
//!     for strip of rows:                               these two loops change places where K is long, so that
//!         for chunk of K:                              a chunk of B fits into the second-level cache
//!             pack the strip's A into a panel          first-level cache
//!             C[strip, :] (+)= panel * B[chunk, :]     B streams from the second-level cache
//!             after the last chunk: epilogue on C[strip, :]
//! ```
//!
//! Each element is reduced over K in one order whatever the tile, so that blocking and threads never change a bit.
#![expect(
    unsafe_code,
    reason = "panels and accumulators live in raw scratch, aligned to cache lines"
)]

use crate::epilogue::{CHUNK, Finish, FinishBlock};
use crate::error::Result;
use crate::executor::Executor;
use crate::kernel::{Block, BlockKernel, Strip};
use crate::matrix::MatRef;
use crate::pack::TILE_COLS;
use crate::parallel::{Seats, for_each_tile};
use crate::scratch::whole_lines;
use crate::simd::Level;

/// How one call is cut.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Blocks of K in all, and in a chunk.
    k_blocks: usize,
    chunk: usize,
    /// Whether chunks of K are the outer loop and strips the inner one.
    deep: bool,
    /// Rows and columns of a tile.
    tile_rows: usize,
    tile_cols: usize,
    row_tiles: usize,
    col_tiles: usize,
    pub(crate) seats: usize,
    /// The panel, then C.
    panel_bytes: usize,
    pub(crate) seat_bytes: usize,
}

/// What the second-level cache (2 MiB) may hold of B: the rest is for A, C and the outputs.
const MAX_B_BYTES: usize = 5 << 18;
/// A tile that has its C in the second-level cache (576 KiB) for several chunks of K has half as many rows and twice as many columns: A is
/// packed again for each column of tiles, which costs most where A is a transpose, while B is only read again.
const MAX_DEEP: usize = 384;
/// Rows of a tile otherwise: many, so that B is read often once it is in cache.
const MAX_ROWS: usize = 3072;
/// Columns of a tile otherwise.
const MAX_COLS: usize = 1024;

/// `total` cut into the fewest equal parts of at most `most`, each a multiple of `unit`.
pub(crate) fn even_part(total: usize, most: usize, unit: usize) -> usize {
    let parts = total.div_ceil(most).max(1);
    total.div_ceil(parts).next_multiple_of(unit).max(unit)
}

impl Plan {
    pub(crate) fn new(kernel: &BlockKernel, m: usize, n: usize, k: usize, seats: usize) -> Self {
        let k_blocks = k.div_ceil(kernel.k_block);
        let chunk = even_part(k_blocks, kernel.chunk, 1);
        // Columns whose B, all of K, stays in cache. If they are too few to be worth packing A for, K goes outside.
        let cached_cols = MAX_B_BYTES / (k_blocks * kernel.tile_bytes).max(1) * TILE_COLS / CHUNK * CHUNK;
        let deep = cached_cols < n.min(MAX_DEEP);
        let (most_rows, most_cols) = if deep {
            (MAX_DEEP / 2, 2 * MAX_DEEP)
        } else {
            (MAX_ROWS, cached_cols.min(MAX_COLS))
        };
        let tile_cols = even_part(n, most_cols, CHUNK);
        let col_tiles = n.div_ceil(tile_cols);
        let mut tile_rows = even_part(m, most_rows, kernel.strip);
        if seats > 1 {
            // Four tiles a worker even out their speeds.
            let wanted = (4 * seats).div_ceil(col_tiles.max(1));
            tile_rows = tile_rows
                .min(m.div_ceil(wanted).next_multiple_of(kernel.strip))
                .max(kernel.strip);
        }
        let row_tiles = m.div_ceil(tile_rows);
        let c_rows = if deep { tile_rows } else { kernel.strip };
        let c_cols = tile_cols.min(n.next_multiple_of(TILE_COLS));
        let panel_bytes = whole_lines(chunk * kernel.panel_bytes);
        Self {
            k_blocks,
            chunk,
            deep,
            tile_rows,
            tile_cols,
            row_tiles,
            col_tiles,
            seats: seats.min(row_tiles * col_tiles).max(1),
            panel_bytes,
            seat_bytes: panel_bytes + whole_lines(4 * c_rows * c_cols),
        }
    }
}

/// One product, after all checks.
pub(crate) struct Product<'k> {
    level: Level,
    kernel: &'k BlockKernel,
    m: usize,
    n: usize,
    k: usize,
    a: *const u8,
    row_stride: usize,
    col_stride: usize,
    element: usize,
}

// SAFETY: `a` points into a slice that the caller of the public function borrows for the call and nobody writes.
unsafe impl Sync for Product<'_> {}

impl<'k> Product<'k> {
    pub(crate) fn new<T>(level: Level, kernel: &'k BlockKernel, a: &MatRef<'_, T>, n: usize) -> Self {
        Self {
            level,
            kernel,
            m: a.rows(),
            n,
            k: a.cols(),
            a: a.data().as_ptr().cast(),
            row_stride: a.row_stride(),
            col_stride: a.col_stride(),
            element: size_of::<T>(),
        }
    }

    /// `seats` has `plan.seats * plan.seat_bytes` bytes; `b` is the packed operand.
    pub(crate) fn run(
        &self,
        exec: &dyn Executor,
        plan: &Plan,
        seats: *mut u8,
        b: *const u8,
        finish: &Finish<'_>,
    ) -> Result<()> {
        if self.m == 0 || self.n == 0 {
            return Ok(());
        }
        let seats = Seats::new(seats, plan.seat_bytes);
        let b = Seats::new(b.cast_mut(), plan.k_blocks * self.kernel.tile_bytes);
        for_each_tile(exec, plan.seats, plan.row_tiles * plan.col_tiles, &|seat, tile| {
            // Tiles of one column follow each other, so that B stays in cache.
            let (row, col) = (
                tile % plan.row_tiles * plan.tile_rows,
                tile / plan.row_tiles * plan.tile_cols,
            );
            // SAFETY: `for_each_tile` gives out seats below `plan.seats`, each to one worker.
            let scratch = unsafe { seats.seat(seat) };
            self.tile(plan, scratch, &b, finish, row, col);
        })
    }

    fn tile(&self, plan: &Plan, scratch: *mut u8, b: &Seats, finish: &Finish<'_>, row: usize, col: usize) {
        let kernel = self.kernel;
        let (rows, cols) = (plan.tile_rows.min(self.m - row), plan.tile_cols.min(self.n - col));
        let groups = cols.div_ceil(TILE_COLS);
        let strip_bytes = 4 * groups * TILE_COLS * kernel.strip;
        // SAFETY: the panel and C lie one after the other in the seat's scratch.
        let c = unsafe { scratch.add(plan.panel_bytes) };
        let chunks = plan.k_blocks.div_ceil(plan.chunk).max(1);
        let step = |chunk: usize, strip: usize, c: *mut u8| {
            let live = kernel.strip.min(rows - strip);
            let k_block = chunk * plan.chunk;
            let k_blocks = plan.chunk.min(plan.k_blocks - k_block);
            if k_blocks == 0 {
                // SAFETY: C has a strip of accumulators, of which all bits are valid.
                unsafe { c.write_bytes(0, strip_bytes) };
            } else {
                let k = k_block * kernel.k_block;
                let at = (row + strip) * self.row_stride + k * self.col_stride;
                let packing = Strip {
                    panel: scratch,
                    a: self.a.wrapping_add(at * self.element),
                    rows: live,
                    depth: (k_blocks * kernel.k_block).min(self.k - k),
                    row_stride: self.row_stride,
                    col_stride: self.col_stride,
                };
                let direct = kernel.reads_rows
                    && live == kernel.strip
                    && self.col_stride == 1
                    && groups > 1
                    && packing.depth.is_multiple_of(kernel.k_block);
                if !direct {
                    // SAFETY: the strip's chunk is inside of A, whose view was checked; the panel has room for `plan.chunk` blocks.
                    unsafe { (kernel.pack_a)(&packing) };
                }
                let block = Block {
                    panel: scratch,
                    a: if direct { packing.a } else { std::ptr::null() },
                    a_stride: self.row_stride * self.element,
                    ahead: if chunk + 1 == chunks {
                        finish.output(row + strip, col).at
                    } else {
                        packing.a.wrapping_add(kernel.strip * self.row_stride * self.element)
                    },
                    // SAFETY: the group is inside of the packed operand.
                    b: unsafe { b.seat(col / TILE_COLS) }.wrapping_add(k_block * kernel.tile_bytes),
                    group_bytes: plan.k_blocks * kernel.tile_bytes,
                    k_blocks,
                    groups,
                    c,
                    rows: live,
                    first: chunk == 0,
                };
                // SAFETY: the panel was just packed, B and C are as `Block` promises, and `Gemm` only holds kernels of an
                // instruction set that was checked.
                unsafe { (kernel.run)(&block) };
            }
            if chunk + 1 == chunks {
                let (row, strip) = (row + strip, kernel.strip);
                FinishBlock {
                    finish,
                    c: c.cast(),
                    pairs: false,
                    panel: strip,
                    row,
                    rows: live,
                    col,
                    cols,
                }
                .dispatch(self.level);
            }
        };
        if plan.deep {
            for chunk in 0..chunks {
                for strip in (0..rows).step_by(kernel.strip) {
                    // SAFETY: C has the tile's strips.
                    step(chunk, strip, unsafe { c.add(strip / kernel.strip * strip_bytes) });
                }
            }
        } else {
            for strip in (0..rows).step_by(kernel.strip) {
                for chunk in 0..chunks {
                    step(chunk, strip, c);
                }
            }
        }
    }
}
