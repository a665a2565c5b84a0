//! Reads a machine from `/sys` and `/proc` below a root directory.
//!
//! Old kernels and recordings lack files, and files contradict each other: sibling lists may still name CPUs that have
//! gone offline. So every set that is read is cut down to what is online, CPUs are grouped by the sets they share and
//! not by the ids they carry, and ids are used only where no sets are given.

use crate::cgroup;
use crate::cpuset::{CpuId, CpuSet, NodeId, NodeSet};
use crate::error::Error;
use crate::machine::{Cache, CacheKind, Core, CpuKind, HugePages, Machine, MemoryKind, Node, Package, SideCache};
use crate::tree::Tree;
use std::collections::BTreeMap;

const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";

/// Memory whose bandwidth is at least this many times that of the slowest memory that is not NVM counts as HBM. HBM2e
/// has three to four times the bandwidth of the DDR5 beside it; two remote and local DRAM nodes differ by less than two.
const HBM_FACTOR: u64 = 2;

pub(crate) fn read(tree: Tree<'_>, affinity: Option<CpuSet>) -> Result<Machine, Error> {
    let present = tree.numbered(CPU, "cpu");
    if present.is_empty() {
        let path = tree.path(CPU);
        let source = match std::fs::read_dir(&path) {
            Err(error) => error,
            Ok(_) => std::io::Error::new(std::io::ErrorKind::NotFound, "the folder names no CPU"),
        };
        return Err(Error::Read { path, source });
    }
    let online = online_cpus(&tree, &present);
    let limits = cgroup::read(&tree);
    let usable = limits
        .cpus
        .as_ref()
        .map_or_else(|| online.clone(), |cpus| cpus.and(&online));
    let allowed = affinity
        .as_ref()
        .map_or_else(|| usable.clone(), |mask| usable.and(mask));
    if allowed.is_empty() {
        let allowed = affinity.or(limits.cpus).unwrap_or_default();
        return Err(Error::NoCpu { online, allowed });
    }

    let all_nodes = nodes(&tree, &online);
    let node_of = |cpu: CpuId| {
        all_nodes
            .iter()
            .find(|node| node.cpus.contains(cpu))
            .map(|node| node.id)
    };
    let mut nodes: Vec<Node> = all_nodes
        .iter()
        .filter(|node| limits.mems.as_ref().is_none_or(|mems| mems.contains(node.id)))
        .cloned()
        .collect();
    let (packages, package_of) = packages(&tree, &online, &usable, &nodes);
    let package_of_node = |node: &Node| node.near.first().and_then(|cpu| package_of.get(&cpu));
    // Nodes of which nothing is known come last.
    nodes.sort_by_key(|node| {
        (
            package_of_node(node).copied().unwrap_or(usize::MAX),
            node.near.first(),
            node.id,
        )
    });
    let mut cores = cores(&tree, &online, &usable, &package_of, node_of);
    cores.sort_by_key(|core| (core.package, core.node, core.cpus.first()));
    let caches = caches(&tree, &online, &usable);
    let part = |what, names: &[&str]| parts(&tree, &online, &usable, &package_of, what, names);
    let dies = part("die", &["die_cpus_list", "die_cpus"]);
    let clusters = part("cluster", &["cluster_cpus_list", "cluster_cpus"]);
    let kinds = kinds(&tree, &usable, &cores);

    let list = |name: &str| {
        let path = format!("{CPU}/{name}");
        // The kernel writes `(null)` for a list that was never set.
        match tree.text(&path) {
            Some(text) if text != "(null)" => tree.list(&path).unwrap_or_default(),
            _ => CpuSet::new(),
        }
    };
    let (isolated, nohz_full) = (list("isolated"), list("nohz_full"));
    Ok(Machine {
        offline: present.minus(&online),
        isolated,
        nohz_full,
        huge_pages: huge_pages(&tree, "/sys/kernel/mm/hugepages"),
        transparent_huge_pages: tree.text("/sys/kernel/mm/transparent_hugepage/enabled"),
        online,
        cpuset: limits.cpus,
        mems: limits.mems,
        affinity,
        allowed,
        quota: limits.quota,
        packages,
        dies,
        clusters,
        cores,
        kinds,
        nodes,
        caches,
        notes: tree.into_notes(),
    })
}

