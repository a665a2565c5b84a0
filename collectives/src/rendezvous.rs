//! How the ranks meet over TCP.
//!
//! Rank 0 listens at the meeting point. Every other rank connects to it, proves that it knows the job's secret, says
//! who it is and where it listens itself; when all have come, rank 0 sends everyone the list. Then each rank connects
//! to those between 0 and itself. The connections stay: they carry the data. Listening ends when all have met.
//!
//! ```text
//! connecting                               accepting
//! greeting: magic, challenge        ->
//!                                   <-     greeting: magic, challenge
//! introduction, proof               ->     checked; a wrong proof closes this connection only
//!                                   <-     verdict, proof of it
//! ```
//!
//! Everything before the proof has a fixed size and five seconds in all, on a thread of its own, so strangers can
//! neither block nor crash the meeting. Who proves the secret but does not fit (another world size, protocol or a rank
//! that has come already) is told why, and ends the meeting on both sides.

use std::time::{Duration, Instant};

use crate::communicator::{Communicator, Position};
#[cfg(not(feature = "mpi"))]
use crate::error::Error;
use crate::error::Result;
use crate::launch::Launch;
use crate::options::{Backend, Options};
use crate::transport::mesh::Wire;
use crate::transport::{Wired, mesh, shared};

mod address;
mod channel;
mod join;
mod meeting_file;
mod reception;

use join::Join;

/// The version of everything that ranks say to each other.
const PROTOCOL: u32 = 2;
const MAGIC: [u8; 8] = *b"azulejo\n";
/// Time for one handshake, all in all.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Joins the job that `launch` describes.
pub fn connect(launch: &Launch, options: &Options) -> Result<Communicator> {
    let position = Position {
        rank: launch.rank,
        world_size: launch.world_size,
        local_rank: launch.local_rank,
        local_size: launch.local_size,
    };
    let by_mpi = match options.backend {
        Backend::Automatic => cfg!(feature = "mpi") && launch.by_mpi(),
        Backend::Hybrid | Backend::Tcp => false,
        Backend::Mpi => true,
    };
    if by_mpi {
        let nodes = (0..launch.world_size).map(|rank| rank / launch.local_size.max(1));
        return Communicator::start(position, nodes.collect(), "mpi", over_mpi(launch)?, options);
    }
    let deadline = Instant::now() + options.join_deadline;
    let streams = if launch.world_size == 1 {
        vec![None]
    } else {
        Join::new(launch, options)?.meet()?
    };
    let shares = options.backend != Backend::Tcp;
    let (wires, nodes) = shared::meet::share(streams, launch.rank, shares, options.node.as_deref(), deadline)?;
    let of_memory = |wire: &Wire| matches!(wire, Wire::Shared(_));
    let name = match (
        wires.iter().flatten().all(of_memory),
        wires.iter().flatten().any(of_memory),
    ) {
        (true, true) => "shared memory",
        (false, true) => "shared memory and tcp",
        _ => "tcp",
    };
    Communicator::start(position, nodes, name, mesh::wire(wires, options.silence)?, options)
}

#[cfg(feature = "mpi")]
fn over_mpi(launch: &Launch) -> Result<Wired> {
    Ok(crate::transport::mpi::wire(launch.rank, launch.world_size))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_: &Launch) -> Result<Wired> {
    Err(Error::Mpi {
        reason: "this program was built without the feature \"mpi\"".into(),
    })
}
