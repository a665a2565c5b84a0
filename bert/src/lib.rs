#![doc = include_str!("../README.md")]

pub mod batch;
pub mod config;
mod error;
pub mod params;

pub use error::{Error, Result};
