//! The demo's data set: what it promises about itself.
#![expect(clippy::print_stdout, reason = "a test says its seed and what it measured")]

use std::collections::HashSet;
use std::error::Error;
use std::fs;

use azulejo_examples::demo::generate::{Part, Passage, SLOTS, Slot};
use azulejo_examples::demo::random::Random;
use azulejo_examples::demo::vocabulary::{UNKNOWN, Vocabulary, pieces};
use azulejo_examples::demo::{DEV_QUESTIONS, TRAIN_QUESTIONS, blind, unpack_encoder, write_dataset};
use serde_json::Value;

type TestResult = Result<(), Box<dyn Error>>;

#[test]
fn a_reader_blind_to_the_question_scores_under_35() {
    let blind = blind::measure(3, 20_000);
    println!("seed 3: {blind:?}");
    // Over 20,000 questions the standard deviation of each figure is under 0.36.
    assert!(blind.passage_only < 12.0, "the passage alone");
    assert!(blind.told_the_kind < 30.0, "told the kind");
    assert!(blind.chance < 30.0, "by chance among the kind");
}

#[test]
fn an_answer_has_three_rivals_of_its_kind_that_share_no_word_with_it() {
    let mut random = Random::new(5);
    for i in 0..2000 {
        let part = if i % 2 == 0 { Part::Train } else { Part::HeldOut };
        let passage = Passage::generate(&mut random, part, 4 + i % 2);
        for slot in SLOTS {
            let all: Vec<&str> = passage
                .facts
                .iter()
                .map(|fact| &passage.context[fact.words[slot as usize].clone()])
                .collect();
            assert!(all.len() >= 4);
            let words: Vec<&str> = all.iter().flat_map(|value| value.split(' ')).collect();
            let different: HashSet<&str> = words.iter().copied().collect();
            assert_eq!(words.len(), different.len(), "seed 5, passage {i}: {}", passage.context);
        }
    }
}

/// Names, items, places and years of a part, each whole.
fn values(part: Part, seed: u64) -> HashSet<String> {
    let mut random = Random::new(seed);
    let mut found = HashSet::new();
    for _ in 0..3000 {
        let passage = Passage::generate(&mut random, part, 5);
        for fact in &passage.facts {
            for slot in SLOTS {
                let value = &passage.context[fact.words[slot as usize].clone()];
                // Of a person each name counts by itself.
                let parts = if slot == Slot::Person {
                    value.split(' ').collect()
                } else {
                    vec![value]
                };
                found.extend(parts.into_iter().map(String::from));
            }
        }
    }
    found
}

#[test]
fn no_name_item_place_or_year_is_in_both_parts() {
    let (train, held_out) = (values(Part::Train, 1), values(Part::HeldOut, 2));
    let both: Vec<&String> = train.intersection(&held_out).collect();
    assert!(both.is_empty(), "in both parts: {both:?}");
    assert!(
        train.len() > 2000 && held_out.len() > 600,
        "{} and {}",
        train.len(),
        held_out.len()
    );
}

/// The shape of a sentence: its words without the made-up ones, verbs and prepositions included.
fn shape(passage: &Passage, fact: usize) -> String {
    let fact = &passage.facts[fact];
    let mut text = passage.context[fact.sentence.clone()].to_ascii_lowercase();
    let mut places: Vec<_> = fact.words.iter().cloned().zip(["P", "I", "L", "Y"]).collect();
    places.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
    for (range, name) in places {
        text.replace_range(range.start - fact.sentence.start..range.end - fact.sentence.start, name);
    }
    text
}

