//! Checkpoints in the middle of training: `checkpoint-N` folders that a run continues from bit for bit.
//!
//! Beside the model's own files a folder holds the optimiser's moments and `trainer_state.json`. Everything else that a
//! step depends on follows from its number: the order of the data, the dropout masks and the learning rate are functions
//! of the seed and the step.

use std::fs;
use std::path::{Path, PathBuf};

use azulejo_amx::Executor;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::checkpoint::{Folder, load_weights, save_into, write_safetensors};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optim::AdamW;
use crate::results::python_json;
use crate::squad::read::without_place;
use crate::tokenizer::Tokenizer;
use crate::trainer::TrainConfig;

const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "trainer_state.json";
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// What a run has seen so far: the part of `trainer_state.json` that no later step depends on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Log entries as Trainer writes them.
    pub log_history: Vec<Value>,
    /// Floating-point operations so far.
    pub total_flos: f64,
    /// The best evaluation after which a checkpoint was saved.
    pub best: Option<Best>,
}

/// The checkpoint with the best metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Best {
    /// The metric's value.
    pub metric: f64,
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
}

impl History {
    /// What a `trainer_state.json` says of it.
    pub fn of(state: &Value) -> History {
        let best = state["best_metric"]
            .as_f64()
            .zip(state["best_model_checkpoint"].as_str());
        History {
            log_history: state["log_history"].as_array().cloned().unwrap_or_default(),
            total_flos: state["total_flos"].as_f64().unwrap_or(0.0),
            best: best.map(|(metric, checkpoint)| Best {
                metric,
                checkpoint: checkpoint.into(),
            }),
        }
    }
}

/// Saves a run after `step` steps into `checkpoint-N` of `output`; the folder's path. The state file gets its name last,
/// so that a folder with one is complete. Without the optimiser no run can go on from it.
pub fn save(
    output: &Path,
    model: &Model,
    optimizer: Option<&AdamW>,
    step: u64,
    config: &TrainConfig,
    tokenizer: Option<&Tokenizer>,
    history: &History,
) -> Result<PathBuf> {
    let path = checkpoint(output, step);
    let mut folder = Folder::open(&path)?;
    save_into(&mut folder, model.config(), model.params(), model.weights(), tokenizer)?;
    if let Some(optimizer) = optimizer {
        let (m, v) = optimizer.moments();
        let shape = [m.len()];
        let moments: [(&str, &[usize], &[f32]); 2] = [(MOMENTS[0], &shape, m), (MOMENTS[1], &shape, v)];
        folder.add(OPTIMIZER, |out| write_safetensors(out, &moments))?;
    }
    let text = python_json(&state(step, config, history), 2, true) + "\n";
    folder.add(STATE, |out| out.write_all(text.as_bytes()))?;
    folder.commit()?;
    Ok(path)
}

/// The folder for the checkpoint after step `step`.
pub fn checkpoint(output: &Path, step: u64) -> PathBuf {
    output.join(format!("checkpoint-{step}"))
}

/// What `trainer_state.json` says after `step` steps: the fields of Trainer, and `order`, which is what a run must share with
/// this one to go on from it.
pub fn state(step: u64, config: &TrainConfig, history: &History) -> Value {
    let per_epoch = config.sampler.steps_per_epoch() as u64;
    json!({
        "best_metric": history.best.as_ref().map(|best| best.metric),
        "best_model_checkpoint": history.best.as_ref().map(|best| &best.checkpoint),
        "epoch": step as f64 / per_epoch as f64,
        "global_step": step,
        "is_hyper_param_search": false,
        "is_local_process_zero": true,
        "is_world_process_zero": true,
        "max_steps": config.steps,
        "num_input_tokens_seen": 0,
        "num_train_epochs": config.steps.div_ceil(per_epoch),
        "eval_steps": config.evaluation.steps,
        "logging_steps": config.logging.steps,
        "save_steps": config.saving.steps,
        "stateful_callbacks": {},
        "total_flos": history.total_flos,
        "train_batch_size": config.sampler.micro_batch,
        "trial_name": null,
        "trial_params": null,
        "log_history": history.log_history,
        "order": order(config),
    })
}

fn order(config: &TrainConfig) -> Value {
    let s = &config.sampler;
    json!({
        "samples": s.samples,
        "micro_batch": s.micro_batch,
        "micro_batches_per_step": s.micro_batches_per_step,
        "data_seed": s.seed,
        "group_by_length": s.lengths.is_some(),
        "seed": config.seed,
    })
}

