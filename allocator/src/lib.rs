#![doc = include_str!("../README.md")]

mod error;
mod step;

pub use error::Error;
pub use step::{ALIGNMENT, Lease, Mark, StepArena, StepStats};
