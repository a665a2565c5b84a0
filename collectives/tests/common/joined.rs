//! Ranks as threads, but joined as processes are.

#![allow(dead_code, reason = "each test program uses its own part")]

use azulejo_collectives::launch::{Launch, Meeting};
use azulejo_collectives::{Backend, Communicator, Options, connect};

/// `world` ranks over TCP alone.
pub(crate) fn over_tcp(world: usize, options: &Options) -> Vec<Communicator> {
    let tcp = |_| Options {
        backend: Backend::Tcp,
        ..options.clone()
    };
    joined(world, tcp)
}

/// `world` ranks that share memory.
pub(crate) fn over_memory(world: usize, options: &Options) -> Vec<Communicator> {
    joined(world, |_| options.clone())
}

/// `world` ranks on nodes of `per_node` each: shared memory inside a node, TCP between nodes.
pub(crate) fn over_both(world: usize, per_node: usize, options: &Options) -> Vec<Communicator> {
    let on_node = |rank: usize| Options {
        node: Some(format!("node {}", rank / per_node)),
        ..options.clone()
    };
    joined(world, on_node)
}

fn joined(world: usize, options: impl Fn(usize) -> Options) -> Vec<Communicator> {
    let folder = tempfile::tempdir().unwrap();
    let launch = |rank| Launch {
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
        let join = |rank| {
            let (launch, options) = (launch(rank), options(rank));
            scope.spawn(move || connect(&launch, &options).unwrap())
        };
        let ranks: Vec<_> = (0..world).map(join).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
