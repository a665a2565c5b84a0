//! The public entry: checks shapes and hands the product to the loops of its kernel: [`crate::strips`] where a strip of A stays
//! in the first-level cache (tiles), [`crate::panels`] where a panel of B does (vectors).
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "panels and accumulators live in raw scratch, aligned to cache lines"
)]

use half::bf16;

use crate::epilogue::{Epilogue, Finish, Out};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::isa::Isa;
use crate::kernel::{self, Loops};
use crate::matrix::MatRef;
use crate::pack::{PackGroup, Packed, PackedRef, TILE_COLS, TILE_LEN};
use crate::panels::{self, Operand};
use crate::parallel::{Seats, for_each_tile};
use crate::scratch::Scratch;
use crate::simd::{Kernel, Lanes, Level};
use crate::strips::{Plan, Product};

/// The handle of the matrix products: an instruction set that can be used here, and its kernels.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    isa: Isa,
    level: Level,
    bf16: Loops,
    f32: Loops,
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
        self.bf16.name()
    }

    /// The name of the f32 kernel.
    pub fn f32_kernel_name(&self) -> &'static str {
        self.f32.name()
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
        let kernel = match self.bf16 {
            Loops::Panels(kernel) => {
                return panels::multiply(exec, self.level, kernel, &finish, &a, Operand::Packed(b), scratch);
            }
            Loops::Strips(kernel) => kernel,
        };
        let product = Product::new(self.level, kernel, &a, b.n());
        let plan = Plan::new(kernel, a.rows(), b.n(), a.cols(), exec.threads().max(1));
        let base = scratch.reserve(plan.seat_bytes * plan.seats);
        product.run(exec, &plan, base, b.data().as_ptr().cast(), &finish)
    }

    /// `out = epilogue(a * b)` for any strides of both operands: B is packed in the call, the rest is [`Gemm::bf16`].
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
        let kernel = match self.bf16 {
            Loops::Panels(kernel) => {
                return panels::multiply(exec, self.level, kernel, &finish, &a, Operand::Strided(b), scratch);
            }
            Loops::Strips(kernel) => kernel,
        };
        let product = Product::new(self.level, kernel, &a, b.cols());
        let seats = exec.threads().max(1);
        let plan = Plan::new(kernel, a.rows(), b.cols(), a.cols(), seats);
        let packed_bytes = 2 * Packed::len(b.rows(), b.cols());
        let base = scratch.reserve(packed_bytes.saturating_add(plan.seat_bytes * plan.seats));
        if a.rows() > 0 && a.cols() > 0 {
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
        let kernel = match self.f32 {
            Loops::Panels(kernel) => {
                return panels::multiply(exec, self.level, kernel, &finish, &a, Operand::Strided(b), scratch);
            }
            Loops::Strips(kernel) => kernel,
        };
        let product = Product::new(self.level, kernel, &a, b.cols());
        let seats = exec.threads().max(1);
        let plan = Plan::new(kernel, a.rows(), b.cols(), a.cols(), seats);
        let group_len = b.rows() * TILE_COLS;
        let packed_bytes = (4 * group_len).saturating_mul(b.cols().div_ceil(TILE_COLS));
        let base = scratch.reserve(packed_bytes.saturating_add(plan.seat_bytes * plan.seats));
        if a.rows() > 0 && a.cols() > 0 {
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
