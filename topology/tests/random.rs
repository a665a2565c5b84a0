//! Ten thousand random machines: what is read is what was drawn, and every plan keeps its promises.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;

use azulejo_topology::{CpuSet, Error, Machine, NodeSet, Place, Plan, RankPlan, Ranks, Request};
use common::synthetic::{Draws, Truth, machine};

const SEEDS: u64 = 10_000;
/// Cores of a rank from which on worker and system get cores of their own.
const SPARE_FROM: usize = 8;

#[test]
fn ten_thousand_machines_are_read_as_drawn_and_planned_soundly() {
    let mut largest = 0;
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let (truth, tree) = machine(seed);
        let read = tree.read();
        largest = largest.max(truth.present.len());
        check_reading(seed, &truth, &read);
        let mut draw = Draws::new(seed ^ 0x00c0_ffee);
        for _ in 0..2 {
            check_plan(seed, &truth, &read, &mut draw, &mut seen);
        }
    }
    eprintln!("{SEEDS} seeds from 0; the largest machine has {largest} CPUs; seen: {seen:?}");
    assert!(largest >= 2048, "the largest machine has {largest} CPUs");
    // The generator reaches every kind of plan.
    let kinds = [
        "pinned",
        "shared",
        "quota",
        "performance",
        "isolated",
        "fast memory",
        "refused",
    ];
    assert_eq!(seen, kinds.into_iter().collect());
}

/// The sets that have a part inside `within`, as texts.
fn parts<'a>(sets: impl IntoIterator<Item = &'a CpuSet>, within: &CpuSet) -> BTreeSet<String> {
    let parts = sets.into_iter().map(|set| set.and(within));
    parts.filter(|set| !set.is_empty()).map(|set| set.to_string()).collect()
}

fn check_reading(seed: u64, truth: &Truth, read: &Machine) {
    let usable = truth.usable();
    assert_eq!(read.online, truth.online, "seed {seed}");
    assert_eq!(read.offline, truth.present.minus(&truth.online), "seed {seed}");
    assert_eq!(read.usable(), usable, "seed {seed}");
    assert_eq!(read.allowed, truth.allowed(), "seed {seed}");
    assert_eq!(read.isolated, truth.isolated, "seed {seed}");
    assert_eq!(read.quota, truth.quota, "seed {seed}");
    let cores: Vec<&CpuSet> = read.cores.iter().map(|core| &core.cpus).collect();
    assert_eq!(
        parts(cores, &usable),
        parts(&truth.cores, &usable),
        "seed {seed}: cores"
    );
    let packages: Vec<&CpuSet> = read.packages.iter().map(|package| &package.cpus).collect();
    assert_eq!(
        parts(packages, &usable),
        parts(&truth.packages, &usable),
        "seed {seed}: packages"
    );
    let l3: Vec<&CpuSet> = read.caches_of_level(3).map(|cache| &cache.cpus).collect();
    assert_eq!(parts(l3, &usable), parts(&truth.l3, &usable), "seed {seed}: L3");
    for (id, cpus) in &truth.nodes {
        let node = read.node(*id).unwrap();
        assert_eq!(node.cpus, cpus.and(&truth.online), "seed {seed}: node {id}");
    }
    match &truth.performance {
        // Kinds show only where both are there.
        Some(fast) if fast.intersects(&usable) && !usable.is_subset(fast) => {
            assert_eq!(read.performance_cpus(), Some(&fast.and(&usable)), "seed {seed}");
        }
        _ => assert_eq!(read.performance_cpus(), None, "seed {seed}"),
    }
    assert!(read.notes.is_empty(), "seed {seed}: {:?}", read.notes);
}

