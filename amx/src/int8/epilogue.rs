//! What happens to a block of 32-bit sums before it is stored: zero points, then a scale to f32 or a rounding to 8 bits.
//!
//! A kernel computes `acc = sum a b`. What is wanted is `sum (a - za) (b - zb)`, which is
//! `acc - za * (sum of b's column) - zb * (sum of a's row - K za)`, all modulo 2^32. So zero points cost a multiplication an element of
//! the output, not one an element of the operands.
#![expect(
    unsafe_code,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tiles of shared outputs and raw accumulators"
)]

use super::pack::{PackedInt8Ref, TILE_COLS};
use crate::epilogue::{Finish, FinishBlock};
use crate::error::{Error, Result};
use crate::matrix::MatMut;
use crate::parallel::Shared;
use crate::simd::{Kernel, Lanes, Level};

/// An 8-bit element: `u8` or `i8`.
pub trait Byte: bytemuck::Pod + Send + Sync + private::Sealed {
    /// Whether the element has a sign.
    const SIGNED: bool;
    /// The least and the greatest value.
    const RANGE: (i32, i32);
    /// The low eight bits.
    #[doc(hidden)]
    fn low(word: i32) -> Self;
}

mod private {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for i8 {}
}

impl Byte for u8 {
    const SIGNED: bool = false;
    const RANGE: (i32, i32) = (0, 255);

    #[inline(always)]
    fn low(word: i32) -> Self {
        word.to_le_bytes()[0]
    }
}

impl Byte for i8 {
    const SIGNED: bool = true;
    const RANGE: (i32, i32) = (-128, 127);

    #[inline(always)]
    fn low(word: i32) -> Self {
        word.to_le_bytes()[0].cast_signed()
    }
}

/// One value for a whole operand, or one for each of its rows (A: M values) or columns (B: N values).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Per<'a, T> {
    /// One for all.
    Tensor(T),
    /// One for each row of A or column of B.
    Channel(&'a [T]),
}

impl<T: Copy + Default> Per<'_, T> {
    #[inline(always)]
    fn get(&self, i: usize) -> T {
        match self {
            Self::Tensor(value) => *value,
            Self::Channel(values) => values[i],
        }
    }

    /// Sixteen values from `i` on, the default past the end.
    #[inline(always)]
    fn sixteen(&self, i: usize) -> [T; TILE_COLS] {
        match self {
            Self::Tensor(value) => [*value; TILE_COLS],
            Self::Channel(values) => sixteen(&values[i..]),
        }
    }

    fn check_len(&self, what: &'static str, expected: usize) -> Result<()> {
        match self {
            Self::Channel(values) if values.len() != expected => Err(Error::Shape {
                what,
                expected: (1, expected),
                got: (1, values.len()),
            }),
            _ => Ok(()),
        }
    }
}

/// Up to sixteen values, the default behind them.
#[inline(always)]
fn sixteen<T: Copy + Default>(values: &[T]) -> [T; TILE_COLS] {
    if let Some(all) = values.first_chunk() {
        return *all;
    }
    let mut some = [T::default(); TILE_COLS];
    some[..values.len()].copy_from_slice(values);
    some
}

/// The values that stand for zero: the product is that of `a - a_zero` and `b - b_zero`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZeroPoints<'a> {
    /// Of A, or of each of its rows (M values): in the range of A's type.
    pub a: Per<'a, i32>,
    /// Of B, or of each of its columns (N values): -128 to 127.
    pub b: Per<'a, i32>,
}

impl Default for ZeroPoints<'_> {
    fn default() -> Self {
        Self {
            a: Per::Tensor(0),
            b: Per::Tensor(0),
        }
    }
}

/// How sums become numbers: `x[i][j] = f32(sum + bias[j]) * (a_scale[i] * b_scale[j])`, one rounding to f32 for the conversion and one
/// for each of the two products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dequantize<'a> {
    /// The values that stand for zero.
    pub zero: ZeroPoints<'a>,
    /// The step of A, or of each of its rows (M values).
    pub a_scale: Per<'a, f32>,
    /// The step of B, or of each of its columns (N values).
    pub b_scale: Per<'a, f32>,
    /// Added to the sums (N values), in steps of `a_scale * b_scale`, modulo 2^32.
    pub bias: Option<&'a [i32]>,
}

