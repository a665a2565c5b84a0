//! A generator of machines: what a machine is made of is drawn first, then written as the files of a kernel, in the forms
//! of old and new kernels. So a test can compare what is read with what was drawn.

use azulejo_topology::{CpuSet, NodeSet};

use super::Tree;

/// Draws from a linear congruential generator.
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds give unrelated streams after a multiplication by an odd constant.
        Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// A number below `below`.
    pub(crate) fn below(&mut self, below: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % below
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// What was drawn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Truth {
    /// CPUs that have a folder.
    pub(crate) present: CpuSet,
    pub(crate) online: CpuSet,
    /// CPUs of the control group, where there is one.
    pub(crate) cpuset: Option<CpuSet>,
    pub(crate) affinity: Option<CpuSet>,
    pub(crate) isolated: CpuSet,
    pub(crate) quota: Option<f64>,
    /// All CPUs of each package, offline ones included.
    pub(crate) packages: Vec<CpuSet>,
    pub(crate) cores: Vec<CpuSet>,
    pub(crate) l3: Vec<CpuSet>,
    /// Nodes with CPUs.
    pub(crate) nodes: Vec<(usize, CpuSet)>,
    /// Nodes whose memory nothing may be placed on unasked.
    pub(crate) slow: NodeSet,
    /// Nodes of high-bandwidth memory.
    pub(crate) fast: NodeSet,
    /// CPUs of performance cores, on a hybrid machine.
    pub(crate) performance: Option<CpuSet>,
}

impl Truth {
    pub(crate) fn usable(&self) -> CpuSet {
        self.cpuset
            .as_ref()
            .map_or(self.online.clone(), |set| set.and(&self.online))
    }

    pub(crate) fn allowed(&self) -> CpuSet {
        let usable = self.usable();
        self.affinity.as_ref().map_or(usable.clone(), |mask| mask.and(&usable))
    }
}

/// Where a core is: package, node and L3 cache, by index.
struct Home {
    package: usize,
    node: usize,
    l3: usize,
    efficient: bool,
}

