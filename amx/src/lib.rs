#![doc = include_str!("../README.md")]

pub(crate) mod math;
pub mod rng;
pub(crate) mod simd;
