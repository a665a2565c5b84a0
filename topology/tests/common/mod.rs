//! Synthetic machines: trees of the files that the reader reads, written into a temporary folder.
#![allow(dead_code, reason = "each test program uses a part of this")]

use std::fs;
use std::path::Path;

use azulejo_topology::Machine;

/// A folder with the files of a machine.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Tree(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
        self
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.root().join(path)).expect("a file to remove");
        self
    }

    pub(crate) fn cpu(&self, cpu: usize, name: &str, text: &str) -> &Self {
        self.file(&format!("sys/devices/system/cpu/cpu{cpu}/{name}"), text)
    }

    pub(crate) fn read(&self) -> Machine {
        Machine::read_from(self.root()).expect("the machine")
    }

    /// `packages` of `nodes` NUMA nodes of `cores` cores of `smt` threads. CPUs are numbered as on most servers: first
    /// threads of all cores through the nodes, then second threads.
    pub(crate) fn regular(packages: usize, nodes: usize, cores: usize, smt: usize) -> Self {
        let tree = Tree::new();
        let all_cores = packages * nodes * cores;
        tree.file("sys/devices/system/cpu/online", &format!("0-{}\n", all_cores * smt - 1));
        tree.file(
            "sys/devices/system/node/online",
            &format!("0-{}\n", packages * nodes - 1),
        );
        let threads = |from: usize, to: usize| {
            let ranges: Vec<String> = (0..smt)
                .map(|t| format!("{}-{}", t * all_cores + from, t * all_cores + to - 1))
                .collect();
            ranges.join(",")
        };
        for core in 0..all_cores {
            let (node, package) = (core / cores, core / (cores * nodes));
            let in_package = threads(package * nodes * cores, (package + 1) * nodes * cores);
            for thread in 0..smt {
                let cpu = thread * all_cores + core;
                let own: Vec<String> = (0..smt).map(|t| (t * all_cores + core).to_string()).collect();
                tree.cpu(cpu, "topology/core_cpus_list", &own.join(","));
                tree.cpu(cpu, "topology/package_cpus_list", &in_package);
                tree.cpu(cpu, "topology/physical_package_id", &package.to_string());
                for (index, level, kind, shared) in [
                    (0, 1, "Data", own.join(",")),
                    (1, 2, "Unified", own.join(",")),
                    (2, 3, "Unified", threads(node * cores, (node + 1) * cores)),
                ] {
                    tree.cpu(cpu, &format!("cache/index{index}/level"), &level.to_string());
                    tree.cpu(cpu, &format!("cache/index{index}/type"), kind);
                    tree.cpu(cpu, &format!("cache/index{index}/size"), "1024K");
                    tree.cpu(cpu, &format!("cache/index{index}/shared_cpu_list"), &shared);
                }
            }
        }
        for node in 0..packages * nodes {
            let folder = format!("sys/devices/system/node/node{node}");
            tree.file(&format!("{folder}/cpulist"), &threads(node * cores, (node + 1) * cores));
            tree.file(
                &format!("{folder}/meminfo"),
                &format!("Node {node} MemTotal:  67108864 kB\n"),
            );
            let distances: Vec<&str> = (0..packages * nodes)
                .map(|other| match other {
                    _ if other == node => "10",
                    _ if other / nodes == node / nodes => "12",
                    _ => "21",
                })
                .collect();
            tree.file(&format!("{folder}/distance"), &distances.join(" "));
        }
        tree
    }
}
