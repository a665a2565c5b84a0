#![doc = include_str!("../README.md")]

mod affinity;
mod apply;
mod cgroup;
mod cpuset;
mod error;
#[cfg(feature = "hwloc")]
pub mod hwloc;
mod machine;
mod membind;
mod plan;
mod request;
mod sys;
mod sysfs;
mod team;
mod tree;

pub use affinity::{Readback, allowed_cpus, pin_current_thread};
pub use apply::{Report, apply, pin_worker};
pub use cpuset::{CpuId, CpuSet, NodeId, NodeSet};
pub use error::Error;
pub use machine::{Cache, CacheKind, Core, Machine, MemoryKind, Node, Package};
pub use membind::{Binding, bind_current_thread, bind_range, node_of};
pub use plan::{Plan, RankPlan};
pub use request::Request;
pub use team::{Spin, Team, TeamConfig};
