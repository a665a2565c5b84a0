//! Machines read from synthetic trees, from the recorded machines and from the running one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use azulejo_topology::{Error, Machine};
use common::Tree;
use serde_json::Value;

#[test]
fn regular_machines_are_read_as_built() {
    for (packages, nodes, cores, smt) in [(1, 1, 1, 1), (1, 1, 4, 2), (2, 1, 8, 2), (2, 4, 4, 1), (1, 2, 3, 4)] {
        let machine = Tree::regular(packages, nodes, cores, smt).read();
        let case = format!("{packages} x {nodes} x {cores} x {smt}");
        assert_eq!(machine.packages.len(), packages, "{case}");
        assert_eq!(machine.nodes.len(), packages * nodes, "{case}");
        assert_eq!(machine.cores.len(), packages * nodes * cores, "{case}");
        assert_eq!(machine.allowed.len(), packages * nodes * cores * smt, "{case}");
        assert_eq!(machine.caches_of_level(3).count(), packages * nodes, "{case}");
        assert_eq!(machine.caches_of_level(2).count(), machine.cores.len(), "{case}");
        assert!(
            machine.packages.iter().all(|package| package.nodes.len() == nodes),
            "{case}"
        );
        assert!(machine.notes.is_empty(), "{case}: {:?}", machine.notes);
    }
}

#[test]
fn lists_that_still_name_offline_cpus_are_cut_down() {
    let tree = Tree::regular(2, 1, 4, 2);
    tree.file("sys/devices/system/cpu/online", "2-7,10-15");
    let machine = tree.read();
    assert_eq!(machine.cores.len(), 6);
    assert_eq!(machine.offline.to_string(), "0-1,8-9");
    assert_eq!(machine.packages[0].cpus.to_string(), "2-3,10-11");
}

#[test]
fn holes_in_the_numbering_and_thousands_of_cpus_are_no_special_case() {
    let tree = Tree::new();
    for cpu in [3, 700, 2047] {
        tree.cpu(cpu, "topology/physical_package_id", "7");
        tree.cpu(cpu, "topology/core_id", &cpu.to_string());
    }
    let machine = tree.read();
    assert_eq!(machine.allowed.to_string(), "3,700,2047");
    assert_eq!((machine.packages.len(), machine.cores.len()), (1, 3));
    assert!(machine.nodes.is_empty());
}

#[test]
fn a_tree_that_says_nothing_but_the_cpus_is_one_package_of_single_cores() {
    let tree = Tree::new();
    tree.cpu(0, "uevent", "").cpu(1, "uevent", "");
    let machine = tree.read();
    assert_eq!((machine.packages.len(), machine.cores.len()), (1, 2));
    assert_eq!(machine.packages[0].id, None);
}

#[test]
fn contradictions_are_noted_and_the_rest_is_kept() {
    let tree = Tree::regular(1, 1, 4, 1);
    tree.cpu(1, "topology/core_cpus_list", "2");
    tree.cpu(3, "topology/core_cpus_list", "0,3");
    let machine = tree.read();
    assert_eq!(machine.notes.len(), 2, "{:?}", machine.notes);
    let cpus: BTreeSet<usize> = machine
        .cores
        .iter()
        .flat_map(|core| core.cpus.iter().collect::<Vec<_>>())
        .collect();
    assert_eq!(cpus, (0..4).collect());
    assert_eq!(machine.cores.len(), 4);
}

