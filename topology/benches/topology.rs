//! How long do discovery and a fork-join take, and what is left of the throughput when many processes share the CPUs?
//!
//! `cargo bench -p azulejo-topology --bench topology`, or `tools/bench_topology.sh`, which also builds and runs the
//! OpenMP program. Every figure is a median; those that are compared are taken in turn in one run.
#![expect(clippy::print_stdout, reason = "the program's answer")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use azulejo_topology::{Machine, Plan, Request, Team, TeamConfig, allowed_cpus};

/// Rounds whose mean is one sample; a single round is near the clock's own resolution.
const ROUNDS: u32 = 1000;
const SAMPLES: usize = 31;
/// Processes that share the CPUs, and how long they work.
const PROCESSES: usize = 8;
const WORK: Duration = Duration::from_secs(2);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|word| word == "--child") {
        let threads = arguments.get(at + 1).and_then(|text| text.parse().ok()).unwrap_or(1);
        return println!("{}", work(threads));
    }
    discovery();
    fork_join();
    oversubscribed();
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn time(mut body: impl FnMut()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_secs_f64()
}

/// The running machine, and machines of 256 and of 2,048 CPUs in files.
fn discovery() {
    let running = median(
        (0..SAMPLES)
            .map(|_| time(|| drop(black_box(Machine::read()))))
            .collect(),
    );
    println!("discovery: the running machine {:.2} ms", running * 1e3);
    // Memory rather than a disk, as the kernel's own files are.
    let shared_memory = std::path::Path::new("/dev/shm");
    for (packages, nodes, cores) in [(2, 2, 32), (8, 2, 64)] {
        let folder = if shared_memory.is_dir() {
            tempfile::tempdir_in(shared_memory)
        } else {
            tempfile::tempdir()
        };
        let folder = folder.expect("a folder for the files");
        common::Tree::regular(packages, nodes, cores, 2).write_to(folder.path());
        let machine = Machine::read_from(folder.path()).expect("the machine");
        let samples = (0..SAMPLES).map(|_| time(|| drop(black_box(Machine::read_from(folder.path())))));
        let read = median(samples.collect());
        let samples =
            (0..SAMPLES).map(|_| time(|| drop(black_box(Plan::make(&machine, &Request::default(), packages)))));
        let plan = median(samples.collect());
        println!(
            "discovery: {} CPUs {:.2} ms, a plan on it {:.3} ms",
            machine.allowed.len(),
            read * 1e3,
            plan * 1e3
        );
    }
}

/// An empty round of the team, of rayon's broadcast, and a meeting at the standard library's barrier.
fn fork_join() {
    let cpus = allowed_cpus().expect("the CPUs of this process");
    let threads = cpus.len();
    // A thread of its own, because the caller is pinned.
    let measure = move || {
        let team = Team::new(TeamConfig::pinned(&cpus)).expect("a team");
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool");
        let barrier = Barrier::new(threads);
        let each = |seconds: f64| seconds / f64::from(ROUNDS) * 1e6;
        let (mut ours, mut rayons, mut barriers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            ours.push(each(time(|| {
                for _ in 0..ROUNDS {
                    team.run(&|member| {
                        black_box(member);
                    });
                }
            })));
            rayons.push(each(time(|| {
                for _ in 0..ROUNDS {
                    pool.broadcast(|context| {
                        black_box(context.index());
                    });
                }
            })));
            barriers.push(each(time(|| {
                team.run(&|_| {
                    for _ in 0..ROUNDS {
                        barrier.wait();
                    }
                });
            })));
        }
        println!(
            "fork-join, {threads} threads: team {:.2} us, rayon's broadcast {:.2} us; std's barrier {:.2} us",
            median(ours),
            median(rayons),
            median(barriers)
        );
    };
    std::thread::spawn(measure).join().expect("the measurement");
}

/// Rounds of a fixed piece of work that a team of `threads` pinned members does in the time given.
fn work(threads: usize) -> u64 {
    let cpus = allowed_cpus()
        .expect("the CPUs of this process")
        .iter()
        .take(threads)
        .collect();
    let team = Team::new(TeamConfig::pinned(&cpus)).expect("a team");
    let (start, mut rounds) = (Instant::now(), 0);
    while start.elapsed() < WORK {
        team.run(&|member| {
            // About a tenth of a millisecond for each member.
            let mut value = member as f64 + 1.0;
            for _ in 0..50_000 {
                value = black_box(value * 1.000_000_1 + 1e-9);
            }
        });
        rounds += 1;
    }
    rounds
}

/// Eight processes, each with a team over all CPUs, against one.
fn oversubscribed() {
    let threads = allowed_cpus().expect("the CPUs of this process").len();
    let this = std::env::current_exe().expect("this program");
    let rounds = |processes: usize| -> u64 {
        let start = || {
            let mut command = Command::new(&this);
            command.args(["--child", &threads.to_string()]).stdout(Stdio::piped());
            command.spawn().expect("a child")
        };
        let children: Vec<_> = (0..processes).map(|_| start()).collect();
        let answer = |child: std::process::Child| {
            let output = child.wait_with_output().expect("a child's answer");
            String::from_utf8_lossy(&output.stdout)
                .trim()
                .parse::<u64>()
                .expect("a number")
        };
        children.into_iter().map(answer).sum()
    };
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        alone.push(rounds(1) as f64);
        together.push(rounds(PROCESSES) as f64);
    }
    let (alone, together) = (median(alone), median(together));
    println!(
        "oversubscribed: {PROCESSES} processes of {threads} threads do {:.0} % of what one does ({together:.0} and {alone:.0} rounds)",
        together / alone * 100.0
    );
}
