//! What a machine is made of: pure data.
//!
//! Everything is a set of CPUs; ids are labels. A level that the system does not describe is absent, never guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::{Value, json};

use crate::cpuset::{CpuSet, NodeId, NodeSet};
use crate::error::Error;
use crate::tree::Tree;
use crate::{sys, sysfs};

/// A machine as seen by this process.
///
/// Packages, cores and caches hold CPUs that are online and inside the cpuset; the affinity mask is applied in
/// [`Machine::allowed`] only, so that the description does not change when a thread is pinned.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Machine {
    /// CPUs that are online.
    pub online: CpuSet,
    /// CPUs that exist and are offline, where the system says so.
    pub offline: CpuSet,
    /// CPUs that `isolcpus` or an isolated cpuset keeps from the scheduler's balancing.
    pub isolated: CpuSet,
    /// CPUs without a periodic tick while they run one thread (`nohz_full`).
    pub nohz_full: CpuSet,
    /// CPUs in this process's control group, if one limits them.
    pub cpuset: Option<CpuSet>,
    /// NUMA nodes in this process's control group, if one limits them.
    pub mems: Option<NodeSet>,
    /// The affinity mask of the thread that read the machine, where there is one.
    pub affinity: Option<CpuSet>,
    /// What may be used: online, inside the cpuset and inside the affinity mask.
    pub allowed: CpuSet,
    /// CPUs' worth of time that the control groups grant, if they limit it. A number and never a set.
    pub quota: Option<f64>,
    /// Sockets.
    pub packages: Vec<Package>,
    /// Dies: CPUs that are online and inside the cpuset; empty where the system does not describe dies.
    pub dies: Vec<CpuSet>,
    /// Clusters of cores inside a die; empty where the system does not describe them.
    pub clusters: Vec<CpuSet>,
    /// Physical cores, in the order of packages, then nodes, then lowest CPU.
    pub cores: Vec<Core>,
    /// Kinds of cores, the fastest first; empty where nothing distinguishes any.
    pub kinds: Vec<CpuKind>,
    /// NUMA nodes that are online and allowed, in the order of the packages they belong to, then of the CPUs they are
    /// nearest to.
    pub nodes: Vec<Node>,
    /// Caches, by level, each once.
    pub caches: Vec<Cache>,
    /// Pools of huge pages of the whole machine, by page size.
    pub huge_pages: Vec<HugePages>,
    /// Modes of transparent huge pages, the chosen one in brackets, as the system writes them.
    pub transparent_huge_pages: Option<String>,
    /// What was missing, contradictory or unreadable.
    pub notes: Vec<String>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Package {
    /// The number the system gives it, if any.
    pub id: Option<i64>,
    /// Its CPUs that are online and inside the cpuset; may be empty.
    pub cpus: CpuSet,
    /// The allowed nodes attached to it, to a part of it, or to something around it.
    pub nodes: NodeSet,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Core {
    /// Its CPUs (hardware threads) that are online and inside the cpuset; never empty.
    pub cpus: CpuSet,
    /// Index into [`Machine::packages`].
    pub package: usize,
    /// The NUMA node of its CPUs, if one is known (allowed or not).
    pub node: Option<NodeId>,
    /// The die of its package, where the system tells.
    pub die: Option<i64>,
    /// Highest clock in kHz, where the system tells; differs between the kinds of cores of a hybrid machine.
    pub max_khz: Option<u64>,
}

/// What a node's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary memory.
    Dram,
    /// High-bandwidth memory.
    Hbm,
    /// Persistent memory.
    Nvm,
    /// Memory behind a CXL link.
    Cxl,
}

impl MemoryKind {
    /// The usual abbreviation.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Dram => "DRAM",
            MemoryKind::Hbm => "HBM",
            MemoryKind::Nvm => "NVM",
            MemoryKind::Cxl => "CXL",
        }
    }

    /// Whether it is much slower than ordinary memory, so that nothing is placed there unasked.
    pub fn is_slow(self) -> bool {
        matches!(self, MemoryKind::Nvm | MemoryKind::Cxl)
    }
}

/// A kind of core, on a machine that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuKind {
    /// `performance` for the fastest, `efficiency` for the slowest, `middle` between them.
    pub name: &'static str,
    /// Its CPUs that are online and inside the cpuset.
    pub cpus: CpuSet,
    /// Where the distinction comes from.
    pub source: &'static str,
}

