//! Synthetic machines: the files that the reader reads, in memory.
#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod synthetic;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use azulejo_topology::{Machine, Request};

/// The files of a machine, by path.
#[derive(Default)]
pub(crate) struct Tree(RefCell<BTreeMap<String, String>>);

impl Tree {
    pub(crate) fn new() -> Self {
        Tree::default()
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        self.0.borrow_mut().insert(path.to_owned(), text.to_owned());
        self
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        self.0.borrow_mut().remove(path).expect("a file to remove");
        self
    }

    pub(crate) fn cpu(&self, cpu: usize, name: &str, text: &str) -> &Self {
        self.file(&format!("sys/devices/system/cpu/cpu{cpu}/{name}"), text)
    }

    pub(crate) fn read(&self) -> Machine {
        self.try_read().expect("the machine")
    }

    pub(crate) fn try_read(&self) -> Result<Machine, azulejo_topology::Error> {
        Machine::read_files(&self.0.borrow())
    }

    /// The same files below a folder. A file with others behind it is a link.
    pub(crate) fn write_to(&self, root: &Path) {
        let files = self.0.borrow();
        for (name, text) in files.iter() {
            let path = root.join(name);
            let folder = path.parent().expect("a folder");
            fs::create_dir_all(folder).expect("folders");
            let behind = format!("{name}/");
            if files
                .range(behind.clone()..)
                .next()
                .is_some_and(|(other, _)| other.starts_with(&behind))
            {
                fs::create_dir_all(folder.join(text)).expect("the folder behind a link");
                std::os::unix::fs::symlink(text, &path).expect("a link");
            } else {
                fs::write(path, text).expect("a file");
            }
        }
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

/// The request that these variables make.
pub(crate) fn request(pairs: &[(&str, &str)]) -> Request {
    let variable = |name: &str| {
        let found = pairs.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Request::from_variables(variable).expect("a request")
}

/// The folder of recorded machines, if this machine has it.
pub(crate) fn recordings() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let shared = std::env::var_os("AZULEJO_SHARED")
        .map_or_else(beside, PathBuf::from)
        .join("data/topology");
    shared.is_dir().then_some(shared)
}

/// A recorded machine, unpacked: the folder to keep, and the root inside. `None` where it is absent or cannot be unpacked.
pub(crate) fn recorded(case: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let archive = recordings()?.join(format!("{case}.tar.bz2"));
    let folder = tempfile::tempdir().ok()?;
    let mut tar = std::process::Command::new("tar");
    let unpacked = tar.arg("xjf").arg(&archive).arg("-C").arg(folder.path()).status();
    if !unpacked.is_ok_and(|status| status.success()) {
        return None;
    }
    let mut inside = fs::read_dir(folder.path()).ok()?.flatten().map(|entry| entry.path());
    let root = inside.find(|path| path.join("sys").is_dir())?;
    Some((folder, root))
}
