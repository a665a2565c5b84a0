//! Command lines that cannot be meant: status 2, the reason, and nothing done.

#![allow(clippy::unwrap_used, reason = "test code")]

mod program;

use program::{Place, run};

/// The words on a command line are refused with status 2, and these words say why.
fn refused(place: &Place, line: &str, words: &[&str]) {
    let before = place.contents("");
    let ended = run(place.command().args(line.split_whitespace())).with(2, words);
    assert!(ended.out.is_empty(), "{line}: {}", ended.out);
    assert_eq!(before, place.contents(""), "{line}");
}

#[test]
fn values_of_a_list() {
    let place = Place::new();
    let cases: [(&str, &[&str]); 6] = [
        (
            "lr_scheduler_type",
            &["linear", "cosine", "constant", "constant_with_warmup"],
        ),
        ("optim", &["adamw_torch", "adamw_hf"]),
        ("eval_strategy", &["no", "steps", "epoch"]),
        ("logging_strategy", &["no", "steps", "epoch"]),
        ("save_strategy", &["no", "steps", "epoch"]),
        ("ddp_backend", &["ccl", "gloo", "mpi"]),
    ];
    for (flag, values) in cases {
        let words = [&["invalid value 'banana'", "possible values", flag], values].concat();
        refused(&place, &format!("--{flag} banana"), &words);
        refused(&place, &format!("--{flag}"), &["a value is required", flag]);
    }
    refused(&place, "--lr_scheduler_type linaer", &["'linear'"]);
}

#[test]
fn numbers_that_make_no_sense() {
    let place = Place::new();
    let counts = [
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "max_seq_length",
        "n_best_size",
        "max_answer_length",
        "max_train_samples",
        "max_eval_samples",
        "save_total_limit",
        "nodes",
        "ppn",
    ];
    for flag in counts {
        for value in ["0", "-1", "1.5", "many", "99999999999999999999", "3000000000"] {
            refused(
                &place,
                &format!("--{flag} {value}"),
                &[&format!("invalid value '{value}'"), "whole number from 1"],
            );
        }
    }
    for flag in ["doc_stride", "seed", "data_seed", "warmup_steps"] {
        for value in ["-1", "0.5", "99999999999999999999"] {
            refused(
                &place,
                &format!("--{flag} {value}"),
                &[&format!("invalid value '{value}'"), "whole number from 0"],
            );
        }
    }
    for flag in [
        "learning_rate",
        "weight_decay",
        "adam_epsilon",
        "max_grad_norm",
        "num_train_epochs",
    ] {
        for value in ["-1", "-1e-9", "nan", "NaN", "inf", "1e999", "fast"] {
            refused(
                &place,
                &format!("--{flag} {value}"),
                &[&format!("invalid value '{value}'"), "at least 0"],
            );
        }
    }
    for (flag, value, words) in [
        ("adam_beta1", "1", "below 1"),
        ("adam_beta2", "-0.1", "below 1"),
        ("warmup_ratio", "1.01", "from 0 to 1"),
        ("save_steps", "0", "steps"),
        ("logging_steps", "2.5", "steps"),
        ("eval_steps", "-3", "steps"),
        ("null_score_diff_threshold", "nan", "a number"),
        ("max_steps", "1.5", "max_steps"),
        ("master_port", "0", "master_port"),
        ("master_port", "65536", "master_port"),
        ("deadline", "0", "seconds"),
        ("deadline", "-5", "seconds"),
        ("bf16", "maybe", "True or False"),
        ("genv", "NAME", "NAME=VALUE"),
    ] {
        refused(&place, &format!("--{flag}={value}"), &["invalid value", flag, words]);
    }
    refused(&place, "-n 0", &["whole number from 1"]);
    refused(&place, "-n -2", &["whole number from 1"]);
}

#[test]
fn more_processes_than_make_sense() {
    let place = Place::new();
    for line in ["--nodes 100000 --ppn 100000", "-n 2000000", "--nodes 2000000000"] {
        refused(&place, line, &["processes", "at most 1024"]);
    }
    refused(&place, "-n 5 --nodes 2", &["spread evenly"]);
    refused(&place, "-n 5 --ppn 2", &["whole nodes"]);
}

#[test]
fn unknown_flags() {
    let place = Place::new();
    refused(&place, "--max_stepz 3", &["--max_stepz", "--max_steps"]);
    refused(&place, "--learning_rat_e 1e-5", &["--learning_rate"]);
    refused(&place, "--nproc 0", &["unexpected argument '--nproc'"]);
    refused(&place, "banana", &["unexpected argument 'banana'"]);
    refused(&place, "--max_ 3", &["--max_"]);
}

#[test]
fn flags_that_need_others_or_cannot_be_honoured() {
    let place = Place::new();
    refused(
        &place,
        "--do_train --train_file train.json --output_dir out",
        &["--model_name_or_path"],
    );
    refused(
        &place,
        "--model_name_or_path model --do_train --output_dir out",
        &["--train_file"],
    );
    refused(
        &place,
        "--model_name_or_path model --train_file train.json --do_train",
        &["--output_dir"],
    );
    refused(
        &place,
        "--model_name_or_path model --train_file train.json --output_dir out",
        &["nothing to do"],
    );
    refused(&place, "--fp16", &["--fp16 is refused", "--bf16"]);
    place.write_bytes("arguments.json", b"{\"max_steps\": 3,\n \"seed\": }");
    refused(&place, "arguments.json", &["arguments.json:2:10"]);
    refused(&place, "none.json", &["none.json", "No such file"]);
}