/// CPUs that are online: the list where there is one, else every CPU whose own file does not say otherwise.
fn online_cpus(tree: &Tree, present: &CpuSet) -> CpuSet {
    let listed = tree.list(&format!("{CPU}/online")).filter(|set| !set.is_empty());
    listed.map_or_else(
        || {
            present
                .iter()
                .filter(|cpu| {
                    tree.text(&format!("{CPU}/cpu{cpu}/online"))
                        .is_none_or(|text| text != "0")
                })
                .collect()
        },
        |listed| {
            let absent = listed.minus(present);
            if !absent.is_empty() {
                tree.note(format!(
                    "{CPU}/online names CPUs {absent}, which have no folder; they are left out"
                ));
            }
            listed.and(present)
        },
    )
}

/// The first of several files of a CPU's topology folder that gives a set: lists by name, or masks by the same name
/// without the ending.
fn siblings(tree: &Tree, cpu: CpuId, names: &[&str]) -> Option<CpuSet> {
    names.iter().find_map(|name| {
        let path = format!("{CPU}/cpu{cpu}/topology/{name}");
        if name.ends_with("_list") {
            tree.list(&path)
        } else {
            tree.mask(&path)
        }
    })
}

fn topology_number(tree: &Tree, cpu: CpuId, name: &str) -> Option<i64> {
    // Minus one is how the kernel says that it does not know.
    tree.number(&format!("{CPU}/cpu{cpu}/topology/{name}"))
        .filter(|&number| number >= 0)
}

/// Cuts the online CPUs into groups; `set_of` tells the group of a CPU where the system does, `id_of` a label by which
/// the rest are grouped.
fn groups<K: Ord>(
    tree: &Tree,
    online: &CpuSet,
    what: &str,
    set_of: impl Fn(CpuId) -> Option<CpuSet>,
    id_of: impl Fn(CpuId) -> Option<K>,
) -> Vec<CpuSet> {
    let mut groups = Vec::new();
    let mut grouped = CpuSet::new();
    let mut by_id: BTreeMap<K, CpuSet> = BTreeMap::new();
    for cpu in online.iter() {
        if grouped.contains(cpu) {
            continue;
        }
        if let Some(set) = set_of(cpu) {
            let set = set.and(online);
            if set.contains(cpu) {
                if set.intersects(&grouped) {
                    tree.note(format!(
                        "{what} of CPU {cpu}: {set} overlaps another one; only the rest of it is kept"
                    ));
                }
                let set = set.minus(&grouped);
                grouped = grouped.or(&set);
                groups.push(set);
                continue;
            }
            tree.note(format!("{what} of CPU {cpu}: {set:#} does not hold the CPU itself"));
        }
        match id_of(cpu) {
            Some(id) => by_id.entry(id).or_default().insert(cpu),
            None => groups.push(CpuSet::single(cpu)),
        }
    }
    groups.extend(by_id.into_values());
    groups.sort_by_key(CpuSet::first);
    groups
}

/// The packages, and for every online CPU the index of its package.
fn packages(tree: &Tree, online: &CpuSet, usable: &CpuSet, nodes: &[Node]) -> (Vec<Package>, BTreeMap<CpuId, usize>) {
    let names = [
        "package_cpus_list",
        "core_siblings_list",
        "package_cpus",
        "core_siblings",
    ];
    let id_of = |cpu| topology_number(tree, cpu, "physical_package_id");
    // A system that says nothing about packages is taken as one: the label is then the same for all.
    let found = groups(
        tree,
        online,
        "package",
        |cpu| siblings(tree, cpu, &names),
        |cpu| Some(id_of(cpu)),
    );
    let mut packages = Vec::new();
    let mut package_of = BTreeMap::new();
    if let [only] = found.as_slice()
        && only
            .first()
            .is_some_and(|cpu| siblings(tree, cpu, &names).is_none() && id_of(cpu).is_none())
    {
        tree.note("packages are not described; the machine is taken as one".to_owned());
    }
    for all in found {
        let near = nodes
            .iter()
            .filter(|node| node.near.intersects(&all))
            .map(|node| node.id)
            .collect();
        let package = Package {
            id: all.first().and_then(id_of),
            cpus: all.and(usable),
            nodes: near,
        };
        if package.cpus.is_empty() && package.nodes.is_empty() {
            continue;
        }
        package_of.extend(all.iter().map(|cpu| (cpu, packages.len())));
        packages.push(package);
    }
    (packages, package_of)
}

