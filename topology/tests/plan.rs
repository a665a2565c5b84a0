//! Plans: a table of machines and requests, and properties over random machines.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use azulejo_topology::{CpuSet, Error, Machine, Plan, Request};
use common::Tree;

fn request(pairs: &[(&str, &str)]) -> Request {
    Request::from_variables(|name| {
        pairs
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    })
    .unwrap()
}

fn plan(machine: &Machine, pairs: &[(&str, &str)], ranks: usize) -> Plan {
    Plan::make(machine, &request(pairs), ranks).unwrap()
}

#[test]
fn the_published_example_comes_out_with_its_arithmetic() {
    let machine = Tree::regular(2, 1, 32, 2).read();
    let variables = [
        ("OMP_NUM_THREADS", "24"),
        ("KMP_HW_SUBSET", "1T"),
        ("CCL_WORKER_COUNT", "1"),
        ("CCL_WORKER_AFFINITY", "auto"),
    ];
    let expected = "\
2 packages, 2 NUMA nodes, 64 cores with 128 CPUs allowed; 2 ranks on this machine
rank  threads  computes on  worker  memory  left
0     24       CPU 0-23     31      node 0  24-30
1     24       CPU 32-55    63      node 1  56-62
rank 0-1: 32 cores = 24 compute + 1 worker + 7 left to the system";
    assert_eq!(plan(&machine, &variables, 2).to_string(), expected);
}

#[test]
fn the_published_rules_come_out() {
    let machine = Tree::regular(2, 1, 32, 2).read();
    for (workers, threads) in [(0, 31), (1, 30), (2, 29)] {
        let request = {
            let mut r = Request::default();
            r.workers_per_rank = workers;
            r
        };
        let plan = Plan::make(&machine, &request, 2).unwrap();
        assert_eq!(plan.ranks[1].threads, threads, "{workers} workers");
        assert_eq!(plan.ranks[1].worker.len(), workers);
        assert_eq!(plan.ranks[1].left.len(), 1);
    }
}

#[test]
fn more_ranks_than_cores_share_and_say_so() {
    let machine = Tree::regular(1, 1, 2, 1).read();
    let plan = plan(&machine, &[("OMP_NUM_THREADS", "24")], 8);
    let text = plan.to_string();
    assert!(
        text.contains("shared: 4 ranks per core, not pinned exclusively"),
        "{text}"
    );
    assert!(text.contains("0-7   1        CPU 0-1 (not pinned)"), "{text}");
    assert!(text.contains("asked for 24 threads per rank; 1 is used"), "{text}");
    assert_eq!(plan.ranks.len(), 8);
    assert!(plan.ranks.iter().all(|rank| !rank.pinned && rank.threads == 1));
    assert_eq!(plan.rank(7).unwrap().team().cpus, [None]);
    assert!(matches!(plan.rank(8), Err(Error::Rank { rank: 8, ranks: 8 })));
}

#[test]
fn few_cores_all_compute_and_the_worker_shares_one() {
    let two = Tree::regular(1, 1, 2, 1).read();
    let alone = &plan(&two, &[], 1).ranks[0];
    assert_eq!(
        (alone.compute.to_string(), alone.worker.to_string()),
        ("0-1".into(), "1".into())
    );
    // With hardware threads, the worker gets the idle sibling.
    let smt = Tree::regular(1, 1, 2, 2).read();
    let alone = &plan(&smt, &[], 1).ranks[0];
    assert_eq!(
        (alone.compute.to_string(), alone.worker.to_string()),
        ("0-1".into(), "3".into())
    );
    let both = &plan(&smt, &[("KMP_HW_SUBSET", "2T")], 1).ranks[0];
    assert_eq!((both.threads, both.compute.to_string()), (4, "0-3".into()));
}

#[test]
fn ranks_follow_packages_and_their_nodes() {
    let snc = Tree::regular(2, 4, 8, 1).read();
    let two = plan(&snc, &[], 2);
    assert_eq!(
        two.ranks[0].nodes.to_string(),
        "0-3",
        "all nodes of the package, not only the first"
    );
    assert_eq!(two.ranks[1].nodes.to_string(), "4-7");
    let eight = plan(&snc, &[("OMP_NUM_THREADS", "8"), ("CCL_WORKER_COUNT", "1")], 8);
    for (rank, part) in eight.ranks.iter().enumerate() {
        assert_eq!(part.nodes, CpuSet::single(rank));
        assert_eq!(part.compute.to_string(), format!("{}-{}", rank * 8, rank * 8 + 7));
    }
}

