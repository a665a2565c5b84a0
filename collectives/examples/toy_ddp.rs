//! Data-parallel training in thirty lines: four processes, each with data of its own, find one line through all points.
//!
//! `cargo run -p azulejo-collectives --example toy_ddp` starts its own four ranks; under mpirun, torchrun or srun it is
//! one of theirs.

#![expect(clippy::print_stdout, reason = "the program's answer")]

use azulejo_collectives::launch::{Local, Role, detect};
use azulejo_collectives::{Error, Options, ReduceOp, connect};

fn main() -> Result<(), Error> {
    let program = std::env::current_exe().unwrap_or_else(|_| "toy_ddp".into());
    let launch = match detect()? {
        Role::Rank(launch) => launch,
        Role::Node(share) => std::process::exit(Local::share(program, &share).run()?.status),
        _ => std::process::exit(Local::new(program, 2, 2).run()?.status),
    };
    let comm = connect(&launch, &Options::default())?;
    // Points of y = 3 x - 1; no rank has those of another.
    let points = (0..8)
        .map(|i| (comm.rank() * 8 + i) as f32 / 32.0)
        .map(|x| (x, 3.0 * x - 1.0));
    let (mut slope, mut shift) = (0.0_f32, 0.0_f32);
    for step in 0..=400 {
        let (mut loss, mut gradient) = (0.0, [0.0_f32; 2]);
        for (x, y) in points.clone() {
            let error = slope * x + shift - y;
            loss += error * error / 8.0;
            gradient[0] += 2.0 * error * x / 8.0;
            gradient[1] += 2.0 * error / 8.0;
        }
        // The one line that makes it parallel: every rank goes on with the mean of all gradients.
        comm.all_reduce(&mut gradient, ReduceOp::Average)?;
        slope -= 0.5 * gradient[0];
        shift -= 0.5 * gradient[1];
        if comm.rank() == 0 && step % 100 == 0 {
            println!("step {step}: y = {slope:.3} x + {shift:.3}, loss of rank 0 {loss:.6}");
        }
    }
    Ok(())
}