fn cores(
    tree: &Tree,
    online: &CpuSet,
    usable: &CpuSet,
    package_of: &BTreeMap<CpuId, usize>,
    node_of: impl Fn(CpuId) -> Option<NodeId>,
) -> Vec<Core> {
    let names = ["core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"];
    let set_of = |cpu| siblings(tree, cpu, &names);
    let id_of = |cpu| {
        Some((
            topology_number(tree, cpu, "physical_package_id")?,
            topology_number(tree, cpu, "core_id")?,
        ))
    };
    let mut cores = Vec::new();
    for all in groups(tree, online, "core", set_of, id_of) {
        let mut by_package: BTreeMap<usize, CpuSet> = BTreeMap::new();
        for cpu in all.iter() {
            if let Some(&package) = package_of.get(&cpu) {
                by_package.entry(package).or_default().insert(cpu);
            }
        }
        if by_package.len() > 1 {
            tree.note(format!(
                "core of CPUs {all} lies in several packages; its part in each is kept as a core"
            ));
        }
        for (package, part) in by_package {
            let cpus = part.and(usable);
            let Some(first) = cpus.first() else { continue };
            let max_khz = tree.text(&format!("{CPU}/cpu{first}/cpufreq/cpuinfo_max_freq"));
            cores.push(Core {
                package,
                node: node_of(first),
                die: topology_number(tree, first, "die_id"),
                max_khz: max_khz.and_then(|text| text.parse().ok()),
                cpus,
            });
        }
    }
    cores
}

/// The parts of packages that a file of the CPUs' topology folders describes; a CPU without the file is in none.
fn parts(
    tree: &Tree,
    online: &CpuSet,
    usable: &CpuSet,
    package_of: &BTreeMap<CpuId, usize>,
    what: &str,
    names: &[&str],
) -> Vec<CpuSet> {
    let mut found: Vec<CpuSet> = Vec::new();
    let mut seen = CpuSet::new();
    for cpu in online.iter() {
        if seen.contains(cpu) {
            continue;
        }
        let Some(set) = siblings(tree, cpu, names).map(|set| set.and(online)) else {
            continue;
        };
        let packages: CpuSet = set.iter().filter_map(|cpu| package_of.get(&cpu).copied()).collect();
        let reason = match () {
            () if !set.contains(cpu) => "does not hold the CPU itself",
            () if set.intersects(&seen) => "overlaps another one",
            () if packages.len() > 1 => "lies in several packages",
            () => {
                seen = seen.or(&set);
                found.push(set.and(usable));
                continue;
            }
        };
        seen.insert(cpu);
        tree.note(format!("{what} of CPU {cpu}: {set:#} {reason}; it is left out"));
    }
    found.retain(|set| !set.is_empty());
    found
}

