//! Makes the encoder that the demo ships: pre-trains it on the generator's text and writes it as a folder.
#![expect(clippy::print_stdout, reason = "a program that reports on standard output")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use azulejo_bert::Serial;
use azulejo_examples::demo::pretrain::{CURVE, Pretraining, SEED, STEPS};
use clap::Parser;

/// Pre-trains the tiny encoder of the built-in demo.
#[derive(Parser)]
struct Args {
    /// Folder for the encoder.
    #[arg(long)]
    output: PathBuf,
    /// Optimiser steps of 32 passages each.
    #[arg(long, default_value_t = STEPS)]
    steps: u64,
    /// Seed of the text and of the first weights.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut run = Pretraining::new(&Serial, args.seed, args.steps)?;
    let started = Instant::now();
    println!("step loss span in_question in_sentence of_kind found seconds");
    let mut curve = Vec::new();
    while run.done() < args.steps {
        let losses = run.step(&Serial)?;
        if curve.len() < CURVE {
            curve.push(losses.total);
        }
        if run.done() <= 10 || run.done().is_multiple_of(100) {
            let [question, sentence, kind] = losses.dense;
            println!(
                "{} {:.5} {:.4} {question:.4} {sentence:.4} {kind:.4} {:.2} {:.0}",
                run.done(),
                losses.total,
                losses.span,
                losses.found,
                started.elapsed().as_secs_f64()
            );
        }
        if run.done().is_multiple_of(1000) {
            run.save(&args.output)?;
        }
    }
    run.save(&args.output)?;
    let curve = serde_json::json!({ "seed": args.seed, "steps": args.steps, "loss": curve });
    fs::write(args.output.join("pretrain_curve.json"), format!("{curve:#}\n"))?;
    Ok(())
}