/// A machine and its files.
pub(crate) fn machine(seed: u64) -> (Truth, Tree) {
    let mut draw = Draws::new(seed);
    let tree = Tree::new();

    // The shape: most machines are small, one in two hundred has about 2,048 CPUs.
    let smt = draw.of(&[1, 1, 2, 2, 2, 4, 8]);
    let packages = draw.of(&[1, 1, 1, 2, 2, 2, 4, 8]);
    // Several nodes in a package (SNC), or several packages in a node, or no node at all.
    let per_package = draw.of(&[1, 1, 1, 2, 4]);
    let packages_per_node = if per_package == 1 { draw.of(&[1, 1, 1, 2]) } else { 1 };
    let with_nodes = !draw.once_in(10);
    let l3_per_node = draw.of(&[1, 1, 2, 3]);
    let cores_per_l3 = if draw.once_in(200) {
        (2048 / (smt * packages * per_package * l3_per_node)).max(1)
    } else {
        let most = draw.of(&[2, 4, 9]);
        1 + draw.below(most)
    };
    let hybrid = smt <= 2 && draw.once_in(6);

    let mut homes = Vec::new();
    for package in 0..packages {
        for part in 0..per_package {
            let node = package * per_package / packages_per_node + part;
            for l3 in 0..l3_per_node {
                // Cores differ in number from cache to cache now and then.
                let cores = if draw.once_in(3) {
                    1 + draw.below(cores_per_l3)
                } else {
                    cores_per_l3
                };
                for at in 0..cores {
                    homes.push(Home {
                        package,
                        node,
                        l3: (package * per_package + part) * l3_per_node + l3,
                        efficient: hybrid && at * 2 >= cores,
                    });
                }
            }
        }
    }
    let threads = |home: &Home| if home.efficient { 1 } else { smt };
    let total: usize = homes.iter().map(threads).sum();

    // The numbering: siblings far apart, siblings together, packages interleaved, or any permutation with holes.
    let mut order: Vec<(usize, usize)> = homes
        .iter()
        .enumerate()
        .flat_map(|(core, home)| (0..threads(home)).map(move |thread| (core, thread)))
        .collect();
    match draw.below(4) {
        0 => order.sort_by_key(|&(core, thread)| (thread, core)),
        1 => {}
        2 => order.sort_by_key(|&(core, thread)| (thread, core % packages.max(2), core)),
        _ => {
            for at in (1..order.len()).rev() {
                order.swap(at, draw.below(at + 1));
            }
        }
    }
    let gap = if draw.once_in(4) { 1 + draw.below(3) } else { 1 };
    let first = if draw.once_in(8) { draw.below(5) } else { 0 };
    let mut truth = Truth {
        cores: vec![CpuSet::new(); homes.len()],
        packages: vec![CpuSet::new(); packages],
        l3: vec![CpuSet::new(); packages * per_package * l3_per_node],
        ..Truth::default()
    };
    let nodes = homes.iter().map(|home| home.node + 1).max().unwrap_or(1);
    let mut node_cpus = vec![CpuSet::new(); nodes];
    let mut performance = CpuSet::new();
    for (at, &(core, _)) in order.iter().enumerate() {
        let (cpu, home) = (first + at * gap, &homes[core]);
        truth.present.insert(cpu);
        truth.cores[core].insert(cpu);
        truth.packages[home.package].insert(cpu);
        truth.l3[home.l3].insert(cpu);
        node_cpus[home.node].insert(cpu);
        if !home.efficient {
            performance.insert(cpu);
        }
    }

    // Who is online, and which form the list has.
    let mut some = |set: &CpuSet, odds: usize| -> CpuSet {
        let certain = set.iter().nth(draw.below(set.len())).unwrap_or_default();
        set.iter()
            .filter(|&cpu| cpu == certain || draw.below(odds) > 0)
            .collect()
    };
    let offline_some = some(&truth.present, 4);
    let cpuset_some = some(&offline_some, 3);
    let affinity_some = some(&cpuset_some, 3);
    let isolated_some = truth.present.minus(&some(&truth.present, 4));
    truth.online = if draw.once_in(3) {
        offline_some
    } else {
        truth.present.clone()
    };
    if draw.once_in(5) && total > 1 {
        // No list: each CPU's own file tells.
        for cpu in truth.present.iter() {
            tree.cpu(cpu, "online", if truth.online.contains(cpu) { "1\n" } else { "0\n" });
        }
    } else {
        tree.file("sys/devices/system/cpu/online", &format!("{}\n", truth.online));
    }
    // Sets keep naming CPUs that have gone offline, or not.
    let stale = draw.once_in(3);
    let shown = |set: &CpuSet| if stale { set.clone() } else { set.and(&truth.online) };

    // Names and forms of the files, new and old kernels'.
    let (core_file, package_file) = draw.of(&[
        ("core_cpus_list", "package_cpus_list"),
        ("thread_siblings_list", "core_siblings_list"),
        ("thread_siblings", "core_siblings"),
        ("", ""),
    ]);
    let lists = draw.of(&[true, true, false]);
    let text = |name: &str, set: &CpuSet| {
        if name.ends_with("list") {
            set.to_string()
        } else {
            mask(set)
        }
    };
    let (shared_file, node_file) = if lists {
        ("shared_cpu_list", "cpulist")
    } else {
        ("shared_cpu_map", "cpumap")
    };
    // Written once for the many CPUs that share a set.
    let texts =
        |name: &str, sets: &[CpuSet]| -> Vec<String> { sets.iter().map(|set| text(name, &shown(set))).collect() };
    let package_texts = texts(package_file, &truth.packages);
    let l3_texts = texts(shared_file, &truth.l3);
    for (core, home) in homes.iter().enumerate() {
        let (core_text, l2_text) = (
            text(core_file, &shown(&truth.cores[core])),
            text(shared_file, &shown(&truth.cores[core])),
        );
        for cpu in truth.cores[core].iter() {
            tree.cpu(cpu, "topology/physical_package_id", &home.package.to_string());
            tree.cpu(cpu, "topology/core_id", &(core * 4).to_string());
            if !core_file.is_empty() {
                tree.cpu(cpu, &format!("topology/{core_file}"), &core_text);
                tree.cpu(cpu, &format!("topology/{package_file}"), &package_texts[home.package]);
            }
            for (index, level, set) in [(0, 2, &l2_text), (1, 3, &l3_texts[home.l3])] {
                tree.cpu(cpu, &format!("cache/index{index}/level"), &level.to_string());
                tree.cpu(cpu, &format!("cache/index{index}/type"), "Unified");
                tree.cpu(cpu, &format!("cache/index{index}/{shared_file}"), set);
            }
            if hybrid {
                let base = if home.efficient { "1400000" } else { "1900000" };
                tree.cpu(cpu, "cpufreq/base_frequency", base);
            }
        }
    }
    let efficient = truth.present.minus(&performance);
    if hybrid && draw.once_in(2) {
        tree.file("sys/devices/cpu_core/cpus", &performance.to_string());
        tree.file("sys/devices/cpu_atom/cpus", &efficient.to_string());
    }
    truth.performance = hybrid.then_some(performance);

    if with_nodes {
        write_nodes(&mut draw, &tree, &mut truth, &node_cpus, node_file, &shown_text(lists));
    }
    limit(
        &mut draw,
        &tree,
        &mut truth,
        &cpuset_some,
        &affinity_some,
        &isolated_some,
    );
    (truth, tree)
}