#[test]
fn no_sentence_shape_is_in_both_parts_and_every_word_is_known_from_training() {
    let shapes = |part, seed| {
        let mut random = Random::new(seed);
        let mut found = HashSet::new();
        for _ in 0..4000 {
            let passage = Passage::generate(&mut random, part, 5);
            found.extend((0..5).map(|fact| shape(&passage, fact)));
        }
        found
    };
    let (train, held_out) = (shapes(Part::Train, 11), shapes(Part::HeldOut, 12));
    let both: Vec<&String> = train.intersection(&held_out).collect();
    assert!(both.is_empty(), "in both parts: {both:?}");

    let vocabulary = Vocabulary::default();
    let pieces_of = |part, seed| {
        let mut random = Random::new(seed);
        let mut found = HashSet::new();
        for _ in 0..4000 {
            let passage = Passage::generate(&mut random, part, 5);
            found.extend(vocabulary.encode(&passage.context).into_iter().map(|(id, _)| id));
            for slot in SLOTS {
                let question = passage.ask(&mut random, 0, slot);
                found.extend(vocabulary.encode(&question.text).into_iter().map(|(id, _)| id));
            }
        }
        found
    };
    let (train, held_out) = (pieces_of(Part::Train, 13), pieces_of(Part::HeldOut, 14));
    let names = pieces();
    let unseen: Vec<&String> = held_out.difference(&train).map(|&id| &names[id as usize]).collect();
    assert!(unseen.is_empty(), "only in the evaluation part: {unseen:?}");
    assert!(!held_out.contains(&UNKNOWN));
}

#[test]
fn no_question_of_the_evaluation_part_is_worded_as_in_training() {
    let questions = |part, seed| {
        let mut random = Random::new(seed);
        let mut found = HashSet::new();
        for _ in 0..4000 {
            let passage = Passage::generate(&mut random, part, 4);
            for slot in SLOTS {
                let mut text = passage.ask(&mut random, 1, slot).text;
                for (range, name) in passage.facts[1].words.iter().zip(["P", "I", "L", "Y"]) {
                    text = text.replace(&passage.context[range.clone()], name);
                }
                found.insert(text);
            }
        }
        found
    };
    let (train, held_out) = (questions(Part::Train, 21), questions(Part::HeldOut, 22));
    let both: Vec<&String> = train.intersection(&held_out).collect();
    assert!(both.is_empty(), "in both parts: {both:?}");
}

#[test]
fn the_files_are_squad_and_the_same_for_the_same_seed() -> TestResult {
    let (one, two) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (train, dev) = write_dataset(one.path(), 42)?;
    let (train_again, dev_again) = write_dataset(two.path(), 42)?;
    assert_eq!(fs::read(&train)?, fs::read(train_again)?);
    assert_eq!(fs::read(&dev)?, fs::read(dev_again)?);

    let mut ids = HashSet::new();
    for (file, expected) in [(train, TRAIN_QUESTIONS), (dev, DEV_QUESTIONS)] {
        let root: Value = serde_json::from_slice(&fs::read(&file)?)?;
        let mut count = 0;
        for paragraph in root["data"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|d| d["paragraphs"].as_array())
            .flatten()
        {
            let context = paragraph["context"].as_str().ok_or("context")?;
            for qa in paragraph["qas"].as_array().ok_or("qas")? {
                let answer = &qa["answers"][0];
                let text = answer["text"].as_str().ok_or("text")?;
                let start = usize::try_from(answer["answer_start"].as_u64().ok_or("answer_start")?)?;
                assert_eq!(&context[start..start + text.len()], text);
                assert!(
                    ids.insert(qa["id"].as_str().ok_or("id")?.to_owned()),
                    "id twice: {}",
                    qa["id"]
                );
                count += 1;
            }
        }
        assert_eq!(count, expected, "{}", file.display());
    }
    Ok(())
}

#[test]
fn names_are_two_pieces_a_half() {
    let vocabulary = Vocabulary::default();
    let mut random = Random::new(17);
    for _ in 0..3000 {
        let passage = Passage::generate(&mut random, Part::Train, 5);
        for fact in &passage.facts {
            for (slot, expected) in SLOTS.into_iter().zip([4, 2, 2, 2]) {
                let value = &passage.context[fact.words[slot as usize].clone()];
                assert_eq!(vocabulary.encode(value).len(), expected, "{value}");
            }
        }
    }
}

#[test]
fn the_shipped_vocabulary_is_the_generators_and_the_encoder_is_small() -> TestResult {
    let dir = tempfile::tempdir()?;
    unpack_encoder(dir.path())?;
    let shipped = fs::read_to_string(dir.path().join("vocab.txt"))?;
    assert!(
        shipped.lines().eq(pieces()),
        "vocab.txt is not the generator's vocabulary"
    );
    let mut bytes = 0;
    for entry in fs::read_dir(dir.path())? {
        bytes += entry?.metadata()?.len();
    }
    assert!(bytes <= 4 << 20, "{bytes} bytes");
    Ok(())
}