/// The kinds of cores, where the system tells them apart. The highest clock alone does not: a few favoured cores of one
/// kind are often allowed more than the others.
fn kinds(tree: &Tree, usable: &CpuSet, cores: &[Core]) -> Vec<CpuKind> {
    let kind = |name, cpus: &CpuSet, source| CpuKind {
        name,
        cpus: cpus.and(usable),
        source,
    };
    let set = |path| tree.exists(path).then(|| tree.list(path)).flatten();
    if let (Some(fast), Some(slow)) = (set("/sys/devices/cpu_core/cpus"), set("/sys/devices/cpu_atom/cpus")) {
        let found = [
            kind("performance", &fast, "its performance counters"),
            kind("efficiency", &slow, "its performance counters"),
        ];
        return if found.iter().any(|kind| kind.cpus.is_empty()) {
            Vec::new()
        } else {
            found.to_vec()
        };
    }
    for (file, source) in [
        ("cpu_capacity", "its capacity"),
        ("cpufreq/base_frequency", "its base frequency"),
    ] {
        let mut by_figure: BTreeMap<u64, CpuSet> = BTreeMap::new();
        for core in cores {
            let figure = core
                .cpus
                .first()
                .and_then(|cpu| tree.text(&format!("{CPU}/cpu{cpu}/{file}")));
            match figure.and_then(|text| text.parse().ok()) {
                Some(figure) => {
                    let cpus = by_figure.entry(figure).or_default();
                    *cpus = cpus.or(&core.cpus);
                }
                // Where the figure of one core is missing, nothing is known about its kind.
                None => {
                    by_figure.clear();
                    break;
                }
            }
        }
        if by_figure.len() < 2 {
            continue;
        }
        let last = by_figure.len() - 1;
        let name = |at| match at {
            0 => "performance",
            at if at == last => "efficiency",
            _ => "middle",
        };
        let fastest_first = by_figure.values().rev().enumerate();
        return fastest_first.map(|(at, cpus)| kind(name(at), cpus, source)).collect();
    }
    Vec::new()
}

fn caches(tree: &Tree, online: &CpuSet, usable: &CpuSet) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    // CPUs whose cache of a folder number has been seen through another CPU; saves most of the reading.
    let mut covered: BTreeMap<usize, CpuSet> = BTreeMap::new();
    // CPUs that have a cache of that level and kind already.
    let mut taken: BTreeMap<(u32, CacheKind), CpuSet> = BTreeMap::new();
    for cpu in online.iter() {
        for index in 0.. {
            if covered.get(&index).is_some_and(|seen| seen.contains(cpu)) {
                continue;
            }
            let folder = format!("{CPU}/cpu{cpu}/cache/index{index}");
            let Some(level) = tree.text(&format!("{folder}/level")) else {
                break;
            };
            let kind = match tree.text(&format!("{folder}/type")).as_deref() {
                Some("Data") => CacheKind::Data,
                Some("Instruction") => CacheKind::Instruction,
                _ => CacheKind::Unified,
            };
            let shared = tree
                .list(&format!("{folder}/shared_cpu_list"))
                .or_else(|| tree.mask(&format!("{folder}/shared_cpu_map")))
                .unwrap_or_default()
                .and(online);
            let Ok(level) = level.parse::<u32>() else {
                tree.note(format!("{folder}/level: expected a number, got {level:?}"));
                continue;
            };
            // Lists of recordings may lag behind; the CPU itself shares its own cache in any case.
            let shared = shared.or(&CpuSet::single(cpu));
            let seen = covered.entry(index).or_default();
            let cpus = shared.and(usable);
            *seen = seen.or(&shared);
            let taken = taken.entry((level, kind)).or_default();
            // Two CPUs may name one cache under different folder numbers; then the sets are equal.
            if cpus.is_empty()
                || caches
                    .iter()
                    .any(|c| (c.level, c.kind) == (level, kind) && c.cpus == cpus)
            {
                continue;
            }
            if cpus.intersects(taken) {
                tree.note(format!(
                    "{folder}: {cpus} overlaps another cache of level {level}; only the rest of it is kept"
                ));
            }
            let cpus = cpus.minus(taken);
            *taken = taken.or(&cpus);
            if !cpus.is_empty() {
                let size = tree.text(&format!("{folder}/size")).and_then(|text| size(&text));
                caches.push(Cache {
                    level,
                    kind,
                    size,
                    cpus,
                });
            }
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.kind, cache.cpus.first()));
    caches
}

