//! Model folders: what is read, what is reported, what is refused, and that a failed save leaves nothing behind.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, which say what they skip"
)]

use azulejo_bert::Error;
use azulejo_bert::checkpoint::{Folder, Report, load_config, load_weights, save, write_safetensors};
use azulejo_bert::config::Config;
use azulejo_bert::params::{Head, Params};
use azulejo_bert::tokenizer::Tokenizer;
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// A model small enough to write tensor by tensor: 5 tokens, width 4.
fn tiny() -> (Config, Params) {
    let config = Config::from_json(
        r#"{"model_type": "bert", "vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 6, "max_position_embeddings": 8, "some_key": [1, null]}"#,
    )
    .unwrap();
    let params = Params::new(&config, Head::QuestionAnswering);
    (config, params)
}

/// Numbers that bf16 and f16 hold exactly.
fn numbers(params: &Params) -> Vec<f32> {
    (0..params.total()).map(|i| (i % 200) as f32 / 8.0 - 12.0).collect()
}

struct Entry {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn entries(params: &Params, weights: &[f32], dtype: &'static str) -> Vec<Entry> {
    params
        .iter()
        .map(|param| Entry {
            name: param.name.clone(),
            dtype,
            shape: param.shape.clone(),
            bytes: weights[param.range.clone()]
                .iter()
                .flat_map(|&x| match dtype {
                    "F16" => f16::from_f32(x).to_le_bytes().to_vec(),
                    "BF16" => bf16::from_f32(x).to_le_bytes().to_vec(),
                    _ => x.to_le_bytes().to_vec(),
                })
                .collect(),
        })
        .collect()
}

/// A safetensors file made independently of the code that is tested.
fn file_of(entries: &[Entry]) -> Vec<u8> {
    let mut header = Map::new();
    let mut data = Vec::new();
    for entry in entries {
        let begin = data.len();
        data.extend(&entry.bytes);
        let described = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, data.len()]});
        header.insert(entry.name.clone(), described);
    }
    with_header(&Value::Object(header).to_string(), &data)
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn load(bytes: &[u8], params: &Params) -> Result<(Vec<f32>, Report), Error> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let mut weights = vec![f32::NAN; params.total()];
    let report = load_weights(folder.path(), params, &mut weights)?;
    Ok((weights, report))
}

fn message(bytes: &[u8], params: &Params) -> String {
    load(bytes, params).unwrap_err().to_string()
}

#[test]
fn every_number_type_is_read() {
    let (_, params) = tiny();
    let weights = numbers(&params);
    for dtype in ["F32", "F16", "BF16"] {
        let (loaded, report) = load(&file_of(&entries(&params, &weights, dtype)), &params).unwrap();
        assert_eq!(loaded, weights, "{dtype}");
        assert_eq!(report, Report::default());
    }
}

#[test]
fn names_may_lack_their_prefix_and_be_of_the_old_kind() {
    let (_, params) = tiny();
    let weights = numbers(&params);
    let mut tensors = entries(&params, &weights, "F32");
    for tensor in &mut tensors {
        if let Some(bare) = tensor.name.strip_prefix("bert.") {
            tensor.name = bare
                .replace("LayerNorm.weight", "LayerNorm.gamma")
                .replace("LayerNorm.bias", "LayerNorm.beta");
        }
    }
    assert!(tensors.iter().any(|t| t.name == "embeddings.LayerNorm.gamma"));
    let (loaded, report) = load(&file_of(&tensors), &params).unwrap();
    assert_eq!(loaded, weights);
    assert_eq!(report, Report::default());
}

#[test]
fn new_unused_and_integer_tensors_are_told_apart() {
    let (_, params) = tiny();
    let weights = numbers(&params);
    let mut tensors = entries(&params, &weights, "F32");
    tensors.retain(|tensor| !tensor.name.starts_with("qa_outputs."));
    tensors.push(Entry {
        name: "bert.pooler.dense.bias".into(),
        dtype: "F32",
        shape: vec![2],
        bytes: vec![0; 8],
    });
    tensors.push(Entry {
        name: "bert.embeddings.position_ids".into(),
        dtype: "I64",
        shape: vec![1, 2],
        bytes: vec![0; 16],
    });
    let (loaded, report) = load(&file_of(&tensors), &params).unwrap();
    assert_eq!(report.new, ["qa_outputs.weight", "qa_outputs.bias"]);
    assert_eq!(report.unused, ["bert.pooler.dense.bias"]);
    let head = params.find("qa_outputs.weight").unwrap().range.start;
    assert_eq!(loaded[..head], weights[..head]);
    assert!(loaded[head..].iter().all(|x| x.is_nan()), "the head is left as it was");
}

