#![doc = include_str!("../README.md")]

mod affinity;
mod cpuset;
mod error;
mod sys;
mod team;

pub use affinity::{Readback, allowed_cpus, pin_current_thread};
pub use cpuset::{CpuId, CpuSet, NodeId, NodeSet};
pub use error::Error;
pub use team::{Spin, Team, TeamConfig};
