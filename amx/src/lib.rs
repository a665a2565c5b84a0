#![doc = include_str!("../README.md")]

pub mod attention;
pub mod bf16;
mod epilogue;
mod error;
mod executor;
mod gemm;
pub mod int8;
mod isa;
mod kernel;
pub(crate) mod math;
mod matrix;
mod pack;
mod panels;
mod parallel;
pub mod rng;
pub mod rows;
mod scratch;
pub(crate) mod simd;
mod storage;
mod strips;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use epilogue::{DGelu, Epilogue, Gelu, Out, RowDropout};
pub use error::{Error, Result};
pub use executor::{Executor, Serial};
pub use gemm::Gemm;
pub use isa::{Isa, Unavailable, report};
pub use matrix::{MatMut, MatRef};
pub use pack::{Packed, PackedMut, PackedRef};
pub use scratch::Scratch;
