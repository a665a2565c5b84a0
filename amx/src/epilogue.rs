//! What is done to a block of accumulators before it is stored, while it is in cache.
//!
//! Per element, in this order: `alpha`, `bias`, GELU or GELU's derivative, dropout, residual, what the f32 output holds (with
//! [`Out::accumulate`]). Then the f32 output and the bf16 output are written from the same value. Arithmetic is plain f32 with
//! one rounding an operation, the same on every instruction set.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tiles of shared outputs and raw accumulators"
)]

use half::bf16;

use crate::error::{Error, Result};
use crate::kernel::Hint;
use crate::math;
use crate::matrix::{MatMut, MatRef};
use crate::pack::TILE_COLS;
use crate::parallel::Shared;
use crate::rng::{Dropout, RowId};
use crate::simd::{Kernel, Lanes, Level};

/// Where a product goes. At least one of the two outputs is given; both may be.
#[derive(Debug, Default)]
pub struct Out<'a> {
    /// The f32 output (M x N).
    pub f32: Option<MatMut<'a, f32>>,
    /// The bf16 output (M x N), rounded to nearest even.
    pub bf16: Option<MatMut<'a, bf16>>,
    /// Whether what the f32 output holds is added, last.
    pub accumulate: bool,
}

impl<'a> Out<'a> {
    /// Only an f32 output.
    pub fn f32(matrix: MatMut<'a, f32>) -> Self {
        Self {
            f32: Some(matrix),
            bf16: None,
            accumulate: false,
        }
    }

    /// An f32 output to which the product is added.
    pub fn add_f32(matrix: MatMut<'a, f32>) -> Self {
        Self {
            f32: Some(matrix),
            bf16: None,
            accumulate: true,
        }
    }

    /// Only a bf16 output.
    pub fn bf16(matrix: MatMut<'a, bf16>) -> Self {
        Self {
            f32: None,
            bf16: Some(matrix),
            accumulate: false,
        }
    }

    /// Both outputs.
    pub fn both(f32: MatMut<'a, f32>, bf16: MatMut<'a, bf16>) -> Self {
        Self {
            f32: Some(f32),
            bf16: Some(bf16),
            accumulate: false,
        }
    }
}

/// Operations on the product before it is stored, in the order of the fields.
#[derive(Debug, Default)]
pub struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: Option<f32>,
    /// Added to each row (N elements).
    pub bias: Option<&'a [f32]>,
    /// GELU (with the error function). Excludes `d_gelu`.
    pub gelu: Option<Gelu<'a>>,
    /// Multiplication by the derivative of GELU. Excludes `gelu`.
    pub d_gelu: Option<DGelu<'a>>,
    /// Dropout.
    pub dropout: Option<RowDropout<'a>>,
    /// Added (M x N).
    pub residual: Option<MatRef<'a, f32>>,
}

/// GELU, and where its argument is kept for the backward pass.
#[derive(Debug, Default)]
pub struct Gelu<'a> {
    /// Keeps the argument as f32 (M x N).
    pub save_f32: Option<MatMut<'a, f32>>,
    /// Keeps the argument as bf16 (M x N).
    pub save_bf16: Option<MatMut<'a, bf16>>,
}

/// The arguments of GELU in the forward pass (M x N).
#[derive(Debug, Clone, Copy)]
pub enum DGelu<'a> {
    /// Kept as f32.
    F32(MatRef<'a, f32>),
    /// Kept as bf16.
    Bf16(MatRef<'a, bf16>),
}

/// Dropout over rows that know their samples.
#[derive(Debug, Clone, Copy)]
pub struct RowDropout<'a> {
    /// The mask's parameters.
    pub dropout: Dropout,
    /// The identity of each row (M elements).
    pub rows: &'a [RowId],
}

/// Outputs and operations after the shape check, shared by all workers.
#[derive(Debug)]
pub(crate) struct Finish<'a> {
    f32: Option<Shared<'a, f32>>,
    bf16: Option<Shared<'a, bf16>>,
    accumulate: bool,
    alpha: Option<f32>,
    bias: Option<&'a [f32]>,
    gelu: bool,
    save_f32: Option<Shared<'a, f32>>,
    save_bf16: Option<Shared<'a, bf16>>,
    d_gelu: Option<DGelu<'a>>,
    dropout: Option<RowDropout<'a>>,
    residual: Option<MatRef<'a, f32>>,
}