#[test]
fn missing_misshapen_and_repeated_tensors_are_refused_by_name() {
    let (_, params) = tiny();
    let weights = numbers(&params);
    let all = || entries(&params, &weights, "F32");
    let word = "bert.embeddings.word_embeddings.weight";

    let mut tensors = all();
    tensors.retain(|tensor| tensor.name != word);
    assert!(
        message(&file_of(&tensors), &params)
            .ends_with(&format!(": 1 tensors that the model needs are missing: {word}"))
    );

    let mut tensors = all();
    tensors[0].shape = vec![4, 5];
    assert_eq!(tensors[0].name, word);
    let wrong = message(&file_of(&tensors), &params);
    assert!(
        wrong.ends_with(&format!("tensor \"{word}\" has shape [4, 5], the model needs [5, 4]")),
        "{wrong}"
    );

    let mut tensors = all();
    tensors.push(Entry {
        name: "embeddings.word_embeddings.weight".into(),
        dtype: "F32",
        shape: vec![5, 4],
        bytes: vec![0; 80],
    });
    assert!(message(&file_of(&tensors), &params).contains("is there twice, under two names"));

    let mut tensors = all();
    tensors[0].dtype = "I32";
    assert!(message(&file_of(&tensors), &params).contains("has type I32, expected F32, F16 or BF16"));

    let folder = tempfile::tempdir().unwrap();
    let mut out = vec![0.0; params.total()];
    let error = load_weights(folder.path(), &params, &mut out).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: "), "{error}");
    let error = load_weights(folder.path(), &params, &mut [0.0]).unwrap_err();
    assert!(!error.to_string().is_empty());
}

#[test]
fn headers_that_lie_are_refused() {
    let (_, params) = tiny();
    let tensor = |shape: &str, begin: u64, end: u64| {
        format!("{{\"x\": {{\"dtype\": \"F32\", \"shape\": {shape}, \"data_offsets\": [{begin}, {end}]}}}}")
    };
    for (header, data, expected) in [
        ("[]".to_owned(), 0, "its header is not a JSON object"),
        ("{".to_owned(), 0, "its header is not a JSON object"),
        ("{\"x\": 1}".to_owned(), 0, "its header describes tensor \"x\" as 1"),
        (tensor("[2]", 0, 4), 4, "its header describes tensor \"x\""),
        (tensor("[2]", 8, 0), 8, "its header describes tensor \"x\""),
        (tensor("[-1]", 0, 8), 8, "its header describes tensor \"x\""),
        (
            tensor("[4294967296, 4294967296]", 0, 8),
            8,
            "its header describes tensor \"x\"",
        ),
        (
            tensor("[2]", u64::MAX - 7, u64::MAX),
            8,
            "its header describes tensor \"x\"",
        ),
        (tensor("[2]", 4, 12), 12, "tensor \"x\" is said to fill bytes"),
        (tensor("[2]", 0, 8), 4, "tensor \"x\" is said to fill bytes"),
        (tensor("[2]", 0, 8), 9, "its tensors end at byte"),
    ] {
        let message = message(&with_header(&header, &vec![0; data]), &params);
        assert!(message.contains(expected), "{header}: {message}");
    }
    for (bytes, expected) in [
        (vec![], "this one has 0 bytes"),
        (vec![1, 0, 0], "this one has 3 bytes"),
        (
            u64::MAX.to_le_bytes().to_vec(),
            "its header says to be 18446744073709551615 bytes long",
        ),
        (
            [9, 0, 0, 0, 0, 0, 0, 0, 123, 125].to_vec(),
            "its header says to be 9 bytes long, but the file has 10",
        ),
    ] {
        let message = message(&bytes, &params);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn damaged_files_are_errors_and_never_panics() {
    let (_, params) = tiny();
    let weights = numbers(&params);
    let good = file_of(&entries(&params, &weights, "F32"));
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize + 8;
    for cut in (0..header).step_by(7).chain(header..good.len()) {
        assert!(load(&good[..cut], &params).is_err(), "cut at {cut}");
    }
    let mut seed = 0xfade_u64;
    println!("seed {seed}");
    for _ in 0..500 {
        let mut bad = good.clone();
        for _ in 0..3 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (seed >> 40) as usize % header;
            bad[at] = (seed >> 32) as u8;
        }
        // Most are refused. A changed letter of the head's name is not damage that can be seen.
        if let Ok((loaded, _)) = load(&bad, &params) {
            assert_eq!(loaded.len(), weights.len());
        }
    }
}

#[test]
fn a_saved_folder_reads_back_the_same() {
    let (config, params) = tiny();
    let weights: Vec<_> = numbers(&params).iter().map(|x| x / 3.0).collect();
    let tokenizer = Tokenizer::from_vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n", true).unwrap();
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("made/on/demand");
    save(&folder, &config, &params, &weights, Some(&tokenizer)).unwrap();
    save(&folder, &config, &params, &weights, Some(&tokenizer)).unwrap(); // over the first

    let mut loaded = vec![f32::NAN; params.total()];
    assert_eq!(load_weights(&folder, &params, &mut loaded).unwrap(), Report::default());
    assert_eq!(loaded, weights);
    let read = load_config(&folder).unwrap();
    assert_eq!(Params::new(&read, Head::QuestionAnswering).total(), params.total());
    let json: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    assert_eq!(json["architectures"], json!(["BertForQuestionAnswering"]));
    assert_eq!(json["some_key"], json!([1, null]), "what is not understood is kept");
    assert_eq!(
        names(&folder),
        [
            "config.json",
            "model.safetensors",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt"
        ]
    );
    assert_eq!(
        Tokenizer::from_folder(&folder).unwrap().encode("Word").unwrap().ids,
        [4]
    );

    // The library that others read it with.
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), params.iter().len());
    let words = file.tensor("bert.embeddings.word_embeddings.weight").unwrap();
    assert_eq!(words.shape(), [5, 4]);
    assert_eq!(words.data()[..4], weights[0].to_le_bytes());
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_bad_configuration_is_named_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let message = || load_config(folder.path()).unwrap_err().to_string();
    assert!(message().contains("config.json: "), "{}", message());
    let write = |text: &str| fs::write(folder.path().join("config.json"), text).unwrap();
    write("{\n \"model_type\": \"bert\",\n oops}");
    assert!(message().contains("config.json:3:2: "), "{}", message());
    write("{\"model_type\": \"gpt2\"}");
    assert!(
        message().contains("config.json: model_type is \"gpt2\""),
        "{}",
        message()
    );
}

