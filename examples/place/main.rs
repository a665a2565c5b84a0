//! Starts any program under a placement plan, without numactl and without root.
//!
//! ```text
//! place -- ./train --epochs 2                 one process on the physical cores of the machine
//! place --ranks package -- ./train            one process a socket, each told its LOCAL_RANK
//! mpirun -n 2 place -- ./train                each rank takes its part, whoever has started it
//! place --print --ranks 4 -- ./train          the plan and the equal numactl lines, and nothing is started
//! ```
//!
//! The program inherits CPUs and memory policy and gets the environment that makes its OpenMP and oneCCL keep to them.
//! What the kernel did not grant is said in one line each on standard error.
#![expect(clippy::print_stdout, reason = "the program's answer")]

mod children;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use azulejo_topology::{Error, LocalRank, Machine, Plan, Ranks, Request, apply};
use clap::Parser;

/// Starts a program on its own cores, with its memory beside them.
#[derive(Parser, Debug)]
#[command(
    name = "place",
    after_help = "Under torchrun, Open MPI, MPICH, Intel MPI and srun, each rank takes its part of \
                                        the machine. OMP_NUM_THREADS, KMP_HW_SUBSET, CCL_WORKER_COUNT and \
                                        CCL_WORKER_AFFINITY are understood as requests."
)]
struct Args {
    /// Processes to start: a number, package, numa or l3, or two on each as in numa:2. A rank of a launcher starts one
    #[arg(long, value_name = "RANKS")]
    ranks: Option<Ranks>,
    /// Compute threads of a process
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Hardware threads of a core that compute
    #[arg(long, value_name = "N")]
    threads_per_core: Option<usize>,
    /// Cores of a process for its collectives worker [default: 0 for one process, else 1]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Cores of a package left to the system
    #[arg(long, value_name = "N")]
    reserve: Option<usize>,
    /// Use the fastest kind of core only
    #[arg(long)]
    performance_cores: bool,
    /// Use CPUs that are kept from the scheduler as well
    #[arg(long)]
    isolated: bool,
    /// Place memory on persistent, CXL and unknown memory as well
    #[arg(long)]
    slow_memory: bool,
    /// Leave the program's environment as it is
    #[arg(long)]
    keep_environment: bool,
    /// Print the plan and the equal numactl lines; start nothing
    #[arg(long)]
    print: bool,
    /// Say on standard error what the kernel granted
    #[arg(long, short)]
    verbose: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("place: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<u8, Error> {
    let local = LocalRank::from_env()?;
    // Without a wish, the launcher knows how many there are; alone there is one.
    let launched = local.as_ref().map_or(1, |local| local.ranks);
    let ranks = args.ranks.unwrap_or(Ranks::Total(launched));
    let plan = Plan::make(&Machine::read()?, &request(args, ranks)?, ranks)?;
    if let Some(local) = local.as_ref().filter(|local| local.ranks != plan.ranks.len()) {
        return Err(Error::Request {
            asked: format!("{ranks} as ranks, which makes {} here", plan.ranks.len()),
            available: format!("a launcher that has started {} ({})", local.ranks, local.source),
        });
    }
    if args.print {
        println!("{plan}");
        for rank in &plan.ranks {
            println!("{} {}", rank.numactl().join(" "), args.command.join(" "));
        }
        return Ok(0);
    }
    match local {
        Some(local) => {
            if local.bound && args.verbose {
                eprintln!("place: the launcher has bound this rank itself; its CPUs are shared out, not the machine's");
            }
            Ok(become_program(args, &plan, local.rank))
        }
        None if plan.ranks.len() == 1 => Ok(become_program(args, &plan, 0)),
        None => Ok(children::run(
            args.command.as_slice(),
            plan.ranks.len(),
            |command, rank| {
                command.args(own_flags());
                command.env("LOCAL_RANK", rank.to_string());
                command.env("LOCAL_WORLD_SIZE", plan.ranks.len().to_string());
            },
        )),
    }
}

/// The flags this process was given, up to its command, for a copy of itself that is one of the ranks.
fn own_flags() -> Vec<String> {
    let mut flags: Vec<String> = std::env::args().skip(1).collect();
    let own = Args::parse().command.len();
    flags.truncate(flags.len() - own);
    flags.retain(|flag| flag != "--");
    flags.push("--".to_owned());
    flags
}

fn request(args: &Args, ranks: Ranks) -> Result<Request, Error> {
    let mut request = Request::from_env()?;
    // Alone there is nothing to exchange, and then no core is spared for it.
    if ranks == Ranks::Total(1) {
        request.workers_per_rank = 0;
    }
    request.threads_per_rank = args.threads.or(request.threads_per_rank);
    request.threads_per_core = args.threads_per_core.unwrap_or(request.threads_per_core);
    request.workers_per_rank = args.workers.unwrap_or(request.workers_per_rank);
    request.os_reserve = args.reserve.unwrap_or(request.os_reserve);
    request.performance_cores = args.performance_cores;
    request.isolated = args.isolated;
    request.slow_memory = args.slow_memory;
    Ok(request)
}

/// Turns this process into the program, under its part of the plan. Returns only when that fails.
fn become_program(args: &Args, plan: &Plan, rank: usize) -> u8 {
    let failed = |error: &dyn std::fmt::Display| {
        eprintln!("place: {error}");
        1
    };
    let part = match plan.rank(rank) {
        Ok(part) => part,
        Err(error) => return failed(&error),
    };
    let report = apply(part);
    if args.verbose {
        eprintln!("place: rank {rank} of {}: {report}", plan.ranks.len());
    } else {
        for difference in &report.differences {
            eprintln!("place: {difference}");
        }
    }
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    if !args.keep_environment {
        match plan.environment(rank) {
            Ok(variables) => command.envs(variables),
            Err(error) => return failed(&error),
        };
    }
    let error = command.exec();
    eprintln!("place: cannot start {}: {error}", args.command[0]);
    // As shells have it: 127 where there is no such program, 126 where it cannot be run.
    if error.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}