impl<'a> Finish<'a> {
    /// Checks all shapes against an M x N product.
    pub(crate) fn new(out: Out<'a>, epilogue: Epilogue<'a>, m: usize, n: usize) -> Result<Self> {
        let check = |what, got: Option<(usize, usize)>| match got {
            Some(got) if got != (m, n) => Err(Error::Shape {
                what,
                expected: (m, n),
                got,
            }),
            _ => Ok(()),
        };
        let Epilogue {
            alpha,
            bias,
            gelu,
            d_gelu,
            dropout,
            residual,
        } = epilogue;
        if out.f32.is_none() && out.bf16.is_none() {
            return Err(Error::NoOutput);
        }
        if out.accumulate && out.f32.is_none() {
            return Err(Error::Conflict {
                what: "accumulate and the absence of an f32 output",
            });
        }
        if gelu.is_some() && d_gelu.is_some() {
            return Err(Error::Conflict {
                what: "gelu and d_gelu",
            });
        }
        check("f32 output", out.f32.as_ref().map(MatMut::shape))?;
        check("bf16 output", out.bf16.as_ref().map(MatMut::shape))?;
        if let Some(bias) = bias
            && bias.len() != n
        {
            return Err(Error::Shape {
                what: "bias",
                expected: (1, n),
                got: (1, bias.len()),
            });
        }
        if let Some(dropout) = dropout
            && dropout.rows.len() != m
        {
            return Err(Error::Shape {
                what: "rows of the dropout",
                expected: (m, 1),
                got: (dropout.rows.len(), 1),
            });
        }
        check(
            "argument of GELU",
            d_gelu.as_ref().map(|pre| match pre {
                DGelu::F32(matrix) => matrix.shape(),
                DGelu::Bf16(matrix) => matrix.shape(),
            }),
        )?;
        check("residual", residual.as_ref().map(MatRef::shape))?;
        let has_gelu = gelu.is_some();
        let Gelu { save_f32, save_bf16 } = gelu.unwrap_or_default();
        check("f32 argument to save", save_f32.as_ref().map(MatMut::shape))?;
        check("bf16 argument to save", save_bf16.as_ref().map(MatMut::shape))?;
        Ok(Self {
            f32: out.f32.map(Shared::new),
            bf16: out.bf16.map(Shared::new),
            accumulate: out.accumulate,
            alpha,
            bias,
            gelu: has_gelu,
            save_f32: save_f32.map(Shared::new),
            save_bf16: save_bf16.map(Shared::new),
            d_gelu,
            dropout,
            residual,
        })
    }
}

impl Finish<'_> {
    /// Where memory will be written for a panel of 32 columns.
    pub(crate) fn output(&self, row: usize, col: usize) -> Hint {
        // The line of the last byte of 64 is the one that the panel before has not touched yet, however the output is aligned.
        fn hint<T>(out: &Shared<'_, T>, row: usize, col: usize, second: usize) -> Hint {
            Hint {
                at: out.address(row, col).cast::<u8>().wrapping_add(63),
                second,
                stride: out.row_stride() * size_of::<T>(),
            }
        }
        match (&self.f32, &self.bf16, &self.save_bf16) {
            (Some(out), ..) => hint(out, row, col, 64),
            (None, Some(out), Some(save)) if out.row_stride() == save.row_stride() => {
                let behind = save.address(row, col).addr().wrapping_sub(out.address(row, col).addr());
                hint(out, row, col, behind)
            }
            (None, Some(out), _) => hint(out, row, col, 0),
            (None, None, _) => Hint::nothing(std::ptr::null()),
        }
    }

    /// Whether whole chunks of 128 columns must be finished at once.
    pub(crate) fn by_chunks(&self) -> bool {
        self.dropout.is_some()
    }
}

/// Finishes one block: rows `row ..` and columns `col ..` of the outputs from accumulators.
///
/// Promises of the maker:
/// * `c` has 16 accumulators for each row and group of 16 columns, those of group g and row r being the vector with number
///   `g / w * panel + r * w + g % w` where w is 2 if `pairs` and 1 if not.
/// * The block lies inside of the M x N that `finish` was checked for, and no other thread finishes a part of it.
/// * `col` is a multiple of 128, or of 16 if not [`Finish::by_chunks`].
#[derive(Debug)]
pub(crate) struct FinishBlock<'f, 'a, const KIND: u8> {
    pub(crate) finish: &'f Finish<'a>,
    pub(crate) c: *const f32,
    /// Whether two groups of columns lie side by side.
    pub(crate) pairs: bool,
    /// Vectors from one or two groups to the next.
    pub(crate) panel: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) col: usize,
    pub(crate) cols: usize,
}

/// [`FinishBlock`] for bare products, perhaps with bias: most calls.
const PLAIN: u8 = 0;
/// [`FinishBlock`] with GELU.
const GELU: u8 = 1;
/// [`FinishBlock`] with anything but GELU.
const BACKWARD: u8 = 2;
/// [`FinishBlock`] with anything.
const ANY: u8 = 3;