/// A cache's size: a number with `K`, `M` or nothing behind it.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M']);
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(match text.as_bytes().last() {
        Some(b'K') => 1 << 10,
        Some(b'M') => 1 << 20,
        _ => 1,
    })
}

/// Pools of huge pages below a folder, by page size.
fn huge_pages(tree: &Tree, folder: &str) -> Vec<HugePages> {
    let mut pools: Vec<HugePages> = tree
        .entries(folder)
        .iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let pages = |file: &str| tree.text(&format!("{folder}/{name}/{file}"))?.parse().ok();
            Some(HugePages {
                page: kib.checked_mul(1024)?,
                total: pages("nr_hugepages")?,
                free: pages("free_hugepages"),
            })
        })
        .collect();
    pools.sort_by_key(|pool| pool.page);
    pools
}

/// Every node that is online.
fn nodes(tree: &Tree, online: &CpuSet) -> Vec<Node> {
    let folders = tree.numbered(NODE, "node");
    let listed = tree.list(&format!("{NODE}/online")).filter(|set| !set.is_empty());
    let ids = listed.map_or_else(|| folders.clone(), |listed| listed.and(&folders));
    let tiers = tiers(tree);
    let mut nodes: Vec<Node> = ids.iter().map(|id| node(tree, online, &ids, id)).collect();
    let mut owned = CpuSet::new();
    for node in &mut nodes {
        if node.cpus.intersects(&owned) {
            tree.note(format!(
                "node {}: CPUs {} belong to another node as well, which keeps them",
                node.id,
                node.cpus.and(&owned)
            ));
        }
        node.cpus = node.cpus.minus(&owned);
        owned = owned.or(&node.cpus);
        node.tier = tiers
            .iter()
            .find(|(_, nodes)| nodes.contains(node.id))
            .map(|&(tier, _)| tier);
    }
    let owners: Vec<(NodeId, CpuSet)> = nodes.iter().map(|node| (node.id, node.cpus.clone())).collect();
    for node in &mut nodes {
        node.near = near(tree, node, &owners);
    }
    name_kinds(&mut nodes, &devices(tree));
    nodes
}

/// The kernel's memory tiers and the nodes in each.
fn tiers(tree: &Tree) -> Vec<(u32, NodeSet)> {
    const TIERS: &str = "/sys/devices/virtual/memory_tiering";
    let numbers = tree.numbered(TIERS, "memory_tier");
    let tier = |number: usize| {
        let nodes = tree.list(&format!("{TIERS}/memory_tier{number}/nodelist"))?;
        Some((u32::try_from(number).ok()?, nodes))
    };
    numbers.iter().filter_map(tier).collect()
}

fn node(tree: &Tree, online: &CpuSet, ids: &NodeSet, id: NodeId) -> Node {
    let folder = format!("{NODE}/node{id}");
    let cpus = tree
        .list(&format!("{folder}/cpulist"))
        .or_else(|| tree.mask(&format!("{folder}/cpumap")));
    let distances = tree.text(&format!("{folder}/distance")).unwrap_or_default();
    let distances: Vec<u32> = distances
        .split_whitespace()
        .map_while(|text| text.parse().ok())
        .collect();
    // The kernel prints one distance for each online node, in the order of their numbers.
    let distances = if distances.len() == ids.len() {
        ids.iter().zip(distances).collect()
    } else {
        if !distances.is_empty() {
            tree.note(format!(
                "{folder}/distance: expected {} numbers, one for each node that is online, got {}; they are left out",
                ids.len(),
                distances.len()
            ));
        }
        Vec::new()
    };
    Node {
        id,
        cpus: cpus.unwrap_or_default().and(online),
        near: CpuSet::new(),
        memory: tree.text(&format!("{folder}/meminfo")).and_then(|text| memory(&text)),
        kind: None,
        tier: None,
        side_caches: side_caches(tree, &folder),
        huge_pages: huge_pages(tree, &format!("{folder}/hugepages")),
        distances,
        bandwidth: ["access0", "access1"].iter().find_map(|access| {
            tree.text(&format!("{folder}/{access}/initiators/read_bandwidth"))?
                .parse()
                .ok()
                .filter(|&rate| rate > 0)
        }),
    }
}