/// A pool of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugePages {
    /// Bytes of a page.
    pub page: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages of the pool that nobody uses, where the system tells.
    pub free: Option<u64>,
}

/// A cache between a node's memory and its users, such as fast memory in front of slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SideCache {
    /// 1 is nearest to the memory's users.
    pub level: u32,
    /// Bytes.
    pub size: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Node {
    /// The number the system gives it.
    pub id: NodeId,
    /// Its own CPUs that are online; may be empty.
    pub cpus: CpuSet,
    /// The online CPUs it is nearest to: its own, or those of its initiators, or of the nodes at the least distance.
    pub near: CpuSet,
    /// Bytes of memory, where the system tells.
    pub memory: Option<u64>,
    /// The kind of memory, where something on the machine distinguishes kinds.
    pub kind: Option<MemoryKind>,
    /// The kernel's memory tier, where it keeps tiers; a smaller number is faster.
    pub tier: Option<u32>,
    /// Caches in front of the memory, nearest to the memory's users first.
    pub side_caches: Vec<SideCache>,
    /// The node's pools of huge pages, by page size.
    pub huge_pages: Vec<HugePages>,
    /// Distance to each online node as the firmware reports it; 10 is the node itself. Empty when unknown.
    pub distances: Vec<(NodeId, u32)>,
    /// Bandwidth from its best initiator in MB/s, where the firmware reports it.
    pub bandwidth: Option<u64>,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CacheKind {
    /// Data.
    Data,
    /// Instructions.
    Instruction,
    /// Both.
    Unified,
}

/// A cache and the CPUs that share it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Bytes, where the system tells.
    pub size: Option<u64>,
    /// CPUs that are online and inside the cpuset.
    pub cpus: CpuSet,
}

impl Machine {
    /// Reads the running machine. The affinity mask is that of the calling thread: read before pinning anything.
    pub fn read() -> Result<Machine, Error> {
        sysfs::read(Tree::folder(Path::new("/")), sys::affinity().ok())
    }

    /// Reads a recorded machine from a folder that holds its `sys` and `proc`. The affinity mask is the one in
    /// `proc/self/status`, if that file is there.
    pub fn read_from(root: &Path) -> Result<Machine, Error> {
        Machine::recorded(Tree::folder(root))
    }

    /// Reads a machine from files in memory, by path: `sys/devices/system/cpu/online` and so on. A symbolic link is a
    /// file that holds its target.
    pub fn read_files(files: &BTreeMap<String, String>) -> Result<Machine, Error> {
        Machine::recorded(Tree::memory(files))
    }

    fn recorded(tree: Tree<'_>) -> Result<Machine, Error> {
        let status = tree.text("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        sysfs::read(tree, mask.and_then(CpuSet::parse_list))
    }

    /// Reads the running machine once more, with the affinity mask of this reading instead of the calling thread's, which
    /// may have been pinned since. A mask that did not limit anything then does not limit anything now, so that a
    /// cpuset that has moved is followed.
    pub fn read_again(&self) -> Result<Machine, Error> {
        let limiting = self.affinity.clone().filter(|mask| !self.usable().is_subset(mask));
        sysfs::read(Tree::folder(Path::new("/")), limiting)
    }

    /// The caches of a level, instruction caches left out.
    pub fn caches_of_level(&self, level: u32) -> impl Iterator<Item = &Cache> {
        self.caches
            .iter()
            .filter(move |cache| cache.level == level && cache.kind != CacheKind::Instruction)
    }

    /// The node of that number, if it is online and allowed.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The CPUs of the fastest kind of core; `None` where nothing distinguishes kinds.
    pub fn performance_cpus(&self) -> Option<&CpuSet> {
        self.kinds.first().map(|kind| &kind.cpus)
    }

    /// CPUs that are online and inside the cpuset, whatever the affinity mask says.
    pub fn usable(&self) -> CpuSet {
        self.cpuset
            .as_ref()
            .map_or_else(|| self.online.clone(), |cpuset| self.online.and(cpuset))
    }

    /// The description as JSON, in hwloc's order: `packages` (`os` number, `cores`, `pus`, `numa` nodes), `numa` nodes
    /// (`os` number, `kind`, `local` memory), counts of `l3`, `l2`, `cores` and `pus`, the distinct `threads_per_core`,
    /// and the `pu_list`.
    pub fn to_json(&self) -> Value {
        let packages: Vec<Value> = self
            .packages
            .iter()
            .enumerate()
            .map(|(index, package)| {
                json!({
                    "os": package.id,
                    "cores": self.cores.iter().filter(|core| core.package == index).count(),
                    "pus": package.cpus.to_string(),
                    "numa": self.nodes.iter().map(|node| node.id).filter(|&id| package.nodes.contains(id)).collect::<Vec<_>>(),
                })
            })
            .collect();
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| {
                json!({
                    "os": node.id,
                    "kind": node.kind.map_or("", MemoryKind::name),
                    "local": node.memory.map_or_else(String::new, memory_text),
                })
            })
            .collect();
        let mut threads: Vec<usize> = self.cores.iter().map(|core| core.cpus.len()).collect();
        threads.sort_unstable();
        threads.dedup();
        json!({
            "packages": packages,
            "numa": nodes,
            "l3": self.caches_of_level(3).count(),
            "l2": self.caches_of_level(2).count(),
            "cores": self.cores.len(),
            "pus": self.usable().len(),
            "threads_per_core": threads,
            "pu_list": self.usable().to_string(),
        })
    }
}

