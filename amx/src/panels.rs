//! The loops of the kernels that keep a panel of B in the first-level cache and stream strips of A.
//!
//! ```text
//! for tile of the output (rows x columns), on whichever worker claims it:
//!     for slab of K:
//!         widen A[rows, slab]                               second-level cache
//!         for panel of 32 columns:
//!             for chunk of K:
//!                 widen B[chunk, panel]                     first-level cache
//!                 C[rows, panel] (+)= A[rows, chunk] * B    strips of A stream by
//!                 in the last chunk: epilogue on 24 rows at a time, before they leave the first-level cache
//! ```
//!
//! Widening once per tile what is read many times leaves the inner loop nothing but loads and multiply-adds. B is read where it lies,
//! packed ahead or not: a panel is widened once for all rows of a tile, which costs as little from rows as from tiles.
//!
//! Each element is reduced over K in one order whatever the tile, so that blocking and threads never change a bit.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "panels and accumulators live in raw scratch, aligned to cache lines"
)]

use std::ops::Range;

use crate::epilogue::{CHUNK, Finish, FinishBlock};
use crate::error::Result;
use crate::executor::Executor;
use crate::kernel::{Columns, Hint, PANEL_COLS, PANEL_DEPTH, Panel, PanelKernel, Rows};
use crate::matrix::MatRef;
use crate::pack::{K_BLOCK, PackedRef, TILE_COLS, TILE_LEN};
use crate::parallel::{Seats, for_each_tile};
use crate::scratch::{Scratch, whole_lines};
use crate::simd::Level;
use crate::strips::even_part;

