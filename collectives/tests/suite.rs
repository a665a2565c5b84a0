//! One suite, instantiated for each transport, world size and segment size.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "common/cases.rs"]
mod cases;

use azulejo_collectives::launch::{Launch, Meeting};
use azulejo_collectives::{Communicator, Options, connect, threads_with};

const WORLDS: [usize; 6] = [1, 2, 3, 4, 5, 8];

/// Runs all cases on this rank; the failures by name.
fn run_all(comm: &Communicator) -> Vec<String> {
    let failed = |(name, case): &cases::Case| case(comm).err().map(|reason| format!("{name}: {reason}"));
    cases::CASES.iter().filter_map(failed).collect()
}

/// Runs the suite on all ranks, each on its own thread.
fn all_pass(what: &str, ranks: Vec<Communicator>) {
    let world = ranks.len();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let run = |comm: Communicator| {
            let failures = run_all(&comm);
            failures
                .into_iter()
                .map(move |failure| format!("rank {}: {failure}", comm.rank()))
                .collect::<Vec<_>>()
        };
        let ranks: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        ranks
            .into_iter()
            .flat_map(|rank| rank.join().expect("the rank's thread ends without a panic"))
            .collect()
    });
    assert!(
        failures.is_empty(),
        "{what}, world of {world}:\n{}",
        failures.join("\n")
    );
}

#[test]
fn threads_of_every_world_size() {
    for world in WORLDS {
        all_pass("threads", threads_with(world, &Options::default()).unwrap());
    }
}

#[test]
fn threads_with_tiny_segments() {
    for world in WORLDS {
        let options = Options {
            segment_bytes: 1000,
            ..Options::default()
        };
        all_pass(
            "threads, segments of 1000 bytes",
            threads_with(world, &options).unwrap(),
        );
    }
}

/// Ranks as threads, but joined over TCP as processes are.
fn over_tcp(world: usize, options: &Options) -> Vec<Communicator> {
    let folder = tempfile::tempdir().unwrap();
    let launch = &|rank| Launch {
        rank,
        world_size: world,
        local_rank: rank,
        local_size: world,
        machine_rank: rank,
        machine_size: world,
        meeting: Meeting::File(folder.path().join("meeting")),
        secret: None,
        source: "test",
    };
    std::thread::scope(|scope| {
        let join = |rank| scope.spawn(move || connect(&launch(rank), options).unwrap());
        let ranks: Vec<_> = (0..world).map(join).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn tcp_of_every_world_size() {
    for world in WORLDS {
        all_pass("TCP", over_tcp(world, &Options::default()));
    }
}

#[test]
fn tcp_with_tiny_segments() {
    for world in [2, 5] {
        let options = Options {
            segment_bytes: 1000,
            ..Options::default()
        };
        all_pass("TCP, segments of 1000 bytes", over_tcp(world, &options));
    }
}
