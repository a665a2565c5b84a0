//! `--serve`: our side of `tools/bench_vs_torch.py`, a process that trains one step on real SQuAD for each line it reads.
//!
//! Says `{"ready": true, ...}` once, then for every line one JSON object with the seconds of a step (gradients zeroed,
//! forward, backward, clipping at 1.0, AdamW) over the next batch in the order of `torch.randperm`.

use crate::{Threads, option};
use azulejo_bert::batch::Batch;
use azulejo_bert::checkpoint;
use azulejo_bert::data_parallel::{DataParallel, StepPlan};
use azulejo_bert::model::{Model, Step};
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::sampler::permutation;
use azulejo_bert::squad::features::{Windows, training_features};
use azulejo_bert::squad::read::DataSet;
use azulejo_bert::tokenizer::Tokenizer;
use azulejo_topology::{Team, TeamConfig};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// The seed of the order, as in the PyTorch side.
const SEED: u64 = 42;

/// Serves steps until standard input ends.
pub(crate) fn serve() {
    let folder = PathBuf::from(option("--model", ""));
    let threads: usize = option("--threads", "2").parse().unwrap();
    let batch_size: usize = option("--batch", "32").parse().unwrap();
    let precision = match option("--dtype", "bf16").as_str() {
        "f32" => Precision::F32,
        _ => Precision::Bf16,
    };
    let windows = Windows {
        max_length: 384,
        stride: 128,
        ..Windows::default()
    };
    let set = DataSet::read(PathBuf::from(option("--train", ""))).unwrap();
    let tokenizer = Tokenizer::from_folder(&folder).unwrap();
    let mut features = training_features(&set, &tokenizer, &windows).unwrap();
    if option("--case", "padded") == "full" {
        features.retain(|f| f.len() == windows.max_length);
    }
    let order = permutation(features.len(), SEED);

    let exec = Threads(Team::new(TeamConfig::unpinned(threads)).unwrap());
    let config = checkpoint::load_config(&folder).unwrap();
    let mut model = Model::new(config, Head::QuestionAnswering, precision).unwrap();
    let mut weights = model.params().initialise(model.config(), SEED);
    checkpoint::load_weights(&folder, model.params(), &mut weights).unwrap();
    model.update(&exec, |to| to.copy_from_slice(&weights)).unwrap();
    let mut adam = AdamW::new(Settings::default(), model.params());
    let mut grads = vec![0.0; weights.len()];
    let alone = azulejo_collectives::threads(1).unwrap();
    let mut exchange = DataParallel::new(model.params());

    let mut out = std::io::stdout();
    let ready = json!({"ready": true, "features": features.len(), "kernel": model.kernel_name()});
    writeln!(out, "{ready}").unwrap();
    let mut batch = Batch::new();
    for (step, line) in std::io::stdin().lines().enumerate() {
        line.unwrap();
        batch.clear();
        for i in 0..batch_size {
            let sample = order[(step * batch_size + i) % order.len()];
            let f = &features[sample as usize];
            batch.push(&f.ids, &f.token_types, f.start, f.end, u64::from(sample));
        }
        let plan = StepPlan {
            step: Step {
                seed: SEED,
                step: step as u64,
                weight: 1.0,
            },
            micro_batches: 1,
            batches: std::slice::from_ref(&batch),
            stop: false,
        };
        let products = model.product_time();
        let begin = Instant::now();
        let sum = exchange.step(&exec, &model, &alone[0], &mut grads, &plan).unwrap();
        let update = Instant::now();
        adam.update(&exec, &mut model, &grads, 1e-5).unwrap();
        let answer = json!({
            "seconds": begin.elapsed().as_secs_f64(),
            "loss": sum.loss,
            "samples": batch_size,
            "tokens": batch.tokens(),
            "products_seconds": (model.product_time() - products).as_secs_f64(),
            "update_seconds": update.elapsed().as_secs_f64(),
        });
        writeln!(out, "{answer}").unwrap();
        out.flush().unwrap();
    }
}