impl Default for Dequantize<'_> {
    fn default() -> Self {
        Self {
            zero: ZeroPoints::default(),
            a_scale: Per::Tensor(1.0),
            b_scale: Per::Tensor(1.0),
            bias: None,
        }
    }
}

/// How sums become bytes: `q = clamp(round(x + bias[j]) + zero)`, x as of [`Dequantize`], rounded to nearest even. To quantise with a
/// step `s`, divide one of the scales and the bias by s. Not-a-number becomes the least value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Requantize<'a> {
    /// From sums to numbers.
    pub dequantize: Dequantize<'a>,
    /// Added in f32 (N values).
    pub bias: Option<&'a [f32]>,
    /// The value that stands for zero, in the range of the output's type.
    pub zero: i32,
}

/// Where 32-bit sums go (M x N). Sums are modulo 2^32.
#[derive(Debug)]
pub enum OutInt32<'a> {
    /// The output is replaced.
    Set(MatMut<'a, i32>),
    /// The product is added to what the output holds, modulo 2^32.
    Add(MatMut<'a, i32>),
}

fn check_zero(what: &'static str, zero: &Per<'_, i32>, len: usize, (least, most): (i32, i32)) -> Result<()> {
    zero.check_len(what, len)?;
    let all = match zero {
        Per::Tensor(value) => std::slice::from_ref(value),
        Per::Channel(values) => values,
    };
    match all.iter().find(|value| !(least..=most).contains(*value)) {
        None => Ok(()),
        Some(&value) => Err(Error::ZeroPoint {
            what,
            value,
            least,
            most,
        }),
    }
}

fn check_bias<T>(what: &'static str, bias: Option<&[T]>, n: usize) -> Result<()> {
    match bias {
        Some(bias) if bias.len() != n => Err(Error::Shape {
            what,
            expected: (1, n),
            got: (1, bias.len()),
        }),
        _ => Ok(()),
    }
}

pub(crate) fn check_shape(what: &'static str, got: (usize, usize), expected: (usize, usize)) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::Shape { what, expected, got })
    }
}

impl ZeroPoints<'_> {
    pub(crate) fn check<A: Byte>(&self, m: usize, n: usize) -> Result<()> {
        check_zero("zero point of a", &self.a, m, A::RANGE)?;
        check_zero("zero point of b", &self.b, n, i8::RANGE)
    }

    /// Whether B's zero points ask for the sums of A's rows.
    pub(crate) fn needs_row_sums(&self) -> bool {
        match self.b {
            Per::Tensor(zero) => zero != 0,
            Per::Channel(zeros) => zeros.iter().any(|&zero| zero != 0),
        }
    }
}

impl Dequantize<'_> {
    pub(crate) fn check<A: Byte>(&self, m: usize, n: usize) -> Result<()> {
        self.zero.check::<A>(m, n)?;
        self.a_scale.check_len("scale of a", m)?;
        self.b_scale.check_len("scale of b", n)?;
        check_bias("32-bit bias", self.bias, n)
    }
}

impl Requantize<'_> {
    pub(crate) fn check<A: Byte, O: Byte>(&self, m: usize, n: usize) -> Result<()> {
        self.dequantize.check::<A>(m, n)?;
        check_bias("bias", self.bias, n)?;
        check_zero("zero point of the output", &Per::Tensor(self.zero), 1, O::RANGE)
    }
}

/// Where sums go and how, after the checks, shared by all workers.
pub(crate) trait Store: Sync {
    /// Takes the corrected sums of columns `col .. col + len` of a row; past `len` there is anything. May change `sums`, which stay in C.
    ///
    /// # Safety
    /// The elements lie inside of the output, and no other thread stores them.
    unsafe fn store(&self, sums: &mut [i32; TILE_COLS], columns: &Columns, row: usize, col: usize, len: usize);

    /// What the store needs of sixteen columns.
    fn columns(&self, col: usize) -> Columns;

