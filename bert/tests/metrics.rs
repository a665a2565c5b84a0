//! The scores: hand-made cases of every rule, and two published predictions with their published scores.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, which say what they skip"
)]

use azulejo_bert::squad::metrics::{NoAnswer, Part, normalise, score, score_v2};
use azulejo_bert::squad::read::DataSet;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn set(rows: &[(&str, &[&str])]) -> DataSet {
    let rows: Vec<_> = rows
        .iter()
        .map(|(id, texts)| {
            serde_json::json!({"id": id, "question": "?", "context": "some text",
                "answers": {"text": texts, "answer_start": vec![0; texts.len()]}})
        })
        .collect();
    DataSet::parse(serde_json::to_string(&rows).unwrap().as_bytes(), "rows.json").unwrap()
}

fn predictions(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(id, text)| ((*id).into(), (*text).into())).collect()
}

#[test]
fn normalisation_follows_python() {
    for (input, expected) in [
        ("The  Denver Broncos.", "denver broncos"),
        ("a-b", "ab"),
        ("the", ""),
        ("a\u{301}", "\u{301}"),
        ("½ a", "½"),
        ("½a", "½a"),
        ("a²", "a²"),
        ("a_b", "ab"),
        ("x\u{1c}y", "x y"),
        ("THE İstanbul", "i\u{307}stanbul"),
        ("An answer, a\u{a0}the\u{2028}theory", "answer theory"),
        ("the\u{93e}", "\u{93e}"),
        ("ΟΔΟΣ", "οδος"),
        ("", ""),
    ] {
        assert_eq!(normalise(input), expected, "{input:?}");
    }
}

#[test]
fn overlap_is_counted_in_words() {
    let gold = set(&[("1", &["10th and 11th centuries"])]);
    let scores = score(&gold, &predictions(&[("1", "in the 10th century")]));
    assert_eq!(scores.exact_match, 0.0);
    assert!((scores.f1 - 100.0 * 2.0 / 7.0).abs() < 1e-12, "{}", scores.f1);
}

#[test]
fn the_best_gold_answer_counts_and_missing_predictions_score_nothing() {
    let gold = set(&[("1", &["nine", "nine tons"]), ("2", &["blue"]), ("3", &["x x y"])]);
    let scores = score(
        &gold,
        &predictions(&[("1", "Nine Tons!"), ("3", "x y y"), ("9", "blue")]),
    );
    assert!((scores.exact_match - 100.0 / 3.0).abs() < 1e-12);
    assert!((scores.f1 - 100.0 * (1.0 + 2.0 / 3.0) / 3.0).abs() < 1e-12);
    assert_eq!(scores.missing, 1);
}

#[test]
fn texts_that_normalise_to_nothing_match_exactly_without_overlap_in_version_1() {
    let scores = score(&set(&[("1", &["a"])]), &predictions(&[("1", "the")]));
    assert_eq!((scores.exact_match, scores.f1), (100.0, 0.0));
}

#[test]
fn version_2_counts_questions_with_and_without_answer_apart() {
    let gold = set(&[
        ("1", &["blue"]),
        ("2", &[]),
        ("3", &[]),
        ("4", &["red brick", "the"]),
        ("5", &["lost"]),
    ]);
    let made = predictions(&[("4", "red"), ("3", "guess"), ("2", ""), ("1", "Blue")]);
    let scores = score_v2(&gold, &made, &NoAnswer::default());
    let f1_red = 2.0 / 3.0;
    let part = |exact, f1, total| Part { exact, f1, total };
    assert_eq!(scores.all.total, 4);
    assert_eq!(scores.all.exact, 50.0);
    assert!((scores.all.f1 - 100.0 * (2.0 + f1_red) / 4.0).abs() < 1e-12);
    assert_eq!(scores.has_answer.unwrap().exact, 50.0);
    assert_eq!(scores.no_answer, Some(part(50.0, 50.0, 2)));
    assert_eq!(scores.missing, 1);
    // In the order of the predictions: 2, then +0 (4), -1 (3), +0 (2), +1 (1).
    assert_eq!(scores.best_exact, (50.0, 0.0));
    // For F1: 2, +2/3, -1, +0, +1: the first step is as good as the last.
    assert!((scores.best_f1.0 - 100.0 * (2.0 + f1_red) / 4.0).abs() < 1e-12);
}

#[test]
fn version_2_thresholds_move_answers_to_no_answer() {
    let gold = set(&[("1", &["blue"]), ("2", &[]), ("3", &["red"])]);
    let made = predictions(&[("1", "blue"), ("2", "guess"), ("3", "green")]);
    let probabilities = HashMap::from([("1".into(), 0.1), ("2".into(), 0.9), ("3".into(), 0.6)]);
    let no_answer = NoAnswer {
        probabilities,
        threshold: Some(0.5),
    };
    let scores = score_v2(&gold, &made, &no_answer);
    assert!((scores.all.exact - 100.0 * 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(scores.no_answer.unwrap().exact, 100.0);
    assert_eq!(scores.has_answer.unwrap().exact, 50.0);
    // 1 unanswered question, then 1 more when question 1 (0.1) counts as answered.
    assert_eq!(scores.best_exact, (100.0 * 2.0 / 3.0, 0.1));
}

#[test]
fn version_2_gold_answers_that_normalise_to_nothing_mean_no_answer() {
    let gold = set(&[("1", &["the"])]);
    let scores = score_v2(&gold, &predictions(&[("1", "a")]), &NoAnswer::default());
    assert_eq!((scores.all.exact, scores.all.f1), (100.0, 100.0));
    assert_eq!(scores.no_answer, None);
}

#[test]
fn an_empty_set_scores_nothing() {
    let none = set(&[]);
    assert_eq!(score(&none, &[]).f1, 0.0);
    assert_eq!(score_v2(&none, &[], &NoAnswer::default()).all.total, 0);
}

#[test]
fn published_predictions_get_their_published_scores() {
    let root = std::env::var_os("AZULEJO_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let root = root.join("data/squad");
    if !root.join("dev-v1.1.json").exists() {
        println!("skipped: {} is absent", root.display());
        return;
    }
    let set = DataSet::read(root.join("dev-v1.1.json")).unwrap();
    for (file, exact_match, f1) in [
        ("bert-ensemble.json", 86.20624408703878, 92.19557978351145),
        ("match-lstm.json", 67.63481551561021, 76.75556184979695),
    ] {
        let text = std::fs::read_to_string(root.join("predictions").join(file)).unwrap();
        let made: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        let made: Vec<_> = made
            .into_iter()
            .map(|(id, text)| (id, text.as_str().unwrap().to_owned()))
            .collect();
        let scores = score(&set, &made);
        assert!((scores.exact_match - exact_match).abs() < 1e-9, "{file}: {scores:?}");
        assert!((scores.f1 - f1).abs() < 1e-9, "{file}: {scores:?}");
        assert_eq!(scores.missing, 0);
    }
}
