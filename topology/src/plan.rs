//! Where each local rank computes, where its collectives worker runs and where its memory is: pure data.
//!
//! ```text
//! 1. cores  := physical cores with an allowed CPU, without isolated ones, of the fastest kind only if asked
//! 2. split them among the ranks along packages, then nodes, then shared L3 caches, in proportion to their cores, or so
//!    many ranks to each of those places; where there are more ranks than cores, ranks share cores and nobody is pinned
//! 3. in each rank: first cores compute, last cores run the worker, what is between is left to the system
//! 4. memory := the allowed nodes near the rank's cores, without slow memory; high-bandwidth memory first
//! ```
//!
//! A quota without a cpuset says how much time there is and not where, so it limits the threads and pins nothing: two
//! containers that both pinned to "the first cores" would share them.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::cpuset::{CpuId, CpuSet, NodeSet};
use crate::error::Error;
use crate::machine::{Cache, Core, Machine, MemoryKind, Node};
use crate::ranks::{Place, Ranks};
use crate::request::Request;
use crate::team::{Spin, TeamConfig};

/// Cores of a rank from which on the worker and the system get cores of their own. Below, giving up a core costs the
/// computation more than an eighth, which is more than the worker takes when it shares one.
const SPARE_FROM: usize = 8;

/// The part of the machine that one local rank uses.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RankPlan {
    /// Number of compute threads.
    pub threads: usize,
    /// CPUs the compute threads run on; one for each thread when they are pinned.
    #[serde(serialize_with = "as_text")]
    pub compute: CpuSet,
    /// CPUs the collectives worker runs on.
    #[serde(serialize_with = "as_text")]
    pub worker: CpuSet,
    /// CPUs of this rank's cores that nobody was given: siblings of compute CPUs not counted.
    #[serde(serialize_with = "as_text")]
    pub left: CpuSet,
    /// NUMA nodes that hold its memory; empty when the machine does not tell.
    #[serde(serialize_with = "as_text")]
    pub nodes: NodeSet,
    /// Those of the nodes that are filled first, because their memory is faster; empty when all are alike.
    #[serde(serialize_with = "as_text")]
    pub prefer: NodeSet,
    /// Physical cores of the rank.
    pub cores: usize,
    /// Whether each compute thread has a CPU of its own. Where not, threads roam over `compute`.
    pub pinned: bool,
}

/// The parts of all local ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// One entry a rank.
    pub ranks: Vec<RankPlan>,
    /// What there is, one line.
    pub machine: String,
    /// Allowed CPUs of cores that no rank was given, because they are isolated or of a slower kind.
    #[serde(serialize_with = "as_text")]
    pub unused: CpuSet,
    /// How the numbers came about, and what could not be done as asked.
    pub notes: Vec<String>,
    /// The ranks that were asked for.
    pub asked: Ranks,
    /// What else was asked for.
    pub request: Request,
}

fn as_text<S: Serializer>(set: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(set)
}

impl Plan {
    /// Makes a plan for the processes on this machine: a number of them, or so many for each of its places.
    pub fn make(machine: &Machine, request: &Request, ranks: impl Into<Ranks>) -> Result<Plan, Error> {
        let asked = ranks.into();
        let (pool, notes) = pool(machine, request)?;
        let cores: Vec<Core> = machine
            .cores
            .iter()
            .map(|core| Core {
                cpus: core.cpus.and(&pool),
                ..core.clone()
            })
            .filter(|core| !core.cpus.is_empty())
            .collect();
        // The places that get ranks of their own, and the number of ranks in each.
        let places: Vec<(Vec<Core>, usize)> = match asked {
            Ranks::Total(ranks) => vec![(cores.clone(), ranks)],
            Ranks::Per(place, ranks) => group(machine, &cores, level_of(place))
                .into_iter()
                .map(|(_, cores)| (cores, ranks))
                .collect(),
        };
        let local_ranks = places.iter().map(|(_, ranks)| ranks).sum();
        if local_ranks == 0 {
            return Err(Error::Request {
                asked: "a plan for 0 ranks".into(),
                available: "no such thing".into(),
            });
        }
        let fixed_workers = fixed_workers(&pool.or(&machine.allowed), request, local_ranks)?;
        let all_workers: CpuSet = fixed_workers.iter().flatten().flatten().copied().collect();
        let mut plan = Plan {
            ranks: Vec::new(),
            machine: headline(machine, &cores, &pool, local_ranks),
            unused: machine.allowed.minus(&pool),
            notes: Vec::new(),
            asked,
            request: request.clone(),
        };

        let quota = machine.quota.filter(|&quota| quota < pool.len() as f64);
        if let Some(quota) = quota {
            plan.by_quota(machine, request, local_ranks, quota, &cores, &pool);
        } else if places.iter().any(|(cores, ranks)| *ranks > cores.len()) {
            plan.shared(machine, request, local_ranks, &cores);
        } else {
            let shares: Vec<Vec<Core>> = places
                .iter()
                .flat_map(|(cores, ranks)| split(machine, cores, *ranks, LEVELS))
                .collect();
            for (rank, share) in shares.iter().enumerate() {
                let fixed = fixed_workers
                    .as_ref()
                    .map(|workers| workers[rank].iter().copied().collect());
                let own = exclusive(machine, request, share, fixed, &all_workers, &cores, &shares);
                plan.ranks.push(own);
            }
            plan.explain(machine, request);
        }
        plan.notes.extend(notes);
        Ok(plan)
    }

