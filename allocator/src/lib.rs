#![doc = include_str!("../README.md")]

mod align;
mod error;
mod global;
mod step;

pub use error::Error;
pub use global::{Global, Stats};
pub use step::{ALIGNMENT, Lease, Mark, StepArena, StepStats};
