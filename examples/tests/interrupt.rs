//! Signals from outside, and readers that leave: work is saved, nothing is left running or half-written.

#![allow(clippy::unwrap_used, reason = "test code")]

mod program;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use program::processes::{self, Process};
use program::{Ended, Place, Running, run, start};
use serde_json::Value;

/// From a signal to the end of a job that has nothing or little to save.
const SOON: Duration = Duration::from_secs(15);
/// Steps of the run that is interrupted: a second's worth.
const STEPS: &str = "80";

fn job(place: &Place) -> Command {
    let mut command = place.training();
    command.args([
        "--max_steps",
        STEPS,
        "--save_steps",
        "5",
        "--save_total_limit",
        "3",
        "--nodes",
        "2",
        "--ppn",
        "2",
    ]);
    // A group of its own, as a shell gives it to each command.
    command.process_group(0);
    command
}

/// Starts the job and waits until it trains.
fn training(place: &Place) -> (Running, Vec<Process>) {
    let job = start(&mut job(place));
    let ranks = processes::children(&job);
    assert_eq!(ranks.len(), 4);
    job.wait_for_checkpoint(place);
    (job, ranks)
}

/// The job ended as Ctrl-C ends it: status 130, a checkpoint of the last step, no process and no temporary file left.
fn stopped(place: &Place, ended: &Ended, ranks: &[Process]) -> u64 {
    assert!(ranks.iter().all(|rank| !rank.runs()), "processes are left");
    place.assert_tidy();
    let last = place.last_checkpoint("out");
    assert!(
        ended
            .err
            .contains(&format!("stopped after step {last}: a checkpoint was saved in out")),
        "checkpoint {last}\n{}",
        ended.err
    );
    assert!(!ended.err.contains("error"), "{}", ended.err);
    assert!(
        !place.path("out/model.safetensors").exists(),
        "an unfinished model in place of the result"
    );
    last
}

#[test]
fn ctrl_c_saves_and_the_resumed_run_equals_one_never_stopped() {
    let place = Place::new();
    let (running, ranks) = training(&place);
    processes::signal(running.id(), "INT");
    let ended = running.finish(SOON).with(130, &[]);
    let last = stopped(&place, &ended, &ranks);

    let mut again = place.training();
    again.args([
        "--max_steps",
        STEPS,
        "--save_strategy",
        "no",
        "--nodes",
        "2",
        "--ppn",
        "2",
    ]);
    let resumed = run(again.arg("--resume_from_checkpoint")).good();
    assert!(
        resumed
            .out
            .contains(&format!("going on from out/checkpoint-{last}, after step {last}")),
        "{}",
        resumed.out
    );
    let state: Value = serde_json::from_slice(&fs::read(place.path("out/trainer_state.json")).unwrap()).unwrap();
    assert_eq!(state["global_step"].to_string(), STEPS);

    // Without stopping, and by another number of processes.
    let mut whole = place.training();
    whole.args(["--max_steps", STEPS, "--save_strategy", "no", "--output_dir", "whole"]);
    run(whole.args(["--nodes", "1", "--ppn", "2", "--gradient_accumulation_steps", "2"])).good();
    assert!(
        fs::read(place.path("out/model.safetensors")).unwrap()
            == fs::read(place.path("whole/model.safetensors")).unwrap(),
        "other weights than without a stop"
    );
}

#[test]
fn ctrl_c_reaches_the_whole_group() {
    let place = Place::new();
    let (running, ranks) = training(&place);
    processes::signal_group(running.id(), "INT");
    let ended = running.finish(SOON).with(130, &[]);
    stopped(&place, &ended, &ranks);
}

#[test]
fn ctrl_c_while_nothing_is_there_to_save() {
    // Rank 0 waits for another that never comes.
    let place = Place::new();
    let mut waiting = place.training();
    waiting
        .env("RANK", "0")
        .env("WORLD_SIZE", "2")
        .env("AZULEJO_MEETING_FILE", place.path("tmp/own/meeting"));
    let waiting = start(&mut waiting);
    waiting.wait_for_file(&place.path("tmp/own/meeting"));
    processes::signal(waiting.id(), "INT");
    waiting.finish(SOON).with(130, &[]);
    assert!(!place.path("out").exists());

    // An evaluation of some minutes: the same questions again and again under other names.
    let place = Place::new();
    let mut data: Value = serde_json::from_slice(&fs::read(place.path("dev.json")).unwrap()).unwrap();
    let paragraphs = data["data"][0]["paragraphs"].as_array().unwrap().clone();
    let again = (0..1000).flat_map(|i| {
        paragraphs.iter().map(move |paragraph| {
            let mut paragraph = paragraph.clone();
            for question in paragraph["qas"].as_array_mut().unwrap() {
                question["id"] = format!("{i}-{}", question["id"]).into();
            }
            paragraph
        })
    });
    data["data"][0]["paragraphs"] = again.collect();
    place.write("dev.json", &data);
    let mut running = start(place.evaluation().args(["--nodes", "2", "--ppn", "1"]));
    running.wait_for("evaluate");
    processes::signal(running.id(), "INT");
    running.finish(SOON).with(130, &[]);
    place.assert_tidy();
}

#[test]
fn a_launcher_that_is_terminated_or_killed_leaves_no_process() {
    let place = Place::new();
    let (running, ranks) = training(&place);
    processes::signal(running.id(), "TERM");
    running.finish(SOON).with(143, &[]);
    assert!(ranks.iter().all(|rank| !rank.runs()), "processes are left");
    assert!(place.contents("tmp").is_empty());

    let place = Place::new();
    let (running, ranks) = training(&place);
    processes::signal(running.id(), "KILL");
    let ended = running.finish(SOON);
    assert_eq!(ended.status, None, "{ended:?}");
    let end = std::time::Instant::now() + SOON;
    while ranks.iter().any(Process::runs) {
        assert!(std::time::Instant::now() < end, "processes are left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn readers_that_leave_and_disks_that_are_full_do_not_stop_a_run() {
    let place = Place::new();
    let eval = [
        "--validation_file",
        "dev.json",
        "--do_eval",
        "--nodes",
        "1",
        "--ppn",
        "2",
    ];
    // A reader that has gone: each write fails.
    let mut child = place
        .training()
        .args(eval)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(place.path("out/eval_results.json").is_file());

    let place = Place::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let status = place
        .training()
        .args(eval)
        .stdout(full())
        .stderr(full())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(place.path("out/eval_results.json").is_file());

    // Nor do they turn a failure into success.
    let place = Place::new();
    let status = place
        .training()
        .args(["--train_file", "none.json"])
        .stdout(full())
        .stderr(full())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}