    /// The plan that the same wishes give on the machine as it is now.
    pub fn make_again(&self, machine: &Machine) -> Result<Plan, Error> {
        Plan::make(machine, &self.request, self.asked)
    }

    /// What of the plan cannot be had on the machine as it is now, one line each; nothing when the plan still fits.
    /// [`Machine::read_again`] reads it.
    pub fn misfits(&self, machine: &Machine) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            let offline = rank.process().minus(&machine.online);
            let outside = rank.process().and(&machine.online).minus(&machine.usable());
            let present: NodeSet = machine.nodes.iter().map(|node| node.id).collect();
            let nodes = rank.nodes.minus(&present);
            for (what, set) in [
                ("CPUs {} are offline now", offline),
                ("CPUs {} are outside the cpuset now", outside),
                ("nodes {} are offline or outside the cpuset now", nodes),
            ] {
                if !set.is_empty() {
                    lines.push(format!("rank {index}: {}", what.replace("{}", &set.to_string())));
                }
            }
        }
        lines
    }

    /// The part of a local rank.
    pub fn rank(&self, local_rank: usize) -> Result<&RankPlan, Error> {
        self.ranks.get(local_rank).ok_or(Error::Rank {
            rank: local_rank,
            ranks: self.ranks.len(),
        })
    }

    /// More ranks than cores: each rank roams over the cores of its part of the machine.
    fn shared(&mut self, machine: &Machine, request: &Request, ranks: usize, cores: &[Core]) {
        // Each core carries as many ranks as it must; splitting that many copies of the cores keeps ranks in a package.
        let per_core = ranks.div_ceil(cores.len());
        let copies: Vec<Core> = cores
            .iter()
            .flat_map(|core| std::iter::repeat_n(core.clone(), per_core))
            .collect();
        for share in split(machine, &copies, ranks, LEVELS) {
            let home: Vec<&Core> = cores
                .iter()
                .filter(|core| share.iter().any(|own| own.package == core.package))
                .collect();
            let cpus = home.iter().fold(CpuSet::new(), |all, core| all.or(&core.cpus));
            let nodes = memory_nodes(machine, request, &cpus);
            self.ranks.push(RankPlan {
                threads: 1,
                worker: if request.workers_per_rank > 0 {
                    cpus.clone()
                } else {
                    CpuSet::new()
                },
                left: CpuSet::new(),
                prefer: fast_nodes(machine, &nodes),
                nodes,
                cores: home.len(),
                compute: cpus,
                pinned: false,
            });
        }
        let exact = if ranks.is_multiple_of(cores.len()) {
            ""
        } else {
            "up to "
        };
        self.notes.push(format!("shared: {exact}{per_core} ranks per core, not pinned exclusively; 1 thread per rank, workers share the cores"));
        if let Some(asked) = request.threads_per_rank.filter(|&asked| asked > 1) {
            self.notes.push(format!(
                "asked for {asked} threads per rank; 1 is used, because {ranks} ranks share {} cores",
                cores.len()
            ));
        }
    }

    /// A quota without a cpuset: fewer threads, and nobody is pinned.
    fn by_quota(
        &mut self,
        machine: &Machine,
        request: &Request,
        ranks: usize,
        quota: f64,
        cores: &[Core],
        pool: &CpuSet,
    ) {
        // Truncation is meant: a thread more than the quota grants would be throttled every period.
        let granted = quota as usize;
        let most = (granted / ranks).max(1).min(cores.len());
        let threads = request.threads_per_rank.map_or(most, |asked| asked.min(most));
        let nodes = memory_nodes(machine, request, pool);
        for _ in 0..ranks {
            self.ranks.push(RankPlan {
                threads,
                compute: pool.clone(),
                worker: if request.workers_per_rank > 0 {
                    pool.clone()
                } else {
                    CpuSet::new()
                },
                left: CpuSet::new(),
                prefer: fast_nodes(machine, &nodes),
                nodes: nodes.clone(),
                cores: cores.len(),
                pinned: false,
            });
        }
        self.notes.push(format!(
            "the control group grants {quota:.2} CPUs' worth of time on {} CPUs and does not say which: {threads} thread{} per rank, not pinned",
            pool.len(),
            if threads == 1 { "" } else { "s" },
        ));
    }

    /// The arithmetic of ranks that have cores of their own.
    fn explain(&mut self, machine: &Machine, request: &Request) {
        let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            let shared_worker = rank.worker.intersects(&rank.compute) || core_of(machine, &rank.worker, &rank.compute);
            let workers = match (rank.worker.len(), shared_worker) {
                (0, _) => "no worker".to_owned(),
                (n, false) => format!("{n} worker{}", if n == 1 { "" } else { "s" }),
                (_, true) => "worker on a compute core (too few cores to spare one)".to_owned(),
            };
            let threads = if request.threads_per_core > 1 {
                format!("{} threads at up to {} a core", rank.threads, request.threads_per_core)
            } else {
                format!("{} compute", rank.threads)
            };
            let line = format!(
                "{} cores = {threads} + {workers} + {} left to the system",
                rank.cores,
                rank.left.len()
            );
            match lines.iter_mut().find(|(text, _)| *text == line) {
                Some((_, ranks)) => ranks.push(index),
                None => lines.push((line, vec![index])),
            }
            if let Some(asked) = request.threads_per_rank.filter(|&asked| asked > rank.threads) {
                self.notes.push(format!(
                    "asked for {asked} threads; rank {index} has cores for {}",
                    rank.threads
                ));
            }
        }
        for (line, ranks) in lines.into_iter().rev() {
            let ranks: CpuSet = ranks.into_iter().collect();
            self.notes.insert(0, format!("rank {ranks}: {line}"));
        }
    }
}

