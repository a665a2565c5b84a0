//! How long does an all-reduce (sum of f32) take between processes of this machine?
//!
//! `cargo bench -p azulejo-collectives --bench all_reduce -- [--ranks N] [--json] [--tcp] [--segment BYTES]`. Prints the
//! median and the best of repeated runs, as the machine is seldom quiet; `algbw` is the buffer's bytes over the median.

#![expect(clippy::print_stdout, reason = "the program's answer")]

use std::time::Instant;

use azulejo_collectives::launch::{Local, Role, detect};
use azulejo_collectives::{Backend, Communicator, Error, Options, ReduceOp, connect};

const BYTES: [usize; 7] = [4, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 25 << 20, 266 << 20];
/// Bytes moved per size, about: small sizes are repeated more often.
const VOLUME: usize = 400_000_000;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|word| word == name);
    let after = |name: &str| {
        let mut rest = arguments.iter().skip_while(|word| *word != name);
        rest.nth(1).and_then(|n| n.parse::<usize>().ok())
    };
    match detect()? {
        Role::Rank(launch) => {
            let mut options = Options::default();
            if has("--tcp") {
                options.backend = Backend::Tcp;
            }
            if let Some(bytes) = after("--segment") {
                options.segment_bytes = bytes;
            }
            measure(&connect(&launch, &options)?, has("--json"))
        }
        _ => {
            let program = std::env::current_exe().unwrap_or_else(|_| "all_reduce".into());
            let job = Local::new(program, 1, after("--ranks").unwrap_or(2)).arguments(&arguments);
            std::process::exit(job.run()?.status)
        }
    }
}

fn measure(comm: &Communicator, json: bool) -> Result<(), Error> {
    for bytes in BYTES {
        let mut buffer = vec![0.0_f32; bytes / 4];
        let mut times = Vec::new();
        // Back to back: a single small operation may find the other ranks' messages waiting already.
        let in_a_row = (VOLUME / 100 / bytes).clamp(1, 100);
        for _ in 0..(VOLUME / bytes / in_a_row).clamp(5, 50) {
            comm.barrier()?;
            let start = Instant::now();
            for _ in 0..in_a_row {
                buffer = comm.start_all_reduce(buffer, ReduceOp::Sum, 0).wait()?;
            }
            times.push(start.elapsed().as_secs_f64() / in_a_row as f64);
        }
        times.sort_by(f64::total_cmp);
        let (median, best) = (times[times.len() / 2], times[0]);
        let ranks = comm.world_size();
        let rate = bytes as f64 / median / 1e9;
        let transport = comm.transport();
        match (comm.rank(), json) {
            (0, true) => println!(
                "{{\"transport\":\"{transport}\",\"algorithm\":\"direct\",\"dtype\":\"f32\",\"bytes\":{bytes},\
                 \"ranks\":{ranks},\"seconds\":{median:.3e},\"best\":{best:.3e},\"algbw\":{rate:.4}}}",
            ),
            (0, false) => println!(
                "{transport}, {ranks} ranks, {bytes:>9} bytes: median {:>10.1} us, best {:>10.1} us, {rate:.3} GB/s",
                median * 1e6,
                best * 1e6
            ),
            _ => {}
        }
    }
    Ok(())
}
