//! Ranks as threads, but joined over TCP as processes are.

use azulejo_collectives::launch::{Launch, Meeting};
use azulejo_collectives::{Communicator, Options, connect};

pub(crate) fn over_tcp(world: usize, options: &Options) -> Vec<Communicator> {
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