impl RankPlan {
    /// The team this rank computes with: pinned threads, or unpinned ones that never spin where cores are shared.
    pub fn team(&self) -> TeamConfig {
        if self.pinned {
            TeamConfig {
                cpus: self.compute.iter().map(Some).collect(),
                spin: Spin::Auto,
            }
        } else {
            TeamConfig {
                cpus: vec![None; self.threads],
                spin: Spin::Never,
            }
        }
    }

    /// Every CPU the rank's process may use.
    pub fn process(&self) -> CpuSet {
        self.compute.or(&self.worker).or(&self.left)
    }
}

/// The workers of each rank where the request names their CPUs.
fn fixed_workers(pool: &CpuSet, request: &Request, ranks: usize) -> Result<Option<Vec<Vec<CpuId>>>, Error> {
    let Some(list) = &request.worker_cpus else {
        return Ok(None);
    };
    if request.workers_per_rank == 0 {
        return Ok(None);
    }
    let needed = ranks * request.workers_per_rank;
    if list.len() < needed {
        return Err(Error::Request {
            asked: format!(
                "{} worker CPUs for each of {ranks} ranks, {needed} in all",
                request.workers_per_rank
            ),
            available: format!("a list of {}", list.len()),
        });
    }
    let mut seen = CpuSet::new();
    for &cpu in &list[..needed] {
        if !pool.contains(cpu) {
            return Err(Error::Request {
                asked: format!("a worker on CPU {cpu}"),
                available: format!("CPUs {pool:#} to use"),
            });
        }
        if seen.contains(cpu) {
            return Err(Error::Request {
                asked: format!("two workers on CPU {cpu}"),
                available: "one CPU for each".to_owned(),
            });
        }
        seen.insert(cpu);
    }
    Ok(Some(
        list.chunks(request.workers_per_rank)
            .take(ranks)
            .map(<[CpuId]>::to_vec)
            .collect(),
    ))
}