/// `Node 0 MemTotal:  132101504 kB` in bytes.
fn memory(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The CPUs nearest to a node: its own; else those of its initiators; else those of the nearest nodes that have some.
fn near(tree: &Tree, node: &Node, owners: &[(NodeId, CpuSet)]) -> CpuSet {
    if !node.cpus.is_empty() {
        return node.cpus.clone();
    }
    let cpus_of = |ids: &NodeSet| {
        let members = owners.iter().filter(|(id, _)| ids.contains(*id));
        members.fold(CpuSet::new(), |all, (_, cpus)| all.or(cpus))
    };
    for access in ["access0", "access1"] {
        let initiators = tree.numbered(&format!("{NODE}/node{}/{access}/initiators", node.id), "node");
        let cpus = cpus_of(&initiators);
        if !cpus.is_empty() {
            return cpus;
        }
    }
    let has_cpus = |id: NodeId| owners.iter().any(|(owner, cpus)| *owner == id && !cpus.is_empty());
    let others = node.distances.iter().filter(|&&(id, _)| has_cpus(id));
    let Some(least) = others.clone().map(|&(_, distance)| distance).min() else {
        return CpuSet::new();
    };
    cpus_of(
        &others
            .filter(|&&(_, distance)| distance == least)
            .map(|&(id, _)| id)
            .collect(),
    )
}

/// The caches in front of a node's memory.
fn side_caches(tree: &Tree, folder: &str) -> Vec<SideCache> {
    let levels = tree.numbered(&format!("{folder}/memory_side_cache"), "index");
    let cache = |level: usize| {
        let size = tree.text(&format!("{folder}/memory_side_cache/index{level}/size"))?;
        Some(SideCache {
            level: u32::try_from(level).ok()?,
            size: size.parse().ok()?,
        })
    };
    levels.iter().filter_map(cache).collect()
}

/// Nodes whose memory is a device of a known kind: its DAX device hangs below an NVDIMM bus or a CXL root.
fn devices(tree: &Tree) -> Vec<(NodeId, MemoryKind)> {
    const DAX: &str = "/sys/bus/dax/devices";
    let device = |device: &String| {
        let target = tree.link(&format!("{DAX}/{device}"))?;
        let kind = match () {
            () if target.contains("/ndbus") => MemoryKind::Nvm,
            // ACPI0017 is the firmware's name for the root of CXL memory.
            () if target.contains("/ACPI0017:") || target.contains("/cxl") => MemoryKind::Cxl,
            () => return None,
        };
        let node = tree.number(&format!("{DAX}/{device}/target_node"))?;
        Some((usize::try_from(node).ok()?, kind))
    };
    tree.entries(DAX).iter().filter_map(device).collect()
}

/// Names the kinds where something distinguishes them: memory on a device, or bandwidths that differ widely.
fn name_kinds(nodes: &mut [Node], devices: &[(NodeId, MemoryKind)]) {
    let device = |node: &Node| devices.iter().find(|(id, _)| *id == node.id).map(|&(_, kind)| kind);
    let ordinary = nodes.iter().filter(|node| device(node).is_none());
    let slowest = ordinary.clone().filter_map(|node| node.bandwidth).min();
    let fastest = ordinary.filter_map(|node| node.bandwidth).max();
    let fast = |node: &Node| {
        let figures = slowest.zip(node.bandwidth);
        figures.is_some_and(|(slow, own)| own >= slow.saturating_mul(HBM_FACTOR))
    };
    let differ = slowest
        .zip(fastest)
        .is_some_and(|(slow, fast)| fast >= slow.saturating_mul(HBM_FACTOR));
    if !differ && !nodes.iter().any(|node| device(node).is_some()) {
        return;
    }
    for node in nodes {
        node.kind = Some(match device(node) {
            Some(kind) => kind,
            None if fast(node) => MemoryKind::Hbm,
            None => MemoryKind::Dram,
        });
    }
}