/// Reads a checkpoint into the model and the optimiser; its `trainer_state.json`. The run must deal out the same data in
/// the same way; the number of processes may be another.
pub fn load(
    path: &Path,
    exec: &dyn Executor,
    model: &mut Model,
    optimizer: &mut AdamW,
    config: &TrainConfig,
) -> Result<Value> {
    let file = path.join(STATE);
    let bytes = fs::read(&file).map_err(Error::io(&file))?;
    let state: Value = serde_json::from_slice(&bytes).map_err(|e| Error::Json {
        path: file.clone(),
        line: e.line(),
        column: e.column(),
        message: without_place(&e),
    })?;
    let step = state["global_step"]
        .as_u64()
        .ok_or_else(|| Error::file(&file, "it has no global_step"))?;
    if state["order"] != order(config) {
        let reason = format!(
            "it belongs to a run over {}, this one is over {}",
            state["order"],
            order(config)
        );
        return Err(Error::file(&file, reason));
    }
    let mut weights = model.weights().to_vec();
    load_weights(path, model.params(), &mut weights)?;

    let file = path.join(OPTIMIZER);
    if !file.exists() {
        let reason = "the checkpoint holds the model only (--save_only_model): give it as --model_name_or_path";
        return Err(Error::file(path, reason));
    }
    let bytes = fs::read(&file).map_err(Error::io(&file))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|e| Error::file(&file, format!("damaged: {e}")))?;
    let [m, v] = MOMENTS.map(|name| -> Result<Vec<f32>> {
        let tensor = tensors
            .tensor(name)
            .map_err(|_| Error::file(&file, format!("it has no tensor {name}")))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(Error::file(
                &file,
                format!("{name} is {:?}, expected F32", tensor.dtype()),
            ));
        }
        let values = tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(values.collect())
    });
    optimizer
        .restore(step, m?, v?)
        .map_err(|e| Error::file(&file, e.to_string()))?;
    model.update(exec, |to| to.copy_from_slice(&weights))?;
    Ok(state)
}

/// The checkpoints in `output`, complete or not, with their steps, which rise.
pub fn checkpoints(output: &Path) -> Vec<(u64, PathBuf)> {
    let step = |path: &Path| path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok();
    let entries = fs::read_dir(output).into_iter().flatten();
    let mut found: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((step(&path)?, path)))
        .collect();
    found.sort();
    found
}

/// The complete checkpoint with the highest step in `output`.
pub fn last(output: &Path) -> Option<PathBuf> {
    let complete = |path: &PathBuf| path.join(STATE).is_file() && path.join(OPTIMIZER).is_file();
    let mut newest_first = checkpoints(output).into_iter().rev().map(|(_, path)| path);
    newest_first.find(complete)
}

/// Removes the oldest checkpoints in `output` but `keep`, and never the best one: it counts as the one before the last,
/// as with Trainer. The folders that could not be removed.
pub fn rotate(output: &Path, keep: usize, best: Option<&Path>) -> Vec<(PathBuf, std::io::Error)> {
    let mut found: Vec<PathBuf> = checkpoints(output).into_iter().map(|(_, path)| path).collect();
    let last = found.len().saturating_sub(1);
    let mut keep = keep;
    if let Some(at) = found.iter().position(|path| Some(path.as_path()) == best)
        && at < last
    {
        found[at..last].rotate_left(1);
        keep = keep.max(2);
    }
    let old = found.len().saturating_sub(keep);
    let removed = found.into_iter().take(old);
    removed
        .filter_map(|path| Some((fs::remove_dir_all(&path).err()?, path)))
        .map(|(e, path)| (path, e))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_checkpoint_outlives_older_and_newer_ones() {
        let rest = |steps: &[u64], keep, best: Option<u64>| -> Vec<u64> {
            let folder = tempfile::tempdir().unwrap();
            let path = |step| checkpoint(folder.path(), step);
            steps.iter().for_each(|&step| fs::create_dir(path(step)).unwrap());
            fs::create_dir(folder.path().join("checkpoint-of-mine")).unwrap();
            let failed = rotate(folder.path(), keep, best.map(path).as_deref());
            assert!(failed.is_empty(), "{failed:?}");
            assert!(folder.path().join("checkpoint-of-mine").exists());
            checkpoints(folder.path()).into_iter().map(|(step, _)| step).collect()
        };
        assert_eq!(rest(&[5, 10, 15, 100], 2, None), [15, 100], "numbers, not names");
        assert_eq!(rest(&[5, 10, 15, 100], 2, Some(5)), [5, 100]);
        assert_eq!(rest(&[5, 10, 15, 100], 3, Some(10)), [10, 15, 100]);
        assert_eq!(
            rest(&[5, 10, 15], 1, Some(5)),
            [5, 15],
            "the last one is needed to go on"
        );
        assert_eq!(rest(&[5, 10, 15], 1, Some(15)), [15]);
        assert_eq!(rest(&[5, 10], 9, Some(5)), [5, 10]);
    }
}