/// How cores are grouped, coarse to fine.
type Level = fn(&Machine, &Core) -> Option<usize>;
const LEVELS: &[Level] = &[package_of, node_of, l3_of];

fn package_of(_: &Machine, core: &Core) -> Option<usize> {
    Some(core.package)
}

fn node_of(_: &Machine, core: &Core) -> Option<usize> {
    core.node
}

fn l3_of(machine: &Machine, core: &Core) -> Option<usize> {
    let shared = |cache: &&Cache| cache.cpus.intersects(&core.cpus);
    machine.caches_of_level(3).find(shared)?.cpus.first()
}

fn level_of(place: Place) -> Level {
    match place {
        Place::Package => package_of,
        Place::NumaNode => node_of,
        Place::L3 => l3_of,
    }
}

/// The cores by the place they are in, in the order of their first cores; those whose place is unknown are one group.
fn group(machine: &Machine, cores: &[Core], level: Level) -> Vec<(Option<usize>, Vec<Core>)> {
    let mut groups: Vec<(Option<usize>, Vec<Core>)> = Vec::new();
    for core in cores {
        let key = level(machine, core);
        match groups.iter_mut().find(|(group, _)| *group == key) {
            Some((_, members)) => members.push(core.clone()),
            None => groups.push((key, vec![core.clone()])),
        }
    }
    groups
}

/// Cuts `cores` into `ranks` parts; there are at least as many cores as ranks.
fn split(machine: &Machine, cores: &[Core], ranks: usize, levels: &[Level]) -> Vec<Vec<Core>> {
    if ranks == 1 {
        return vec![cores.to_vec()];
    }
    let Some((level, finer)) = levels.split_first() else {
        return (0..ranks)
            .map(|rank| cores[rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks].to_vec())
            .collect();
    };
    let groups = group(machine, cores, *level);
    if ranks < groups.len() {
        // Whole groups where they come out even, else an even cut through all cores in order.
        if groups.len().is_multiple_of(ranks) {
            let per_rank = groups.len() / ranks;
            return groups
                .chunks(per_rank)
                .map(|part| part.iter().flat_map(|(_, members)| members.clone()).collect())
                .collect();
        }
        let ordered: Vec<Core> = groups.into_iter().flat_map(|(_, members)| members).collect();
        return split(machine, &ordered, ranks, &[]);
    }
    let sizes: Vec<usize> = groups.iter().map(|(_, members)| members.len()).collect();
    let shares = apportion(&sizes, ranks);
    groups
        .iter()
        .zip(shares)
        .flat_map(|((_, members), share)| split(machine, members, share, finer))
        .collect()
}

/// Divides `ranks` among groups of `sizes` cores: one each, and each further one to the group with most cores per rank.
/// No group gets more ranks than cores as long as there are cores enough.
fn apportion(sizes: &[usize], ranks: usize) -> Vec<usize> {
    let mut shares = vec![1; sizes.len()];
    for _ in sizes.len()..ranks {
        let best = (0..sizes.len())
            // size / (share + 1), compared by cross-multiplication; the first of equals wins.
            .reduce(|a, b| if sizes[b] * (shares[a] + 1) > sizes[a] * (shares[b] + 1) { b } else { a });
        if let Some(best) = best {
            shares[best] += 1;
        }
    }
    shares
}