fn check_plan(seed: u64, truth: &Truth, read: &Machine, draw: &mut Draws, seen: &mut BTreeSet<&'static str>) {
    let mut request = Request::default();
    request.threads_per_core = 1 + draw.below(2);
    request.threads_per_rank = draw.once_in(4).then(|| 1 + draw.below(40));
    request.workers_per_rank = draw.below(3);
    request.os_reserve = draw.below(3);
    request.performance_cores = draw.once_in(4);
    request.isolated = draw.once_in(4);
    let each = 1 + draw.below(2);
    let ranks = match draw.below(6) {
        0 => Ranks::Per(Place::Package, each),
        1 => Ranks::Per(Place::NumaNode, each),
        2 => Ranks::Per(Place::L3, each),
        3 => Ranks::Total(1 + draw.below(read.cores.len() + 3)),
        _ => Ranks::Total(1 + draw.below(4)),
    };

    // What may be planned on, from what was drawn.
    let isolated = truth.isolated.and(&truth.usable());
    let mut pool = truth.allowed();
    if request.isolated {
        pool = pool.or(&isolated);
    } else if !pool.is_subset(&isolated) {
        pool = pool.minus(&isolated);
    }
    let fast = read.performance_cpus().filter(|_| request.performance_cores);
    if let Some(fast) = fast {
        pool = pool.and(fast);
    }
    let plan = match Plan::make(read, &request, ranks) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(
                matches!(error, Error::Request { .. }) && pool.is_empty(),
                "seed {seed}: {error}"
            );
            seen.insert("refused");
            return;
        }
    };
    // Written only when something is wrong.
    let context = || format!("seed {seed}: {ranks} of {request:?}\n{plan}\n{truth:?}");

    let places = |sets: Vec<&CpuSet>| parts(sets, &pool).len().max(1);
    let expected = match ranks {
        Ranks::Total(ranks) => ranks,
        Ranks::Per(Place::Package, each) => each * places(truth.packages.iter().collect()),
        Ranks::Per(Place::NumaNode, each) => each * places(truth.nodes.iter().map(|(_, cpus)| cpus).collect()),
        Ranks::Per(Place::L3, each) => each * places(truth.l3.iter().collect()),
        other => unreachable!("{other} was not drawn"),
    };
    assert_eq!(plan.ranks.len(), expected, "{}", context());
    assert_eq!(plan.unused, truth.allowed().minus(&pool), "{}", context());

    let cores: Vec<CpuSet> = truth.cores.iter().map(|core| core.and(&pool)).collect();
    let cores: Vec<CpuSet> = cores.into_iter().filter(|core| !core.is_empty()).collect();
    let known: NodeSet = read.nodes.iter().map(|node| node.id).collect();
    let mut taken = CpuSet::new();
    for rank in &plan.ranks {
        assert!(rank.process().is_subset(&pool), "{}", context());
        assert!(!rank.compute.is_empty() && rank.threads >= 1, "{}", context());
        assert!(rank.nodes.is_subset(&known), "{}", context());
        assert!(!rank.nodes.intersects(&truth.slow), "{}", context());
        assert!(rank.prefer.is_subset(&rank.nodes.and(&truth.fast)), "{}", context());
        if rank.pinned {
            assert_eq!(rank.compute.len(), rank.threads, "{}", context());
            assert!(!rank.process().intersects(&taken), "ranks overlap, {}", context());
            taken = taken.or(&rank.process());
        }
    }
    if plan.ranks.iter().all(|rank| rank.pinned) {
        seen.insert("pinned");
        check_pinned(&plan, &request, truth, &cores, &context);
        assert!(
            truth.quota.is_none_or(|quota| quota >= pool.len() as f64),
            "{}",
            context()
        );
    } else if truth.quota.is_some_and(|quota| quota < pool.len() as f64) {
        seen.insert("quota");
        let threads: usize = plan.ranks.iter().map(|rank| rank.threads).sum();
        let granted = truth.quota.unwrap() as usize;
        assert!(threads <= granted.max(plan.ranks.len()), "{}", context());
        assert!(plan.ranks.iter().all(|rank| !rank.pinned), "{}", context());
    } else {
        seen.insert("shared");
        assert!(plan.to_string().contains("not pinned"), "{}", context());
    }
    if fast.is_some() {
        seen.insert("performance");
    }
    if request.isolated && isolated.intersects(&pool) {
        seen.insert("isolated");
    }
    if plan.ranks.iter().any(|rank| !rank.prefer.is_empty()) {
        seen.insert("fast memory");
    }

    // Stable: the same wishes on the same machine give the same plan, and the plan fits the machine it was made for.
    let again = plan.make_again(read).unwrap();
    assert_eq!(
        (&again, again.to_json(), again.to_string()),
        (&plan, plan.to_json(), plan.to_string())
    );
    assert_eq!(plan.misfits(read), Vec::<String>::new(), "{}", context());
    // The last rank stands for the others: the text grows with the number of ranks.
    let last = plan.ranks.len() - 1;
    let environment = plan.environment(last).unwrap();
    let threads = plan.ranks[last].threads.to_string();
    assert!(environment.contains(&("OMP_NUM_THREADS", threads)), "{}", context());
}

fn check_pinned(plan: &Plan, request: &Request, truth: &Truth, cores: &[CpuSet], context: &dyn Fn() -> String) {
    let processes: Vec<CpuSet> = plan.ranks.iter().map(RankPlan::process).collect();
    let process = processes.iter().fold(CpuSet::new(), |all, part| all.or(part));
    let compute: CpuSet = plan.ranks.iter().fold(CpuSet::new(), |all, rank| all.or(&rank.compute));
    for core in cores {
        // Every core is used, or named as a worker's or the system's.
        assert!(core.intersects(&process), "core {core} is lost, {}", context());
        let busy = core.and(&compute);
        assert!(busy.len() <= request.threads_per_core, "core {core}, {}", context());
        // The lowest CPUs of a core compute.
        assert_eq!(
            busy,
            core.iter().take(busy.len()).collect(),
            "core {core}, {}",
            context()
        );
        // No core is in two ranks.
        let owners = processes.iter().filter(|part| part.intersects(core)).count();
        assert_eq!(owners, 1, "core {core}, {}", context());
    }
    assert_eq!(
        plan.ranks.iter().map(|rank| rank.cores).sum::<usize>(),
        cores.len(),
        "{}",
        context()
    );
    for rank in &plan.ranks {
        let touched = |set: &CpuSet| cores.iter().filter(|core| core.intersects(set)).count();
        let (computing, working) = (touched(&rank.compute), touched(&rank.worker));
        let own_worker = cores
            .iter()
            .all(|core| !(core.intersects(&rank.worker) && core.intersects(&rank.compute)));
        if own_worker {
            assert_eq!(computing + working + rank.left.len(), rank.cores, "{}", context());
        }
        if rank.cores >= SPARE_FROM && request.threads_per_rank.is_none() {
            assert!(own_worker, "{}", context());
            assert_eq!(rank.worker.len(), request.workers_per_rank, "{}", context());
            // The arithmetic: cores - workers - the reserve of each package that ends in this rank.
            let packages = truth
                .packages
                .iter()
                .filter(|package| package.intersects(&rank.process()))
                .count();
            let least = rank.cores - (request.workers_per_rank + request.os_reserve * packages).min(rank.cores - 1);
            let most = rank.cores - request.workers_per_rank;
            assert!((least..=most).contains(&computing), "{least} to {most}, {}", context());
        }
    }
}
