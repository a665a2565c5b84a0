//! Files that are missing, unreadable, cut off, wrong or lying: the program says which and why, ends with status 1 and
//! writes nothing.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::print_stdout, reason = "says what could not be tested here")]

mod program;

use std::fs;
use std::process::Command;

use program::{Place, QUESTIONS, run};
use serde_json::{Value, json};

/// The run fails with these words, and leaves no trace.
fn refused(place: &Place, command: &mut Command, words: &[&str]) {
    let before = place.contents("");
    let ended = run(command).failed(words);
    assert_eq!(ended.count("error: "), 1, "one error, said once:\n{}", ended.err);
    let after = place.contents("");
    let differ: Vec<_> = after
        .iter()
        .filter(|(path, bytes)| before.get(*path) != Some(bytes))
        .collect();
    assert!(differ.is_empty() && after.len() == before.len(), "written: {differ:?}");
}

fn refused_training(place: &Place, words: &[&str]) {
    refused(place, &mut place.training(), words);
}

fn refused_evaluation(place: &Place, words: &[&str]) {
    refused(place, &mut place.evaluation(), words);
}

#[test]
fn good_files_are_accepted() {
    let place = Place::new();
    run(place.training().args(["--validation_file", "dev.json", "--do_eval"])).good();
    for file in ["model.safetensors", "eval_predictions.json", "all_results.json"] {
        assert!(place.path("out").join(file).is_file(), "{file}");
    }
    place.assert_tidy();
}

#[test]
fn missing_files() {
    let place = Place::new();
    refused(
        &place,
        place.training().args(["--train_file", "none.json"]),
        &["none.json: No such file"],
    );
    refused(
        &place,
        place.evaluation().args(["--validation_file", "none.json"]),
        &["none.json: No such file"],
    );
    refused(
        &place,
        place
            .training()
            .args(["--model_name_or_path", "none"])
            .env("HF_HUB_OFFLINE", "1"),
        &["no folder none here", "model \"none\" of the Hub"],
    );
    // A mistake in the evaluation data is found before training.
    let mut both = place.training();
    both.args(["--do_eval", "--validation_file", "none.json"]);
    refused(&place, &mut both, &["none.json: No such file"]);
    for file in ["config.json", "model.safetensors", "vocab.txt"] {
        let place = Place::new();
        fs::remove_file(place.path("model").join(file)).unwrap();
        refused_training(&place, &[file]);
    }
}

#[test]
fn all_ranks_find_the_same_error_and_one_says_it() {
    let place = Place::new();
    let mut command = place.training();
    command.args(["--train_file", "none.json", "--nodes", "2", "--ppn", "2"]);
    refused(&place, &mut command, &["none.json: No such file"]);
}

#[test]
fn unreadable_files() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let place = Place::new();
    fs::create_dir(place.path("folder.json")).unwrap();
    refused(
        &place,
        place.training().args(["--train_file", "folder.json"]),
        &["folder.json", "directory"],
    );

    for file in [
        "train.json",
        "model/config.json",
        "model/model.safetensors",
        "model/vocab.txt",
    ] {
        let place = Place::new();
        let allow = |name: &str, mode| fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
        allow(file, 0o000);
        let mut command = place.training();
        if fs::read(place.path(file)).is_ok() {
            // Root may read everything: another user has to try.
            for folder in ["", "tmp"] {
                allow(folder, 0o777);
            }
            command.uid(65_534).gid(65_534);
            let mut probe = place.command();
            if probe.uid(65_534).arg("--version").output().is_err() {
                println!(
                    "NOT RUN: unreadable {file}: this user can read everything, and another cannot start the program"
                );
                continue;
            }
        }
        let ended = run(&mut command).failed(&[file, "Permission denied"]);
        assert_eq!(ended.count("error: "), 1, "{}", ended.err);
        assert!(!place.path("out").exists());
    }
}

#[test]
fn cut_off_weights() {
    let place = Place::new();
    let whole = fs::read(place.path("model/model.safetensors")).unwrap();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for length in [0, 7, 8, 8 + header / 2, 8 + header, whole.len() / 2, whole.len() - 1] {
        place.write_bytes("model/model.safetensors", &whole[..length]);
        refused_training(&place, &["model/model.safetensors", "bytes"]);
    }
    place.write_bytes("model/model.safetensors", &[whole.as_slice(), &[0]].concat());
    refused_training(&place, &["model/model.safetensors", "end at byte"]);
}