/// The plan of a rank that has cores of its own.
fn exclusive(
    machine: &Machine,
    request: &Request,
    share: &[Core],
    fixed: Option<CpuSet>,
    all_workers: &CpuSet,
    all_cores: &[Core],
    shares: &[Vec<Core>],
) -> RankPlan {
    let own = |core: &&Core| !core.cpus.intersects(all_workers);
    // Cores on which somebody's named worker runs do not compute, unless nothing else is left.
    let mut free: Vec<&Core> = share.iter().filter(own).collect();
    if free.is_empty() {
        free = share.iter().collect();
    }
    let per_core = request.threads_per_core.max(1);
    let workers = if fixed.is_some() { 0 } else { request.workers_per_rank };
    let spare = free.len() >= SPARE_FROM;
    let reserve = if spare {
        os_reserve(request, share, all_cores, shares)
    } else {
        0
    };
    let unspared = free.len()
        - if spare {
            (workers + reserve).min(free.len() - 1)
        } else {
            0
        };
    let capacity = |cores: &[&Core]| cores.iter().map(|core| core.cpus.len().min(per_core)).sum::<usize>();

    // An explicit number of threads may take the cores that would have been spared.
    let limit = request.cores_per_rank.unwrap_or(usize::MAX);
    let (most_cores, threads) = match request.threads_per_rank {
        Some(asked) => (
            free.len().min(limit),
            asked.min(capacity(&free[..free.len().min(limit)])),
        ),
        None => (unspared.min(limit), capacity(&free[..unspared.min(limit)])),
    };
    let mut compute = CpuSet::new();
    let mut used = 0;
    for core in &free[..most_cores] {
        let missing = threads - compute.len();
        if missing == 0 {
            break;
        }
        core.cpus
            .iter()
            .take(per_core.min(missing))
            .for_each(|cpu| compute.insert(cpu));
        used += 1;
    }
    let rest = &free[used..];
    let from = rest.len().saturating_sub(workers);
    let worker = fixed.unwrap_or_else(|| {
        if workers == 0 {
            CpuSet::new()
        } else if rest.is_empty() {
            beside(free[used - 1], &compute)
        } else {
            rest[from..].iter().filter_map(|core| core.cpus.first()).collect()
        }
    });
    let left = rest[..from].iter().filter_map(|core| core.cpus.first()).collect();
    let nodes = memory_nodes(machine, request, &compute);
    RankPlan {
        threads,
        compute,
        worker,
        left,
        prefer: fast_nodes(machine, &nodes),
        nodes,
        cores: share.len(),
        pinned: true,
    }
}

/// A CPU of the core for a worker that shares it: an idle sibling if there is one.
fn beside(core: &Core, compute: &CpuSet) -> CpuSet {
    core.cpus
        .minus(compute)
        .first()
        .or(core.cpus.last())
        .map(CpuSet::single)
        .unwrap_or_default()
}

/// Cores this rank leaves to the system: the reserve of its package, divided among the ranks there, and of every
/// package when it spans several.
fn os_reserve(request: &Request, share: &[Core], all_cores: &[Core], shares: &[Vec<Core>]) -> usize {
    let packages: CpuSet = share.iter().map(|core| core.package).collect();
    if let (1, Some(package)) = (packages.len(), packages.first()) {
        let first = all_cores.iter().find(|core| core.package == package);
        let there: Vec<&Vec<Core>> = shares
            .iter()
            .filter(|other| other.iter().any(|core| core.package == package))
            .collect();
        // The rank with the last cores of the package gives them, so that the others keep theirs.
        let last = there.last().is_some_and(|cores| cores.first() == share.first());
        return if first.is_some() && last { request.os_reserve } else { 0 };
    }
    request.os_reserve * packages.len()
}

/// Whether the two sets share a physical core.
fn core_of(machine: &Machine, a: &CpuSet, b: &CpuSet) -> bool {
    machine
        .cores
        .iter()
        .any(|core| core.cpus.intersects(a) && core.cpus.intersects(b))
}

/// The allowed nodes that are near `cpus` and not slow, and the nearest ordinary one beside nothing but fast memory;
/// where there is none, the one nearest by distance.
fn memory_nodes(machine: &Machine, request: &Request, cpus: &CpuSet) -> NodeSet {
    let fit = |node: &&Node| {
        // Memory without CPUs and of unknown kind may be anything, so it is not used unasked.
        let known = node.kind.map_or(!node.cpus.is_empty(), |kind| !kind.is_slow());
        node.memory != Some(0) && (known || request.slow_memory)
    };
    let near: Vec<&Node> = machine
        .nodes
        .iter()
        .filter(fit)
        .filter(|node| node.near.intersects(cpus))
        .collect();
    let mut nodes: NodeSet = near.iter().map(|node| node.id).collect();
    if !near.is_empty() && near.iter().any(|node| node.kind != Some(MemoryKind::Hbm)) {
        return nodes;
    }
    // There is nothing near, or only fast memory, which is small: the nearest ordinary node takes what does not fit.
    let homes: NodeSet = machine
        .cores
        .iter()
        .filter(|core| core.cpus.intersects(cpus))
        .filter_map(|core| core.node)
        .collect();
    let distance = |node: &Node| {
        let from_homes = node.distances.iter().filter(|(id, _)| homes.contains(*id));
        from_homes.map(|&(_, distance)| distance).min()
    };
    let nearest = machine
        .nodes
        .iter()
        .filter(fit)
        .filter(|node| near.is_empty() || node.kind != Some(MemoryKind::Hbm))
        .filter_map(|node| Some((distance(node)?, node.id)))
        .min();
    nodes.extend(nearest.map(|(_, id)| id));
    nodes
}

