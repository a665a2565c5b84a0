//! How long does an all-reduce of f32 take over TCP between processes of this machine?
//!
//! `cargo bench -p azulejo-collectives --bench all_reduce -- [--ranks N] [--json]`. The minimum of repeated runs, as
//! the machine is seldom quiet; `algbw` is the buffer's bytes over that time.

#![expect(clippy::print_stdout, reason = "the program's answer")]

use std::time::Instant;

use azulejo_collectives::launch::{Local, Role, detect};
use azulejo_collectives::{Communicator, Error, Options, ReduceOp, connect};

const BYTES: [usize; 6] = [4, 4 << 10, 64 << 10, 1 << 20, 25_000_000, 100_000_000];
/// Bytes moved per size, about: small sizes are repeated more often.
const VOLUME: usize = 400_000_000;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        arguments
            .iter()
            .skip_while(|word| *word != name)
            .nth(1)
            .and_then(|n| n.parse().ok())
    };
    match detect()? {
        Role::Rank(launch) => measure(
            &connect(&launch, &Options::default())?,
            arguments.iter().any(|a| a == "--json"),
        ),
        _ => {
            let program = std::env::current_exe().unwrap_or_else(|_| "all_reduce".into());
            let job = Local::new(program, 1, after("--ranks").unwrap_or(2)).arguments(&arguments);
            std::process::exit(job.run()?.status)
        }
    }
}

fn measure(comm: &Communicator, json: bool) -> Result<(), Error> {
    for bytes in BYTES {
        let mut buffer = vec![1.0_f32; bytes / 4];
        let mut best = f64::INFINITY;
        // Back to back: a single small operation may find the other ranks' messages waiting already.
        let in_a_row = (VOLUME / 100 / bytes).clamp(1, 100);
        for _ in 0..(VOLUME / bytes / in_a_row).clamp(5, 50) {
            comm.barrier()?;
            let start = Instant::now();
            for _ in 0..in_a_row {
                buffer = comm.start_all_reduce(buffer, ReduceOp::Max, 0).wait()?;
            }
            best = best.min(start.elapsed().as_secs_f64() / in_a_row as f64);
        }
        let ranks = comm.world_size();
        let rate = bytes as f64 / best / 1e9;
        match (comm.rank(), json) {
            (0, true) => println!(
                "{{\"transport\":\"{}\",\"algorithm\":\"direct\",\"dtype\":\"f32\",\"bytes\":{bytes},\"ranks\":{ranks},\
                 \"seconds\":{best:.3e},\"algbw\":{rate:.4}}}",
                comm.transport()
            ),
            (0, false) => println!(
                "{ranks} ranks, {bytes:>9} bytes: {:>10.1} us, {rate:.3} GB/s",
                best * 1e6
            ),
            _ => {}
        }
    }
    Ok(())
}
