//! Processes that are limited from outside: by `taskset`, by a control group, by a filter that denies policy calls.
//!
//! The test program starts itself again with the name of one of the functions below in a variable, so that a limit holds
//! for a whole process and touches no other test.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a child answers on its standard output")]

mod common;

use std::path::PathBuf;
use std::process::{Command, Output};

use azulejo_topology::{
    Binding, CpuSet, LocalRank, Machine, NodeSet, Plan, Request, allowed_cpus, apply, bind_range, migrate_process,
    move_range, sample_pages,
};

const ROLE: &str = "AZULEJO_TOPOLOGY_TEST_CHILD";

/// This program again, as a child with a role; `before` are words to put before it.
fn child(before: &[&str], role: &str, variables: &[(&str, &str)]) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut words: Vec<&str> = before.to_vec();
    words.extend([
        this.to_str().unwrap(),
        "--exact",
        "the_child",
        "--nocapture",
        "--test-threads=1",
    ]);
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env(ROLE, role)
        .envs(variables.iter().copied());
    command
}

/// What a child prints behind `answer:`, one line each.
fn answers(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once("answer: "));
    let found: Vec<String> = lines.map(|(_, answer)| answer.to_owned()).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !found.is_empty(),
        "{}\n{text}\n{errors}",
        output.status
    );
    found
}

/// Not a test of its own: what a child does.
#[test]
fn the_child() {
    match std::env::var(ROLE).as_deref() {
        Ok("allowed") => {
            let machine = Machine::read().unwrap();
            println!("answer: {}", machine.allowed);
            assert_eq!(machine.allowed, machine.usable().and(&allowed_cpus().unwrap()));
        }
        Ok("placed") => {
            let local = LocalRank::from_env().unwrap().unwrap();
            let plan = Plan::make(&Machine::read().unwrap(), &Request::default(), local.ranks).unwrap();
            let report = apply(plan.rank(local.rank).unwrap());
            assert_eq!(report.differences, Vec::<String>::new());
            println!("answer: {}", allowed_cpus().unwrap());
        }
        Ok("denied") => {
            filter::deny_policy_calls().unwrap();
            let plan = Plan::make(&Machine::read().unwrap(), &Request::default(), 1).unwrap();
            let report = apply(&plan.ranks[0]);
            println!("answer: {}", report.differences.len());
            println!("answer: {}", report.differences.join("; "));
            println!("answer: {}", report.cpus.unwrap().is_exact());
            println!("answer: {:?}", report.pages);
            let mut memory = vec![0u8; 1 << 20];
            println!("answer: {}", bind_range(&mut memory, &NodeSet::single(0)));
            println!(
                "answer: {}",
                migrate_process(&NodeSet::single(0), &NodeSet::single(0)).unwrap_err()
            );
        }
        Ok("shrunk") => shrunk(),
        _ => {}
    }
}

/// Plans, loses CPUs, notices, plans again.
fn shrunk() {
    let group = PathBuf::from(std::env::var("GROUP").unwrap());
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let machine = Machine::read().unwrap();
    println!("answer: {}", machine.allowed);
    let plan = Plan::make(&machine, &Request::default(), 1).unwrap();
    assert_eq!(apply(&plan.ranks[0]).differences, Vec::<String>::new());
    assert_eq!(plan.misfits(&machine.read_again().unwrap()), Vec::<String>::new());
    let last = machine.allowed.last().unwrap();
    std::fs::write(
        group.join("cpuset.cpus"),
        machine.allowed.minus(&CpuSet::single(last)).to_string(),
    )
    .unwrap();
    let now = machine.read_again().unwrap();
    for line in plan.misfits(&now) {
        println!("answer: {line}");
    }
    let plan = plan.make_again(&now).unwrap();
    assert_eq!(apply(&plan.ranks[0]).differences, Vec::<String>::new());
    println!("answer: {}", allowed_cpus().unwrap());
}

/// The CPUs of this process, or `None` with a word where two are needed and there is one.
fn at_least_two() -> Option<CpuSet> {
    let all = allowed_cpus().ok().filter(|all| all.len() >= 2);
    if all.is_none() {
        eprintln!("skipped: this needs two CPUs");
    }
    all
}

#[test]
fn a_child_under_taskset_may_use_what_taskset_left() {
    let Some(all) = at_least_two() else { return };
    for cpu in all.iter().take(2) {
        let list = cpu.to_string();
        let Ok(output) = child(&["taskset", "-c", &list], "allowed", &[]).output() else {
            return eprintln!("skipped: taskset is not here");
        };
        assert_eq!(answers(&output), [list]);
    }
}

#[test]
fn ranks_of_one_machine_get_disjoint_cores_whoever_starts_them() {
    let Some(all) = at_least_two() else { return };
    // A core for each rank is needed; hardware threads of one core cannot be shared out.
    if Machine::read().unwrap().cores.len() < 2 {
        return eprintln!("skipped: this needs two cores");
    }
    type Variable = (&'static str, &'static str);
    let launchers: [(&str, &str, &[Variable]); 5] = [
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE", &[]),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", &[]),
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS", &[]),
        ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", &[("SLURM_STEP_ID", "0")]),
        ("PMI_RANK", "PMI_SIZE", &[]),
    ];
    for (rank_name, size_name, more) in launchers {
        let rank_on = |rank: &str| {
            let mut command = child(&[], "placed", &[(rank_name, rank), (size_name, "2")]);
            let output = command.envs(more.iter().copied()).output().unwrap();
            answers(&output)[0].parse::<CpuSet>().unwrap()
        };
        let (first, second) = (rank_on("0"), rank_on("1"));
        assert!(!first.intersects(&second), "{rank_name}: {first} and {second}");
        assert!(first.or(&second).is_subset(&all), "{rank_name}");
    }
}

