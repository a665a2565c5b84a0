//! The machine as an indented text: each package with its nodes, last-level caches and cores, equal neighbours together.

use azulejo_topology::{Cache, Core, CpuSet, Machine};

/// The drawing; every line ends with a line feed.
pub(crate) fn text(machine: &Machine) -> String {
    let mut lines = Vec::new();
    for (index, package) in machine.packages.iter().enumerate() {
        let id = package.id.map_or_else(String::new, |id| format!(" {id}"));
        lines.push(format!("package{id}: CPUs {:#}", package.cpus));
        for node in machine.nodes.iter().filter(|node| package.nodes.contains(node.id)) {
            lines.push(format!("  {node}"));
        }
        let cores: Vec<&Core> = machine.cores.iter().filter(|core| core.package == index).collect();
        inside(machine, "die", &machine.dies, &package.cpus, &mut lines);
        let last = machine.caches.iter().filter(|cache| cache.level >= 3);
        let last: Vec<&Cache> = last.filter(|cache| cache.cpus.intersects(&package.cpus)).collect();
        let mut drawn = CpuSet::new();
        for cache in last {
            lines.push(format!("  {}: CPUs {}", cache_name(cache), cache.cpus));
            if !cache.cpus.intersects(&drawn) {
                let within: Vec<&Core> = cores
                    .iter()
                    .copied()
                    .filter(|core| core.cpus.intersects(&cache.cpus))
                    .collect();
                core_lines(machine, &within, "    ", &mut lines);
            }
            drawn = drawn.or(&cache.cpus);
        }
        let bare: Vec<&Core> = cores.into_iter().filter(|core| !core.cpus.intersects(&drawn)).collect();
        core_lines(machine, &bare, "  ", &mut lines);
    }
    let homeless = |id| machine.packages.iter().all(|package| !package.nodes.contains(id));
    for node in machine.nodes.iter().filter(|node| homeless(node.id)) {
        lines.push(node.to_string());
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Parts of a package that are described and are smaller than it.
fn inside(machine: &Machine, what: &str, parts: &[CpuSet], package: &CpuSet, lines: &mut Vec<String>) {
    for part in parts.iter().filter(|part| part.is_subset(package) && *part != package) {
        let node = machine.nodes.iter().find(|node| node.cpus == *part);
        let node = node.map_or_else(String::new, |node| format!(", node {}", node.id));
        lines.push(format!("  {what}: CPUs {part}{node}"));
    }
}

pub(crate) fn cache_name(cache: &Cache) -> String {
    let size = cache.size.map_or_else(String::new, |size| match size {
        size if size >= 1 << 20 && size.is_multiple_of(1 << 20) => format!(" {} MiB", size >> 20),
        size => format!(" {} KiB", size >> 10),
    });
    format!("L{}{size}", cache.level)
}

/// What a core is like: its threads, its kind and its private caches.
fn likeness(machine: &Machine, core: &Core) -> String {
    let threads = match core.cpus.len() {
        1 => "1 thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let kind = machine.kinds.iter().find(|kind| core.cpus.intersects(&kind.cpus));
    let kind = kind.map_or_else(String::new, |kind| format!("{} ", kind.name));
    let own = machine
        .caches
        .iter()
        .filter(|cache| cache.level < 3 && cache.cpus.intersects(&core.cpus));
    let caches: Vec<String> = own
        .map(|cache| {
            let cores = machine
                .cores
                .iter()
                .filter(|core| core.cpus.intersects(&cache.cpus))
                .count();
            let letter = match cache.kind {
                azulejo_topology::CacheKind::Data => "d",
                azulejo_topology::CacheKind::Instruction => "i",
                _ => "",
            };
            let name =
                cache_name(cache).replacen(&format!("L{}", cache.level), &format!("L{}{letter}", cache.level), 1);
            match cores {
                1 => name,
                cores => format!("{name} shared by {cores}"),
            }
        })
        .collect();
    let clock = core
        .max_khz
        .map(|khz| format!("up to {}.{:02} GHz", khz / 1_000_000, khz / 10_000 % 100));
    let parts: Vec<String> = [threads].into_iter().chain(caches).chain(clock).collect();
    format!("{kind}core of {}", parts.join(", "))
}

/// One line for each run of equal cores.
fn core_lines(machine: &Machine, cores: &[&Core], indent: &str, lines: &mut Vec<String>) {
    let mut from = 0;
    while from < cores.len() {
        let like = likeness(machine, cores[from]);
        let same = cores[from..]
            .iter()
            .take_while(|core| likeness(machine, core) == like)
            .count();
        let run = &cores[from..from + same];
        let cpus: Vec<String> = run.iter().map(|core| core.cpus.to_string()).collect();
        lines.push(format!("{indent}{same} x {like}: {}", cpus.join(" | ")));
        from += same;
    }
}