#[test]
fn control_groups_of_all_versions_limit_cpus_and_nodes() {
    let v2: &[(&str, &str)] = &[
        ("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
        ("proc/self/cgroup", "0::/job/step\n"),
        ("sys/fs/cgroup/job/cpuset.cpus.effective", "2-3"),
        ("sys/fs/cgroup/job/cpuset.mems.effective", "1"),
        ("sys/fs/cgroup/job/cpu.max", "150000 100000"),
        ("sys/fs/cgroup/job/step/cpu.max", "max 100000"),
    ];
    let v1: &[(&str, &str)] = &[
        (
            "proc/mounts",
            "c /cg/set cgroup rw,cpuset 0 0\nc /cg/cpu cgroup rw,cpu,cpuacct 0 0\n",
        ),
        ("proc/self/cgroup", "4:cpuset:/a\n3:cpu,cpuacct:/b\n"),
        ("cg/set/a/cpuset.cpus", "2-3"),
        ("cg/set/a/cpuset.mems", "1"),
        ("cg/cpu/b/cpu.cfs_quota_us", "150000"),
        ("cg/cpu/b/cpu.cfs_period_us", "100000"),
        ("cg/cpu/cpu.cfs_quota_us", "-1"),
        ("cg/cpu/cpu.cfs_period_us", "100000"),
    ];
    // The path of the host inside a container whose mount shows its own group only.
    let container: &[(&str, &str)] = &[
        ("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
        ("proc/self/cgroup", "0::/host/only/path\n"),
        ("sys/fs/cgroup/cpuset.cpus.effective", "2-3"),
        ("sys/fs/cgroup/cpuset.mems.effective", "1"),
        ("sys/fs/cgroup/cpu.max", "150000 100000"),
    ];
    let hybrid: &[(&str, &str)] = &[
        (
            "proc/mounts",
            "c /cg/set cgroup rw,cpuset 0 0\ncgroup2 /cg/unified cgroup2 rw 0 0\n",
        ),
        ("proc/self/cgroup", "4:cpuset:/a\n0::/\n"),
        ("cg/set/a/cpuset.effective_cpus", "1-3"),
        ("cg/unified/cpuset.cpus.effective", "2-7"),
        ("cg/set/a/cpuset.effective_mems", "1"),
        ("cg/unified/cpu.max", "150000 100000"),
    ];
    for (name, files) in [("v2", v2), ("v1", v1), ("container", container), ("hybrid", hybrid)] {
        let tree = Tree::regular(2, 1, 2, 1);
        for (path, text) in files {
            tree.file(path, text);
        }
        let machine = tree.read();
        assert_eq!(machine.allowed.to_string(), "2-3", "{name}");
        assert_eq!(
            machine.nodes.iter().map(|node| node.id).collect::<Vec<_>>(),
            [1],
            "{name}"
        );
        assert_eq!(machine.quota, Some(1.5), "{name}");
        assert_eq!(machine.packages.len(), 1, "{name}");
    }
}

#[test]
fn the_affinity_mask_limits_what_is_allowed_and_not_what_is_described() {
    let tree = Tree::regular(1, 1, 4, 1);
    tree.file("proc/self/status", "Name:\tx\nCpus_allowed_list:\t1-2\n");
    let machine = tree.read();
    assert_eq!(machine.allowed.to_string(), "1-2");
    assert_eq!(machine.cores.len(), 4);
    tree.file("proc/self/status", "Cpus_allowed_list:\t9\n");
    let error = Machine::read_from(tree.root()).unwrap_err();
    assert_eq!(error.to_string(), "no usable CPU: online are 0-3, allowed are 9");
}

#[test]
fn a_folder_that_is_no_machine_is_an_error_with_the_path() {
    let tree = Tree::new();
    let error = Machine::read_from(tree.root()).unwrap_err();
    assert!(
        matches!(&error, Error::Read { path, .. } if path.ends_with("sys/devices/system/cpu")),
        "{error}"
    );
}

#[test]
fn the_running_machine_can_be_read() {
    let machine = match Machine::read() {
        Ok(machine) => machine,
        Err(error) => return eprintln!("skipped: this system does not describe itself: {error}"),
    };
    assert!(!machine.cores.is_empty());
    assert!(machine.allowed.is_subset(&machine.online));
    eprintln!("{machine}");
}

#[cfg(feature = "hwloc")]
#[test]
fn libhwloc_counts_the_same_on_the_running_machine() {
    use azulejo_topology::hwloc::Counts;
    let machine = Machine::read().unwrap();
    assert_eq!(Counts::of(&machine), Counts::read().unwrap());
}

/// The folder of shared data, if this machine has it.
fn shared() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let shared = std::env::var_os("AZULEJO_SHARED")
        .map_or_else(beside, PathBuf::from)
        .join("data/topology");
    shared.is_dir().then_some(shared)
}

/// The entries of a list of objects, in an order of their own.
fn sorted(list: &Value, keys: &[&str]) -> Vec<String> {
    let mut entries: Vec<String> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let mut entry = entry.clone();
            if let Some(nodes) = entry["numa"].as_array_mut() {
                nodes.sort_by_key(Value::as_u64);
            }
            keys.iter().map(|key| format!("{key}={} ", entry[*key])).collect()
        })
        .collect();
    entries.sort();
    entries
}

#[test]
fn recorded_machines_are_read_as_hwloc_reads_them() {
    let Some(shared) = shared() else {
        return eprintln!("skipped: the recorded machines are not here");
    };
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(shared.join("expect.json")).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for (case, expected) in expected.as_object().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let archive = shared.join(format!("{case}.tar.bz2"));
        let unpacked = Command::new("tar")
            .arg("xjf")
            .arg(&archive)
            .arg("-C")
            .arg(folder.path())
            .status();
        if !unpacked.is_ok_and(|status| status.success()) {
            return eprintln!("skipped: tar cannot unpack bzip2 here");
        }
        let mut inside = std::fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        let root = inside.find(|path| path.join("sys").is_dir()).unwrap();
        let actual = Machine::read_from(&root).unwrap().to_json();
        for key in ["l3", "l2", "cores", "pus", "threads_per_core", "pu_list"] {
            if actual[key] != expected[key] {
                wrong.push(format!(
                    "{case}: {key}: expected {}, got {}",
                    expected[key], actual[key]
                ));
            }
        }
        for (key, fields) in [
            ("packages", &["os", "cores", "pus", "numa"][..]),
            ("numa", &["os", "kind", "local"]),
        ] {
            let (expected, actual) = (sorted(&expected[key], fields), sorted(&actual[key], fields));
            if actual != expected {
                wrong.push(format!(
                    "{case}: {key}:\n  expected {expected:?}\n  got      {actual:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
