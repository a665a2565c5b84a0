//! Machines read from synthetic trees, from the recorded machines and from the running one.

mod common;

use std::collections::BTreeSet;

use azulejo_topology::{Error, Machine};
use common::{Tree, recorded, recordings};
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
fn every_kind_of_contradiction_is_named_and_the_rest_kept() {
    let tree = Tree::regular(2, 1, 4, 1);
    // A core across packages, a node that claims another's CPU, a cache that overlaps another, a distance too few, a list
    // that names a CPU without a folder, a text that is no list.
    tree.cpu(3, "topology/core_cpus_list", "3-4")
        .cpu(4, "topology/core_cpus_list", "3-4")
        .file("sys/devices/system/node/node1/cpulist", "3-7")
        .cpu(4, "cache/index2/shared_cpu_list", "2-7")
        .file("sys/devices/system/node/node0/distance", "10")
        .file("sys/devices/system/cpu/online", "0-9")
        .file("sys/devices/system/cpu/isolated", "some");
    let machine = tree.read();
    let notes = machine.notes.join("\n");
    for part in [
        "core of CPUs 3-4 lies in several packages",
        "node 1: CPUs 3 belong to another node as well",
        "overlaps another cache of level 3",
        "node0/distance: expected 2 numbers, one for each node that is online, got 1",
        "online names CPUs 8-9, which have no folder",
        "isolated: expected a list such as 0-3,8, got \"some\"",
    ] {
        assert!(notes.contains(part), "{part:?} is not in\n{notes}");
    }
    assert_eq!(machine.notes.len(), 6, "{notes}");
    assert_eq!(
        (machine.packages.len(), machine.cores.len(), machine.nodes.len()),
        (2, 8, 2)
    );
    assert_eq!(machine.nodes[1].cpus.to_string(), "4-7");
    assert_eq!(machine.online.to_string(), "0-7");
    let l3: Vec<String> = machine.caches_of_level(3).map(|cache| cache.cpus.to_string()).collect();
    assert_eq!(l3, ["0-3", "4-7"]);
}

#[test]
fn dies_clusters_kinds_tiers_and_huge_pages_are_read() {
    let tree = Tree::regular(1, 2, 4, 1);
    for cpu in 0..8 {
        let (die, cluster) = (cpu / 4, cpu / 2);
        tree.cpu(cpu, "topology/die_id", &die.to_string());
        tree.cpu(cpu, "topology/die_cpus_list", &format!("{}-{}", die * 4, die * 4 + 3));
        tree.cpu(
            cpu,
            "topology/cluster_cpus_list",
            &format!("{}-{}", cluster * 2, cluster * 2 + 1),
        );
        tree.cpu(cpu, "cpu_capacity", ["1024", "1024", "700", "300"][cluster]);
    }
    for (name, text) in [
        ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0"),
        ("sys/devices/virtual/memory_tiering/memory_tier22/nodelist", "1"),
        (
            "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
            "512",
        ),
        (
            "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
            "500",
        ),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        (
            "sys/devices/system/node/node1/memory_side_cache/index1/size",
            "17179869184",
        ),
    ] {
        tree.file(name, text);
    }
    let machine = tree.read();
    let texts = |sets: &[azulejo_topology::CpuSet]| sets.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&machine.dies), ["0-3", "4-7"]);
    assert_eq!(texts(&machine.clusters), ["0-1", "2-3", "4-5", "6-7"]);
    let kinds: Vec<_> = machine
        .kinds
        .iter()
        .map(|kind| (kind.name, kind.cpus.to_string()))
        .collect();
    let expected = [("performance", "0-3"), ("middle", "4-5"), ("efficiency", "6-7")];
    assert_eq!(kinds, expected.map(|(name, cpus)| (name, cpus.to_owned())));
    assert_eq!((machine.nodes[0].tier, machine.nodes[1].tier), (Some(4), Some(22)));
    assert_eq!(
        (
            machine.nodes[0].huge_pages[0].page,
            machine.nodes[0].huge_pages[0].total
        ),
        (2 << 20, 512)
    );
    assert_eq!(
        (machine.huge_pages[0].page, machine.huge_pages[0].free),
        (1 << 30, None)
    );
    assert_eq!(machine.nodes[1].side_caches[0].size, 16 << 30);
    let text = machine.to_string();
    for part in [
        "tier 22",
        "16GiB memory-side cache",
        "512 of 2048KiB, 500 free",
        "[madvise]",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_mount_that_shows_a_part_of_the_hierarchy_is_followed() {
    let tree = Tree::regular(1, 1, 4, 1);
    tree.file(
        "proc/self/mountinfo",
        "31 23 0:28 /docker/x /cg rw - cgroup c rw,cpuset\n32 23 0:28 /docker/other /mnt rw - cgroup c rw,cpuset\n",
    )
    .file("proc/self/cgroup", "4:cpuset:/docker/x/step\n")
    .file("cg/cpuset.cpus", "0-2")
    .file("cg/step/cpuset.cpus", "1-2")
    // Somebody else's group, visible through another mount.
    .file("mnt/cpuset.cpus", "3");
    assert_eq!(tree.read().allowed.to_string(), "1-2");
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
    let error = tree.try_read().unwrap_err();
    assert_eq!(error.to_string(), "no usable CPU: online are 0-3, allowed are 9");
}

#[test]
fn a_folder_that_is_no_machine_is_an_error_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let error = Machine::read_from(folder.path()).unwrap_err();
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

#[test]
fn recorded_machines_are_read_as_hwloc_reads_them() {
    let Some(shared) = recordings() else {
        return eprintln!("skipped: the recorded machines are not here");
    };
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(shared.join("expect.json")).unwrap()).unwrap();
    for (case, expected) in expected.as_object().unwrap() {
        let Some((_folder, root)) = recorded(case) else {
            return eprintln!("skipped: tar cannot unpack bzip2 here");
        };
        // Everything, in hwloc's order and with no key more or less.
        assert_eq!(&Machine::read_from(&root).unwrap().to_json(), expected, "{case}");
    }
}

#[test]
fn files_in_memory_are_read_as_files_in_a_folder_are() {
    for seed in 0..20 {
        let (_, tree) = common::synthetic::machine(seed);
        let folder = tempfile::tempdir().unwrap();
        tree.write_to(folder.path());
        assert_eq!(Machine::read_from(folder.path()).unwrap(), tree.read(), "seed {seed}");
    }
}
