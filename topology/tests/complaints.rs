//! What users of other tools complain about, one test a complaint.
//!
//! | complaint | test |
//! |---|---|
//! | P1 a container's cpuset without CPU 0 or node 0 (pytorch 131011) | `p1_...` here |
//! | P2 the affinity mask is ignored (hwloc 511) | `child.rs`: `a_child_under_taskset_may_use_what_taskset_left` |
//! | P3 a quota without a cpuset, so that containers pin to the same CPUs | `p3_...` here |
//! | P4 nested launchers take the same cores (pytorch 123711) | `child.rs`: `ranks_of_one_machine_get_disjoint_cores_whoever_starts_them` |
//! | P5 SNC and HBM: memory bound to the first node only (SGLang 19666, hwloc 541) | `p5_...` here, two |
//! | P6 hardware threads counted as cores, in every numbering (vLLM 21032) | `p6_...` here |
//! | P7 offline CPUs and nodes (hwloc 450) | `p7_...` here |
//! | P8 more than 64 and more than 1,024 CPUs | `p8_...` here, `pin.rs`: `cpus_that_do_not_exist_are_an_error_and_never_a_panic` |
//! | P9 isolated CPUs hidden or taken (agave 8944) | `p9_...` here |
//! | P10 policy calls denied (vLLM 24017, numactl 232) | `child.rs`: `a_filter_that_denies_policy_calls_costs_one_line` |
//! | P11 the reported binding is not the real one (Open MPI 7729) | `pin.rs`: `a_plan_for_the_running_machine_is_what_the_kernel_reports` |
//! | P12 missing files of old kernels | `p12_...` here |
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use azulejo_topology::{CpuSet, Machine, MemoryKind, NodeSet, Place, Plan, Ranks, Request};
use common::{Tree, recorded};

fn recording(case: &str) -> Option<Machine> {
    let (_folder, root) = recorded(case)?;
    Some(Machine::read_from(&root).unwrap())
}

/// The recorded machines that are here.
fn recordings() -> Vec<(&'static str, Machine)> {
    let cases = [
        "memorysidecaches",
        "16amd64-8n2c-cpusets",
        "offline-cpu0-node0",
        "20em64t-hybrid-1p6c2t+2ca4co1t",
        "fakeheteromemtiers",
        "96em64t-4no4pa3ca2co",
    ];
    let found: Vec<_> = cases
        .into_iter()
        .filter_map(|case| Some((case, recording(case)?)))
        .collect();
    if found.is_empty() {
        eprintln!("skipped in part: the recorded machines are not here");
    }
    found
}

#[test]
fn p1_a_container_without_cpu_0_and_node_0_uses_what_it_has() {
    let tree = Tree::regular(2, 1, 40, 1);
    tree.file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        .file("proc/self/cgroup", "0::/\n")
        .file("sys/fs/cgroup/cpuset.cpus.effective", "40-79")
        .file("sys/fs/cgroup/cpuset.mems.effective", "1");
    for ranks in [1, 2, 5] {
        let plan = Plan::make(&tree.read(), &Request::default(), ranks).unwrap();
        for rank in &plan.ranks {
            assert!(rank.process().is_subset(&"40-79".parse().unwrap()), "{plan}");
            assert_eq!(rank.nodes, NodeSet::single(1), "{plan}");
        }
    }
}

#[test]
fn p3_a_quota_without_a_cpuset_means_fewer_threads_no_pinning_and_a_word() {
    let tree = Tree::regular(1, 1, 64, 1);
    tree.file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        .file("proc/self/cgroup", "0::/\n")
        .file("sys/fs/cgroup/cpu.max", "200000 100000\n");
    let plan = Plan::make(&tree.read(), &Request::default(), 1).unwrap();
    assert_eq!((plan.ranks[0].threads, plan.ranks[0].pinned), (2, false));
    assert!(
        plan.notes[0].contains("2.00 CPUs' worth of time on 64 CPUs and does not say which"),
        "{plan}"
    );
    let environment = plan.environment(0).unwrap();
    assert!(
        environment.contains(&("OMP_PROC_BIND", "false".to_owned())),
        "{environment:?}"
    );
}

