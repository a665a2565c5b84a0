//! How fast is each operation between these ranks, and is every result right?
//!
//! `cargo run --release -p azulejo-collectives --example collectives_perf -- --ppn 4 --op all_reduce` starts its own ranks;
//! under mpirun, torchrun or srun it is one of theirs. For each size: the time of one operation, which is the mean of a
//! row of them on the slowest rank; `algbw`, the buffer's bytes over the time; `busbw`, that times the share of the buffer
//! which each rank must send at least (all-reduce: 2(N-1)/N; broadcast and reduce: 1; others: (N-1)/N); and how many values
//! were wrong. The buffer is that of one rank: for all-gather and scatter the whole result, for all-to-all what a rank sends.

#![expect(clippy::print_stdout, reason = "the program's answer")]

use std::time::Instant;

use azulejo_collectives::launch::{Local, Role, STATUS_PEER_LOST, detect};
use azulejo_collectives::{Backend, Communicator, Element, Error, Options, ReduceOp, connect};
use clap::{Parser, ValueEnum};
use half::{bf16, f16};

/// Sums over more would not be exact in bf16 and u8.
const MOST_RANKS: usize = 63;

/// Measures collective operations.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Which operations; all if not given
    #[arg(long, value_enum, value_delimiter = ',')]
    op: Vec<Op>,
    /// Type of the values
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Type,
    /// Smallest buffer: bytes, or with K, M or G
    #[arg(long, value_parser = bytes, default_value = "1K")]
    min: usize,
    /// Largest buffer
    #[arg(long, value_parser = bytes, default_value = "16M")]
    max: usize,
    /// From one size to the next
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=1024), default_value = "4")]
    factor: u64,
    /// Operations in a row
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000), default_value = "20")]
    iterations: u64,
    /// Operations before them that are not counted
    #[arg(long, default_value = "5")]
    warmup: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// No shared memory between ranks of one machine
    #[arg(long)]
    tcp: bool,
    /// Nodes to stand for, all on this machine
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Ranks on each
    #[arg(long, default_value = "2", value_parser = clap::value_parser!(u16).range(1..=64))]
    ppn: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Op {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
    Scatter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    F32,
    F64,
    Bf16,
    F16,
    I32,
    I64,
    U8,
}

fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.to_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 1 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<usize>().ok().filter(|&n| n > 0);
    number
        .and_then(|n| n.checked_mul(unit))
        .filter(|&n| n <= 1 << 40)
        .ok_or_else(|| "expected a number of bytes from 1 to 1024G, as 4096, 64K or 25M".into())
}

fn main() {
    let args = Args::parse();
    let status = run(&args).unwrap_or_else(|error| {
        eprintln!("collectives_perf: {error}");
        if error.failed_rank().is_some() {
            STATUS_PEER_LOST
        } else {
            1
        }
    });
    std::process::exit(status);
}

fn run(args: &Args) -> Result<i32, Error> {
    let program = std::env::current_exe().unwrap_or_else(|_| "collectives_perf".into());
    let words = std::env::args().skip(1);
    match detect()? {
        Role::Rank(launch) => {
            let backend = if args.tcp { Backend::Tcp } else { Backend::Automatic };
            let comm = connect(
                &launch,
                &Options {
                    backend,
                    ..Options::default()
                },
            )?;
            if comm.world_size() > MOST_RANKS {
                eprintln!(
                    "collectives_perf: {} ranks, at most {MOST_RANKS} can check their sums",
                    comm.world_size()
                );
                return Ok(2);
            }
            let perf = Perf { args, comm };
            match args.dtype {
                Type::F32 => perf.all(f32::from),
                Type::F64 => perf.all(f64::from),
                Type::Bf16 => perf.all(|n| bf16::from_f32(f32::from(n))),
                Type::F16 => perf.all(|n| f16::from_f32(f32::from(n))),
                Type::I32 => perf.all(i32::from),
                Type::I64 => perf.all(i64::from),
                Type::U8 => perf.all(|n| n),
            }
        }
        Role::Node(share) => Ok(Local::share(program, &share).arguments(words).run()?.status),
        _ => {
            let job = Local::new(program, args.nodes.into(), args.ppn.into()).arguments(words);
            Ok(job.run()?.status)
        }
    }
}

struct Perf<'a> {
    args: &'a Args,
    comm: Communicator,
}

