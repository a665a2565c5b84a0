//! 300 questions each of SQuAD 1.1 and 2.0 against transformers and `run_qa.py`: windows, labels, and answers from random
//! logits are the same to the bit. The fixture holds checksums: see `reference/dev300_fixtures.py`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, which say what they skip"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use azulejo_bert::features::Feature;
use azulejo_bert::squad::features::{Windows, training_features};
use azulejo_bert::squad::postprocess::{Answered, Candidates, Choice, answers};
use azulejo_bert::squad::read::DataSet;
use azulejo_bert::tokenizer::Tokenizer;
use serde_json::Value;

fn fnv(text: &str) -> String {
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// As in the script: a multiple of 2^-20 between -8 and 8.
fn logit(which: u64, feature: usize, token: usize) -> f32 {
    let mut z = ((which << 40) + ((feature as u64) << 20) + token as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((z >> 40) as i32 - (1 << 23)) as f32 / (1 << 20) as f32
}

fn describe(feature: &Feature) -> String {
    let join = |parts: Vec<String>| parts.join(",");
    let ids = join(feature.ids.iter().map(u32::to_string).collect());
    let types = join(feature.token_types.iter().map(u8::to_string).collect());
    let place = |offset: &Option<(u32, u32)>| offset.map_or("_".into(), |(from, to)| format!("{from}-{to}"));
    let places = join(feature.offsets.iter().map(place).collect());
    format!("{ids}|{types}|{places}|{},{}\n", feature.start, feature.end)
}

fn describe_answer(answered: &Answered) -> String {
    let mut text = answered.text.clone();
    for span in &answered.n_best {
        let (start, end) = (span.start_logit.to_bits(), span.end_logit.to_bits());
        write!(text, "\n{}\t{start:08x}\t{end:08x}", span.text).unwrap();
    }
    if let Some(odds) = answered.null_odds {
        write!(text, "\n{:08x}", (odds as f32).to_bits()).unwrap();
    }
    text
}

#[test]
fn windows_labels_and_answers_of_600_questions_are_those_of_the_original() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = std::env::var_os("AZULEJO_SHARED").map_or_else(|| here.join("../../shared"), PathBuf::from);
    let (data, model) = (root.join("data/squad"), here.join("../third_party/minilm"));
    for needed in [&data, &model] {
        if !needed.exists() {
            println!("skipped: {} is absent", needed.display());
            return;
        }
    }
    let tokenizer = Tokenizer::from_folder(&model).unwrap();
    let cases: Value = serde_json::from_str(include_str!("fixtures/dev300.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let texts = |name: &str| -> Vec<&str> {
            case[name]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_str().unwrap())
                .collect()
        };
        let number = |name: &str| case[name].as_u64().unwrap() as usize;
        let file = case["file"].as_str().unwrap();
        let mut set = DataSet::read(data.join(file)).unwrap();
        let ids = texts("ids");
        assert_eq!(ids.len(), 300);
        set.examples.retain(|example| ids.contains(&&*example.id));
        assert_eq!(set.examples.iter().map(|e| &*e.id).collect::<Vec<_>>(), ids, "{file}");
        let windows = Windows {
            max_length: number("max_length"),
            stride: number("stride"),
            ..Windows::default()
        };
        let features = training_features(&set, &tokenizer, &windows).unwrap();
        assert_eq!(features.len(), number("features"), "{file} {windows:?}");
        let mut described = vec![String::new(); set.len()];
        features.iter().for_each(|f| described[f.example] += &describe(f));
        for ((id, expected), text) in ids.iter().zip(texts("windows")).zip(&described) {
            assert_eq!(fnv(text), expected, "{file} {windows:?} {id}: {text}");
        }

        let version_2 = case["version_2"].as_bool().unwrap();
        let choice = Choice {
            null_threshold: version_2.then_some(0.0),
            ..Choice::default()
        };
        let candidates: Vec<_> = features
            .iter()
            .enumerate()
            .map(|(f, feature)| {
                let row = |which| (0..feature.len()).map(|t| logit(which, f, t)).collect::<Vec<_>>();
                Candidates::new(&row(0), &row(1), choice.n_best)
            })
            .collect();
        let found = answers(&set, &features, &candidates, &choice);
        for ((id, expected), answered) in ids.iter().zip(texts("answers")).zip(&found) {
            let text = describe_answer(answered);
            assert_eq!(fnv(&text), expected, "{file} {windows:?} {id}: {text}");
        }
    }
}
