//! The example programs, as processes.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::PathBuf;
use std::process::Command;

/// A program that cargo has built beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/<profile>/deps/<test>
    let path = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        path.is_file(),
        "{} is not built; `cargo test` does that",
        path.display()
    );
    path
}

/// What it says when it ends well. It knows nothing of a launcher around the tests.
fn output(name: &str, arguments: &str) -> String {
    let mut command = Command::new(example(name));
    command.args(arguments.split_whitespace());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let launcher = ["PET_", "OMPI_", "PMI", "SLURM_", "AZULEJO_", "MASTER_"];
        if launcher.iter().any(|prefix| text.starts_with(prefix)) || text == "RANK" || text == "WORLD_SIZE" {
            command.env_remove(name);
        }
    }
    let ended = command.output().unwrap();
    let out = String::from_utf8(ended.stdout).unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "{name} {arguments}: {}\n{out}{err}",
        ended.status
    );
    out
}

#[test]
fn toy_ddp_finds_the_line() {
    let out = output("toy_ddp", "");
    assert!(out.contains("step 400: y = 3.000 x + -1.000"), "{out}");
}

#[test]
fn every_operation_and_type_is_right() {
    for dtype in ["f32", "f64", "bf16", "f16", "i32", "i64", "u8"] {
        let small = "--min 1 --max 70K --factor 64 --iterations 2 --warmup 1";
        let out = output("collectives_perf", &format!("--dtype {dtype} --ppn 3 {small}"));
        assert!(
            out.contains("all_to_all, ") && out.ends_with("\n0 values were wrong\n"),
            "{out}"
        );
        // Three sizes of seven operations.
        assert_eq!(out.lines().count(), 7 * (2 + 3) + 1, "{out}");
    }
}

#[test]
fn figures_are_json_on_request() {
    let out = output(
        "collectives_perf",
        "--op all_reduce,scatter --json --tcp --nodes 2 --ppn 1 --min 4K --max 4K --iterations 4",
    );
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    for (line, operation) in lines.iter().zip(["all_reduce", "scatter"]) {
        for part in [
            operation,
            "\"transport\":\"tcp\"",
            "\"bytes\":4096",
            "\"ranks\":2",
            "\"wrong\":0}",
        ] {
            assert!(line.contains(part), "{line}");
        }
        let figure = |name: &str| -> f64 {
            let rest = line.split_once(&format!("\"{name}\":")).unwrap().1;
            rest.split(',').next().unwrap().parse().unwrap()
        };
        let (seconds, algbw, busbw) = (figure("seconds"), figure("algbw"), figure("busbw"));
        assert!((algbw * seconds * 1e9 / 4096.0 - 1.0).abs() < 0.05, "{line}");
        let share = if operation == "scatter" { 0.5 } else { 1.0 };
        assert!((busbw - share * algbw).abs() <= 0.01 * algbw, "{line}");
    }
}