#[test]
fn p5_a_rank_of_a_package_gets_all_nodes_of_the_package() {
    let snc = Plan::make(&Tree::regular(2, 2, 16, 2).read(), &Request::default(), 2).unwrap();
    assert_eq!(
        (snc.ranks[0].nodes.to_string(), snc.ranks[1].nodes.to_string()),
        ("0-1".into(), "2-3".into())
    );
    let Some(machine) = recording("memorysidecaches") else {
        return eprintln!("skipped in part: the recorded machines are not here");
    };
    let plan = Plan::make(&machine, &Request::default(), Ranks::Per(Place::Package, 1)).unwrap();
    assert_eq!(
        (plan.ranks[0].nodes.to_string(), plan.ranks[1].nodes.to_string()),
        ("0,2".into(), "1,3".into())
    );
    // The memory-side caches of hwloc's own output: 96 GiB before each node.
    assert!(
        machine
            .nodes
            .iter()
            .all(|node| node.side_caches.len() == 1 && node.side_caches[0].size == 96 << 30)
    );
}

/// The machine of hwloc issue 541: two packages, SNC4, HBM in flat mode; nodes 8-15 are HBM and have no CPUs.
fn flat_hbm() -> Tree {
    let tree = Tree::regular(2, 4, 14, 2);
    tree.file("sys/devices/system/node/online", "0-15");
    for node in 0..16 {
        let (folder, home) = (format!("sys/devices/system/node/node{node}"), node % 8);
        if node >= 8 {
            tree.file(&format!("{folder}/cpulist"), "\n");
            tree.file(
                &format!("{folder}/meminfo"),
                &format!("Node {node} MemTotal: {} kB\n", 16 << 20),
            );
        }
        let rate = if node >= 8 { "380000" } else { "110000" };
        tree.file(&format!("{folder}/access0/initiators/read_bandwidth"), rate);
        tree.file(&format!("{folder}/access0/initiators/node{home}"), "");
        let distance = |other: usize| match other {
            _ if other == node => "10",
            _ if other % 8 == home => "13",
            _ if other % 8 / 4 == home / 4 => "12",
            _ => "21",
        };
        tree.file(
            &format!("{folder}/distance"),
            &(0..16).map(distance).collect::<Vec<_>>().join(" "),
        );
    }
    tree
}

#[test]
fn p5_high_bandwidth_memory_belongs_to_its_package_and_comes_first() {
    let machine = flat_hbm().read();
    assert!(
        machine
            .nodes
            .iter()
            .all(|node| (node.kind == Some(MemoryKind::Hbm)) == (node.id >= 8))
    );
    assert_eq!(machine.packages[0].nodes.to_string(), "0-3,8-11");
    let two = Plan::make(&machine, &Request::default(), 2).unwrap();
    assert_eq!(
        (two.ranks[0].nodes.to_string(), two.ranks[0].prefer.to_string()),
        ("0-3,8-11".into(), "8-11".into())
    );
    let eight = Plan::make(&machine, &Request::default(), Ranks::Per(Place::NumaNode, 1)).unwrap();
    assert_eq!(
        (eight.ranks[5].nodes.to_string(), eight.ranks[5].prefer.to_string()),
        ("5,13".into(), "13".into())
    );
    assert_eq!(eight.ranks[5].numactl()[2], "--preferred-many=13");
    assert!(eight.to_string().contains("node 5,13, first 13"), "{eight}");

    let Some(machine) = recording("fakeheteromemtiers") else {
        return eprintln!("skipped in part: the recorded machines are not here");
    };
    let request = Request::default();
    let plan = Plan::make(&machine, &request, Ranks::Per(Place::NumaNode, 1)).unwrap();
    // Never the persistent nodes 6, 8 and 9. The third group has no DRAM: the nearest takes what HBM cannot hold.
    let memory: Vec<(String, String)> = plan
        .ranks
        .iter()
        .map(|rank| (rank.nodes.to_string(), rank.prefer.to_string()))
        .collect();
    let expected = [("0", ""), ("1,4", "4"), ("0,2", "2")].map(|(nodes, prefer)| (nodes.to_owned(), prefer.to_owned()));
    assert_eq!(memory, expected, "{plan}");
    let mut all = request;
    all.slow_memory = true;
    let plan = Plan::make(&machine, &all, 1).unwrap();
    assert_eq!(plan.ranks[0].nodes.to_string(), "0-2,4,6,8-9");
}

