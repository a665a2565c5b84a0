#![doc = include_str!("../README.md")]

mod acts;
pub mod batch;
pub mod buffers;
pub mod checkpoint;
mod clip;
pub mod config;
mod error;
pub mod features;
pub mod model;
mod ops;
pub mod optim;
pub mod params;
pub mod precision;
pub mod schedule;
pub mod squad;
pub mod tokenizer;

pub use azulejo_amx::{Executor, Serial};

pub use error::{Error, Result};
