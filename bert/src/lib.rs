#![doc = include_str!("../README.md")]

mod acts;
pub mod batch;
mod buffers;
pub mod checkpoint;
mod clip;
pub mod config;
pub mod data_parallel;
mod error;
pub mod evaluate;
pub mod features;
mod flat;
#[cfg(feature = "hub")]
pub mod hub;
pub mod model;
pub mod model_card;
mod ops;
pub mod optim;
pub mod params;
pub mod plot;
pub mod precision;
pub mod results;
pub mod resume;
pub mod runtime;
pub mod sampler;
pub mod schedule;
pub mod squad;
pub mod tensorboard;
pub mod tokenizer;
mod torch_file;
pub mod trainer;

pub use azulejo_amx::{Executor, Serial};

pub use error::{Error, Result};
