//! Operations on rows and flat slices: normalisation, softmax, activation, dropout, sums, the optimiser.
//!
//! [`Rows`] holds the vector instructions chosen; its methods work on the slices they are given, on the calling thread.
//! Each is written once over sixteen virtual lanes and compiled for every instruction set, and sums run in one fixed
//! order, so that the results are the same bits everywhere. All are bound by memory (or the nearest cache that holds their
//! rows): a caller that wants speed works through blocks of rows that fit its second-level cache.
//!
//! Threads are the caller's: cut the rows in blocks and give each block to one thread. What sums over rows (gradients of
//! biases and of normalisation parameters) adds to partial sums, row after row. For results that do not depend on the
//! number of threads, give each block of [`Rows::BLOCK`] rows its own zeroed partial sums, and add these in order with
//! [`Rows::column_sums`].
//!
//! ```
//! use azulejo_amx::{Isa, rows::{LayerNormOut, LayerNormParams, Rows}};
//!
//! let rows = Rows::new(Isa::best()?)?;
//! let (gamma, beta) = ([1.0; 4], [0.0; 4]);
//! let mut y = [0.0; 8];
//! rows.layer_norm_forward(
//!     LayerNormOut { f32: Some(&mut y), ..Default::default() },
//!     &[1.0, 2.0, 3.0, 4.0, -1.0, -1.0, 1.0, 1.0],
//!     LayerNormParams { gamma: &gamma, beta: &beta, eps: 0.0 },
//! );
//! assert_eq!(y[4..], [-1.0, -1.0, 1.0, 1.0]);
//! # Ok::<(), azulejo_amx::Error>(())
//! ```
//!
//! # Panics
//!
//! Every method panics when the lengths of its slices do not fit together; the caller's shapes are wrong then.

mod map;
mod masks;
mod norm;
pub(crate) mod number;
mod optimizer;
mod reduce;
mod softmax;

use half::bf16;

pub use norm::{Branch, BranchOut, LayerNormOut, LayerNormParams, LayerNormSaved, Prologue};
pub use number::Number;
pub use optimizer::{AdamW, AdamWVariant};

use crate::epilogue::RowDropout;
use crate::error::Result;
use crate::isa::Isa;
use crate::simd::Level;

/// The row kernels of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    isa: Isa,
    level: Level,
}

impl Rows {
    /// Rows that share one partial sum when the result shall not depend on the number of threads.
    pub const BLOCK: usize = 64;

    /// The kernels for this instruction set; an error where it cannot be used. AMX has no row kernels of its own and
    /// stands for AVX-512.
    pub fn new(isa: Isa) -> Result<Self> {
        Ok(Rows {
            isa,
            level: isa.usable()?.level(),
        })
    }

    /// The instruction set given to [`Rows::new`].
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// out = layer_norm(x), rows of `params.gamma.len()` columns. Two passes over the row, so that the variance does not
    /// cancel.
    pub fn layer_norm_forward(&self, out: LayerNormOut<'_>, x: &[f32], params: LayerNormParams<'_>) {
        check_norm(&out, x.len(), params);
        self.level.run(norm::Forward { out, x, params });
    }

    /// x = dropout(x + bias) + residual, then out = layer_norm(x): what follows a matrix product at the end of a block,
    /// in one pass over memory. x keeps the sum, which [`Rows::layer_norm_backward`] needs.
    pub fn residual_layer_norm_forward(
        &self,
        out: LayerNormOut<'_>,
        x: &mut [f32],
        prologue: Prologue<'_>,
        params: LayerNormParams<'_>,
    ) {
        check_norm(&out, x.len(), params);
        check_prologue(&prologue, x.len(), params.gamma.len());
        self.level.run(norm::ForwardAfter {
            out,
            x,
            prologue,
            params,
        });
    }

    /// The gradient d_x of layer normalisation for the output's gradient d_y; adds to d_gamma and d_beta row after row.
    pub fn layer_norm_backward<T: Number>(
        &self,
        d_x: &mut [f32],
        d_gamma: &mut [f32],
        d_beta: &mut [f32],
        d_y: &[T],
        saved: LayerNormSaved<'_>,
    ) {
        let width = saved.gamma.len();
        let rows = check_rows("d_x", d_x.len(), width);
        check_len("d_y", d_y.len(), d_x.len());
        check_len("x", saved.x.len(), d_x.len());
        check_len("mean", saved.mean.len(), rows);
        check_len("rstd", saved.rstd.len(), rows);
        check_len("d_gamma", d_gamma.len(), width);
        check_len("d_beta", d_beta.len(), width);
        self.level.run(norm::Backward {
            d_x,
            d_gamma,
            d_beta,
            d_y,
            saved,
        });
    }

