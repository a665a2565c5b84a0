//! Element by element: one loop for each number of operands, and the functions that go into it.

use super::number::Number;
use crate::math;
use crate::simd::{Kernel, Lanes};

/// A function of one number.
pub(crate) trait Map: Copy {
    /// The function on sixteen numbers.
    fn map<S: Lanes>(self, s: S, x: S::F) -> S::F;
}

/// A function of two numbers.
pub(crate) trait Map2: Copy {
    /// The function on sixteen pairs.
    fn map<S: Lanes>(self, s: S, x: S::F, y: S::F) -> S::F;
}

/// out = f(x).
pub(crate) struct Unary<'a, O, I, M> {
    pub(crate) out: &'a mut [O],
    pub(crate) x: &'a [I],
    pub(crate) f: M,
}

impl<O: Number, I: Number, M: Map> Kernel for Unary<'_, O, I, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (out, out_tail) = self.out.as_chunks_mut::<16>();
        let (x, x_tail) = self.x.as_chunks::<16>();
        for (out, x) in out.iter_mut().zip(x) {
            O::store(s, self.f.map(s, I::load(s, x)), out);
        }
        if !out_tail.is_empty() {
            O::store_part(s, self.f.map(s, I::load_part(s, x_tail, 0.0)), out_tail);
        }
    }
}

/// x = f(x).
pub(crate) struct InPlace<'a, T, M> {
    pub(crate) x: &'a mut [T],
    pub(crate) f: M,
}

impl<T: Number, M: Map> Kernel for InPlace<'_, T, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (x, tail) = self.x.as_chunks_mut::<16>();
        for x in x {
            T::store(s, self.f.map(s, T::load(s, x)), x);
        }
        if !tail.is_empty() {
            T::store_part(s, self.f.map(s, T::load_part(s, tail, 0.0)), tail);
        }
    }
}

/// out = f(x, y).
pub(crate) struct Binary<'a, O, I, J, M> {
    pub(crate) out: &'a mut [O],
    pub(crate) x: &'a [I],
    pub(crate) y: &'a [J],
    pub(crate) f: M,
}

impl<O: Number, I: Number, J: Number, M: Map2> Kernel for Binary<'_, O, I, J, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (out, out_tail) = self.out.as_chunks_mut::<16>();
        let (x, x_tail) = self.x.as_chunks::<16>();
        let (y, y_tail) = self.y.as_chunks::<16>();
        for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
            O::store(s, self.f.map(s, I::load(s, x), J::load(s, y)), out);
        }
        if !out_tail.is_empty() {
            let value = self
                .f
                .map(s, I::load_part(s, x_tail, 0.0), J::load_part(s, y_tail, 0.0));
            O::store_part(s, value, out_tail);
        }
    }
}

/// x = f(x, y).
pub(crate) struct Update<'a, T, I, M> {
    pub(crate) x: &'a mut [T],
    pub(crate) y: &'a [I],
    pub(crate) f: M,
}

impl<T: Number, I: Number, M: Map2> Kernel for Update<'_, T, I, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (x, x_tail) = self.x.as_chunks_mut::<16>();
        let (y, y_tail) = self.y.as_chunks::<16>();
        for (x, y) in x.iter_mut().zip(y) {
            T::store(s, self.f.map(s, T::load(s, x), I::load(s, y)), x);
        }
        if !x_tail.is_empty() {
            let value = self
                .f
                .map(s, T::load_part(s, x_tail, 0.0), I::load_part(s, y_tail, 0.0));
            T::store_part(s, value, x_tail);
        }
    }
}

/// x itself: conversion.
#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl Map for Identity {
    #[inline(always)]
    fn map<S: Lanes>(self, _: S, x: S::F) -> S::F {
        x
    }
}

/// a x.
#[derive(Clone, Copy)]
pub(crate) struct Times(pub(crate) f32);

impl Map for Times {
    #[inline(always)]
    fn map<S: Lanes>(self, s: S, x: S::F) -> S::F {
        s.mul(s.splat(self.0), x)
    }
}

/// GELU.
#[derive(Clone, Copy)]
pub(crate) struct Gelu;

impl Map for Gelu {
    #[inline(always)]
    fn map<S: Lanes>(self, s: S, x: S::F) -> S::F {
        math::gelu(s, x)
    }
}

/// x + y.
#[derive(Clone, Copy)]
pub(crate) struct Sum;

impl Map2 for Sum {
    #[inline(always)]
    fn map<S: Lanes>(self, s: S, x: S::F, y: S::F) -> S::F {
        s.add(x, y)
    }
}

/// x + a y.
#[derive(Clone, Copy)]
pub(crate) struct Axpy(pub(crate) f32);

impl Map2 for Axpy {
    #[inline(always)]
    fn map<S: Lanes>(self, s: S, x: S::F, y: S::F) -> S::F {
        s.fma(s.splat(self.0), y, x)
    }
}

/// The gradient x of GELU's output times the derivative at the input y.
#[derive(Clone, Copy)]
pub(crate) struct TimesGeluGrad;

impl Map2 for TimesGeluGrad {
    #[inline(always)]
    fn map<S: Lanes>(self, s: S, x: S::F, y: S::F) -> S::F {
        s.mul(x, math::gelu_grad(s, y))
    }
}