    /// Called after all columns of a strip were stored, with C as the stores left it.
    ///
    /// # Safety
    /// As [`FinishBlock`] promises.
    unsafe fn end(&self, _: Level, _: &FinishStrip<'_>) {}
}

/// Sixteen columns' share of the operations.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Columns {
    /// Added to the sums, before they are stored.
    bias: [i32; TILE_COLS],
    scale: [f32; TILE_COLS],
    float_bias: [f32; TILE_COLS],
}

/// 32-bit sums.
#[derive(Debug)]
pub(crate) struct StoreInt32<'a> {
    pub(crate) out: Shared<'a, i32>,
    pub(crate) add: bool,
}

impl Store for StoreInt32<'_> {
    #[inline(always)]
    unsafe fn store(&self, sums: &mut [i32; TILE_COLS], _: &Columns, row: usize, col: usize, len: usize) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.row(row, col, len) };
        match (out.as_mut_array(), self.add) {
            (Some(out), false) => *out = *sums,
            (Some(out), true) => {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = out.wrapping_add(*sum);
                }
            }
            (None, add) => {
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = if add { out.wrapping_add(*sum) } else { *sum };
                }
            }
        }
    }

    #[inline(always)]
    fn columns(&self, _: usize) -> Columns {
        Columns::default()
    }
}

impl Dequantize<'_> {
    #[inline(always)]
    fn columns(&self, col: usize) -> Columns {
        Columns {
            bias: self.bias.map_or([0; TILE_COLS], |bias| sixteen(&bias[col..])),
            scale: self.b_scale.sixteen(col),
            float_bias: [0.0; TILE_COLS],
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "rounded to nearest even, as documented")]
    fn numbers(&self, sums: &[i32; TILE_COLS], columns: &Columns, row: usize) -> [f32; TILE_COLS] {
        let a_scale = self.a_scale.get(row);
        let mut numbers = [0.0; TILE_COLS];
        for c in 0..TILE_COLS {
            numbers[c] = sums[c] as f32 * (a_scale * columns.scale[c]);
        }
        numbers
    }
}

/// f32 in C, then the epilogue of the other products.
#[derive(Debug)]
pub(crate) struct StoreNumbers<'a> {
    pub(crate) dequantize: Dequantize<'a>,
    pub(crate) finish: Finish<'a>,
}

impl Store for StoreNumbers<'_> {
    #[inline(always)]
    unsafe fn store(&self, sums: &mut [i32; TILE_COLS], columns: &Columns, row: usize, _: usize, _: usize) {
        *sums = self
            .dequantize
            .numbers(sums, columns, row)
            .map(|x| x.to_bits().cast_signed());
    }

    #[inline(always)]
    fn columns(&self, col: usize) -> Columns {
        self.dequantize.columns(col)
    }

    unsafe fn end(&self, level: Level, strip: &FinishStrip<'_>) {
        FinishBlock {
            finish: &self.finish,
            c: strip.c.cast(),
            pairs: false,
            panel: strip.strip,
            row: strip.row,
            rows: strip.rows,
            col: strip.col,
            cols: strip.cols,
        }
        .dispatch(level);
    }
}

/// Bytes.
#[derive(Debug)]
pub(crate) struct StoreBytes<'a, O> {
    pub(crate) requantize: Requantize<'a>,
    pub(crate) out: Shared<'a, O>,
}

/// Adding this to a number between -2^22 and 2^22 rounds it to nearest even and leaves the integer in the low bits.
const ROUND: f32 = 12_582_912.0;

impl<O: Byte> Store for StoreBytes<'_, O> {
    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a difference of bytes is exact")]
    unsafe fn store(&self, sums: &mut [i32; TILE_COLS], columns: &Columns, row: usize, col: usize, len: usize) {
        let Requantize { dequantize, bias, zero } = &self.requantize;
        let numbers = dequantize.numbers(sums, columns, row);
        let (least, most) = ((O::RANGE.0 - zero) as f32, (O::RANGE.1 - zero) as f32);
        let mut bytes = [O::low(0); TILE_COLS];
        for c in 0..TILE_COLS {
            let x = match bias {
                Some(_) => numbers[c] + columns.float_bias[c],
                None => numbers[c],
            };
            // The bounds are integers, so that clamping first changes nothing but the range.
            let x = if x > least { x } else { least };
            let x = if x < most { x } else { most };
            bytes[c] = O::low((x + ROUND).to_bits().cast_signed().wrapping_add(*zero));
        }
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.row(row, col, len) };
        match out.as_mut_array() {
            Some(out) => *out = bytes,
            None => out.copy_from_slice(&bytes[..len]),
        }
    }

    #[inline(always)]
    fn columns(&self, col: usize) -> Columns {
        Columns {
            float_bias: self
                .requantize
                .bias
                .map_or([0.0; TILE_COLS], |bias| sixteen(&bias[col..])),
            ..self.requantize.dequantize.columns(col)
        }
    }
}