/// Bytes in the largest unit of which there are at least ten, rounded to the nearest.
pub(crate) fn memory_text(bytes: u64) -> String {
    let unit = |shift: u32| (bytes + (1 << (shift - 1))) >> shift;
    match bytes {
        // The factor of ten keeps four digits of a size, so that 8192MiB and 64GiB are both exact.
        _ if bytes >= 10 << 30 => format!("{}GiB", unit(30)),
        _ if bytes >= 10 << 20 => format!("{}MiB", unit(20)),
        _ => format!("{}KiB", unit(10)),
    }
}

impl fmt::Display for Machine {
    /// One paragraph: what there is, and what of it may be used.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let packages = self.packages.iter().filter(|package| !package.cpus.is_empty()).count();
        write!(
            f,
            "{}, {}, {}, {} usable; allowed: CPUs {:#}",
            count(packages, "package"),
            count(self.nodes.len(), "NUMA node"),
            count(self.cores.len(), "core"),
            count(self.usable().len(), "CPU"),
            self.allowed
        )?;
        if let Some(quota) = self.quota {
            write!(f, "; quota: {quota:.2} CPUs' worth of time")?;
        }
        for (what, cpus) in [
            ("offline", &self.offline),
            ("isolated", &self.isolated),
            ("without tick", &self.nohz_full),
        ] {
            if !cpus.is_empty() {
                write!(f, "\n{what}: CPUs {cpus}")?;
            }
        }
        for kind in &self.kinds {
            write!(f, "\n{} cores: CPUs {:#}, by {}", kind.name, kind.cpus, kind.source)?;
        }
        for node in &self.nodes {
            write!(f, "\n{node}")?;
        }
        for pool in self.huge_pages.iter().filter(|pool| pool.total > 0) {
            write!(f, "\nhuge pages: {pool}")?;
        }
        if let Some(modes) = &self.transparent_huge_pages {
            write!(f, "\ntransparent huge pages: {modes}")?;
        }
        for note in &self.notes {
            write!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Node {
    /// One line: its CPUs, its memory, and what stands before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: ", self.id)?;
        if self.cpus.is_empty() {
            write!(f, "no CPUs, nearest to CPUs {:#}", self.near)?;
        } else {
            write!(f, "CPUs {}", self.cpus)?;
        }
        let kind = self.kind.map_or("memory", MemoryKind::name);
        match self.memory {
            Some(0) => write!(f, ", no memory")?,
            Some(memory) => write!(f, ", {} {kind}", memory_text(memory))?,
            None => {}
        }
        if let Some(tier) = self.tier {
            write!(f, ", tier {tier}")?;
        }
        for cache in &self.side_caches {
            write!(f, ", {} memory-side cache", memory_text(cache.size))?;
        }
        for pool in self.huge_pages.iter().filter(|pool| pool.total > 0) {
            write!(f, ", {pool}")?;
        }
        Ok(())
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.total, memory_text(self.page))?;
        match self.free {
            Some(free) => write!(f, ", {free} free"),
            None => Ok(()),
        }
    }
}