#[test]
fn a_write_that_fails_leaves_the_folder_as_it_was() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("out");
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);

    let mut folder = Folder::open(&path).unwrap();
    folder.add("a.json", |out| out.write_all(b"{}")).unwrap();
    let error = folder.add("b.json", |_| Err(full())).unwrap_err();
    assert!(error.to_string().contains("b.json: "), "{error}");
    drop(folder);
    assert!(!path.exists(), "a folder made for nothing goes");

    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.json"), "old").unwrap();
    let mut folder = Folder::open(&path).unwrap();
    folder.add("a.json", |out| out.write_all(b"new")).unwrap();
    folder
        .add("c.json", |out| out.write_all(b"new").and(Err(full())))
        .unwrap_err();
    drop(folder);
    assert_eq!(names(&path), ["a.json"]);
    assert_eq!(fs::read(path.join("a.json")).unwrap(), b"old");

    let mut folder = Folder::open(&path).unwrap();
    folder.add("a.json", |out| out.write_all(b"new")).unwrap();
    folder.commit().unwrap();
    assert_eq!(fs::read(path.join("a.json")).unwrap(), b"new");

    let error = Folder::open(path.join("a.json")).unwrap_err();
    assert!(error.to_string().contains("a.json: "), "{error}");
}

/// Saves to a file system of 64 KiB, which this test mounts for a second run of itself where it may.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    const VARIABLE: &str = "AZULEJO_TEST_SMALL_DISK";
    if let Some(path) = std::env::var_os(VARIABLE) {
        let path = Path::new(&path);
        fs::write(path.join("config.json"), "old").unwrap();
        let config = Config::bert(100, 64, 2, 2, 128).unwrap();
        let params = Params::new(&config, Head::QuestionAnswering);
        let weights = vec![1.0; params.total()];
        let error = save(path, &config, &params, &weights, None).unwrap_err();
        assert!(matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull));
        assert!(error.to_string().contains("model.safetensors: "), "{error}");
        assert_eq!(names(path), ["config.json"]);
        assert_eq!(fs::read(path.join("config.json")).unwrap(), b"old");
        println!("saved nothing");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$0\" || exit 77; exec \"$1\" --exact a_full_disk_leaves_nothing_half_written --nocapture";
    let run = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .env(VARIABLE, folder.path())
        .output();
    match run {
        Ok(output) if output.status.success() => {
            assert!(String::from_utf8_lossy(&output.stdout).contains("saved nothing"));
        }
        Ok(output) if output.status.code() == Some(101) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        _ => println!("skipped: no user namespace with a small file system here"),
    }
}