impl Perf<'_> {
    /// All operations and sizes; the status to exit with.
    fn all<T: Element + PartialEq>(&self, value: impl Fn(u8) -> T) -> Result<i32, Error> {
        let ops = match &self.args.op[..] {
            [] => Op::value_variants(),
            ops => ops,
        };
        let mut wrong = 0;
        for &op in ops {
            self.heading::<T>(op);
            let mut size = self.args.min;
            while size <= self.args.max {
                wrong += self.one(op, size, &value)?;
                size = size.saturating_mul(self.args.factor as usize);
            }
        }
        if self.comm.rank() == 0 && !self.args.json {
            println!("{wrong} values were wrong");
        }
        Ok(i32::from(wrong > 0))
    }

    fn heading<T: Element>(&self, op: Op) {
        if self.comm.rank() == 0 && !self.args.json {
            println!(
                "{}, {}, {} ranks over {}",
                name(op),
                T::NAME,
                self.comm.world_size(),
                self.comm.transport()
            );
            println!(
                "{:>14} {:>12} {:>12} {:>10} {:>10} {:>8}",
                "bytes", "values", "time us", "algbw GB/s", "busbw GB/s", "wrong"
            );
        }
    }

    /// One operation at one size; how many values were wrong on all ranks.
    fn one<T: Element + PartialEq>(&self, op: Op, size: usize, value: &impl Fn(u8) -> T) -> Result<u64, Error> {
        let comm = &self.comm;
        let (rank, ranks) = (comm.rank(), comm.world_size());
        // Blocks of equal length, one for each rank.
        let block = (size / size_of::<T>()).div_ceil(ranks).max(1);
        let whole: Vec<T> = (0..block * ranks).map(|i| value(number(rank, i))).collect();

        let result = self.perform(op, whole.clone(), &whole)?;
        let expected = |i: usize| value(self.expected(op, block, i));
        let idle = op == Op::Reduce && rank != 0;
        let right = |(i, &got): (usize, &T)| idle || got == expected(i);
        let mut wrong = [result.iter().enumerate().filter(|&pair| !right(pair)).count() as u64];
        comm.all_reduce(&mut wrong, ReduceOp::Sum)?;

        let mut buffer = whole.clone();
        for _ in 0..self.args.warmup {
            buffer = self.perform(op, buffer, &whole)?;
        }
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..self.args.iterations {
            buffer = self.perform(op, buffer, &whole)?;
        }
        let mut seconds = [start.elapsed().as_secs_f64() / self.args.iterations as f64];
        comm.all_reduce(&mut seconds, ReduceOp::Max)?;
        if rank == 0 {
            self.show(op, &whole, seconds[0], wrong[0]);
        }
        Ok(wrong[0])
    }

    /// One operation. Those in place work on `buffer`; the result is what the next one begins with.
    fn perform<T: Element>(&self, op: Op, mut buffer: Vec<T>, whole: &[T]) -> Result<Vec<T>, Error> {
        let comm = &self.comm;
        let block = whole.len() / comm.world_size();
        match op {
            Op::AllReduce => comm.start_all_reduce(buffer, ReduceOp::Sum, 0).wait(),
            Op::Broadcast => comm.broadcast(&mut buffer, 0).map(|()| buffer),
            Op::Reduce => comm.reduce(&mut buffer, ReduceOp::Max, 0).map(|()| buffer),
            Op::ReduceScatter => comm.reduce_scatter(whole, ReduceOp::Sum),
            Op::AllGather => comm.all_gather(&whole[comm.rank() * block..][..block]),
            Op::AllToAll => comm.all_to_all(whole),
            Op::Scatter => comm.scatter(if comm.rank() == 0 { whole } else { &[] }, 0),
        }
    }

    /// What an operation gives as value `i` of this rank's result.
    fn expected(&self, op: Op, block: usize, i: usize) -> u8 {
        let (rank, ranks) = (self.comm.rank(), self.comm.world_size());
        let over = |i: usize| (0..ranks).map(move |rank| number(rank, i));
        match op {
            Op::AllReduce => over(i).sum(),
            Op::ReduceScatter => over(rank * block + i).sum(),
            Op::AllGather => number(i / block, i),
            Op::Broadcast => number(0, i),
            Op::Reduce => over(i).max().unwrap_or(0),
            Op::AllToAll => number(i / block, rank * block + i % block),
            Op::Scatter => number(0, rank * block + i),
        }
    }

    fn show<T: Element>(&self, op: Op, whole: &[T], seconds: f64, wrong: u64) {
        let ranks = self.comm.world_size() as f64;
        let least = match op {
            Op::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Op::Broadcast | Op::Reduce => 1.0,
            Op::ReduceScatter | Op::AllGather | Op::AllToAll | Op::Scatter => (ranks - 1.0) / ranks,
        };
        let bytes = size_of_val(whole);
        let algbw = bytes as f64 / seconds / 1e9;
        let busbw = algbw * least;
        if self.args.json {
            println!(
                "{{\"operation\":\"{}\",\"transport\":\"{}\",\"dtype\":\"{}\",\"bytes\":{bytes},\"ranks\":{ranks},\
                 \"seconds\":{seconds:.3e},\"algbw\":{algbw:.3e},\"busbw\":{busbw:.3e},\"wrong\":{wrong}}}",
                name(op),
                self.comm.transport(),
                T::NAME
            );
        } else {
            let (values, micros) = (whole.len(), seconds * 1e6);
            println!("{bytes:>14} {values:>12} {micros:>12.1} {algbw:>10.3} {busbw:>10.3} {wrong:>8}");
        }
    }
}

/// Value `i` of rank `rank` before an operation: so small that the sum over all ranks, of which there are at most [`MOST_RANKS`], is
/// exact in every type.
fn number(rank: usize, i: usize) -> u8 {
    ((rank + i) % 5) as u8
}

fn name(op: Op) -> String {
    op.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}