fn shown_text(lists: bool) -> impl Fn(&CpuSet) -> String {
    move |set| if lists { set.to_string() } else { mask(set) }
}

/// Nodes with CPUs, and now and then nodes of other memory behind them: fast, slow, or none at all.
fn write_nodes(
    draw: &mut Draws,
    tree: &Tree,
    truth: &mut Truth,
    node_cpus: &[CpuSet],
    file: &str,
    text: &dyn Fn(&CpuSet) -> String,
) {
    let gap = if draw.once_in(5) { 2 } else { 1 };
    let count = node_cpus.len();
    let extra = draw.of(&["", "", "", "", "fast", "persistent", "cxl", "unknown"]);
    let extras = if extra.is_empty() { 0 } else { count };
    let bandwidths = extra == "fast";
    for (index, cpus) in node_cpus.iter().enumerate() {
        let id = index * gap;
        let folder = format!("sys/devices/system/node/node{id}");
        tree.file(&format!("{folder}/{file}"), &text(cpus));
        // A node whose DIMMs are missing, though never the only one.
        let memory = if count > 1 && draw.once_in(10) { 0 } else { 64 << 20 };
        tree.file(
            &format!("{folder}/meminfo"),
            &format!("Node {id} MemTotal: {memory} kB\n"),
        );
        if bandwidths {
            tree.file(&format!("{folder}/access0/initiators/read_bandwidth"), "100000");
            tree.file(&format!("{folder}/access0/initiators/node{id}"), "");
        }
        truth.nodes.push((id, cpus.clone()));
    }
    for index in 0..extras {
        let (id, home) = ((count + index) * gap, index * gap);
        let folder = format!("sys/devices/system/node/node{id}");
        tree.file(&format!("{folder}/{file}"), &text(&CpuSet::new()));
        tree.file(
            &format!("{folder}/meminfo"),
            &format!("Node {id} MemTotal: {} kB\n", 16 << 20),
        );
        tree.file(&format!("{folder}/access0/initiators/node{home}"), "");
        let device = format!("sys/bus/dax/devices/dax{index}.0");
        match extra {
            "fast" => {
                tree.file(&format!("{folder}/access0/initiators/read_bandwidth"), "400000");
                truth.fast.insert(id);
            }
            "persistent" | "cxl" => {
                let parent = if extra == "cxl" {
                    "platform/ACPI0017:00/root0"
                } else {
                    "LNXSYSTM:00/ndbus0/region0"
                };
                // The link's target is the file's text; the device's own files are below it in a real tree.
                tree.file(&device, &format!("../../../devices/{parent}/dax{index}.0"));
                tree.file(&format!("{device}/target_node"), &id.to_string());
                truth.slow.insert(id);
            }
            _ => {
                truth.slow.insert(id);
            }
        }
    }
    let ids: Vec<usize> = (0..count + extras).map(|index| index * gap).collect();
    for (index, id) in ids.iter().enumerate() {
        let distance = |other: usize| if other == index { "10" } else { "21" };
        let row: Vec<&str> = (0..ids.len()).map(distance).collect();
        tree.file(&format!("sys/devices/system/node/node{id}/distance"), &row.join(" "));
    }
    if draw.once_in(2) {
        let online: NodeSet = ids.iter().copied().collect();
        tree.file("sys/devices/system/node/online", &online.to_string());
    }
}

