//! The public entry: check shapes, cut the output into tiles, run the loops of each tile.
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
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "panels and accumulators live in raw scratch, aligned to cache lines"
)]

use half::bf16;

use crate::epilogue::{CHUNK, Epilogue, Finish, FinishBlock, Out};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::isa::Isa;
use crate::kernel::{self, Block, BlockKernel, Strip};
use crate::matrix::MatRef;
use crate::pack::{PackGroup, Packed, PackedRef, TILE_COLS, TILE_LEN};
use crate::parallel::{Seats, for_each_tile};
use crate::scratch::{Scratch, whole_lines};
use crate::simd::{Kernel, Lanes, Level};

/// The handle of the matrix products: an instruction set that can be used here, and its kernels.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    isa: Isa,
    level: Level,
    bf16: &'static BlockKernel,
    f32: &'static BlockKernel,
}

impl Gemm {
    /// The best instruction set of this processor, or the one that `AZULEJO_ISA` names.
    pub fn new() -> Result<Self> {
        Self::with_isa(Isa::best()?)
    }

    /// The given instruction set, or the reason why it cannot be used here.
    pub fn with_isa(isa: Isa) -> Result<Self> {
        let isa = isa.usable()?;
        let (bf16, f32) = kernel::of(isa);
        Ok(Self {
            isa,
            level: isa.level(),
            bf16,
            f32,
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The name of the bf16 kernel.
    pub fn kernel_name(&self) -> &'static str {
        self.bf16.name
    }

    /// The name of the f32 kernel.
    pub fn f32_kernel_name(&self) -> &'static str {
        self.f32.name
    }

    /// `out = epilogue(a * b)` for a (M x K) and packed b (K x N).
    ///
    /// The product is the one of the tile unit on every instruction set: per 32 k an even and an odd chain of fused
    /// multiply-adds from zero, their sum, then the sum onto the accumulator, denormals taken and flushed as zero.
    pub fn bf16(
        &self,
        exec: &dyn Executor,
        out: Out<'_>,
        a: MatRef<'_, bf16>,
        b: PackedRef<'_>,
        epilogue: Epilogue<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        check_depth(a.cols(), b.k(), b.n())?;
        let finish = Finish::new(out, epilogue, a.rows(), b.n())?;
        let product = Product::new(self.level, self.bf16, &a, b.n());
        let seats = exec.threads().max(1);
        let plan = Plan::new(self.bf16, product.m, product.n, product.k, seats);
        let base = scratch.reserve(plan.seat_bytes * plan.seats);
        product.run(exec, &plan, base, b.data().as_ptr().cast(), &finish)
    }

    /// `out = epilogue(a * b)` for any strides of both operands: B is packed into `scratch` first, the rest is
    /// [`Gemm::bf16`].
    pub fn bf16_unpacked(
        &self,
        exec: &dyn Executor,
        out: Out<'_>,
        a: MatRef<'_, bf16>,
        b: MatRef<'_, bf16>,
        epilogue: Epilogue<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        check_depth(a.cols(), b.rows(), b.cols())?;
        let finish = Finish::new(out, epilogue, a.rows(), b.cols())?;
        let product = Product::new(self.level, self.bf16, &a, b.cols());
        let seats = exec.threads().max(1);
        let plan = Plan::new(self.bf16, product.m, product.n, product.k, seats);
        let packed_bytes = 2 * Packed::len(b.rows(), b.cols());
        let base = scratch.reserve(packed_bytes.saturating_add(plan.seat_bytes * plan.seats));
        if product.m > 0 && product.k > 0 {
            let group_len = b.rows().div_ceil(crate::pack::K_BLOCK) * TILE_LEN;
            let groups = Seats::new(base, 2 * group_len);
            for_each_tile(exec, seats, b.cols().div_ceil(TILE_COLS), &|_, g| {
                // SAFETY: the scratch begins with the packed groups; group g is claimed by one worker only, and plain bits
                // of any kind are valid bf16.
                let to = unsafe { std::slice::from_raw_parts_mut(groups.seat(g).cast::<bf16>(), group_len) };
                self.level.run(PackGroup {
                    to,
                    b,
                    col: g * TILE_COLS,
                });
            })?;
        }
        // SAFETY: the packed groups lie before the seats, all inside of what was reserved.
        let seats_base = unsafe { base.add(packed_bytes) };
        product.run(exec, &plan, seats_base, base, &finish)
    }

    /// `out = epilogue(a * b)` in f32: each element is one chain of fused multiply-adds over K, in order, from zero.
    pub fn f32(
        &self,
        exec: &dyn Executor,
        out: Out<'_>,
        a: MatRef<'_, f32>,
        b: MatRef<'_, f32>,
        epilogue: Epilogue<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        check_depth(a.cols(), b.rows(), b.cols())?;
        let finish = Finish::new(out, epilogue, a.rows(), b.cols())?;
        let product = Product::new(self.level, self.f32, &a, b.cols());
        let seats = exec.threads().max(1);
        let plan = Plan::new(self.f32, product.m, product.n, product.k, seats);
        let group_len = b.rows() * TILE_COLS;
        let packed_bytes = (4 * group_len).saturating_mul(b.cols().div_ceil(TILE_COLS));
        let base = scratch.reserve(packed_bytes.saturating_add(plan.seat_bytes * plan.seats));
        if product.m > 0 && product.k > 0 {
            let groups = Seats::new(base, 4 * group_len);
            for_each_tile(exec, seats, b.cols().div_ceil(TILE_COLS), &|_, g| {
                // SAFETY: as in `bf16_unpacked`.
                let to = unsafe { std::slice::from_raw_parts_mut(groups.seat(g).cast::<f32>(), group_len) };
                self.level.run(PackGroupF32 {
                    to,
                    b,
                    col: g * TILE_COLS,
                });
            })?;
        }
        // SAFETY: the packed groups lie before the seats, all inside of what was reserved.
        let seats_base = unsafe { base.add(packed_bytes) };
        product.run(exec, &plan, seats_base, base, &finish)
    }
}

fn check_depth(a_cols: usize, b_rows: usize, b_cols: usize) -> Result<()> {
    if a_cols == b_rows {
        Ok(())
    } else {
        Err(Error::Shape {
            what: "operand b",
            expected: (a_cols, b_cols),
            got: (b_rows, b_cols),
        })
    }
}

/// Packs 16 columns of an f32 B: for each k a row of 16, zeros past the edge.
struct PackGroupF32<'t, 'a> {
    to: &'t mut [f32],
    b: MatRef<'a, f32>,
    col: usize,
}

impl Kernel for PackGroupF32<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _: S) {
        let Self { to, b, col } = self;
        let (rs, cs, data) = (b.row_stride(), b.col_stride(), b.data());
        let cols = TILE_COLS.min(b.cols() - col);
        for (k, row) in to.as_chunks_mut::<TILE_COLS>().0.iter_mut().enumerate() {
            if cs == 1 && cols == TILE_COLS {
                row.copy_from_slice(&data[k * rs + col..][..TILE_COLS]);
            } else {
                for (c, value) in row.iter_mut().enumerate() {
                    *value = if c < cols { data[k * rs + (col + c) * cs] } else { 0.0 };
                }
            }
        }
    }
}

/// How one call is cut.
#[derive(Debug)]
struct Plan {
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
    seats: usize,
    /// The panel, then C.
    panel_bytes: usize,
    seat_bytes: usize,
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
fn even_part(total: usize, most: usize, unit: usize) -> usize {
    let parts = total.div_ceil(most).max(1);
    total.div_ceil(parts).next_multiple_of(unit).max(unit)
}

impl Plan {
    fn new(kernel: &BlockKernel, m: usize, n: usize, k: usize, seats: usize) -> Self {
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
struct Product<'k> {
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
    fn new<T>(level: Level, kernel: &'k BlockKernel, a: &MatRef<'_, T>, n: usize) -> Self {
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
    fn run(&self, exec: &dyn Executor, plan: &Plan, seats: *mut u8, b: *const u8, finish: &Finish<'_>) -> Result<()> {
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
                        finish.next_rows(row + strip, col)
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
                    strip,
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
