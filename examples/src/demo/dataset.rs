//! The data set as two files in SQuAD's nested form.

use std::path::{Path, PathBuf};

use azulejo_bert::Result;
use azulejo_bert::checkpoint::Folder;
use serde_json::{Value, json};

use super::generate::{Part, Passage, SLOTS};
use super::random::Random;

const QUESTIONS_A_PASSAGE: usize = 3;
/// Questions of the training file.
pub const TRAIN_QUESTIONS: usize = 3600;
/// Questions of the evaluation file.
pub const DEV_QUESTIONS: usize = 600;

/// Writes `train.json` and `dev.json` into `dir`, which is made when absent; the two paths. The same seed gives the
/// same bytes.
///
/// # Errors
/// If a file cannot be written; none has changed then.
pub fn write_dataset(dir: &Path, seed: u64) -> Result<(PathBuf, PathBuf)> {
    let parts = [
        ("train.json", Part::Train, TRAIN_QUESTIONS),
        ("dev.json", Part::HeldOut, DEV_QUESTIONS),
    ];
    let mut folder = Folder::open(dir)?;
    for (name, part, questions) in parts {
        let text = squad(seed, part, questions).to_string();
        folder.add(name, |out| out.write_all(text.as_bytes()))?;
    }
    folder.commit()?;
    Ok((dir.join("train.json"), dir.join("dev.json")))
}

fn squad(seed: u64, part: Part, questions: usize) -> Value {
    // Pre-training uses the seeds' own sequences: these are others.
    let mut random = Random::new(seed ^ 0x5351_5541_4400_0000);
    let passages = (0..questions / QUESTIONS_A_PASSAGE).map(|number| {
        let facts = 4 + random.below(2);
        let passage = Passage::generate(&mut random, part, facts);
        let chosen = random.distinct(SLOTS.len() * facts, QUESTIONS_A_PASSAGE);
        let qas: Vec<Value> = chosen
            .into_iter()
            .enumerate()
            .map(|(i, choice)| {
                let question = passage.ask(&mut random, choice / SLOTS.len(), SLOTS[choice % SLOTS.len()]);
                let start = passage.answer_range(&question).start;
                let name = if part == Part::Train { "train" } else { "dev" };
                json!({
                    "id": format!("{name}-{number}-{i}"),
                    "question": question.text,
                    "answers": [{ "text": passage.answer(&question), "answer_start": start }],
                })
            })
            .collect();
        json!({ "context": passage.context, "qas": qas })
    });
    let paragraphs: Vec<Value> = passages.collect();
    json!({ "version": "1.1", "data": [{ "title": "Records", "paragraphs": paragraphs }] })
}
