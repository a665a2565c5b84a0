//! A disk that fills while results are saved: the run fails and says where, the old files stay whole, and no new one is
//! there in part. The disk is a small tmpfs in a mount namespace of its own.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::print_stdout, reason = "says what could not be tested here")]

mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use program::{Ended, Place, run};

/// Mounts a disk of the size in `$1` at `out` in a namespace of its own, brings in what `before` holds, starts the rest
/// of its arguments, and takes out what is there at the end to `after`.
const SCRIPT: &str = r#"
mkdir -p before out after
mount -t tmpfs -o size="$1" none out
shift
cp -a before/. out/
status=0
"$@" || status=$?
cp -a out/. after/
exit $status
"#;

/// The words that make a namespace here, if any do.
fn namespace() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];
    ways.into_iter().find(|way| {
        let mut probe = Command::new("unshare");
        probe.args(*way).args(["sh", "-c", "mount -t tmpfs none /tmp"]);
        probe.output().is_ok_and(|output| output.status.success())
    })
}

/// Runs a command of `place` with `out` on a disk of `size` bytes. `None`: not possible here.
fn on_small_disk(place: &Place, size: usize, command: &Command) -> Option<Ended> {
    let Some(way) = namespace() else {
        println!(
            "NOT RUN: a full disk: no namespace can be made here (unshare --mount, with or without --map-root-user)"
        );
        return None;
    };
    let mut inside = place.wrapped("unshare");
    inside.args(way).args(["sh", "-ec", SCRIPT, "sh"]).arg(size.to_string());
    inside.arg(command.get_program()).args(command.get_args());
    Some(run(&mut inside))
}

/// The files of a folder by their names in it.
fn files(place: &Place, folder: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let root = place.path(folder);
    let files = place.contents(folder).into_iter();
    files
        .map(|(path, bytes)| (path.strip_prefix(&root).unwrap().to_owned(), bytes))
        .collect()
}

const MIB: usize = 1 << 20;

#[test]
fn a_full_disk_leaves_the_old_model() {
    let place = Place::new();
    run(place
        .training()
        .args(["--output_dir", "before", "--save_strategy", "no"]))
    .good();
    let before = files(&place, "before");
    let used: usize = before.values().map(Vec::len).sum();
    let mut command = place.training();
    command.args(["--overwrite_output_dir", "--seed", "7", "--save_strategy", "no"]);
    // Room for half of the new files beside the old ones.
    let Some(ended) = on_small_disk(&place, used + used / 2, &command) else {
        return;
    };
    ended.failed(&["error: out/model.safetensors: No space left on device"]);
    assert!(files(&place, "after") == before, "the old files have changed");
}

#[test]
fn a_full_disk_leaves_the_last_checkpoint() {
    let place = Place::new();
    // A checkpoint holds the weights and two moments of each: two do not fit, one with a model does.
    let weights = fs::metadata(place.path("model/model.safetensors")).unwrap().len() as usize;
    let mut command = place.training();
    command.args(["--save_steps", "1", "--nodes", "1", "--ppn", "2"]);
    let Some(ended) = on_small_disk(&place, 5 * weights, &command) else {
        return;
    };
    let ended = ended.failed(&["error: out/checkpoint-2/", "No space left on device"]);
    assert_eq!(ended.count("No space left"), 1, "{}", ended.err);
    let after = files(&place, "after");
    let folders: Vec<_> = after.keys().filter(|path| path.components().count() == 1).collect();
    assert_eq!(folders, [&PathBuf::from("checkpoint-1")], "{:?}", after.keys());

    // What was saved is whole.
    fs::rename(place.path("after"), place.path("out2")).unwrap();
    let mut again = place.training();
    again.args([
        "--output_dir",
        "out2",
        "--resume_from_checkpoint",
        "--nodes",
        "1",
        "--ppn",
        "2",
    ]);
    let again = run(&mut again).good();
    assert!(again.out.contains("going on from out2/checkpoint-1"), "{}", again.out);
}

#[test]
fn a_full_disk_leaves_the_old_answers() {
    let place = Place::new();
    run(place
        .evaluation()
        .args(["--output_dir", "before", "--n_best_size", "1"]))
    .good();
    let before = files(&place, "before");
    let used: usize = before.values().map(|bytes| bytes.len().next_multiple_of(4096)).sum();
    // Twenty answers a question instead of one.
    let Some(ended) = on_small_disk(&place, used + 16 * 1024, &place.evaluation()) else {
        return;
    };
    ended.failed(&["error: out/eval_", "No space left on device"]);
    assert!(files(&place, "after") == before, "the old files have changed");
}

#[test]
fn a_disk_that_is_full_from_the_start() {
    let place = Place::new();
    fs::create_dir(place.path("before")).unwrap();
    place.write_bytes("before/big", &vec![1; MIB]);
    let mut command = place.command();
    // The built-in data find no place.
    command.args([
        "--nodes",
        "1",
        "--ppn",
        "2",
        "--max_steps",
        "1",
        "--output_dir",
        "out",
        "--overwrite_output_dir",
    ]);
    let Some(ended) = on_small_disk(&place, MIB + 64 * 1024, &command) else {
        return;
    };
    ended.failed(&[
        "error: cannot write the built-in data: out/demo/train.json",
        "No space left on device",
    ]);
    assert_eq!(files(&place, "after").len(), 1, "{:?}", files(&place, "after").keys());
}