/// Control groups of every version, the affinity mask, isolated CPUs.
fn limit(draw: &mut Draws, tree: &Tree, truth: &mut Truth, cpuset: &CpuSet, affinity: &CpuSet, isolated: &CpuSet) {
    // A group that holds nothing that is online cannot have processes.
    if draw.once_in(3) && cpuset.intersects(&truth.online) {
        truth.cpuset = Some(cpuset.clone());
        let list = cpuset.to_string();
        match draw.below(4) {
            0 => {
                tree.file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
                tree.file("proc/self/cgroup", "0::/job\n");
                tree.file("sys/fs/cgroup/job/cpuset.cpus.effective", &list);
            }
            1 => {
                tree.file("proc/mounts", "c /cg/set cgroup rw,cpuset 0 0\n");
                tree.file("proc/self/cgroup", "4:cpuset:/a\n");
                tree.file("cg/set/a/cpuset.cpus", &list);
            }
            2 => {
                let table = "31 23 0:28 /docker/x /cg rw - cgroup c rw,cpuset\n32 23 0:29 / /cg2 rw - cgroup2 c2 rw\n";
                tree.file("proc/self/mountinfo", table);
                tree.file("proc/self/cgroup", "4:cpuset:/docker/x/y\n0::/\n");
                tree.file("cg/y/cpuset.effective_cpus", &list);
            }
            _ => {
                tree.file("proc/mounts", "none /dev/cpuset cpuset rw 0 0\n");
                tree.file("proc/self/cpuset", "/dummy\n");
                tree.file("dev/cpuset/dummy/cpus", &list);
            }
        }
    } else if draw.once_in(8) {
        let quota = 1 + draw.below(4);
        truth.quota = Some(quota as f64);
        tree.file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        tree.file("proc/self/cgroup", "0::/\n");
        tree.file("sys/fs/cgroup/cpu.max", &format!("{} 100000\n", quota * 100_000));
    }
    if draw.once_in(4) && affinity.intersects(&truth.usable()) {
        truth.affinity = Some(affinity.clone());
        tree.file(
            "proc/self/status",
            &format!("Name:\tx\nCpus_allowed_list:\t{affinity}\n"),
        );
    }
    if draw.once_in(8) {
        truth.isolated = isolated.clone();
    }
    tree.file("sys/devices/system/cpu/isolated", &format!("{}\n", truth.isolated));
}

/// The kernel's mask form.
pub(crate) fn mask(set: &CpuSet) -> String {
    let words = set.words();
    if words.is_empty() {
        return "0".to_owned();
    }
    let halves: Vec<String> = words
        .iter()
        .rev()
        .flat_map(|word| [format!("{:08x}", word >> 32), format!("{:08x}", word & 0xffff_ffff)])
        .collect();
    halves.join(",")
}
