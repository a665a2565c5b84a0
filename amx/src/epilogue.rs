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
    /// Where memory will be written for a block: the first byte, the offset of a second place, the bytes from row to row. A hint for
    /// prefetching.
    pub(crate) fn output(&self, row: usize, col: usize) -> (*const u8, usize, usize) {
        fn place<T>(out: &Shared<'_, T>, row: usize, col: usize) -> (*const u8, usize) {
            (out.address(row, col).cast(), out.row_stride() * size_of::<T>())
        }
        let half = self.bf16.as_ref().map(|out| place(out, row, col));
        let saved = self.save_bf16.as_ref().map(|out| place(out, row, col));
        match (&self.f32, half, saved) {
            (Some(out), ..) => {
                let (first, stride) = place(out, row, col);
                (first, 64, stride)
            }
            (None, Some((first, stride)), Some((saved, same))) if stride == same => {
                (first, saved.addr().wrapping_sub(first.addr()), stride)
            }
            (None, Some((first, stride)), _) => (first, 63, stride),
            (None, None, _) => (std::ptr::null(), 0, 0),
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
///   `g / width * panel + r * width + g % width`.
/// * The block lies inside of the M x N that `finish` was checked for, and no other thread finishes a part of it.
/// * `col` is a multiple of 128, or of 16 if not [`Finish::by_chunks`].
#[derive(Debug)]
pub(crate) struct FinishBlock<'f, 'a, const KIND: u8> {
    pub(crate) finish: &'f Finish<'a>,
    pub(crate) c: *const f32,
    /// Groups of columns that lie side by side.
    pub(crate) width: usize,
    /// Vectors from `width` groups to the next ones.
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
            width,
            panel,
            row,
            rows,
            col,
            cols,
        } = self;
        FinishBlock {
            finish,
            c,
            width,
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

impl<const KIND: u8> Kernel for FinishBlock<'_, '_, KIND> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let f = self.finish;
        for r in 0..self.rows {
            let row = self.row + r;
            for chunk in (0..self.cols).step_by(CHUNK) {
                let col = self.col + chunk;
                let dropout = if KIND >= BACKWARD { f.dropout } else { None };
                let factors = dropout.map(|d| d.dropout.factors(s, d.rows[row], col / CHUNK));
                let load = |v: usize| {
                    let group = chunk / TILE_COLS + v;
                    let at = group / self.width * self.panel + r * self.width + group % self.width;
                    // SAFETY: the group has this row.
                    let c: &[f32; TILE_COLS] = unsafe { &*self.c.cast::<[f32; TILE_COLS]>().add(at) };
                    s.load(c)
                };
                if chunk + CHUNK <= self.cols {
                    let mut x = [s.splat(0.0); VECTORS];
                    for (v, x) in x.iter_mut().enumerate() {
                        *x = load(v);
                    }
                    finish_vectors::<S, _, KIND>(s, f, x, [TILE_COLS; VECTORS], row, col, factors);
                } else if self.cols == 2 * TILE_COLS && factors.is_none() {
                    finish_vectors::<S, _, KIND>(s, f, [load(0), load(1)], [TILE_COLS; 2], row, col, None);
                } else {
                    for v in 0..(self.cols - chunk).div_ceil(TILE_COLS) {
                        let len = TILE_COLS.min(self.cols - chunk - v * TILE_COLS);
                        let factor = factors.as_ref().map(|all| [all[v]]);
                        finish_vectors::<S, _, KIND>(s, f, [load(v)], [len], row, col + v * TILE_COLS, factor);
                    }
                }
            }
        }
    }
}

/// Neighbouring vectors of one row. All are full, or there is one. Each operation is asked for once, not once a vector.
#[inline(always)]
fn finish_vectors<S: Lanes, const V: usize, const KIND: u8>(
    s: S,
    f: &Finish<'_>,
    mut x: [S::F; V],
    len: [usize; V],
    row: usize,
    col: usize,
    factors: Option<[S::F; V]>,
) {
    let at = |v: usize| col + v * TILE_COLS;
    let all = len.iter().sum::<usize>();
    if let Some(alpha) = f.alpha {
        for x in &mut x {
            *x = s.mul(*x, s.splat(alpha));
        }
    }
    if let Some(bias) = f.bias {
        let bias = &bias[col..col + all];
        for v in 0..V {
            x[v] = s.add(x[v], load(s, &bias[v * TILE_COLS..v * TILE_COLS + len[v]]));
        }
    }
    if (KIND == GELU || KIND == ANY) && f.gelu {
        if let Some(save) = &f.save_f32 {
            // SAFETY: the block belongs to this thread.
            store_all(s, x, len, unsafe { save.row(row, col, all) });
        }
        if let Some(save) = &f.save_bf16 {
            // SAFETY: the block belongs to this thread.
            store_all_bf16(s, x, len, unsafe { save.row(row, col, all) });
        }
        for x in &mut x {
            *x = math::gelu(s, *x);
        }
    }
    let d_gelu = if KIND >= BACKWARD { &f.d_gelu } else { &None };
    match d_gelu {
        Some(DGelu::F32(pre)) => {
            for v in 0..V {
                x[v] = s.mul(x[v], math::gelu_grad(s, load_strided(s, pre, row, at(v), len[v])));
            }
        }
        Some(DGelu::Bf16(pre)) => {
            for v in 0..V {
                x[v] = s.mul(x[v], math::gelu_grad(s, load_strided_bf16(s, pre, row, at(v), len[v])));
            }
        }
        None => {}
    }
    if let Some(factors) = factors
        && KIND >= BACKWARD
    {
        for v in 0..V {
            x[v] = s.mul(x[v], factors[v]);
        }
    }
    if let Some(residual) = &f.residual
        && KIND >= BACKWARD
    {
        for v in 0..V {
            x[v] = s.add(x[v], load_strided(s, residual, row, at(v), len[v]));
        }
    }
    if let Some(out) = &f.f32 {
        // SAFETY: the block belongs to this thread.
        let out = unsafe { out.row(row, col, all) };
        if f.accumulate {
            for v in 0..V {
                x[v] = s.add(x[v], load(s, &out[v * TILE_COLS..v * TILE_COLS + len[v]]));
            }
        }
        store_all(s, x, len, out);
    }
    if let Some(out) = &f.bf16 {
        // SAFETY: the block belongs to this thread.
        store_all_bf16(s, x, len, unsafe { out.row(row, col, all) });
    }
}

#[inline(always)]
fn store_all<S: Lanes, const V: usize>(s: S, x: [S::F; V], len: [usize; V], to: &mut [f32]) {
    for v in 0..V {
        store(s, x[v], &mut to[v * TILE_COLS..v * TILE_COLS + len[v]]);
    }
}

#[inline(always)]
fn store_all_bf16<S: Lanes, const V: usize>(s: S, x: [S::F; V], len: [usize; V], to: &mut [bf16]) {
    for v in 0..V {
        store_bf16(s, x[v], &mut to[v * TILE_COLS..v * TILE_COLS + len[v]]);
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
