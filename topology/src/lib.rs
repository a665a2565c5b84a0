#![doc = include_str!("../README.md")]

mod affinity;
mod apply;
mod cgroup;
mod cpuset;
mod error;
mod export;
#[cfg(feature = "hwloc")]
pub mod hwloc;
mod local_rank;
mod machine;
mod membind;
mod plan;
mod ranks;
mod request;
mod sys;
mod sysfs;
mod team;
mod tree;

pub use affinity::{Readback, allowed_cpus, pin_current_thread};
pub use apply::{Report, apply, pin_worker};
pub use cpuset::{CpuId, CpuSet, NodeId, NodeSet};
pub use error::Error;
pub use local_rank::LocalRank;
pub use machine::{Cache, CacheKind, Core, CpuKind, HugePages, Machine, MemoryKind, Node, Package, SideCache};
pub use membind::{
    Binding, PageNodes, bind_current_thread, bind_range, migrate_process, move_range, node_of, prefer_current_thread,
    sample_pages, unbind_current_thread,
};
pub use plan::{Plan, RankPlan};
pub use ranks::{Place, Ranks};
pub use request::Request;
pub use team::{Spin, Team, TeamConfig};