/// Those of the nodes whose memory is fast, unless all are.
fn fast_nodes(machine: &Machine, nodes: &NodeSet) -> NodeSet {
    let fast: NodeSet = machine
        .nodes
        .iter()
        .filter(|node| nodes.contains(node.id) && node.kind == Some(MemoryKind::Hbm))
        .map(|node| node.id)
        .collect();
    if fast == *nodes { NodeSet::new() } else { fast }
}

fn headline(machine: &Machine, cores: &[Core], pool: &CpuSet, ranks: usize) -> String {
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let packages: CpuSet = cores.iter().map(|core| core.package).collect();
    format!(
        "{}, {}, {} with {} allowed; {} on this machine",
        plural(packages.len(), "package"),
        plural(machine.nodes.len(), "NUMA node"),
        plural(cores.len(), "core"),
        plural(pool.len(), "CPU"),
        plural(ranks, "rank"),
    )
}

/// The CPUs to plan on, and what was left out.
fn pool(machine: &Machine, request: &Request) -> Result<(CpuSet, Vec<String>), Error> {
    let mut notes = Vec::new();
    let mut pool = machine.allowed.clone();
    let isolated = machine.isolated.and(&machine.usable());
    if request.isolated {
        pool = pool.or(&isolated);
    } else if isolated.intersects(&pool) && !pool.is_subset(&isolated) {
        notes.push(format!("isolated CPUs {} are not used", isolated.and(&pool)));
        pool = pool.minus(&isolated);
    }
    if request.performance_cores {
        match machine.performance_cpus() {
            Some(fast) => {
                let slow = pool.minus(fast);
                if slow == pool {
                    return Err(Error::Request {
                        asked: format!("performance cores, which are CPUs {fast}"),
                        available: format!("leave to run on CPUs {pool} only"),
                    });
                }
                if !slow.is_empty() {
                    notes.push(format!("CPUs {slow} are slower cores and are not used"));
                }
                pool = pool.minus(&slow);
            }
            None => {
                notes.push("asked for performance cores; the machine does not tell kinds of cores apart".to_owned())
            }
        }
    }
    Ok((pool, notes))
}

impl fmt::Display for Plan {
    /// The machine, a line a rank, and the arithmetic. Ranks with the same part share a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        let header = ["rank", "threads", "computes on", "worker", "memory", "left"].map(str::to_owned);
        let mut rows: Vec<[String; 6]> = vec![header];
        let mut from = 0;
        while from < self.ranks.len() {
            let rank = &self.ranks[from];
            let same = self.ranks[from..].iter().take_while(|other| *other == rank).count();
            let nodes = match (rank.nodes.is_empty(), rank.prefer.is_empty()) {
                (true, _) => "first touch".to_owned(),
                (false, true) => format!("node {}", rank.nodes),
                (false, false) => format!("node {}, first {}", rank.nodes, rank.prefer),
            };
            rows.push([
                (from..from + same).collect::<CpuSet>().to_string(),
                rank.threads.to_string(),
                format!(
                    "CPU {:#}{}",
                    rank.compute,
                    if rank.pinned { "" } else { " (not pinned)" }
                ),
                format!("{:#}", rank.worker),
                nodes,
                format!("{:#}", rank.left),
            ]);
            from += same;
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        for row in &rows {
            let line: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:<width$}"))
                .collect();
            writeln!(f, "{}", line.join("  ").trim_end())?;
        }
        for (index, note) in self.notes.iter().enumerate() {
            write!(f, "{}{note}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}
