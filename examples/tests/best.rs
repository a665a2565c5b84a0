//! Evaluation during training: when it happens, what it decides, and that it changes nothing else.

#![allow(clippy::unwrap_used, reason = "test code")]

mod program;

use std::fs;
use std::process::Command;

use program::{Place, run};
use serde_json::Value;

/// Ten steps, evaluated after every second, with checkpoints after the steps 4, 8 and, as the last, 10.
fn job(place: &Place, output: &str) -> Command {
    let mut command = place.training();
    command.args(["--max_steps", "10", "--learning_rate", "3e-3", "--output_dir", output]);
    command.args(["--validation_file", "dev.json", "--save_steps", "4"]);
    command
}

const EVALUATED: [&str; 4] = ["--eval_strategy", "steps", "--eval_steps", "2"];

fn json(place: &Place, file: &str) -> Value {
    serde_json::from_slice(&fs::read(place.path(file)).unwrap()).unwrap()
}

/// The steps at which a run was evaluated, with the metric.
fn evaluations(state: &Value, metric: &str) -> Vec<(u64, f64)> {
    let entries = state["log_history"].as_array().unwrap().iter();
    entries
        .filter_map(|entry| Some((entry["step"].as_u64()?, entry.get(metric)?.as_f64()?)))
        .collect()
}

fn weights(place: &Place, folder: &str) -> Vec<u8> {
    fs::read(place.path(folder).join("model.safetensors")).unwrap()
}

#[test]
fn the_checkpoint_that_was_evaluated_best_is_the_result() {
    let place = Place::new();
    for (greater, ranks) in [("True", "1"), ("False", "2")] {
        let name = format!("out-{greater}");
        let mut command = job(&place, &name);
        command
            .args(EVALUATED)
            .args(["--load_best_model_at_end", "--greater_is_better", greater]);
        command.args(["--metric_for_best_model", "eval_f1", "--nodes", "1", "--ppn", ranks]);
        let ended = run(&mut command).good();
        let state = json(&place, &format!("{name}/trainer_state.json"));
        let seen = evaluations(&state, "eval_f1");
        let steps: Vec<u64> = seen.iter().map(|&(step, _)| step).collect();
        assert_eq!(steps, [2, 4, 6, 8, 10], "{}", ended.out);
        let saved = || seen.iter().filter(|(step, _)| [4, 8, 10].contains(step));
        assert!(
            saved().any(|s| s.1 != seen[1].1),
            "all alike, so nothing is tested: {seen:?}"
        );
        // The first one with the best value.
        let better = |new: f64, old: f64| if greater == "True" { new > old } else { new < old };
        let mut best = saved().next().unwrap();
        saved().for_each(|one| best = if better(one.1, best.1) { one } else { best });
        assert_eq!(state["best_metric"].as_f64(), Some(best.1), "{seen:?}");
        let folder = format!("{name}/checkpoint-{}", best.0);
        assert_eq!(state["best_model_checkpoint"].as_str(), Some(folder.as_str()));
        assert!(
            ended
                .out
                .contains(&format!("the best checkpoint is the result: {folder}")),
            "{}",
            ended.out
        );
        assert!(
            weights(&place, &folder) == weights(&place, &name),
            "the result is another model"
        );
        let result = json(&place, &format!("{name}/eval_results.json"));
        assert_eq!(result["eval_f1"].as_f64(), Some(best.1));
    }
}

#[test]
fn evaluation_changes_nothing_else() {
    let place = Place::new();
    run(job(&place, "plain").args(["--do_eval"])).good();
    run(job(&place, "watched")
        .args(EVALUATED)
        .args(["--eval_on_start", "--eval_delay", "5"]))
    .good();
    for folder in ["", "checkpoint-4", "checkpoint-8", "checkpoint-10"] {
        let [one, other] = ["plain", "watched"].map(|run| weights(&place, &format!("{run}/{folder}")));
        assert!(one == other, "other weights in {folder}");
    }
    let state = json(&place, "watched/trainer_state.json");
    let steps: Vec<u64> = evaluations(&state, "eval_exact_match").iter().map(|e| e.0).collect();
    assert_eq!(steps, [0, 6, 8, 10]);
    assert!(state["best_metric"].is_null(), "nobody asked for it");
}

#[test]
fn after_each_epoch_and_after_a_part_of_one() {
    // Six steps an epoch.
    let place = Place::new();
    let mut command = job(&place, "out");
    command.args([
        "--eval_strategy",
        "epoch",
        "--save_strategy",
        "epoch",
        "--max_steps",
        "15",
    ]);
    run(command.args(["--load_best_model_at_end", "--save_total_limit", "1"])).good();
    let state = json(&place, "out/trainer_state.json");
    let steps: Vec<u64> = evaluations(&state, "eval_f1").iter().map(|e| e.0).collect();
    assert_eq!(steps, [6, 12, 15]);
    // The best one, and the last one to go on from.
    let best = state["best_model_checkpoint"]
        .as_str()
        .unwrap()
        .rsplit_once('-')
        .unwrap()
        .1;
    let mut left: Vec<u64> = place.checkpoints("out").collect();
    left.sort_unstable();
    let mut expected = vec![best.parse().unwrap(), 15];
    expected.dedup();
    assert_eq!(left, expected);
}

#[test]
fn a_resumed_run_remembers_the_best() {
    let place = Place::new();
    let best = ["--load_best_model_at_end", "--greater_is_better", "False"];
    run(job(&place, "out").args(EVALUATED).args(best)).good();
    let whole = json(&place, "out/trainer_state.json");
    let mut again = job(&place, "out");
    again.args(EVALUATED).args(best);
    run(again.args(["--resume_from_checkpoint", "out/checkpoint-8"])).good();
    let resumed = json(&place, "out/trainer_state.json");
    for field in ["best_metric", "best_model_checkpoint"] {
        assert_eq!(whole[field], resumed[field]);
    }
    assert_eq!(evaluations(&whole, "eval_f1"), evaluations(&resumed, "eval_f1"));
}

#[test]
fn wishes_that_cannot_be_met() {
    let place = Place::new();
    let refused = |words: &[&str], why: &[&str]| {
        run(job(&place, "out").args(words)).with(2, why);
    };
    let best = "--load_best_model_at_end";
    refused(&[best], &["--eval_strategy is no and --save_strategy steps"]);
    refused(
        &[best, "--eval_strategy", "epoch"],
        &["--eval_strategy is epoch and --save_strategy steps"],
    );
    refused(
        &[best, "--eval_strategy", "steps", "--eval_steps", "3"],
        &["--save_steps 4 is no multiple of the 3 of --eval_steps"],
    );
    for metric in ["loss", "eval_loss", "bleu"] {
        let words = [&EVALUATED[..], &[best, "--metric_for_best_model", metric]].concat();
        refused(
            &words,
            &[&format!(
                "--metric_for_best_model {metric}: evaluation gives f1, exact_match"
            )],
        );
    }
    let words = [
        &EVALUATED[..],
        &[
            best,
            "--version_2_with_negative",
            "--metric_for_best_model",
            "exact_match",
        ],
    ]
    .concat();
    refused(&words, &["evaluation gives f1, exact, HasAns_f1"]);
}