impl<'f, 'a> FinishBlock<'f, 'a, PLAIN> {
    /// Runs the version that was compiled for no more than what is asked for, so that the rest costs nothing.
    pub(crate) fn dispatch(self, level: Level) {
        let f = self.finish;
        let simple = f.dropout.is_none() && f.residual.is_none();
        match (simple, f.gelu, f.d_gelu.is_some()) {
            (true, false, false) => level.run(self),
            (true, true, _) => level.run(self.of::<GELU>()),
            (_, false, _) => level.run(self.of::<BACKWARD>()),
            _ => level.run(self.of::<ANY>()),
        }
    }

    fn of<const KIND: u8>(self) -> FinishBlock<'f, 'a, KIND> {
        let Self {
            finish,
            c,
            pairs,
            panel,
            row,
            rows,
            col,
            cols,
        } = self;
        FinishBlock {
            finish,
            c,
            pairs,
            panel,
            row,
            rows,
            col,
            cols,
        }
    }
}

/// Columns whose dropout factors are made at once.
pub(crate) const CHUNK: usize = 128;

/// Vectors of a chunk.
const VECTORS: usize = CHUNK / TILE_COLS;

impl<const KIND: u8> FinishBlock<'_, '_, KIND> {
    /// The accumulators of N vectors: W groups of columns from `group` on, of each row from `row` on, both counted within the block.
    #[inline(always)]
    fn load<S: Lanes, const N: usize, const W: usize>(&self, s: S, row: usize, group: usize) -> [S::F; N] {
        let mut x = [s.splat(0.0); N];
        for i in 0..N {
            let (row, group) = (row + i / W, group + i % W);
            let at = if self.pairs {
                group / 2 * self.panel + row * 2 + group % 2
            } else {
                group * self.panel + row
            };
            // SAFETY: the block has this vector.
            x[i] = s.load(unsafe { &*self.c.cast::<[f32; TILE_COLS]>().add(at) });
        }
        x
    }
}

impl<const KIND: u8> Kernel for FinishBlock<'_, '_, KIND> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let f = self.finish;
        let dropout = if KIND >= BACKWARD { f.dropout } else { None };
        let mut first = 0;
        if self.cols == 2 * TILE_COLS && dropout.is_none() {
            // A panel: four rows at once keep the ports as busy as a chunk does.
            while first + 4 <= self.rows {
                let x = self.load::<S, 8, 2>(s, first, 0);
                finish_vectors::<S, 8, 2, KIND>(s, f, x, TILE_COLS, self.row + first, self.col, None);
                first += 4;
            }
        }
        for r in first..self.rows {
            let row = self.row + r;
            for chunk in (0..self.cols).step_by(CHUNK) {
                let col = self.col + chunk;
                let factors = dropout.map(|d| d.dropout.factors(s, d.rows[row], col / CHUNK));
                let group = chunk / TILE_COLS;
                if chunk + CHUNK <= self.cols {
                    let x = self.load::<S, VECTORS, VECTORS>(s, r, group);
                    finish_vectors::<S, VECTORS, VECTORS, KIND>(s, f, x, TILE_COLS, row, col, factors);
                } else {
                    for v in 0..(self.cols - chunk).div_ceil(TILE_COLS) {
                        let len = TILE_COLS.min(self.cols - chunk - v * TILE_COLS);
                        let factor = factors.as_ref().map(|all| [all[v]]);
                        let x = self.load::<S, 1, 1>(s, r, group + v);
                        finish_vectors::<S, 1, 1, KIND>(s, f, x, len, row, col + v * TILE_COLS, factor);
                    }
                }
            }
        }
    }
}