#[test]
fn p6_one_cpu_of_a_core_computes_in_every_numbering() {
    let mut machines = recordings();
    for smt in [1, 2, 4, 8] {
        machines.push(("regular", Tree::regular(2, 1, 6, smt).read()));
    }
    for (name, machine) in machines {
        let mut request = Request::default();
        request.workers_per_rank = 0;
        request.os_reserve = 0;
        let plan = Plan::make(&machine, &request, 1).unwrap();
        let compute = &plan.ranks[0].compute;
        for core in &machine.cores {
            let lowest = core.cpus.and(&machine.allowed).first().map(CpuSet::single).unwrap();
            assert_eq!(core.cpus.and(compute), lowest, "{name}: core {}", core.cpus);
        }
    }
}

#[test]
fn p7_offline_cpus_and_nodes_are_not_used() {
    let Some(machine) = recording("offline-cpu0-node0") else {
        return eprintln!("skipped: the recorded machines are not here");
    };
    assert_eq!(machine.offline.to_string(), "0-3,21-23");
    let plan = Plan::make(&machine, &Request::default(), Ranks::Per(Place::Package, 1)).unwrap();
    // Nine and eight cores; the first package's memory is offline, so that both use node 1.
    assert_eq!(
        plan.ranks.iter().map(|rank| rank.cores).collect::<Vec<_>>(),
        [9, 8],
        "{plan}"
    );
    for rank in &plan.ranks {
        assert!(rank.process().is_subset(&"4-20".parse().unwrap()), "{plan}");
        assert!(rank.nodes.is_subset(&NodeSet::single(1)), "{plan}");
    }
}

#[test]
fn p8_two_thousand_and_more_cpus_are_planned_on() {
    let machine = Tree::regular(4, 4, 96, 2).read();
    assert_eq!(machine.allowed.len(), 3072);
    let plan = Plan::make(&machine, &Request::default(), Ranks::Per(Place::NumaNode, 1)).unwrap();
    assert_eq!(plan.ranks.len(), 16);
    assert_eq!(plan.ranks[15].compute.last(), Some(1535 - 2), "{plan}");
    let domain = plan.environment(0).unwrap();
    let (_, masks) = domain.iter().find(|(name, _)| *name == "I_MPI_PIN_DOMAIN").unwrap();
    assert_eq!(masks.split(',').count(), 16);
}

#[test]
fn p9_isolated_cpus_are_shown_left_alone_and_used_on_request() {
    let tree = Tree::regular(1, 1, 16, 1);
    tree.file("sys/devices/system/cpu/isolated", "12-15\n")
        .file("sys/devices/system/cpu/nohz_full", "12-15\n");
    let machine = tree.read();
    assert!(machine.to_string().contains("isolated: CPUs 12-15"), "{machine}");
    assert_eq!(machine.nohz_full.to_string(), "12-15");
    let mut request = Request::default();
    let plan = Plan::make(&machine, &request, 1).unwrap();
    assert_eq!(plan.unused.to_string(), "12-15");
    assert!(
        plan.notes.iter().any(|note| note == "isolated CPUs 12-15 are not used"),
        "{plan}"
    );
    // The kernel takes them out of everybody's affinity mask; asked for, they are used all the same.
    tree.file("proc/self/status", "Cpus_allowed_list:\t0-11\n");
    request.isolated = true;
    let plan = Plan::make(&tree.read(), &request, 1).unwrap();
    assert_eq!(plan.ranks[0].process().to_string(), "0-15", "{plan}");
}

#[test]
fn p12_what_old_kernels_do_not_say_is_absent_and_not_guessed() {
    let tree = Tree::new();
    for cpu in 0..4 {
        tree.cpu(cpu, "topology/thread_siblings", &format!("{:x}", 1 << cpu));
    }
    let machine = tree.read();
    assert_eq!((machine.cores.len(), machine.packages[0].id), (4, None));
    assert!(machine.nodes.is_empty() && machine.caches.is_empty() && machine.dies.is_empty());
    assert!(machine.clusters.is_empty() && machine.kinds.is_empty() && machine.huge_pages.is_empty());
    assert_eq!(
        (machine.quota, &machine.transparent_huge_pages, &machine.cpuset),
        (None, &None, &None)
    );
    assert_eq!(machine.cores[0].die, None);
    assert_eq!(
        machine.notes,
        ["packages are not described; the machine is taken as one"]
    );
    let plan = Plan::make(&machine, &Request::default(), 1).unwrap();
    assert!(plan.ranks[0].nodes.is_empty());
}
