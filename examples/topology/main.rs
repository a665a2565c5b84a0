//! What is this machine made of, and where would the ranks of a job go?
//!
//! ```text
//! cargo run -p azulejo-examples --example topology                        the machine drawn as text, and a plan
//! cargo run -p azulejo-examples --example topology -- --ranks numa:2      the plan for two ranks on each NUMA node
//! cargo run -p azulejo-examples --example topology -- --root DIR --json   a recorded machine, as JSON
//! cargo run -p azulejo-examples --example topology -- --svg machine.svg   the drawing as a picture
//! ```

mod draw;
mod svg;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use azulejo_topology::{Error, Machine, Plan, Ranks, Request};
use clap::Parser;

/// Draws this machine, or a recorded one, and plans the ranks of a job on it.
#[derive(Parser, Debug)]
#[command(
    name = "topology",
    after_help = "OMP_NUM_THREADS, KMP_HW_SUBSET, CCL_WORKER_COUNT and CCL_WORKER_AFFINITY are \
                                           understood as requests."
)]
struct Args {
    /// Read the sys and proc folders below this one instead of the running system
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Ranks to plan for: a number, package, numa or l3, or two on each as in numa:2
    #[arg(long, default_value = "package", value_name = "RANKS")]
    ranks: Ranks,
    /// Use the fastest kind of core only
    #[arg(long)]
    performance_cores: bool,
    /// Use CPUs that are kept from the scheduler as well
    #[arg(long)]
    isolated: bool,
    /// Place memory on persistent, CXL and unknown memory as well
    #[arg(long)]
    slow_memory: bool,
    /// Print the machine as JSON and nothing else
    #[arg(long, conflicts_with = "plan_json")]
    json: bool,
    /// Print the plan as JSON and nothing else
    #[arg(long)]
    plan_json: bool,
    /// Write the drawing as a picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the plan's numactl and taskset lines, the environment of each rank, and a rank file for Open MPI
    #[arg(long)]
    export: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("topology: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    let machine = match &args.root {
        Some(root) => Machine::read_from(root).map_err(text)?,
        None => Machine::read().map_err(text)?,
    };
    let mut request = Request::from_env().map_err(text)?;
    request.performance_cores = args.performance_cores;
    request.isolated = args.isolated;
    request.slow_memory = args.slow_memory;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::picture(&machine))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if args.json {
        return print(&format!("{:#}", machine.to_json()));
    }
    let plan = Plan::make(&machine, &request, args.ranks).map_err(text)?;
    if args.plan_json {
        return print(&format!("{:#}", plan.to_json()));
    }
    let mut out = format!("{machine}\n\n{}\n{plan}", draw::text(&machine));
    if args.export {
        for (index, rank) in plan.ranks.iter().enumerate() {
            out.push_str(&format!("\n\nrank {index}\n  {}", rank.numactl().join(" ")));
            out.push_str(&format!("\n  {}", rank.taskset().join(" ")));
            for (name, value) in plan.environment(index).map_err(text)? {
                out.push_str(&format!("\n  {name}={value}"));
            }
        }
        out.push_str(&format!("\n\nrank file for Open MPI\n{}", plan.rank_file("localhost")));
    }
    print(out.trim_end())
}

/// Prints a text; a reader that has seen enough and is gone is no failure.
fn print(text: &str) -> Result<(), String> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot print: {error}")),
        _ => Ok(()),
    }
}
