//! Tokens, windows, labels and answers, held to what transformers makes of the same questions.
//!
//! `fixtures/data.json` comes from `reference/data_fixtures.py`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, which say what they skip"
)]

use azulejo_bert::Error;
use azulejo_bert::features::Feature;
use azulejo_bert::results::python_json;
use azulejo_bert::squad::features::{Windows, evaluation_features, training_features, windows_of};
use azulejo_bert::squad::postprocess::{Candidates, Choice, answers, n_best_predictions, null_odds, predictions};
use azulejo_bert::squad::read::DataSet;
use azulejo_bert::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/data.json")).unwrap()
}

fn vocabulary(fixture: &Value) -> String {
    let tokens = fixture["vocab"].as_array().unwrap();
    tokens
        .iter()
        .map(|token| token.as_str().unwrap().to_owned() + "\n")
        .collect()
}

fn data(fixture: &Value) -> DataSet {
    DataSet::parse(fixture["data"].to_string().as_bytes(), "fixture").unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn described(feature: &Feature) -> Value {
    json!({
        "example": feature.example,
        "ids": feature.ids,
        "types": feature.token_types,
        "offsets": feature.offsets,
        "labels": [feature.start, feature.end],
    })
}

/// A set of one question about one context.
fn one(question: &str, context: &str, answer: Option<(&str, usize)>) -> DataSet {
    let answers: Vec<_> = answer
        .iter()
        .map(|(text, start)| json!({"text": text, "answer_start": start}))
        .collect();
    let rows = json!([{"id": "one", "question": question, "context": context, "answers": answers}]);
    DataSet::parse(rows.to_string().as_bytes(), "rows").unwrap()
}

/// A tokenizer for which each listed word is one token.
fn words(list: &str, lower_case: bool) -> Tokenizer {
    let vocabulary: String = "[PAD] [UNK] [CLS] [SEP] [MASK]"
        .split(' ')
        .chain(list.split(' '))
        .map(|word| word.to_owned() + "\n")
        .collect();
    Tokenizer::from_vocabulary(&vocabulary, lower_case).unwrap()
}

/// The pieces of text that the tokens stand for.
fn slices(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let chars: Vec<_> = text.chars().collect();
    let tokens = tokenizer.encode(text).unwrap();
    tokens
        .offsets
        .iter()
        .map(|&(start, end)| chars[start as usize..end as usize].iter().collect())
        .collect()
}

/// The real uncased vocabulary, if `tools/fetch_minilm.sh` has been run.
fn minilm() -> Option<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/minilm");
    if !folder.exists() {
        println!(
            "skipped: {} is absent (tools/fetch_minilm.sh makes it)",
            folder.display()
        );
        return None;
    }
    Some(Tokenizer::from_folder(folder).unwrap())
}

