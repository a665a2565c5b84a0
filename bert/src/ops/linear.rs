//! `y = x W^T + b`, with what follows it: nothing, GELU, or a residual.

use crate::ops::{BLOCK, Context, share};
use crate::precision::Operand;

/// A weight matrix as the products read it.
#[derive(Debug)]
pub(crate) struct Weight<T> {
    values: Vec<T>, // (n, k)
    n: usize,
    k: usize,
}

impl<T: Operand> Weight<T> {
    pub(crate) fn new(n: usize, k: usize) -> Weight<T> {
        Weight {
            values: vec![T::default(); n * k],
            n,
            k,
        }
    }

    /// Takes over new values. `(n, k)`
    pub(crate) fn prepare(&mut self, weight: &[f32]) {
        assert_eq!(weight.len(), self.n * self.k, "weight of {} x {}", self.n, self.k);
        for (to, &from) in self.values.iter_mut().zip(weight) {
            *to = T::from_f32(from);
        }
    }
}

/// `y = x W^T + b`. y `(t, n)`, x `(t, k)`, bias `(n)`
pub(crate) fn forward<T: Operand>(cx: Context, y: &mut [f32], x: &[T], weight: &Weight<T>, bias: &[f32]) {
    product(cx, y, x, weight, bias, |y, sum| *y = sum);
}

/// The same, rounded for the next product.
pub(crate) fn forward_rounded<T: Operand>(cx: Context, y: &mut [T], x: &[T], weight: &Weight<T>, bias: &[f32]) {
    product(cx, y, x, weight, bias, |y, sum| *y = T::from_f32(sum));
}

/// `g = gelu(u)`, `u = x W^T + b`. g, u `(t, n)`
pub(crate) fn forward_gelu<T: Operand>(
    cx: Context,
    g: &mut [T],
    u: &mut [T],
    x: &[T],
    weight: &Weight<T>,
    bias: &[f32],
) {
    product(cx, u, x, weight, bias, |u, sum| *u = T::from_f32(sum));
    for (g, u) in g.iter_mut().zip(u) {
        *g = T::from_f32(gelu(u.to_f32()));
    }
}

/// `d_x = d_y W + residual`. d_x `(t, k)`, d_y `(t, n)`
pub(crate) fn backward_input<T: Operand>(
    cx: Context,
    d_x: &mut [f32],
    d_y: &[T],
    weight: &Weight<T>,
    residual: Option<&[f32]>,
) {
    product_transposed(cx, d_x, d_y, weight, |i, d_x, sum| {
        *d_x = sum + residual.map_or(0.0, |r| r[i])
    });
}

/// The same without a residual, rounded for the next product.
pub(crate) fn backward_input_rounded<T: Operand>(cx: Context, d_x: &mut [T], d_y: &[T], weight: &Weight<T>) {
    product_transposed(cx, d_x, d_y, weight, |_, d_x, sum| *d_x = T::from_f32(sum));
}

/// `d_u = (d_y W) gelu'(u)`: through the projection and the GELU below it. d_u, u `(t, k)`, d_y `(t, n)`
pub(crate) fn backward_input_gelu<T: Operand>(cx: Context, d_u: &mut [T], d_y: &[T], weight: &Weight<T>, u: &[T]) {
    product_transposed(cx, d_u, d_y, weight, |i, d_u, sum| {
        *d_u = T::from_f32(sum * gelu_grad(u[i].to_f32()))
    });
}

/// `d_w += d_y^T x`. d_w `(n, k)`, d_y `(t, n)`, x `(t, k)`
pub(crate) fn backward_weight<T: Operand>(cx: Context, d_w: &mut [f32], d_y: &[T], x: &[T], n: usize, k: usize) {
    share(cx.exec, d_w.chunks_mut(k).enumerate(), |(j, d_w)| {
        for (x, d_y) in x.chunks(k).zip(d_y.chunks(n)) {
            let d = d_y[j].to_f32();
            for (d_w, x) in d_w.iter_mut().zip(x) {
                *d_w += d * x.to_f32();
            }
        }
    });
}

fn product<T: Operand, O: Send>(
    cx: Context,
    y: &mut [O],
    x: &[T],
    weight: &Weight<T>,
    bias: &[f32],
    store: impl Fn(&mut O, f32) + Sync,
) {
    let (n, k) = (weight.n, weight.k);
    share(cx.exec, y.chunks_mut(BLOCK * n).zip(x.chunks(BLOCK * k)), |(y, x)| {
        for (y, x) in y.chunks_mut(n).zip(x.chunks(k)) {
            for ((y, w), b) in y.iter_mut().zip(weight.values.chunks(k)).zip(bias) {
                let sum: f32 = x.iter().zip(w).map(|(x, w)| x.to_f32() * w.to_f32()).sum();
                store(y, sum + b);
            }
        }
    });
}

fn product_transposed<T: Operand, O: Send>(
    cx: Context,
    d_x: &mut [O],
    d_y: &[T],
    weight: &Weight<T>,
    store: impl Fn(usize, &mut O, f32) + Sync,
) {
    let (n, k) = (weight.n, weight.k);
    let blocks = d_x.chunks_mut(k).zip(d_y.chunks(n)).enumerate();
    share(cx.exec, blocks, |(row, (d_x, d_y))| {
        let mut sums = vec![0.0f32; k];
        for (d_y, w) in d_y.iter().zip(weight.values.chunks(k)) {
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum += d_y.to_f32() * w.to_f32();
            }
        }
        for (i, (d_x, sum)) in d_x.iter_mut().zip(sums).enumerate() {
            store(row * k + i, d_x, sum);
        }
    });
}

fn erf(x: f64) -> f64 {
    // Series for small, continued fraction for large arguments.
    if x.abs() < 3.0 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-17 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let mut f = 0.0;
        for i in (1..60).rev() {
            f = f64::from(i) / 2.0 / (x.abs() + f);
        }
        x.signum() * (1.0 - (-x * x).exp() / ((x.abs() + f) * std::f64::consts::PI.sqrt()))
    }
}

pub(crate) fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

pub(crate) fn gelu_grad(x: f32) -> f32 {
    let x = f64::from(x);
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    (0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) + x * density) as f32
}
