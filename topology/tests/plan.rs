//! Plans: a table of machines and requests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use azulejo_topology::{CpuSet, Error, Machine, Plan, Request};
use common::{Tree, request};

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
fn ranks_may_be_asked_for_by_place() {
    use azulejo_topology::Ranks;
    let machine = Tree::regular(2, 2, 8, 2).read();
    for (asked, ranks) in [("package", 2), ("numa", 4), ("l3", 4), ("numa:2", 8), ("5", 5)] {
        let asked: Ranks = asked.parse().unwrap();
        let plan = Plan::make(&machine, &Request::default(), asked).unwrap();
        assert_eq!(plan.ranks.len(), ranks, "{asked}");
        assert!(plan.ranks.iter().all(|rank| rank.pinned), "{plan}");
    }
    // More on a place than it has cores: everybody shares, and the plan says so.
    let plan = Plan::make(&machine, &Request::default(), "numa:9".parse::<Ranks>().unwrap()).unwrap();
    assert_eq!(plan.ranks.len(), 36);
    assert!(plan.to_string().contains("not pinned exclusively"), "{plan}");
}

#[test]
fn performance_cores_only_on_request() {
    let Some((_folder, root)) = common::recorded("20em64t-hybrid-1p6c2t+2ca4co1t") else {
        return eprintln!("skipped: the recorded machines are not here");
    };
    let machine = Machine::read_from(&root).unwrap();
    // The kinds as hwloc prints them: 0x00000fff and 0x000ff000.
    let kinds: Vec<_> = machine
        .kinds
        .iter()
        .map(|kind| (kind.name, kind.cpus.to_string()))
        .collect();
    assert_eq!(
        kinds,
        [("performance", "0-11".to_owned()), ("efficiency", "12-19".to_owned())]
    );
    let mut request = request(&[]);
    request.workers_per_rank = 0;
    request.os_reserve = 0;
    assert_eq!(
        Plan::make(&machine, &request, 1).unwrap().ranks[0].compute.to_string(),
        "0,2,4,6,8,10,12-19"
    );
    request.performance_cores = true;
    let plan = Plan::make(&machine, &request, 1).unwrap();
    assert_eq!(plan.ranks[0].compute.to_string(), "0,2,4,6,8,10");
    assert_eq!(plan.unused.to_string(), "12-19");
    assert!(
        plan.to_string()
            .contains("CPUs 12-19 are slower cores and are not used"),
        "{plan}"
    );
}

#[test]
fn a_plan_comes_out_in_the_words_of_other_tools() {
    let machine = Tree::regular(2, 1, 32, 2).read();
    let plan = plan(
        &machine,
        &[
            ("OMP_NUM_THREADS", "2"),
            ("CCL_WORKER_COUNT", "2"),
            ("KMP_HW_SUBSET", "3c,1t"),
        ],
        2,
    );
    let rank = &plan.ranks[1];
    assert_eq!(rank.numactl().join(" "), "numactl --physcpubind=32-63 --membind=1");
    assert_eq!(rank.taskset().join(" "), "taskset --cpu-list 32-63");
    let expected = [
        ("OMP_NUM_THREADS", "2"),
        ("OMP_PLACES", "{32},{33}"),
        ("OMP_PROC_BIND", "close"),
        ("GOMP_CPU_AFFINITY", "32 33"),
        ("KMP_AFFINITY", "granularity=fine,proclist=[32,33],explicit"),
        ("KMP_HW_SUBSET", "1T"),
        ("KMP_BLOCKTIME", "1"),
        ("I_MPI_PIN", "1"),
        ("I_MPI_PIN_DOMAIN", "[ffffffff,ffffffff00000000]"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        ("PRTE_MCA_hwloc_default_binding_policy", "none"),
        ("CCL_WORKER_COUNT", "2"),
        ("CCL_WORKER_AFFINITY", "30,31,62,63"),
    ];
    let environment = plan.environment(1).unwrap();
    assert_eq!(environment, expected.map(|(name, value)| (name, value.to_owned())));
    assert_eq!(
        plan.rank_file("host"),
        "rank 0=host slot=0-31\nrank 1=host slot=32-63\n"
    );
    let json = plan.to_json();
    assert_eq!(json["ranks"][1]["compute"], "32-33");
    assert_eq!(json["ranks"][1]["worker"], "62-63");
    assert_eq!(json["asked"], "2");
    assert!(matches!(plan.environment(2), Err(Error::Rank { rank: 2, ranks: 2 })));
}

#[test]
fn a_plan_that_no_longer_fits_says_what_is_gone() {
    let tree = Tree::regular(2, 1, 8, 1);
    let plan = plan(&tree.read(), &[], 2);
    tree.file("sys/devices/system/cpu/online", "0-11")
        .file("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        .file("proc/self/cgroup", "0::/\n")
        .file("sys/fs/cgroup/cpuset.cpus.effective", "4-15")
        .file("sys/fs/cgroup/cpuset.mems.effective", "0");
    let now = tree.read();
    assert_eq!(
        plan.misfits(&now),
        [
            "rank 0: CPUs 0-3 are outside the cpuset now",
            "rank 1: CPUs 12-15 are offline now",
            "rank 1: nodes 1 are offline or outside the cpuset now"
        ]
    );
    let again = plan.make_again(&now).unwrap();
    assert_eq!(again.misfits(&now), Vec::<String>::new());
    assert_eq!(again.ranks.iter().map(|rank| rank.cores).collect::<Vec<_>>(), [4, 4]);
}
