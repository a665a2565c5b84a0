//! Time of a training step without padding: forward and backward, then the optimiser.
//!
//! `cargo bench -p azulejo-bert --bench step -- [--smoke] [--rounds N] [--threads N] [--sequences N] [--model distilbert|minilm] [--precision bf16|f32]`
//!
//! Lengths are those of SQuAD at 384, roughly: 161 tokens on average. Executed operations are counted from the sizes:
//! 6 a weight of the encoder's linear layers and token, and 12 h a pair of tokens of a sequence and layer.
//! With `--serve` it trains on real data, a step for each line of its input: see `serve.rs`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints")]

mod serve;

use azulejo_bert::Executor;
use azulejo_bert::batch::Batch;
use azulejo_bert::config::Config;
use azulejo_bert::model::{Model, Step};
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_topology::{Team, TeamConfig};
use std::time::Instant;

struct Threads(Team);

impl Executor for Threads {
    fn threads(&self) -> usize {
        self.0.threads()
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        self.0.run(task);
    }
}

fn option(name: &str, default: &str) -> String {
    let args: Vec<String> = std::env::args().collect();
    let value = args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    value.map_or(default, String::as_str).to_owned()
}

fn main() {
    if std::env::args().any(|a| a == "--serve") {
        return serve::serve();
    }
    let smoke = std::env::args().any(|a| a == "--smoke" || a == "--test");
    let threads: usize = option("--threads", "2").parse().unwrap();
    let sequences: usize = option("--sequences", if smoke { "2" } else { "32" }).parse().unwrap();
    let rounds = option("--rounds", if smoke { "1" } else { "5" }).parse().unwrap();
    let (vocabulary, hidden, layers, heads, intermediate) = match option("--model", "distilbert").as_str() {
        _ if smoke => (500, 96, 2, 3, 192),
        "minilm" => (30522, 384, 6, 12, 1536),
        _ => (30522, 768, 6, 12, 3072),
    };
    let config = Config::bert(vocabulary, hidden, layers, heads, intermediate).unwrap();
    let mut batch = Batch::new();
    for i in 0..sequences as u32 {
        // A few long ones, most near 150.
        let n = if i % 8 == 7 { 384 } else { 100 + (i * 37) % 61 };
        let ids: Vec<u32> = (0..n).map(|j| (i * 7919 + j * 104_729) % vocabulary as u32).collect();
        batch.push(&ids, &[], n / 3, n / 2, u64::from(i));
    }
    let t = batch.tokens();
    let pairs: usize = batch.ranges().map(|r| r.len() * r.len()).sum();
    let flop = 6 * t * layers * (4 * hidden * hidden + 2 * hidden * intermediate) + 12 * hidden * layers * pairs;
    let exec = Threads(Team::new(TeamConfig::unpinned(threads)).unwrap());
    let precisions: &[Precision] = match option("--precision", "both").as_str() {
        "bf16" => &[Precision::Bf16],
        "f32" => &[Precision::F32],
        _ => &[Precision::Bf16, Precision::F32],
    };
    for &precision in precisions {
        let mut model = Model::new(config.clone(), Head::QuestionAnswering, precision).unwrap();
        let weights = model.params().initialise(&config, 1);
        model.update(&exec, |w| w.copy_from_slice(&weights)).unwrap();
        let mut adam = AdamW::new(Settings::default(), model.params());
        let mut grads = vec![0.0; weights.len()];
        let (mut forward, mut train, mut update) = (f64::MAX, f64::MAX, f64::MAX);
        for step in 0..rounds {
            let start = Instant::now();
            model.forward(&exec, &batch).unwrap();
            forward = forward.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let place = Step {
                seed: 1,
                step,
                weight: 1.0,
            };
            model
                .train_micro_batch(&exec, &batch, place, &mut grads, &mut |_, _| {})
                .unwrap();
            train = train.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            adam.update(&exec, &mut model, &grads, 1e-5).unwrap();
            update = update.min(start.elapsed().as_secs_f64());
            grads.fill(0.0);
        }
        println!(
            "{precision:?} {} {threads} threads, {sequences} sequences, {t} tokens: forward {:.1} ms, forward and \
             backward {:.1} ms ({:.0} GFLOP/s), update {:.1} ms, {:.1} samples/s (least of {rounds})",
            model.kernel_name(),
            1e3 * forward,
            1e3 * train,
            flop as f64 / train / 1e9,
            1e3 * update,
            sequences as f64 / (train + update),
        );
    }
}