#[test]
fn a_filter_that_denies_policy_calls_costs_one_line() {
    if !filter::is_known() {
        return eprintln!("skipped: no filter for this architecture");
    }
    let answers = answers(&child(&[], "denied", &[]).output().unwrap());
    let nodes = Machine::read().unwrap().nodes.len();
    if nodes > 0 {
        assert_eq!(answers[0], "1", "{answers:?}");
        assert!(answers[1].contains("Operation not permitted"), "{answers:?}");
        assert!(answers[1].ends_with("it goes where it is touched first"), "{answers:?}");
    }
    // The CPUs are bound all the same, and nothing is claimed about pages nobody may ask for.
    assert_eq!(answers[2], "true");
    assert_eq!(answers[3], "None");
    assert!(answers[4].contains("Operation not permitted"), "{answers:?}");
    assert!(answers[5].starts_with("migrate_pages: "), "{answers:?}");
}

/// A control group of version 1 with a cpuset of its own, gone when dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Group> {
        let parent = PathBuf::from("/sys/fs/cgroup/cpuset");
        let path = parent.join(format!("azulejo-test-{name}-{}", std::process::id()));
        if !parent.join("cpuset.cpus").exists() || std::fs::create_dir(&path).is_err() {
            eprintln!("skipped: no cpuset hierarchy of version 1 that may be written");
            return None;
        }
        let group = Group(path);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let all = std::fs::read_to_string(parent.join(file)).unwrap();
            std::fs::write(group.0.join(file), all).unwrap();
        }
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group can be removed once its processes have ended, which they have.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_child_in_a_control_group_may_use_what_the_group_has() {
    let Some(all) = at_least_two() else { return };
    let Some(group) = Group::new("set") else { return };
    let last = all.last().unwrap().to_string();
    std::fs::write(group.0.join("cpuset.cpus"), &last).unwrap();
    let join = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    let output = child(&["sh", "-c", &join], "allowed", &[]).output().unwrap();
    assert_eq!(answers(&output), [last]);
}

#[test]
fn a_cpuset_that_shrinks_is_noticed_and_planned_on_again() {
    let Some(all) = at_least_two() else { return };
    let Some(group) = Group::new("shrink") else { return };
    let output = child(&[], "shrunk", &[("GROUP", group.0.to_str().unwrap())])
        .output()
        .unwrap();
    let answers = answers(&output);
    let last = all.last().unwrap();
    assert_eq!(answers[0], all.to_string());
    assert_eq!(answers[1], format!("rank 0: CPUs {last} are outside the cpuset now"));
    assert_eq!(answers[2], all.minus(&CpuSet::single(last)).to_string());
}

#[test]
fn pages_are_bound_moved_and_found_again() {
    let mut memory = vec![1u8; 1 << 20];
    let node = NodeSet::single(0);
    match move_range(&mut memory, &node) {
        Binding::Bound(nodes) => {
            assert_eq!(nodes, node);
            let pages = sample_pages(&memory[4096..], 32).unwrap();
            assert_eq!((pages.nodes(), pages.absent), (node.clone(), 0), "{pages}");
            assert_eq!(migrate_process(&node, &node).unwrap(), 0);
        }
        other => eprintln!("skipped: {other}"),
    }
    // A node that does not exist is refused with the reason, and so is a range without a whole page.
    let refused = bind_range(&mut memory, &NodeSet::single(900)).to_string();
    assert!(refused.contains("it goes where it is touched first"), "{refused}");
    let small = bind_range(&mut memory[..100], &node).to_string();
    assert!(small.contains("no whole page"), "{small}");
}

/// A seccomp filter like a container's.
mod filter {
    #![expect(
        unsafe_code,
        clippy::disallowed_methods,
        reason = "a filter is installed by two system calls"
    )]

    use std::io;

    /// Number of the architecture as filters see it, where this file knows it.
    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xc000_003e;
    #[cfg(not(target_arch = "x86_64"))]
    const ARCHITECTURE: u32 = 0;

    pub(super) fn is_known() -> bool {
        ARCHITECTURE != 0
    }

    /// Makes mbind, set_mempolicy, get_mempolicy, move_pages and migrate_pages fail with EPERM in this thread.
    pub(super) fn deny_policy_calls() -> io::Result<()> {
        const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
        const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
        const RETURN: u16 = 0x06; // BPF_RET | BPF_K
        let denied = [
            libc::SYS_mbind,
            libc::SYS_set_mempolicy,
            libc::SYS_get_mempolicy,
            libc::SYS_move_pages,
            libc::SYS_migrate_pages,
        ];
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let allow = libc::SECCOMP_RET_ALLOW;
        let deny = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let count = denied.len() as u8;
        // The architecture is at byte 4 of what the filter sees, the call's number at byte 0.
        let mut program = vec![
            step(LOAD, 0, 0, 4),
            step(JUMP_EQUAL, 0, count + 1, ARCHITECTURE),
            step(LOAD, 0, 0, 0),
        ];
        for (at, call) in denied.iter().enumerate() {
            program.push(step(JUMP_EQUAL, count - at as u8, 0, *call as u32));
        }
        program.extend([step(RETURN, 0, 0, allow), step(RETURN, 0, 0, deny)]);
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        let (zero, one): (libc::c_ulong, libc::c_ulong) = (0, 1);
        // SAFETY: sets a flag of this thread; the other arguments must be zero and are.
        let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the program is a live array of as many steps as it says, which the kernel copies and checks.
        let result = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::c_ulong::from(libc::SECCOMP_MODE_FILTER),
                &raw const program,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