fn shared(file: &str) -> Option<PathBuf> {
    let root = std::env::var_os("AZULEJO_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = root.join("data/squad").join(file);
    if !path.exists() {
        println!("skipped: {} is absent", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn a_short_context_makes_one_window() {
    let tokenizer = words("who sings ? the bird .", true);
    let set = one("Who sings?", "The bird sings.", Some(("bird", 4)));
    let features = training_features(&set, &tokenizer, &Windows::default()).unwrap();
    assert_eq!(
        features,
        [Feature {
            ids: vec![2, 5, 6, 7, 3, 8, 9, 6, 10, 3],
            token_types: vec![0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
            offsets: [
                vec![None; 5],
                [(0, 3), (4, 8), (9, 14), (14, 15)].map(Some).into(),
                vec![None]
            ]
            .concat(),
            example: 0,
            start: 6,
            end: 6,
        }]
    );
    let evaluated = evaluation_features(&set, &tokenizer, &Windows::default()).unwrap();
    assert_eq!((evaluated[0].start, evaluated[0].end), (0, 0));
    assert_eq!(evaluated[0].ids, features[0].ids);
    assert_eq!(
        windows_of(&set.examples[0], 0, &tokenizer, &Windows::default()).unwrap(),
        evaluated
    );
}

#[test]
fn windows_and_labels_equal_those_of_transformers() {
    let fixture = fixture();
    let (set, vocabulary) = (data(&fixture), vocabulary(&fixture));
    for case in fixture["sets"].as_array().unwrap() {
        let tokenizer = Tokenizer::from_vocabulary(&vocabulary, case["lower_case"].as_bool().unwrap()).unwrap();
        let windows = Windows {
            max_length: number(&case["max_length"]),
            stride: number(&case["stride"]),
            ..Windows::default()
        };
        let features = training_features(&set, &tokenizer, &windows).unwrap();
        let expected = case["features"].as_array().unwrap();
        assert_eq!(features.len(), expected.len(), "{windows:?}");
        for (feature, expected) in features.iter().zip(expected) {
            assert_eq!(&described(feature), expected, "{windows:?}");
        }
    }
}

#[test]
fn answers_equal_those_of_run_qa() {
    let fixture = fixture();
    let (set, vocabulary) = (data(&fixture), vocabulary(&fixture));
    let case = &fixture["sets"][1];
    let windows = Windows {
        max_length: number(&case["max_length"]),
        stride: number(&case["stride"]),
        ..Windows::default()
    };
    let tokenizer = Tokenizer::from_vocabulary(&vocabulary, true).unwrap();
    let features = evaluation_features(&set, &tokenizer, &windows).unwrap();
    let logits = |which: usize, feature: usize| -> Vec<f32> {
        let row = fixture["logits"][which][feature].as_array().unwrap();
        row.iter().map(|n| n.as_i64().unwrap() as f32 / 8.0).collect()
    };
    for case in fixture["answers"].as_array().unwrap() {
        let choice = Choice {
            n_best: number(&case["n_best"]),
            max_answer_length: number(&case["max_answer_length"]),
            null_threshold: case["threshold"].as_f64(),
            once: false,
        };
        let candidates: Vec<_> = (0..features.len())
            .map(|feature| Candidates::new(&logits(0, feature), &logits(1, feature), choice.n_best))
            .collect();
        let answers = answers(&set, &features, &candidates, &choice);
        // The files' very text: order, indentation, escapes, digits.
        let text = |value: &Value| python_json(value, 4, false) + "\n";
        assert_eq!(
            text(&predictions(&answers)),
            case["predictions"].as_str().unwrap(),
            "{choice:?}"
        );
        if let Some(expected) = case["null_odds"].as_str() {
            assert_eq!(text(&null_odds(&answers)), expected, "{choice:?}");
        }
        if let Some(expected) = case["nbest_predictions"].as_str() {
            let mut wanted: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(text(&wanted), expected, "python_json");
            let mut got = n_best_predictions(&answers);
            for (id, wanted) in wanted.as_object_mut().unwrap() {
                let got = got[id].as_array_mut().unwrap();
                let wanted = wanted.as_array_mut().unwrap();
                assert_eq!(got.len(), wanted.len(), "{id}");
                for (got, wanted) in got.iter_mut().zip(wanted) {
                    let (p, q) = (got["probability"].take(), wanted["probability"].take());
                    let (p, q) = (p.as_f64().unwrap(), q.as_f64().unwrap());
                    // numpy's f32 exponential may be off by 3 units in the last place, and so may its sum of a few.
                    assert!((p - q).abs() <= 8.0 * f64::from(f32::EPSILON) * q, "{id}: {p} {q}");
                }
            }
            assert_eq!(got.to_string(), wanted.to_string(), "{choice:?}");
        }
    }
}

#[test]
fn random_windows_equal_those_of_the_library() {
    let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n##a\n##b\n##c\n##d\né\n";
    let tokenizer = Tokenizer::from_vocabulary(vocabulary, true).unwrap();
    let library_file = tokenizer.files().unwrap();
    let json = &library_file
        .iter()
        .find(|(name, _)| *name == "tokenizer.json")
        .unwrap()
        .1;
    let untruncated = tokenizers::Tokenizer::from_bytes(json).unwrap();
    let mut seed = 0x5eed_u64;
    println!("seed {seed}");
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut compared = 0;
    while compared < 1_000 {
        let mut text = |longest: usize| -> String {
            let letters = ["a", "b", "c", "d", "É", "🐟", ".", " ", "  ", "[MASK]"];
            (0..random(longest)).map(|_| letters[random(letters.len())]).collect()
        };
        let (question, context) = (text(12), text(120));
        let max_length = 8 + random(60);
        let stride = random(20);
        let windows = Windows {
            max_length,
            stride,
            ..Windows::default()
        };
        let set = one(&question, &context, None);
        let features = match evaluation_features(&set, &tokenizer, &windows) {
            Ok(features) => features,
            // What the library panics at, or refuses, is an error here.
            Err(Error::StrideTooLarge { budget, .. }) => {
                assert!(stride >= budget);
                continue;
            }
            Err(Error::QuestionTooLong { tokens, limit, .. }) => {
                assert!(tokens > limit && max_length - 3 <= tokens);
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        let mut library = untruncated.clone();
        // The library refuses strides of max_length - 3 and more even where nothing is cut.
        if stride >= max_length - 3 {
            continue;
        }
        library
            .with_truncation(Some(tokenizers::TruncationParams {
                max_length,
                stride,
                strategy: tokenizers::TruncationStrategy::OnlySecond,
                ..Default::default()
            }))
            .unwrap();
        // Tokenised without truncation: from 0.23 on the library otherwise stops early and loses the last windows.
        let tokens = |text: &str, kind| {
            let mut tokens = untruncated.encode_char_offsets(text, false).unwrap();
            tokens.set_type_ids(vec![kind; tokens.len()]);
            tokens
        };
        let encoding = library
            .post_process(tokens(question.trim_start(), 0), Some(tokens(&context, 1)), true)
            .unwrap();
        let mut all = vec![&encoding];
        all.extend(encoding.get_overflowing());
        let message = format!("{compared}: {question:?} {context:?} {windows:?}");
        assert_eq!(features.len(), all.len(), "{message}");
        for (feature, encoding) in features.iter().zip(all) {
            assert_eq!(feature.ids, encoding.get_ids(), "{message}");
            let types: Vec<_> = feature.token_types.iter().map(|&kind| u32::from(kind)).collect();
            assert_eq!(types, encoding.get_type_ids(), "{message}");
            for (index, offsets) in feature.offsets.iter().enumerate() {
                let (start, end) = encoding.get_offsets()[index];
                let expected = (encoding.token_to_sequence(index) == Some(1)).then_some((start as u32, end as u32));
                assert_eq!(*offsets, expected, "{message}");
            }
        }
        compared += 1;
    }
}

#[test]
fn a_stride_that_does_not_advance_is_refused() {
    let tokenizer = words("q c", true);
    let question = "q ".repeat(6);
    let long = one(&question, &"c ".repeat(20), None);
    let windows = |stride| Windows {
        max_length: 16,
        stride,
        ..Windows::default()
    };
    let error = evaluation_features(&long, &tokenizer, &windows(8)).unwrap_err();
    assert!(
        matches!(&error, Error::StrideTooLarge { id, budget: 7, stride: 8 } if id == "one"),
        "{error}"
    );
    assert!(evaluation_features(&long, &tokenizer, &windows(7)).is_err());
    assert_eq!(evaluation_features(&long, &tokenizer, &windows(6)).unwrap().len(), 14);
    let short = one(&question, &"c ".repeat(5), None);
    assert_eq!(evaluation_features(&short, &tokenizer, &windows(8)).unwrap().len(), 1);
}

#[test]
fn a_question_longer_than_the_window_is_refused() {
    let tokenizer = words("q c", true);
    let set = one(&"q ".repeat(400), "c c c", None);
    let error = evaluation_features(&set, &tokenizer, &Windows::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "question \"one\" has 400 tokens, but windows of 384 tokens leave room for at most 380: \
         shorten the question or raise the window length"
    );
    for max_length in 0..5 {
        let windows = Windows {
            max_length,
            stride: 0,
            ..Windows::default()
        };
        assert!(evaluation_features(&set, &tokenizer, &windows).is_err(), "{max_length}");
    }
}

#[test]
fn a_long_question_is_cut_where_that_is_asked_for() {
    let tokenizer = words("q c", true);
    let set = one(&"q ".repeat(400), &"c ".repeat(300), None);
    let windows = |max_length, stride| Windows {
        max_length,
        stride,
        cut_questions: true,
    };
    // 384 - 3 special tokens - 129, so that windows that overlap by 128 advance by one.
    let features = evaluation_features(&set, &tokenizer, &windows(384, 128)).unwrap();
    assert_eq!(features.len(), 300 - 128);
    assert!(
        features
            .iter()
            .all(|f| f.len() == 384 && f.ids.iter().filter(|id| **id == 5).count() == 252)
    );
    // Questions with room enough stay whole.
    let short = one("q q", &"c ".repeat(300), None);
    let plain = Windows::default();
    assert_eq!(
        evaluation_features(&short, &tokenizer, &windows(384, 128)).unwrap(),
        evaluation_features(&short, &tokenizer, &plain).unwrap()
    );
    // Where not even that is possible, it is said.
    let error = evaluation_features(&set, &tokenizer, &windows(16, 13)).unwrap_err();
    assert!(matches!(error, Error::StrideTooLarge { .. }), "{error}");
}

#[test]
fn a_blank_context_makes_one_window_and_the_answer_empty() {
    let tokenizer = words("q c", true);
    for context in ["", "  \n"] {
        let set = one("q", context, Some(("c", 0)));
        let features = training_features(&set, &tokenizer, &Windows::default()).unwrap();
        assert_eq!(features.len(), 1);
        assert_eq!(features[0].ids, [2, 5, 3, 3]);
        assert_eq!((features[0].start, features[0].end), (0, 0));
        assert_eq!((set.notes.misplaced_answers, set.notes.blank_contexts), (1, 1));
        let candidates = [Candidates::new(&[0.0, 3.0, 2.0, 1.0], &[0.0; 4], 20)];
        let choose = |null_threshold| {
            let choice = Choice {
                null_threshold,
                ..Choice::default()
            };
            answers(&set, &features, &candidates, &choice).remove(0)
        };
        let version_1 = choose(None);
        assert_eq!(version_1.text, "empty");
        assert_eq!(version_1.n_best.len(), 1);
        assert_eq!(version_1.n_best[0].probability, 1.0);
        // As in run_qa.py, the stand-in's text counts as an answer unless "no answer" beats it by more than the threshold.
        assert_eq!(choose(Some(-1.0)).text, "");
        assert_eq!(choose(Some(0.0)).text, "empty");
    }
}

#[test]
fn a_question_without_windows_is_answered_all_the_same() {
    let set = one("q", "c", None);
    let answered = |choice: &Choice| answers(&set, &[], &[], choice).remove(0).text;
    assert_eq!(answered(&Choice::default()), "empty");
    let version_2 = Choice {
        null_threshold: Some(0.0),
        ..Choice::default()
    };
    assert_eq!(answered(&version_2), "");
}

#[test]
fn the_best_logits_outside_the_context_are_passed_over() {
    let tokenizer = words("q a b c", true);
    let set = one("q q", "a b c", None);
    let features = evaluation_features(&set, &tokenizer, &Windows::default()).unwrap();
    // [CLS] q q [SEP] a b c [SEP]
    let starts = [9.0, 8.0, 7.0, 6.0, 1.0, 2.0, 0.0, 5.0];
    let ends = [9.0, 8.0, 7.0, 6.0, 3.0, 0.0, 1.0, 5.0];
    let candidates = [Candidates::new(&starts, &ends, 20)];
    let answer = answers(&set, &features, &candidates, &Choice::default()).remove(0);
    assert_eq!(answer.text, "a");
    let texts: Vec<_> = answer.n_best.iter().map(|span| span.text.as_str()).collect();
    assert_eq!(texts, ["a", "b c", "b", "a b c", "a b", "c"]);
    assert_eq!(answer.n_best[1].offsets, Some((2, 5)));
    // With few candidates all are outside.
    let candidates = [Candidates::new(&starts, &ends, 3)];
    assert_eq!(
        answers(&set, &features, &candidates, &Choice::default())[0].text,
        "empty"
    );
}

#[test]
fn equal_logits_are_taken_from_the_left_and_bad_ones_last() {
    let candidates = Candidates::new(&[1.0, 2.0, 2.0, f32::NAN, 2.0, -1.0], &[0.0; 6], 4);
    let order: Vec<_> = candidates.starts.iter().map(|start| start.0).collect();
    assert_eq!(order, [1, 2, 4, 0]);
    let order: Vec<_> = candidates.ends.iter().map(|end| end.0).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn one_span_in_two_windows_is_listed_twice() {
    let tokenizer = words("q a b c d", true);
    let set = one("q", "a b c d", None);
    let windows = Windows {
        max_length: 7,
        stride: 2,
        ..Windows::default()
    };
    let features = evaluation_features(&set, &tokenizer, &windows).unwrap();
    assert_eq!(features.len(), 2);
    let candidates: Vec<_> = [4, 3] // "b", in each
        .map(|token| {
            let mut logits = [0.0; 7];
            logits[token] = 5.0;
            Candidates::new(&logits, &logits, 20)
        })
        .into();
    let answer = answers(&set, &features, &candidates, &Choice::default()).remove(0);
    let texts: Vec<_> = answer.n_best.iter().take(2).map(|span| span.text.as_str()).collect();
    assert_eq!(texts, ["b", "b"]);
    let choice = Choice {
        once: true,
        ..Choice::default()
    };
    let answer = answers(&set, &features, &candidates, &choice).remove(0);
    let twice = answer.n_best.iter().filter(|span| span.offsets == Some((2, 3))).count();
    assert_eq!(twice, 1, "asked for once");
}

#[test]
fn labels_follow_code_points_and_widen_to_whole_tokens() {
    let tokenizer = words("q é is 42 unbreakable", false);
    for (context, answer, start, expected) in [
        ("é 😀 is 42", "42", 7, (6, 6)),
        ("is unbreakable", "break", 5, (4, 4)), // inside the last token: its start label is the last index
        ("unbreakable is", "break", 2, (3, 3)),
        ("is 42 is", " 42", 2, (3, 4)), // begins at a blank: the token before it
        ("is 42 is", "9", 80, (0, 0)),
    ] {
        let set = one("q", context, Some((answer, start)));
        let features = training_features(&set, &tokenizer, &Windows::default()).unwrap();
        let got = (features[0].start, features[0].end);
        let last = features[0].ids.len() as u32 - 1;
        let begins_in_last_token = features[0].offsets[last as usize - 1].unwrap().0 as usize <= start;
        let expected = if begins_in_last_token && expected != (0, 0) {
            (last, expected.1)
        } else {
            expected
        };
        assert_eq!(got, expected, "{context:?} {answer:?}");
    }
}

#[test]
fn special_tokens_accents_and_emoji_keep_their_places() {
    let cased = words("A , naïve naive Allen ##NL ##P sentence .", false);
    let text = "A, naïve [MASK] AllenNLP sentence.";
    assert_eq!(
        slices(&cased, text),
        ["A", ",", "naïve", "[MASK]", "Allen", "NL", "P", "sentence", "."]
    );
    let ids = cased.encode(text).unwrap().ids;
    assert_eq!(
        (ids[2], ids[3]),
        (cased.id("naïve").unwrap(), cased.id("[MASK]").unwrap())
    );

    let uncased = words("naive is it", true);
    for text in ["it is naïve", "it is nai\u{308}ve"] {
        let tokens = uncased.encode(text).unwrap();
        assert_eq!(tokens.ids, [7, 6, 5], "{text}");
        assert_eq!(slices(&uncased, text)[2], &text[6..], "{text}");
    }
    let tokens = uncased.encode("it 😀 is").unwrap();
    assert_eq!(tokens.ids, [7, 1, 6]);
    assert_eq!(slices(&uncased, "it 😀 is")[1], "😀");
}

#[test]
fn blanks_before_a_question_do_not_count() {
    let tokenizer = words("who ? c", true);
    let ids = |question: &str| {
        let set = one(question, "c", None);
        evaluation_features(&set, &tokenizer, &Windows::default())
            .unwrap()
            .remove(0)
            .ids
    };
    assert_eq!(ids("\u{1c}\u{a0}  Who?"), ids("Who?"));
}

#[test]
fn folders_say_how_to_tokenise() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let message = |result: Result<Tokenizer, Error>| result.unwrap_err().to_string();
    assert!(message(Tokenizer::from_folder(path)).ends_with("there is neither a tokenizer.json nor a vocab.txt"));
    let write = |name: &str, text: &str| std::fs::write(path.join(name), text).unwrap();
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\nblue\nBlue\n");
    assert!(message(Tokenizer::from_folder(path)).ends_with("the vocabulary lacks \"[SEP]\""));
    write("vocab.txt", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\nblue\r\nBlue");
    let ids = |tokenizer: &Tokenizer| tokenizer.encode("Blue").unwrap().ids;
    assert_eq!(ids(&Tokenizer::from_folder(path).unwrap()), [4]);
    write(
        "tokenizer_config.json",
        "{\"do_lower_case\": false,\n \"model_max_length\": 128}",
    );
    let cased = Tokenizer::from_folder(path).unwrap();
    assert_eq!(
        (ids(&cased), cased.max_length(), cased.vocabulary()),
        (vec![5], Some(128), 6)
    );

    // A tokenizer.json with truncation and padding: both are off, and the other file's word on case counts.
    let (_, json) = cased.files().unwrap().remove(1);
    let mut json: Value = serde_json::from_slice(&json).unwrap();
    json["normalizer"]["lowercase"] = json!(true);
    json["truncation"] = json!({"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = json!({"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"});
    write("tokenizer.json", &json.to_string());
    let again = Tokenizer::from_folder(path).unwrap();
    assert_eq!(again.encode("Blue blue Blue blue").unwrap().ids, [5, 4, 5, 4]);
    write(
        "tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656}",
    );
    let lower = Tokenizer::from_folder(path).unwrap();
    assert_eq!((ids(&lower), lower.max_length()), (vec![4], None));

    write("tokenizer_config.json", "{\n  oops");
    assert!(message(Tokenizer::from_folder(path)).contains("tokenizer_config.json:2:3: "));
    write("tokenizer_config.json", "{}");
    write("tokenizer.json", "{\"version\": 1");
    assert!(message(Tokenizer::from_folder(path)).contains("tokenizer.json: "));
}

#[test]
fn a_saved_tokenizer_reads_back_the_same() {
    let tokenizer = words("who sings ? the bird .", false);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in tokenizer.files().unwrap() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let text = "the bird sings. The [SEP]";
    let expected = tokenizer.encode(text).unwrap();
    assert_eq!(
        Tokenizer::from_folder(folder.path()).unwrap().encode(text).unwrap(),
        expected
    );
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert_eq!(
        Tokenizer::from_folder(folder.path()).unwrap().encode(text).unwrap(),
        expected
    );
}

#[test]
fn the_development_set_has_10784_features() {
    let (Some(tokenizer), Some(path)) = (minilm(), shared("dev-v1.1.json")) else {
        return;
    };
    let set = DataSet::read(path).unwrap();
    let features = evaluation_features(&set, &tokenizer, &Windows::default()).unwrap();
    assert_eq!(features.len(), 10_784);
    assert_eq!(features.iter().map(Feature::len).max(), Some(384));
    // The same from vocab.txt alone.
    let vocab = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/minilm/vocab.txt"));
    let plain = Tokenizer::from_vocabulary(&vocab.unwrap(), true).unwrap();
    let some = DataSet {
        examples: set.examples[..500].to_vec(),
        ..set
    };
    let made = evaluation_features(&some, &plain, &Windows::default()).unwrap();
    assert_eq!(made, features[..made.len()]);
}