    /// The gradient d_sum of `dropout(x + bias) + residual` on its way to x: the dropout's mask again, the bias gradient
    /// (added row after row), and the rounding for the next matrix product, in one pass. The residual's gradient is d_sum
    /// itself.
    pub fn branch_backward(&self, branch: Branch<'_>, d_sum: &[f32], width: usize) {
        let rows = check_rows("d_sum", d_sum.len(), width);
        let len = match &branch.d_out {
            BranchOut::F32(out) => out.len(),
            BranchOut::Bf16(out) => out.len(),
        };
        check_len("d_out", len, d_sum.len());
        if let Some(d_bias) = &branch.d_bias {
            check_len("d_bias", d_bias.len(), width);
        }
        if let Some(dropout) = &branch.dropout {
            check_len("the dropout's rows", dropout.rows.len(), rows);
        }
        self.level.run(norm::BranchBackward {
            branch,
            d_x: d_sum,
            width,
        });
    }

    /// x = dropout(x + bias) + residual on rows of `width` columns.
    pub fn add_bias_dropout_residual(&self, x: &mut [f32], prologue: Prologue<'_>, width: usize) {
        check_prologue(&prologue, x.len(), width);
        let Prologue {
            bias,
            dropout,
            residual,
        } = prologue;
        self.level.run(masks::BiasDropoutResidual {
            x,
            bias,
            dropout,
            residual,
            width,
        });
    }

    /// out = dropout(x) on rows of `width` columns. Backward is the same on the gradients.
    pub fn dropout<O: Number, I: Number>(&self, out: &mut [O], x: &[I], width: usize, dropout: RowDropout<'_>) {
        let rows = check_rows("x", x.len(), width);
        check_len("out", out.len(), x.len());
        check_len("the dropout's rows", dropout.rows.len(), rows);
        self.level.run(masks::Apply { out, x, width, dropout });
    }

    /// x = softmax(scale x) for one row, with scale > 0; gives the logarithm of the sum of exponentials of scale x.
    pub fn softmax_row(&self, x: &mut [f32], scale: f32) -> f32 {
        self.level.run(softmax::Softmax { x, scale })
    }

    /// d_p = p (d_p - sum(p d_p)) scale for one row: the gradient of the input of [`Rows::softmax_row`], in place of the
    /// gradient of its output p.
    pub fn softmax_backward_row(&self, d_p: &mut [f32], p: &[f32], scale: f32) {
        check_len("p", p.len(), d_p.len());
        self.level.run(softmax::SoftmaxBackward { d_p, p, scale });
    }

    /// The cross-entropy of a row of logits against class `target`, and its gradient times `weight`.
    pub fn cross_entropy_row(&self, d_logits: Option<&mut [f32]>, logits: &[f32], target: usize, weight: f32) -> f32 {
        assert!(target < logits.len(), "class {target} of {}", logits.len());
        if let Some(d_logits) = &d_logits {
            check_len("d_logits", d_logits.len(), logits.len());
        }
        self.level.run(softmax::CrossEntropy {
            d_logits,
            logits,
            target,
            weight,
        })
    }

    /// out = gelu(x), the form with the error function.
    pub fn gelu<O: Number, I: Number>(&self, out: &mut [O], x: &[I]) {
        check_len("out", out.len(), x.len());
        self.level.run(map::Unary { out, x, f: map::Gelu });
    }

    /// d_x = d_y gelu'(x).
    pub fn gelu_backward<O: Number, I: Number, J: Number>(&self, d_x: &mut [O], d_y: &[I], x: &[J]) {
        check_len("d_x", d_x.len(), x.len());
        check_len("d_y", d_y.len(), x.len());
        self.level.run(map::Binary {
            out: d_x,
            x: d_y,
            y: x,
            f: map::TimesGeluGrad,
        });
    }