/// How B lies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand<'a, T> {
    /// Packed ahead (the kernel's type is bf16).
    Packed(PackedRef<'a>),
    /// Anywhere, of the kernel's type.
    Strided(MatRef<'a, T>),
}

/// `finish(a * b)`: shapes were checked, and T is the kernel's type.
pub(crate) fn multiply<T: Copy>(
    exec: &dyn Executor,
    level: Level,
    kernel: &PanelKernel,
    finish: &Finish<'_>,
    a: &MatRef<'_, T>,
    b: Operand<'_, T>,
    scratch: &mut Scratch,
) -> Result<()> {
    debug_assert_eq!(size_of::<T>(), kernel.element, "operands are of the kernel's type");
    let n = match b {
        Operand::Packed(b) => b.n(),
        Operand::Strided(b) => b.cols(),
    };
    let (m, k) = (a.rows(), a.cols());
    if m == 0 || n == 0 {
        return Ok(());
    }
    let b = match b {
        Operand::Packed(b) => Source {
            data: b.data().as_ptr().cast(),
            row_stride: 0,
            col_stride: k.div_ceil(K_BLOCK) * TILE_LEN,
            element: kernel.element,
            tiled: true,
        },
        Operand::Strided(b) => Source {
            data: b.data().as_ptr().cast(),
            row_stride: b.row_stride(),
            col_stride: b.col_stride(),
            element: kernel.element,
            tiled: false,
        },
    };
    let plan = Plan::new(kernel, (m, n, k), finish.by_chunks(), exec.threads().max(1));
    let product = Product {
        level,
        kernel,
        plan: &plan,
        finish,
        m,
        n,
        k,
        a: Source {
            data: a.data().as_ptr().cast(),
            row_stride: a.row_stride(),
            col_stride: a.col_stride(),
            element: kernel.element,
            tiled: false,
        },
        b,
    };
    let seats = Seats::new(scratch.reserve(plan.seat_bytes() * plan.seats), plan.seat_bytes());
    for_each_tile(exec, plan.seats, plan.row_tiles * plan.col_tiles, &|seat, tile| {
        let (row, col) = (
            tile % plan.row_tiles * plan.tile_rows,
            tile / plan.row_tiles * plan.tile_cols,
        );
        // SAFETY: `for_each_tile` gives out seats below `plan.seats`, each to one worker.
        let base = unsafe { seats.seat(seat) };
        product.tile(base, row, col);
    })
}

/// How one call is cut.
#[derive(Debug)]
struct Plan {
    /// Blocks of K in all, in a slab, in a chunk.
    k_blocks: usize,
    slab: usize,
    chunk: usize,
    /// Rows and columns of a tile.
    tile_rows: usize,
    tile_cols: usize,
    row_tiles: usize,
    col_tiles: usize,
    seats: usize,
    /// The parts of a seat: A, the panel of B, C.
    a_bytes: usize,
    b_bytes: usize,
    c_bytes: usize,
}

/// Blocks of K in a chunk: a panel of 32 KiB beside a strip of A in a first-level cache of 48 KiB.
const MAX_CHUNK: usize = 8;
/// What widened A may take of the second-level cache (2 MiB); the rest is for C, B and the outputs.
const MAX_A_BYTES: usize = 3 << 18;
/// Rows of a tile, however short K is.
const MAX_ROWS: usize = 1024;
/// Rows and columns of a tile whose K takes several slabs: its C (576 KiB) stays in cache from one to the next.
const DEEP_ROWS: usize = 192;
const DEEP_COLS: usize = 768;
/// Widening a panel costs as much as two rows, widening rows as much as five columns: tiles that are made small for the sake of more
/// workers keep so many of them if there are.
const LEAST_ROWS: usize = 96;
const LEAST_COLS: usize = 256;
/// Rows that are finished at once: a multiple of the kernels' strips, whose C stays in the first-level cache.
const FINISH_ROWS: usize = 24;
/// Tiles for each worker even out their speeds.
const TILES: usize = 4;

impl Plan {
    fn new(kernel: &PanelKernel, (m, n, k): (usize, usize, usize), by_chunks: bool, seats: usize) -> Self {
        let k_blocks = k.div_ceil(PANEL_DEPTH);
        let row_bytes = 4 * PANEL_DEPTH;
        let rows_of = |blocks: usize| MAX_A_BYTES / (blocks * row_bytes).max(1) / kernel.strip * kernel.strip;
        let deep = rows_of(k_blocks) < DEEP_ROWS.min(m);
        let (most_rows, most_cols) = if deep {
            (DEEP_ROWS, DEEP_COLS)
        } else {
            (rows_of(k_blocks).min(MAX_ROWS), n)
        };
        let (mut row_tiles, mut col_tiles) = (m.div_ceil(most_rows), n.div_ceil(most_cols));
        if seats > 1 {
            let wanted = TILES * seats;
            row_tiles = row_tiles.max(wanted.div_ceil(col_tiles).min(m / LEAST_ROWS)).max(1);
            if row_tiles * col_tiles < wanted {
                col_tiles = col_tiles.max(wanted.div_ceil(row_tiles).min(n / LEAST_COLS)).max(1);
            }
            if !(row_tiles * col_tiles).is_multiple_of(seats) && row_tiles >= seats {
                row_tiles = row_tiles.next_multiple_of(seats);
            }
        }
        let tile_rows = m.div_ceil(row_tiles).next_multiple_of(kernel.strip);
        let tile_cols = n.div_ceil(col_tiles).next_multiple_of(CHUNK);
        let (row_tiles, col_tiles) = (m.div_ceil(tile_rows), n.div_ceil(tile_cols));
        let slab = even_part(k_blocks, MAX_A_BYTES / (tile_rows * row_bytes), 1);
        let c_cols = if slab < k_blocks {
            tile_cols
        } else if by_chunks {
            CHUNK
        } else {
            PANEL_COLS
        };
        Self {
            k_blocks,
            slab,
            chunk: even_part(slab, MAX_CHUNK, 1),
            tile_rows,
            tile_cols,
            row_tiles,
            col_tiles,
            seats: seats.min(row_tiles * col_tiles),
            a_bytes: slab * row_bytes * tile_rows,
            b_bytes: MAX_CHUNK * PANEL_DEPTH * PANEL_COLS * 4,
            c_bytes: whole_lines(4 * tile_rows * c_cols.min(n.next_multiple_of(PANEL_COLS))),
        }
    }

    fn seat_bytes(&self) -> usize {
        self.a_bytes + self.b_bytes + self.c_bytes
    }
}

/// Where elements of an operand lie.
#[derive(Debug)]
struct Source {
    data: *const u8,
    row_stride: usize,
    col_stride: usize,
    element: usize,
    tiled: bool,
}

// SAFETY: `data` points into a slice that the caller of the public function borrows for the call and nobody writes.
unsafe impl Sync for Source {}

impl Source {
    /// The address of an element; in the packed form, of the tile that begins with it.
    fn at(&self, row: usize, col: usize) -> *const u8 {
        let elements = if self.tiled {
            col / TILE_COLS * self.col_stride + row / K_BLOCK * TILE_LEN
        } else {
            row * self.row_stride + col * self.col_stride
        };
        self.data.wrapping_add(elements * self.element)
    }
}

/// Memory that will be read: `first`, then `stride` bytes further, and so on, `steps` times, and what lies `second` bytes behind each.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    first: *const u8,
    second: usize,
    stride: usize,
    steps: usize,
}