/// `/dev/full` refuses every byte, as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let values = vec![1.0; 1 << 18];
    let error = write_safetensors(&mut &full, &[("x", &[1 << 18], &values)]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn minilm_loads_without_its_pooler() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/minilm");
    if !folder.exists() {
        println!(
            "skipped: {} is absent (tools/fetch_minilm.sh makes it)",
            folder.display()
        );
        return;
    }
    let config = load_config(&folder).unwrap();
    let params = Params::new(&config, Head::QuestionAnswering);
    let mut weights = params.initialise(&config, 1);
    let report = load_weights(&folder, &params, &mut weights).unwrap();
    assert_eq!(report.new, ["qa_outputs.weight", "qa_outputs.bias"]);
    assert_eq!(report.unused, ["pooler.dense.bias", "pooler.dense.weight"]);
    assert!(weights.iter().all(|x| x.is_finite()));
}

/// What `bert/reference/torch_file_fixture.py` has written.
const TORCH: &[u8] = include_bytes!("fixtures/pytorch_model.bin");

fn load_torch(bytes: &[u8], params: &Params) -> Result<(Vec<f32>, Report), Error> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), bytes).unwrap();
    let mut weights = vec![f32::NAN; params.total()];
    let report = load_weights(folder.path(), params, &mut weights)?;
    Ok((weights, report))
}

#[test]
fn a_file_of_torch_save_is_read() {
    let (_, params) = tiny();
    let (weights, report) = load_torch(TORCH, &params).unwrap();
    for param in params.iter() {
        for (i, got) in weights[param.range.clone()].iter().enumerate() {
            let expected = ((7 * param.name.len() + i) % 200) as f32 / 8.0 - 12.0;
            assert_eq!(*got, expected, "{} {i}", param.name);
        }
    }
    assert_eq!(report.unused, ["cls.seq_relationship.bias"]);
    assert!(report.new.is_empty());

    // Where both are there, safetensors go first.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), TORCH).unwrap();
    let other = numbers(&params);
    fs::write(
        folder.path().join("model.safetensors"),
        file_of(&entries(&params, &other, "F32")),
    )
    .unwrap();
    let mut weights = vec![0.0; params.total()];
    load_weights(folder.path(), &params, &mut weights).unwrap();
    assert_eq!(weights, other);
}

#[test]
fn damaged_files_of_torch_save_are_errors_and_never_panics() {
    let (_, params) = tiny();
    let folder = tempfile::tempdir().unwrap();
    let mut weights = vec![0.0; params.total()];
    let mut load = |bytes: &[u8]| {
        fs::write(folder.path().join("pytorch_model.bin"), bytes).unwrap();
        load_weights(folder.path(), &params, &mut weights)
    };
    for cut in (0..TORCH.len()).step_by(3) {
        let error = load(&TORCH[..cut]).expect_err("cut").to_string();
        assert!(error.contains("pytorch_model.bin: "), "cut at {cut}: {error}");
    }
    let mut refused = 0;
    for at in 0..TORCH.len() {
        let mut bad = TORCH.to_vec();
        bad[at] ^= [1, 0x80, 0xff][at % 3];
        // A changed weight is not damage that can be seen.
        refused += usize::from(load(&bad).is_err());
    }
    assert!(refused > TORCH.len() / 4, "{refused} of {}", TORCH.len());
}

/// The fixture with another text of the same length wherever one stands.
fn replaced(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = TORCH.to_vec();
    let places = (0..=bytes.len() - from.len()).filter(|&at| TORCH[at..].starts_with(from.as_bytes()));
    let places: Vec<usize> = places.collect();
    assert!(!places.is_empty(), "{from}");
    places
        .iter()
        .for_each(|&at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    bytes
}

#[test]
fn programs_in_files_of_torch_save_are_not_run() {
    let (_, params) = tiny();
    for (bytes, words) in [
        (
            replaced(
                "ctorch._utils\n_rebuild_tensor_v2\n",
                "cposix_______\nsystem____________\n",
            ),
            "refused",
        ),
        (
            replaced("OrderedDict", "orderedDict"),
            "collections.orderedDict, which weights do not need",
        ),
        (replaced("FloatStorage", "TooatStorage"), "torch.TooatStorage"),
        (replaced("pytorch_model/data.pkl", "pytorch_model/date.pkl"), "data.pkl"),
        (
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.".to_vec(),
            "PyTorch before 1.6",
        ),
        (Vec::new(), "no file of torch.save"),
        (b"<html>not found</html>".to_vec(), "no file of torch.save"),
    ] {
        let error = load_torch(&bytes, &params).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}
