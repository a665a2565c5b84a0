//! Does the suite pass over this launcher and transport? Each rank runs every case and the ranks compare notes.
//!
//! `ring_check [NODES PER_NODE]` starts its own ranks; under mpirun, torchrun or srun it is one of theirs.
//! Prints one line a case on rank 0 and ends with `N passed, N failed`. With `RING_CHECK_FOREVER` set it goes on with
//! all-reduces until a rank fails, for trials in which one does.

#![expect(clippy::print_stdout, reason = "the program's answer")]

#[path = "../tests/common/cases.rs"]
mod cases;

use azulejo_collectives::launch::{Launch, Local, Role, STATUS_PEER_LOST, detect};
use azulejo_collectives::{Error, Options, ReduceOp, connect};

fn main() {
    let status = match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("ring_check: {error}");
            if error.failed_rank().is_some() {
                STATUS_PEER_LOST
            } else {
                1
            }
        }
    };
    std::process::exit(status);
}

fn run() -> Result<i32, Error> {
    let program = std::env::current_exe().unwrap_or_else(|_| "ring_check".into());
    match detect()? {
        Role::Rank(launch) => check(&launch),
        Role::Node(share) => Ok(Local::share(program, &share).run()?.status),
        _ => {
            let number = |i| std::env::args().nth(i).and_then(|text: String| text.parse().ok());
            let (nodes, per_node) = (number(1).unwrap_or(2), number(2).unwrap_or(2));
            Ok(Local::new(program, nodes, per_node).run()?.status)
        }
    }
}

fn check(launch: &Launch) -> Result<i32, Error> {
    let comm = connect(launch, &Options::default())?;
    let (mut passed, mut failed) = (0, 0);
    for (name, case) in cases::CASES {
        let reason = case(&comm).err();
        if let Some(reason) = &reason {
            eprintln!("rank {}: {name}: {reason}", comm.rank());
        }
        let mut failures = [u32::from(reason.is_some())];
        comm.all_reduce(&mut failures, ReduceOp::Sum)?;
        if failures == [0] {
            passed += 1
        } else {
            failed += 1
        }
        if comm.rank() == 0 {
            println!("{} {name}", if failures == [0] { "ok    " } else { "FAILED" });
        }
    }
    if comm.rank() == 0 {
        println!(
            "{} ranks by {} over {}",
            comm.world_size(),
            launch.source,
            comm.transport()
        );
        println!("{passed} passed, {failed} failed");
    }
    if std::env::var_os("RING_CHECK_FOREVER").is_some() {
        println!("under way");
        loop {
            comm.all_reduce(&mut vec![1.0_f32; 100_000], ReduceOp::Max)?;
        }
    }
    drop(comm);
    Ok(i32::from(failed > 0))
}