/// A block of sums to finish: rows `row ..` and columns `col ..` of the output.
///
/// Promises of the maker:
/// * `c` has a group of `strip` rows of 16 sums for each 16 columns, rounded up, and nobody else refers to it.
/// * The block lies inside of the output, and no other thread finishes a part of it.
/// * `col` is a multiple of 128.
#[derive(Debug)]
pub(crate) struct FinishStrip<'a> {
    pub(crate) c: *mut i32,
    pub(crate) strip: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) col: usize,
    pub(crate) cols: usize,
    pub(crate) b: PackedInt8Ref<'a>,
    pub(crate) zero: ZeroPoints<'a>,
    /// What the panel's bytes have on top of A.
    pub(crate) panel_bias: i32,
    /// The sums of the strip's rows of A, where B has zero points.
    pub(crate) row_sums: Option<&'a [i32]>,
}

impl FinishStrip<'_> {
    /// Zero points, then the store.
    pub(crate) fn run<T: Store>(self, level: Level, store: &T) {
        level.run(Correct { strip: &self, store });
        // SAFETY: the promises of this block.
        unsafe { store.end(level, &self) };
    }
}

struct Correct<'s, 'a, T> {
    strip: &'s FinishStrip<'a>,
    store: &'s T,
}

impl<T: Store> Kernel for Correct<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _: S) {
        let Self { strip, store } = self;
        for g in 0..strip.cols.div_ceil(TILE_COLS) {
            let col = strip.col + g * TILE_COLS;
            let len = TILE_COLS.min(strip.cols - g * TILE_COLS);
            let columns = store.columns(col);
            let b_sums = strip.b.sums(col / TILE_COLS);
            // Where all rows have one zero point, what it takes away is one number a column.
            let (offset, each_row) = match (strip.zero.a, strip.row_sums) {
                (Per::Tensor(zero), None) => {
                    let zero = zero.wrapping_add(strip.panel_bias);
                    let mut offset = columns.bias;
                    for (offset, b_sum) in offset.iter_mut().zip(b_sums) {
                        *offset = offset.wrapping_sub(zero.wrapping_mul(b_sum));
                    }
                    (offset, false)
                }
                _ => (columns.bias, true),
            };
            let has_offset = offset != [0; TILE_COLS];
            let b_zeros = strip.zero.b.sixteen(col);
            for r in 0..strip.rows {
                // SAFETY: the group has this row, and nobody else refers to it.
                let sums = unsafe { &mut *strip.c.cast::<[i32; TILE_COLS]>().add(g * strip.strip + r) };
                if has_offset {
                    for (sum, offset) in sums.iter_mut().zip(offset) {
                        *sum = sum.wrapping_add(offset);
                    }
                }
                if each_row {
                    let a_zero = strip.zero.a.get(strip.row + r);
                    let zero = a_zero.wrapping_add(strip.panel_bias);
                    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "modulo 2^32")]
                    let row_sum = match strip.row_sums {
                        Some(row_sums) => row_sums[r].wrapping_sub((strip.b.k() as i32).wrapping_mul(a_zero)),
                        // No column has a zero point.
                        None => 0,
                    };
                    for c in 0..TILE_COLS {
                        let off = zero
                            .wrapping_mul(b_sums[c])
                            .wrapping_add(b_zeros[c].wrapping_mul(row_sum));
                        sums[c] = sums[c].wrapping_sub(off);
                    }
                }
                // SAFETY: the block is inside of the output and belongs to this thread.
                unsafe { store.store(sums, &columns, strip.row + r, col, len) };
            }
        }
    }
}