    /// d_y = d_y gelu'(x), in place.
    pub fn gelu_backward_in_place<T: Number, J: Number>(&self, d_y: &mut [T], x: &[J]) {
        check_len("d_y", d_y.len(), x.len());
        self.level.run(map::Update {
            x: d_y,
            y: x,
            f: map::TimesGeluGrad,
        });
    }

    /// x = x + y.
    pub fn add<T: Number, I: Number>(&self, x: &mut [T], y: &[I]) {
        check_len("x", x.len(), y.len());
        self.level.run(map::Update { x, y, f: map::Sum });
    }

    /// x = x + a y.
    pub fn axpy<T: Number, I: Number>(&self, x: &mut [T], a: f32, y: &[I]) {
        check_len("x", x.len(), y.len());
        self.level.run(map::Update { x, y, f: map::Axpy(a) });
    }

    /// x = a x.
    pub fn scale<T: Number>(&self, x: &mut [T], a: f32) {
        self.level.run(map::InPlace { x, f: map::Times(a) });
    }

    /// out = x in the other type: widening is exact, narrowing rounds to nearest even.
    pub fn convert<O: Number, I: Number>(&self, out: &mut [O], x: &[I]) {
        check_len("out", out.len(), x.len());
        self.level.run(map::Unary {
            out,
            x,
            f: map::Identity,
        });
    }

    /// out = x rounded to bf16: nearest even, denormals kept, NaN quieted.
    pub fn to_bf16(&self, out: &mut [bf16], x: &[f32]) {
        self.convert(out, x);
    }

    /// out = x widened.
    pub fn to_f32(&self, out: &mut [f32], x: &[bf16]) {
        self.convert(out, x);
    }

    /// The sum of squares: in f32 within blocks of 4096 numbers, in f64 from block to block, so a flat buffer gives the
    /// same sum when it is cut at multiples of 4096 and the parts are added in order. Not finite when a number is not (or
    /// when squares overflow f32).
    pub fn sum_squares(&self, x: &[f32]) -> f64 {
        self.level.run(reduce::SumSquares(x))
    }

    /// sums += the rows of x, each column from the first row to the last: a bias gradient, or partial sums joined.
    pub fn column_sums<T: Number>(&self, sums: &mut [f32], x: &[T]) {
        check_rows("x", x.len(), sums.len());
        self.level.run(reduce::ColumnSums { sums, x });
    }

    /// One step of AdamW on weights w, moments m and v, by the gradient g: one pass over memory.
    pub fn adamw(&self, w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: &AdamW) {
        check_len("m", m.len(), w.len());
        check_len("v", v.len(), w.len());
        check_len("g", g.len(), w.len());
        self.level.run(optimizer::Step {
            w,
            m,
            v,
            g,
            constants: step.constants(),
        });
    }
}

/// Panics unless the slice has the length that the others imply.
#[track_caller]
fn check_len(what: &str, got: usize, expected: usize) {
    assert!(got == expected, "{what}: expected {expected} elements, got {got}");
}

/// The number of rows; panics unless it is whole.
#[track_caller]
fn check_rows(what: &str, len: usize, width: usize) -> usize {
    if len == 0 {
        return 0;
    }
    assert!(
        width > 0 && len.is_multiple_of(width),
        "{what}: {len} elements are no whole number of rows of {width}"
    );
    len / width
}

#[track_caller]
fn check_norm(out: &LayerNormOut<'_>, len: usize, params: LayerNormParams<'_>) {
    let rows = check_rows("x", len, params.gamma.len());
    check_len("beta", params.beta.len(), params.gamma.len());
    for (what, got, expected) in [
        ("y", out.f32.as_ref().map(|y| y.len()), len),
        ("y in bf16", out.bf16.as_ref().map(|y| y.len()), len),
        ("mean", out.mean.as_ref().map(|y| y.len()), rows),
        ("rstd", out.rstd.as_ref().map(|y| y.len()), rows),
    ] {
        if let Some(got) = got {
            check_len(what, got, expected);
        }
    }
}

#[track_caller]
fn check_prologue(prologue: &Prologue<'_>, len: usize, width: usize) {
    let rows = check_rows("x", len, width);
    if let Some(bias) = prologue.bias {
        check_len("bias", bias.len(), width);
    }
    if let Some(residual) = prologue.residual {
        check_len("residual", residual.len(), len);
    }
    if let Some(dropout) = prologue.dropout {
        check_len("the dropout's rows", dropout.rows.len(), rows);
    }
}