#[test]
fn a_quota_without_a_cpuset_limits_threads_and_pins_nothing() {
    let tree = Tree::regular(1, 1, 64, 1);
    tree.file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        .file("proc/self/cgroup", "0::/\n");
    tree.file("sys/fs/cgroup/cpu.max", "200000 100000");
    let plan = plan(&tree.read(), &[], 1);
    assert_eq!((plan.ranks[0].threads, plan.ranks[0].pinned), (2, false));
    assert!(
        plan.to_string().contains("grants 2.00 CPUs' worth of time on 64 CPUs"),
        "{plan}"
    );
}

#[test]
fn named_worker_cpus_are_theirs_alone() {
    let machine = Tree::regular(2, 1, 8, 1).read();
    let plan = plan(&machine, &[("CCL_WORKER_AFFINITY", "0,8")], 2);
    assert_eq!(plan.ranks[0].worker.to_string(), "0");
    assert_eq!(plan.ranks[1].worker.to_string(), "8");
    assert!(
        plan.ranks
            .iter()
            .all(|rank| !rank.compute.contains(0) && !rank.compute.contains(8))
    );
    for (list, ranks) in [("0", 2), ("0,99", 2)] {
        let error = Plan::make(&machine, &request(&[("CCL_WORKER_AFFINITY", list)]), ranks).unwrap_err();
        assert!(matches!(error, Error::Request { .. }), "{error}");
    }
    assert!(Plan::make(&machine, &Request::default(), 0).is_err());
}

#[test]
fn random_machines_give_disjoint_ranks_inside_what_is_allowed() {
    let seed = 0x9e37_79b9_7f4a_7c15_u64;
    eprintln!("seed {seed:#x}");
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 33) as usize) % below
    };
    // Writing a tree costs far more than planning on it, so each tree serves several sets of online CPUs.
    let mut tree = Tree::new();
    let mut shape = (0, 0, 0, 0);
    for case in 0..120 {
        if case % 10 == 0 {
            shape = (1 + draw(2), 1 + draw(3), 1 + draw(8), 1 + draw(3));
            tree = Tree::regular(shape.0, shape.1, shape.2, shape.3);
        }
        let cpus = shape.0 * shape.1 * shape.2 * shape.3;
        // Each CPU stays online with a chance of three in four; at least one does.
        let certain = draw(cpus);
        let online: CpuSet = (0..cpus).filter(|&cpu| draw(4) > 0 || cpu == certain).collect();
        tree.file("sys/devices/system/cpu/online", &online.to_string());
        let machine = tree.read();
        let smt = 1 + draw(2);
        let ranks = 1 + draw(machine.cores.len() + 2);
        let plan = plan(&machine, &[("KMP_HW_SUBSET", &format!("{smt}T"))], ranks);
        let context = format!("case {case}: {shape:?}, online {online}, {ranks} ranks, {smt} threads a core\n{plan}");
        assert_eq!(plan.ranks.len(), ranks, "{context}");
        let mut taken = CpuSet::new();
        for rank in &plan.ranks {
            assert!(rank.process().is_subset(&machine.allowed), "{context}");
            assert!(!rank.compute.is_empty() && rank.threads >= 1, "{context}");
            if rank.pinned {
                assert_eq!(rank.compute.len(), rank.threads, "{context}");
                assert!(!rank.process().intersects(&taken), "{context}");
                taken = taken.or(&rank.process());
            }
        }
        if plan.ranks[0].pinned {
            // Every core is used or named as left.
            for core in &machine.cores {
                assert!(core.cpus.intersects(&taken), "core {core:?}, {context}");
                let busy = plan
                    .ranks
                    .iter()
                    .map(|rank| rank.compute.and(&core.cpus).len())
                    .sum::<usize>();
                assert!(busy <= smt, "core {core:?}, {context}");
            }
        }
    }
}