/// A weight file with the model's own header after `lie` has changed it, and the model's own data.
fn lying(place: &Place, lie: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let whole = fs::read(place.path("model/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    lie(&mut header);
    let header = Value::Object(header).to_string();
    let bytes = [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &whole[8 + length..],
    ]
    .concat();
    place.write_bytes("model/model.safetensors", &bytes);
}

#[test]
fn lying_weights() {
    const NAME: &str = "bert.embeddings.LayerNorm.weight";
    let place = Place::new();
    let good = fs::read(place.path("model/model.safetensors")).unwrap();
    let again = || place.write_bytes("model/model.safetensors", &good);

    for length in [u64::MAX, 1 << 40, good.len() as u64] {
        place.write_bytes("model/model.safetensors", &[&length.to_le_bytes(), &good[8..]].concat());
        refused_training(&place, &["model.safetensors", "header", &length.to_string()]);
    }
    place.write_bytes("model/model.safetensors", &[&good[..8], b"[", &good[9..]].concat());
    refused_training(&place, &["model.safetensors", "header"]);

    type Lie = fn(&mut serde_json::Map<String, Value>);
    let lies: [(&str, Lie); 10] = [
        ("has shape [128, 1]", |h| h[NAME]["shape"] = json!([128, 1])),
        ("describes tensor", |h| h[NAME]["shape"] = json!([127])),
        ("describes tensor", |h| h[NAME]["shape"] = json!([u64::MAX, u64::MAX])),
        ("describes tensor", |h| h[NAME]["shape"] = json!([-1])),
        ("describes tensor", |h| h[NAME]["dtype"] = json!("BF16")),
        ("has type I32", |h| h[NAME]["dtype"] = json!("I32")),
        ("describes tensor", |h| h[NAME]["data_offsets"] = json!([8, 4])),
        ("describes tensor", |h| {
            h[NAME]["data_offsets"] = json!([u64::MAX - 511, u64::MAX])
        }),
        ("is said to fill bytes", |h| {
            let at = h[NAME]["data_offsets"][0].as_u64().unwrap();
            h[NAME]["data_offsets"] = json!([at + 4, at + 516]);
        }),
        ("missing", |h| {
            let tensor = h.remove(NAME).unwrap();
            h.insert("bert.embeddings.LayerNorm.height".into(), tensor);
        }),
    ];
    for (words, lie) in lies {
        again();
        lying(&place, lie);
        refused_training(&place, &["model.safetensors", "LayerNorm", words]);
    }
}

#[test]
fn lying_configuration() {
    let place = Place::new();
    let good: Value = serde_json::from_slice(&fs::read(place.path("model/config.json")).unwrap()).unwrap();
    let cases = [
        // As much memory as no machine has: the weights' shapes speak against it before it is asked for.
        ("vocab_size", json!(16_777_216), "has shape"),
        ("intermediate_size", json!(16_777_216), "has shape"),
        ("num_hidden_layers", json!(4096), "missing"),
        (
            "num_hidden_layers",
            json!(1_000_000_000),
            "num_hidden_layers is 1000000000",
        ),
        ("hidden_size", json!(-1), "hidden_size is -1"),
        ("num_attention_heads", json!(5), "not a multiple"),
        ("num_attention_heads", json!(0), "num_attention_heads is 0"),
        ("hidden_dropout_prob", json!(1.0), "hidden_dropout_prob"),
        ("model_type", json!("gpt2"), "gpt2"),
        ("hidden_act", json!("relu"), "relu"),
        ("layer_norm_eps", json!("small"), "layer_norm_eps"),
    ];
    for (field, value, words) in cases {
        let mut config = good.clone();
        config[field] = value;
        place.write("model/config.json", &config);
        refused_training(&place, &["model/", words]);
    }
    place.write_bytes(
        "model/config.json",
        b"{\n  \"model_type\": \"bert\",\n  \"vocab_size\" 12\n}",
    );
    refused_training(&place, &["model/config.json:3:16: "]);
    place.write_bytes("model/config.json", b"[1]");
    refused_training(&place, &["model/config.json: "]);
}

#[test]
fn damaged_tokenizers() {
    let place = Place::new();
    let vocabulary = fs::read_to_string(place.path("model/vocab.txt")).unwrap();
    place.write_bytes("model/vocab.txt", vocabulary.replacen("[SEP]", "[sep]", 1).as_bytes());
    refused_training(&place, &["model/vocab.txt", "[SEP]"]);
    place.write_bytes("model/vocab.txt", b"");
    refused_training(&place, &["model/vocab.txt", "[UNK]"]);
    place.write_bytes("model/vocab.txt", b"[UNK]\n\xff\xfe\n[CLS]\n[SEP]\n");
    refused_training(&place, &["model/vocab.txt", "UTF-8"]);
    place.write_bytes("model/vocab.txt", format!("{vocabulary}more\nand\nmore\n").as_bytes());
    refused_training(&place, &["tokens", "embeddings"]);
    place.write_bytes("model/vocab.txt", vocabulary.as_bytes());
    place.write_bytes("model/tokenizer.json", b"{\"version\": \"1.0\",\n \"model\"");
    refused_training(&place, &["model/tokenizer.json", "line 2"]);
    place.write_bytes("model/tokenizer.json", b"{}");
    refused_training(&place, &["model/tokenizer.json"]);
    fs::remove_file(place.path("model/tokenizer.json")).unwrap();
    place.write_bytes("model/tokenizer_config.json", b"{\n\"do_lower_case\": tru}");
    refused_training(&place, &["model/tokenizer_config.json:2:"]);
}

#[test]
fn data_that_break_in_the_middle() {
    let place = Place::new();
    let cases: [(&[u8], &str); 9] = [
        (
            b"{\"data\": [\n  {\"paragraphs\": [\n    {\"context\": \"x\" \"qas\": []}]}]}",
            "train.json:3:21: ",
        ),
        (b"{\"data\": [\n  {\"paragraphs\": [\n", "train.json:3:0: "),
        (
            b"{\"data\": [{\"paragraphs\": [{\"context\": \"x\", \"qas\": [{\"id\": 1.5}]}]}]}",
            "train.json:1:61: ",
        ),
        (
            b"[{\"id\": \"1\",\n\"question\": \"q\",\n\"context\": 7}]",
            "train.json:3:12: ",
        ),
        (
            b"{\"id\": \"1\", \"question\": \"q\", \"context\": \"c\"}\n{\"id\": \"2\"}\n",
            "train.json:2:1: ",
        ),
        (b"{\"data\": []}\n\n  {\"data\": []}\n", "train.json:1:1: "),
        (b"{\"data\": [\n\"caf\xe9\"]}", "train.json:2:5: "),
        (b"  \n", "the file is empty"),
        (b"plain text", "train.json:1:"),
    ];
    for (bytes, words) in cases {
        place.write_bytes("train.json", bytes);
        refused_training(&place, &[words]);
    }
    // So deep that a careless reader would run out of stack.
    place.write_bytes("train.json", "{\"data\":[".repeat(100_000).as_bytes());
    refused_training(&place, &["train.json:1:", "recursion"]);
}

/// The data of the place, after `change` has had its way with them.
fn change(place: &Place, file: &str, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(place.path(file)).unwrap()).unwrap();
    change(&mut value);
    place.write(file, &value);
}

fn questions(data: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paragraphs = data["data"][0]["paragraphs"].as_array_mut().unwrap().iter_mut();
    paragraphs.flat_map(|paragraph| paragraph["qas"].as_array_mut().unwrap())
}

#[test]
fn data_without_answers() {
    let place = Place::new();
    let none = |data: &mut Value| questions(data).for_each(|question| question["answers"] = json!([]));
    change(&place, "train.json", none);
    refused_training(
        &place,
        &[
            "train.json",
            &format!("none of the {QUESTIONS} questions has an answer"),
        ],
    );
    change(&place, "dev.json", none);
    refused_evaluation(
        &place,
        &[
            "dev.json",
            &format!("{QUESTIONS} of the {QUESTIONS}"),
            "--version_2_with_negative",
        ],
    );

    let place = Place::new();
    let some = |data: &mut Value| {
        questions(data)
            .skip(5)
            .for_each(|question| question["answers"] = json!([]))
    };
    change(&place, "train.json", some);
    refused_training(
        &place,
        &[
            "train.json",
            &format!("{} of the {QUESTIONS}", QUESTIONS - 5),
            "--version_2_with_negative",
        ],
    );
    run(place.training().arg("--version_2_with_negative")).good();

    let place = Place::new();
    place.write("train.json", &json!({"data": []}));
    refused_training(&place, &["train.json", "no questions"]);
    place.write("dev.json", &json!({"data": []}));
    refused_evaluation(&place, &["dev.json", "no questions"]);
}

#[test]
fn duplicate_ids() {
    let place = Place::new();
    let same = |data: &mut Value| {
        questions(data)
            .skip(3)
            .step_by(4)
            .for_each(|question| question["id"] = json!("one"))
    };
    change(&place, "train.json", same);
    refused_training(&place, &["train.json", "questions 4 and 8", "\"one\""]);
    change(&place, "dev.json", same);
    refused_evaluation(&place, &["dev.json", "questions 4 and 8", "\"one\""]);
}

#[test]
fn answers_that_are_elsewhere_are_counted_and_the_run_goes_on() {
    let place = Place::new();
    let places = [json!(0), json!(1_000_000), json!(3)];
    change(&place, "train.json", |data| {
        for (question, at) in questions(data).skip(2).zip(places) {
            question["answers"][0]["answer_start"] = at;
        }
    });
    let ended = run(place.training().args(["--nodes", "1", "--ppn", "2"])).good();
    assert_eq!(
        ended.count("3 answers are not at their answer_start"),
        1,
        "{}",
        ended.err
    );
    assert!(ended.err.contains("train-1-0, train-1-1, train-2-0"), "{}", ended.err);

    let place = Place::new();
    change(&place, "train.json", |data| {
        questions(data).for_each(|question| question["answers"][0]["answer_start"] = json!(-1));
    });
    refused_training(&place, &["train.json:1:", "-1"]);
}

#[test]
fn empty_contexts_are_counted_and_the_run_goes_on() {
    let place = Place::new();
    for file in ["train.json", "dev.json"] {
        change(&place, file, |data| {
            data["data"][0]["paragraphs"][0]["context"] = json!("");
            data["data"][0]["paragraphs"][1]["context"] = json!(" \n\u{a0}");
        });
    }
    let ended = run(place.training().args(["--do_eval", "--validation_file", "dev.json"])).good();
    assert_eq!(ended.count("4 questions have a blank context"), 2, "{}", ended.err);
    let answers: Value = serde_json::from_slice(&fs::read(place.path("out/eval_predictions.json")).unwrap()).unwrap();
    assert_eq!(answers.as_object().unwrap().len(), QUESTIONS);
}

#[test]
fn questions_and_windows_that_do_not_fit() {
    let place = Place::new();
    for file in ["train.json", "dev.json"] {
        change(&place, file, |data| {
            questions(data).nth(6).unwrap()["question"] = json!("why ".repeat(300));
        });
    }
    refused_training(&place, &["question \"train-3-0\" has ", "at most 156"]);
    refused(
        &place,
        place
            .evaluation()
            .args(["--max_seq_length", "100", "--doc_stride", "20"]),
        &["question \"dev-3-0\" has ", "at most 96"],
    );

    let place = Place::new();
    for file in ["train.json", "dev.json"] {
        change(&place, file, |data| {
            let context = data["data"][0]["paragraphs"][4]["context"].as_str().unwrap().repeat(30);
            data["data"][0]["paragraphs"][4]["context"] = json!(context);
        });
    }
    refused(
        &place,
        place.training().args(["--doc_stride", "155"]),
        &["question \"train-4-0\"", "cannot overlap by 155"],
    );
    refused(
        &place,
        place
            .evaluation()
            .args(["--max_seq_length", "64", "--doc_stride", "64"]),
        &["question \"dev-4-0\"", "cannot overlap by 64"],
    );
    // Shorter than any window can be.
    refused(
        &place,
        place.training().args(["--max_seq_length", "2"]),
        &["question \"train-0-0\"", "windows of 2 tokens"],
    );
    // Longer than the model can read: as in run_qa.py a warning, and the model's own length.
    for mut command in [place.training(), place.evaluation()] {
        command.args(["--max_seq_length", "100000", "--overwrite_output_dir"]);
        run(&mut command).with(0, &["--max_seq_length 100000 is more than the model's 160 tokens"]);
    }
}

#[test]
fn a_batch_that_the_data_cannot_fill() {
    let place = Place::new();
    let mut command = place.training();
    command.args(["--dataloader_drop_last", "--per_device_train_batch_size", "1000"]);
    refused(&place, &mut command, &["train.json", "do not fill one batch of 1000"]);
}

#[test]
fn a_full_output_folder() {
    let place = Place::new();
    fs::create_dir(place.path("out")).unwrap();
    place.write_bytes("out/notes.txt", b"mine");
    refused_training(&place, &["output folder out is not empty", "--overwrite_output_dir"]);
    refused(
        &place,
        place
            .command()
            .args(["--output_dir", "out", "--nodes", "1", "--ppn", "2"]),
        &["output folder out is not empty", "--overwrite_output_dir"],
    );
    // Evaluation adds its files.
    run(&mut place.evaluation()).good();
    refused_training(&place, &["output folder out is not empty"]);
    run(place.training().arg("--overwrite_output_dir")).good();
    assert_eq!(fs::read(place.path("out/notes.txt")).unwrap(), b"mine");
    assert!(place.path("out/model.safetensors").is_file());
}

#[test]
fn an_output_folder_that_is_a_file() {
    let place = Place::new();
    place.write_bytes("out", b"mine");
    refused_training(&place, &["out", "Not a directory"]);
    refused(&place, place.training().arg("--overwrite_output_dir"), &["out"]);
}

#[test]
fn damaged_checkpoints() {
    let place = Place::new();
    run(place.training().args(["--save_steps", "1"])).good();
    let mut again = place.training();
    again.args(["--resume_from_checkpoint", "out/checkpoint-1"]);
    run(&mut again).good();

    let check = |file: &str, change: &dyn Fn(&mut Vec<u8>), words: &[&str]| {
        let path = place.path("out/checkpoint-1").join(file);
        let good = fs::read(&path).unwrap();
        let mut bytes = good.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let mut again = place.training();
        again.args(["--resume_from_checkpoint", "out/checkpoint-1"]);
        refused(&place, &mut again, words);
        fs::write(&path, good).unwrap();
    };
    check(
        "optimizer.safetensors",
        &|b| b.truncate(b.len() - 4),
        &["checkpoint-1/optimizer.safetensors"],
    );
    check(
        "optimizer.safetensors",
        &|b| b[0] ^= 0x7f,
        &["checkpoint-1/optimizer.safetensors"],
    );
    check(
        "optimizer.safetensors",
        &|b| b.clear(),
        &["checkpoint-1/optimizer.safetensors"],
    );
    check(
        "model.safetensors",
        &|b| b.truncate(b.len() / 2),
        &["checkpoint-1/model.safetensors"],
    );
    check(
        "trainer_state.json",
        &|b| b.truncate(b.len() / 2),
        &["checkpoint-1/trainer_state.json:"],
    );
    check(
        "trainer_state.json",
        &|b| *b = b"[]".to_vec(),
        &["checkpoint-1/trainer_state.json", "global_step"],
    );

    refused(
        &place,
        place.training().args(["--resume_from_checkpoint", "out/checkpoint-7"]),
        &["out/checkpoint-7"],
    );
    // Another order of the data than the checkpoint's.
    refused(
        &place,
        place.training().args(["--resume_from_checkpoint", "--seed", "7"]),
        &["trainer_state.json", "it belongs to a run over"],
    );
    let place = Place::new();
    refused(
        &place,
        place.training().arg("--resume_from_checkpoint"),
        &["no checkpoint to go on from in out"],
    );
}