/// N vectors: W neighbouring ones of each row. All have sixteen elements, or there is one with `len`. Each operation is asked for once,
/// not once a vector.
#[inline(always)]
fn finish_vectors<S: Lanes, const N: usize, const W: usize, const KIND: u8>(
    s: S,
    f: &Finish<'_>,
    mut x: [S::F; N],
    len: usize,
    row: usize,
    col: usize,
    factors: Option<[S::F; N]>,
) {
    let place = |i: usize| (row + i / W, col + i % W * TILE_COLS);
    if let Some(alpha) = f.alpha {
        for x in &mut x {
            *x = s.mul(*x, s.splat(alpha));
        }
    }
    if let Some(bias) = f.bias {
        let bias = &bias[col..col + (W - 1) * TILE_COLS + len];
        for i in 0..N {
            let at = i % W * TILE_COLS;
            x[i] = s.add(x[i], load(s, &bias[at..at + len]));
        }
    }
    if (KIND == GELU || KIND == ANY) && f.gelu {
        if let Some(save) = &f.save_f32 {
            store_all(s, x, place, len, save);
        }
        if let Some(save) = &f.save_bf16 {
            store_all_bf16(s, x, place, len, save);
        }
        x = math::gelu_each(s, x);
    }
    if KIND >= BACKWARD
        && let Some(pre) = &f.d_gelu
    {
        let mut arguments = x;
        for i in 0..N {
            let (row, col) = place(i);
            arguments[i] = match pre {
                DGelu::F32(pre) => load_strided(s, pre, row, col, len),
                DGelu::Bf16(pre) => load_strided_bf16(s, pre, row, col, len),
            };
        }
        let slopes = math::gelu_grad_each(s, arguments);
        for i in 0..N {
            x[i] = s.mul(x[i], slopes[i]);
        }
    }
    if let Some(factors) = factors
        && KIND >= BACKWARD
    {
        for i in 0..N {
            x[i] = s.mul(x[i], factors[i]);
        }
    }
    if let Some(residual) = &f.residual
        && KIND >= BACKWARD
    {
        for i in 0..N {
            let (row, col) = place(i);
            x[i] = s.add(x[i], load_strided(s, residual, row, col, len));
        }
    }
    if let Some(out) = &f.f32 {
        if f.accumulate {
            for i in 0..N {
                let (row, col) = place(i);
                // SAFETY: the block belongs to this thread.
                x[i] = s.add(x[i], load(s, unsafe { out.row(row, col, len) }));
            }
        }
        store_all(s, x, place, len, out);
    }
    if let Some(out) = &f.bf16 {
        store_all_bf16(s, x, place, len, out);
    }
}

#[inline(always)]
fn store_all<S: Lanes, const N: usize>(
    s: S,
    x: [S::F; N],
    place: impl Fn(usize) -> (usize, usize),
    len: usize,
    to: &Shared<'_, f32>,
) {
    for i in 0..N {
        let (row, col) = place(i);
        // SAFETY: the block belongs to this thread.
        store(s, x[i], unsafe { to.row(row, col, len) });
    }
}

#[inline(always)]
fn store_all_bf16<S: Lanes, const N: usize>(
    s: S,
    x: [S::F; N],
    place: impl Fn(usize) -> (usize, usize),
    len: usize,
    to: &Shared<'_, bf16>,
) {
    for i in 0..N {
        let (row, col) = place(i);
        // SAFETY: the block belongs to this thread.
        store_bf16(s, x[i], unsafe { to.row(row, col, len) });
    }
}

#[inline(always)]
fn load<S: Lanes>(s: S, x: &[f32]) -> S::F {
    match x.as_array::<TILE_COLS>() {
        Some(all) => s.load(all),
        None => s.load_part(x, 0.0),
    }
}

#[inline(always)]
fn store<S: Lanes>(s: S, value: S::F, x: &mut [f32]) {
    match x.as_mut_array::<TILE_COLS>() {
        Some(all) => s.store(value, all),
        None => s.store_part(value, x),
    }
}

#[inline(always)]
fn store_bf16<S: Lanes>(s: S, value: S::F, x: &mut [bf16]) {
    match x.as_mut_array::<TILE_COLS>() {
        Some(all) => s.store_bf16(value, all),
        None => s.store_part_bf16(value, x),
    }
}

#[inline(always)]
fn load_strided<S: Lanes>(s: S, x: &MatRef<'_, f32>, row: usize, col: usize, len: usize) -> S::F {
    let start = row * x.row_stride() + col * x.col_stride();
    if x.col_stride() == 1 {
        return load(s, &x.data()[start..start + len]);
    }
    let mut lanes = [0.0; TILE_COLS];
    for (i, lane) in lanes.iter_mut().enumerate().take(len) {
        *lane = x.data()[start + i * x.col_stride()];
    }
    s.load(&lanes)
}

#[inline(always)]
fn load_strided_bf16<S: Lanes>(s: S, x: &MatRef<'_, bf16>, row: usize, col: usize, len: usize) -> S::F {
    let start = row * x.row_stride() + col * x.col_stride();
    if x.col_stride() == 1 {
        let part = &x.data()[start..start + len];
        return match part.as_array::<TILE_COLS>() {
            Some(all) => s.load_bf16(all),
            None => s.load_part_bf16(part, 0.0),
        };
    }
    let mut lanes = [bf16::ZERO; TILE_COLS];
    for (i, lane) in lanes.iter_mut().enumerate().take(len) {
        *lane = x.data()[start + i * x.col_stride()];
    }
    s.load_bf16(&lanes)
}
