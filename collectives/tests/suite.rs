//! One suite, instantiated for each transport, world size and segment size.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "common/cases.rs"]
mod cases;
#[path = "common/joined.rs"]
mod joined;

use azulejo_collectives::{Communicator, Options, threads_with};

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

#[test]
fn tcp_of_every_world_size() {
    for world in WORLDS {
        all_pass("TCP", joined::over_tcp(world, &Options::default()));
    }
}

#[test]
fn tcp_with_tiny_segments() {
    for world in [2, 5] {
        let options = Options {
            segment_bytes: 1000,
            ..Options::default()
        };
        all_pass("TCP, segments of 1000 bytes", joined::over_tcp(world, &options));
    }
}

#[test]
fn shared_memory_of_every_world_size() {
    for world in WORLDS {
        let ranks = joined::over_memory(world, &Options::default());
        assert!(
            ranks
                .iter()
                .all(|comm| world == 1 || comm.transport() == "shared memory")
        );
        all_pass("shared memory", ranks);
    }
}

#[test]
fn shared_memory_with_tiny_segments() {
    for world in [2, 5] {
        let options = Options {
            segment_bytes: 1000,
            ..Options::default()
        };
        all_pass(
            "shared memory, segments of 1000 bytes",
            joined::over_memory(world, &options),
        );
    }
}

#[test]
fn nodes_that_share_memory_inside_and_talk_tcp_outside() {
    for (world, per_node) in [(4, 2), (8, 2), (8, 4), (6, 3), (5, 2), (3, 1)] {
        let ranks = joined::over_both(world, per_node, &Options::default());
        let expected = if per_node == 1 { "tcp" } else { "shared memory and tcp" };
        assert_eq!(ranks[0].transport(), expected);
        all_pass(&format!("nodes of {per_node}"), ranks);
    }
}