impl Ahead {
    const NOTHING: Self = Self {
        first: std::ptr::null(),
        second: 0,
        stride: 0,
        steps: 0,
    };

    /// What is left after so many steps, as hints of [`Panel`]; `none` if nothing is.
    fn after(&self, steps: usize, none: *const u8) -> Hint {
        if steps < self.steps {
            Hint {
                at: self.first.wrapping_add(steps * self.stride),
                second: self.second,
                stride: self.stride,
            }
        } else {
            Hint::nothing(none)
        }
    }
}

/// One product, after all checks.
struct Product<'p> {
    level: Level,
    kernel: &'p PanelKernel,
    plan: &'p Plan,
    finish: &'p Finish<'p>,
    m: usize,
    n: usize,
    k: usize,
    a: Source,
    b: Source,
}

impl Product<'_> {
    /// Works on the tile that begins at (row, col). `base` points to the memory of a seat.
    fn tile(&self, base: *mut u8, row: usize, col: usize) {
        let plan = self.plan;
        let (rows, cols) = (plan.tile_rows.min(self.m - row), plan.tile_cols.min(self.n - col));
        // SAFETY: the three parts of the seat.
        let (a, b, c) = unsafe {
            let b = base.add(plan.a_bytes);
            (base.cast::<f32>(), b.cast::<f32>(), b.add(plan.b_bytes).cast::<f32>())
        };
        let by_chunks = self.finish.by_chunks();
        for slab in (0..plan.k_blocks.max(1)).step_by(plan.slab.max(1)) {
            let end = plan.k_blocks.min(slab + plan.slab);
            let k0 = slab * PANEL_DEPTH;
            if end > slab {
                let packing = Rows {
                    to: a,
                    from: self.a.at(row, k0),
                    rows,
                    depth: (end * PANEL_DEPTH).min(self.k) - k0,
                    row_stride: self.a.row_stride,
                    col_stride: self.a.col_stride,
                };
                // SAFETY: rows and columns are inside of A, whose view was checked, and the seat has room for a slab.
                unsafe { (self.kernel.pack_rows)(&packing) };
            }
            for panel in (0..cols).step_by(PANEL_COLS) {
                // A panel of C that is finished makes room for the next one.
                let c = c.wrapping_add(if plan.slab < plan.k_blocks {
                    panel * plan.tile_rows
                } else if by_chunks {
                    panel % CHUNK * plan.tile_rows
                } else {
                    0
                });
                self.panel((a, b, c), (row, rows), col + panel, slab..end);
                if by_chunks
                    && end == plan.k_blocks
                    && ((panel + PANEL_COLS).is_multiple_of(CHUNK) || panel + PANEL_COLS >= cols)
                {
                    let first = panel / CHUNK * CHUNK;
                    let c = c.wrapping_sub((panel - first) * plan.tile_rows);
                    self.finish(c, row..row + rows, col + first..col + cols.min(first + CHUNK));
                }
            }
        }
    }

    /// The epilogue on rows and columns of the output, whose panels of accumulators begin at `c` and are `tile_rows` high.
    fn finish(&self, c: *const f32, rows: Range<usize>, cols: Range<usize>) {
        FinishBlock {
            finish: self.finish,
            c,
            pairs: true,
            panel: self.plan.tile_rows * PANEL_COLS / TILE_COLS,
            row: rows.start,
            rows: rows.len(),
            col: cols.start,
            cols: cols.len(),
        }
        .dispatch(self.level);
    }

    /// 32 columns from `col` on, or those that are left, over a slab of blocks of K. `a` is the slab of rows, `b` room for a panel.
    fn panel(
        &self,
        (a, b, c): (*mut f32, *mut f32, *mut f32),
        (row, rows): (usize, usize),
        col: usize,
        slab: Range<usize>,
    ) {
        let (plan, kernel) = (self.plan, self.kernel);
        let strip_len = kernel.strip * PANEL_DEPTH;
        let cols = PANEL_COLS.min(self.n - col);
        if slab.is_empty() {
            // SAFETY: C has 32 accumulators for each row, of which all bits are valid.
            unsafe { c.write_bytes(0, rows * PANEL_COLS) };
            if !self.finish.by_chunks() {
                self.finish(c, row..row + rows, col..col + cols);
            }
        }
        for block in slab.clone().step_by(plan.chunk.max(1)) {
            let end = slab.end.min(block + plan.chunk);
            let k0 = block * PANEL_DEPTH;
            let depth = (end * PANEL_DEPTH).min(self.k) - k0;
            let packing = Columns {
                to: b,
                from: self.b.at(k0, col),
                // The packed form has zeros up to the end of its last tile.
                depth: if self.b.tiled {
                    (end - block) * PANEL_DEPTH
                } else {
                    depth
                },
                cols,
                row_stride: self.b.row_stride,
                col_stride: self.b.col_stride,
                tiled: self.b.tiled,
            };
            // SAFETY: the columns are inside of B, and the panel has room for a chunk.
            unsafe { (kernel.pack_columns)(&packing) };

            let next = if end < slab.end {
                self.ahead(end..slab.end.min(end + plan.chunk), col)
            } else if col + PANEL_COLS < self.n {
                self.ahead(slab.start..slab.end.min(slab.start + plan.chunk), col + PANEL_COLS)
            } else {
                Ahead::NOTHING
            };
            let last = end == plan.k_blocks;
            let finish = last && !self.finish.by_chunks();
            for first in (0..rows).step_by(FINISH_ROWS) {
                let rows = rows.min(first + FINISH_ROWS) - first;
                let out = if last {
                    self.finish.output(row + first, col)
                } else {
                    Hint::nothing(b.cast_const().cast())
                };
                let strip = first / kernel.strip;
                let panel = Panel {
                    a: a.wrapping_add((strip * slab.len() + block - slab.start) * strip_len),
                    strip_bytes: slab.len() * strip_len * 4,
                    b,
                    // Accumulators that are finished at once make room for the next ones.
                    c: c.wrapping_add(if finish && block == 0 { 0 } else { first * PANEL_COLS }),
                    rows,
                    depth,
                    first: block == 0,
                    next: next.after(strip * (end - block), b.cast_const().cast()),
                    out,
                };
                // SAFETY: A and B were laid out, C has 32 accumulators for each row, and `Gemm` only holds kernels of an instruction
                // set that was checked.
                unsafe { (kernel.run)(&panel) };
                if finish {
                    self.finish(panel.c, row + first..row + first + rows, col..col + cols);
                }
            }
        }
    }

    /// Where the panel of some blocks of K that begins at column `col` is read from.
    fn ahead(&self, blocks: Range<usize>, col: usize) -> Ahead {
        let b = &self.b;
        let first = b.at(blocks.start * PANEL_DEPTH, col);
        let depth = blocks.len() * PANEL_DEPTH;
        if b.tiled {
            // Tiles of two groups, a line for each pair of k.
            Ahead {
                first,
                second: if col + TILE_COLS < self.n {
                    b.col_stride * b.element
                } else {
                    0
                },
                stride: 64,
                steps: depth / 2,
            }
        } else if b.col_stride == 1 {
            // The first and the last byte of each row.
            Ahead {
                first,
                second: PANEL_COLS * b.element - 1,
                stride: b.row_stride * b.element,
                steps: depth,
            }
        } else {
            // The first lines of each column.
            Ahead {
                first,
                second: 64,
                stride: b.col_stride * b.element,
                steps: PANEL_COLS,
            }
        }
    }
}
