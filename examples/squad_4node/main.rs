//! Fine-tunes BERT or DistilBERT for question answering over several processes: launcher and worker in one program.
//!
//! Without arguments it starts four "nodes" of two processes on this machine, which train, evaluate and save a small
//! model on built-in data. With the flags of `run_qa.py` it does the same on real data and weights. Started by
//! torchrun, mpirun, a PyTorchJob or srun it is one of the job's workers.

use std::fmt;
use std::process::exit;
use std::time::Duration;

/// A line on standard output. That nobody reads it any more is no reason to end a run, which `println!` would do.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        drop(writeln!(std::io::stdout(), $($words)*));
    }};
}
/// The same on standard error, in one write, so that lines of several processes do not mix.
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        drop(std::io::stderr().write_all((format!($($words)*) + "\n").as_bytes()));
    }};
}

mod answer;
mod args;
mod interrupt;
mod place;
mod progress;
mod records;
mod sources;
mod worker;

use azulejo_collectives::launch::{self, Local, Remote, Role, STATUS_PEER_LOST, parse_host_file};

use args::Args;

/// Every allocation of the program, tensors included.
#[global_allocator]
static ALLOCATOR: azulejo_allocator::Global = azulejo_allocator::Global::new();

/// Any error; it is printed where the program ends.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The error of a rank that has nothing to add, because rank 0 has said what is wrong.
#[derive(Debug)]
struct Told;

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rank 0 has said what is wrong")
    }
}

impl std::error::Error for Told {}

fn main() {
    // Asked first, on the main thread: a rank ends with its launcher.
    let role = launch::detect().unwrap_or_else(|e| fail(&e.into()));
    let (args, warnings) = args::parse(std::env::args_os()).unwrap_or_else(|e| e.exit());
    let status = match role {
        Role::Rank(launch) => {
            if launch.rank == 0 {
                warnings.iter().for_each(|line| complain!("warning: {line}"));
            }
            match worker::run(&args, &launch) {
                Ok(status) => status,
                Err(e) => fail(&e),
            }
        }
        Role::Node(share) => run(Local::share(program(), &share)),
        _ => start(&args),
    };
    exit(status);
}

/// Starts the job that the arguments describe.
fn start(args: &Args) -> i32 {
    if let Some(hosts) = &args.hostfile {
        let text = std::fs::read_to_string(hosts)
            .unwrap_or_else(|e| fail(&format!("cannot read the host file {}: {e}", hosts.display()).into()));
        let hosts = parse_host_file(&text).unwrap_or_else(|e| fail(&e.into()));
        let (ranks, per_host) = args.ranks_and_ppn();
        let ranks = ranks.unwrap_or(hosts.len() * per_host.unwrap_or(1));
        if ranks > launch::LARGEST_WORLD {
            fail(
                &format!(
                    "asked for {ranks} ranks, at most {} are possible",
                    launch::LARGEST_WORLD
                )
                .into(),
            );
        }
        let mut job = Remote::new(program(), hosts, ranks, per_host).arguments(std::env::args_os().skip(1));
        if let Some(port) = args.master_port {
            job = job.port(port);
        }
        for (name, value) in &args.genv {
            job = job.variable(name, value);
        }
        return ended(job.run());
    }
    let (nodes, per_node) = args.nodes_and_ppn();
    let mut job = Local::new(program(), nodes, per_node);
    for (name, value) in &args.genv {
        job = job.variable(name, value);
    }
    if nodes * per_node > 1 {
        say!("nodes: {nodes}, processes on each: {per_node}, all on this machine");
    }
    run(job)
}

fn run(job: Local) -> i32 {
    ended(job.arguments(std::env::args_os().skip(1)).run())
}

fn ended(outcome: azulejo_collectives::Result<launch::Outcome>) -> i32 {
    let outcome = outcome.unwrap_or_else(|e| fail(&e.into()));
    // A rank that ends with status 1 has said why itself.
    if let Some((rank, how)) = &outcome.failed
        && outcome.status != 1
    {
        complain!("error: rank {rank} {how}");
    }
    outcome.status
}

fn program() -> std::path::PathBuf {
    std::env::current_exe().unwrap_or_else(|e| fail(&format!("cannot find this program's own file: {e}").into()))
}

/// Says what went wrong and ends the process: 75 where another rank is to blame, so that the launcher looks for its
/// status, else 1.
fn fail(error: &Failure) -> ! {
    if !error.is::<Told>() {
        complain!("error: {error}");
    }
    exit(if blames_a_peer(error.as_ref()) {
        STATUS_PEER_LOST
    } else {
        1
    });
}

fn blames_a_peer(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(e) = next {
        if let Some(e) = e.downcast_ref::<azulejo_collectives::Error>() {
            return matches!(e, azulejo_collectives::Error::PeerLost { .. });
        }
        next = e.source();
    }
    false
}

/// How long ranks may be apart: rank 0 saves and scores while the others wait.
const DEADLINE: Duration = Duration::from_secs(1800);
