//! The reader of SQuAD data: its four forms, what it refuses and what it counts.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, which say what they skip"
)]

use std::path::{Path, PathBuf};

use azulejo_bert::Error;
use azulejo_bert::squad::read::{Answer, DataSet};

const NESTED: &str = r#"{"version": "1.1", "data": [{"title": "Harbour", "paragraphs": [
  {"context": "The blue crane lifts nine tons.", "qas": [
    {"id": "a1", "question": "How much does it lift?", "answers": [
      {"answer_start": 21, "text": "nine tons"}, {"text": "nine", "answer_start": 21}]},
    {"id": "a2", "question": "Which colour is it?", "answers": [{"answer_start": 4, "text": "blue"}]}]}]}]}"#;

const ROW_1: &str = r#"{"id": "a1", "title": "Harbour", "context": "The blue crane lifts nine tons.", "question": "How much does it lift?", "answers": {"text": ["nine tons", "nine"], "answer_start": [21, 21]}}"#;
const ROW_2: &str = r#"{"id": "a2", "title": "Harbour", "context": "The blue crane lifts nine tons.", "question": "Which colour is it?", "answers": {"text": ["blue"], "answer_start": [4]}}"#;

fn parse(text: &str) -> Result<DataSet, Error> {
    DataSet::parse(text.as_bytes(), "data.json")
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// Where the workspace's shared data lies, if it does.
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
fn the_nested_form_is_read() {
    let set = parse(NESTED).unwrap();
    assert_eq!(set.len(), 2);
    let first = &set.examples[0];
    assert_eq!(
        (&*first.id, &*first.title, &*first.question),
        ("a1", "Harbour", "How much does it lift?")
    );
    assert_eq!(
        first.answers[0],
        Answer {
            text: "nine tons".into(),
            start: 21
        }
    );
    assert_eq!(first.answers.len(), 2);
    assert!(std::sync::Arc::ptr_eq(&first.context, &set.examples[1].context));
    assert_eq!(set.notes, Default::default());
}

#[test]
fn all_forms_give_the_same_questions() {
    let nested = parse(NESTED).unwrap();
    let forms = [
        format!("{{\"data\": [{ROW_1}, {ROW_2}]}}"),
        format!("[{ROW_1},\n{ROW_2}]\n"),
        format!("{ROW_1}\n{ROW_2}\n"),
        format!("{ROW_1}\r\n\r\n{ROW_2}"),
        format!("\u{feff}{ROW_1}\n{ROW_2}"),
        format!("\u{feff}{NESTED}"),
        NESTED.replace('\n', "\r\n"),
    ];
    for form in forms {
        assert_eq!(parse(&form).unwrap(), nested, "{form}");
    }
}

fn csv(text: &str) -> Result<DataSet, Error> {
    DataSet::parse(text.as_bytes(), "data.CSV")
}

#[test]
fn a_csv_gives_the_same_questions() {
    let nested = parse(NESTED).unwrap();
    let json = r#""{""text"": [""nine tons"", ""nine""], ""answer_start"": [21, 21]}""#;
    let text = format!(
        "id,title,context,question,answers\n\
         a1,Harbour,The blue crane lifts nine tons.,How much does it lift?,{json}\n\
         a2,Harbour,The blue crane lifts nine tons.,Which colour is it?,\"[{{\"\"text\"\": \"\"blue\"\", \"\"answer_start\"\": 4}}]\"\n"
    );
    for text in [text.clone(), text.replace('\n', "\r\n"), format!("\u{feff}{text}")] {
        let set = csv(&text).unwrap();
        assert_eq!(set.examples, nested.examples);
        assert!(std::sync::Arc::ptr_eq(
            &set.examples[0].context,
            &set.examples[1].context
        ));
    }
    // One answer in two columns, a line end inside a field, ids of digits, questions without answers.
    let set = csv("question,context,id,answer_text,answer_start\n?,\"a \"\"b\"\"\nc\",007,c,6\n?,x,8,,\n").unwrap();
    assert_eq!((&*set.examples[0].id, &*set.examples[0].context), ("007", "a \"b\"\nc"));
    assert_eq!(set.examples[0].answers[0].start, 6);
    assert_eq!((set.unanswered(), set.notes.misplaced_answers), (1, 0));
}

#[test]
fn a_bad_csv_is_refused_with_its_line_and_id() {
    for (text, start) in [
        ("", "data.CSV: line 1: no column \"id\""),
        (
            "id,question,text\n",
            "data.CSV: line 1: no column \"context\" among id, question, text",
        ),
        (
            "id,question,context\n1,?,x\n2,?\n",
            "data.CSV: line 3: the row has 2 fields, the header has 3",
        ),
        ("id,question,context\n,?,x\n", "data.CSV: line 2: the id is empty"),
        (
            "id,question,context,answers\n1,?,\"x\ny\",\n7,?,x,{'text'\n",
            "data.CSV: line 4, question \"7\": answers are not",
        ),
        (
            "id,question,context,answer_text,answer_start\n7,?,x,x,-1\n",
            "data.CSV: line 2, question \"7\": answer_start is \"-1\", expected",
        ),
        (
            "id,question,context\n1,?,x\n1,?,x\n",
            "data.CSV: questions 1 and 2 have the same id",
        ),
    ] {
        let message = csv(text).unwrap_err().to_string();
        assert!(message.starts_with(start), "{message}");
    }
}

/// A file that pyarrow wrote in the Hub's layout: `reference/parquet_fixture.py`.
const PARQUET: &[u8] = include_bytes!("fixtures/squad.parquet");

#[cfg(feature = "parquet")]
#[test]
fn a_parquet_file_gives_the_same_questions() {
    let set = DataSet::parse(PARQUET, "data.parquet").unwrap();
    assert_eq!(set.examples[..2], parse(NESTED).unwrap().examples);
    assert_eq!(set.len(), 3);
    assert_eq!((&*set.examples[2].id, set.unanswered()), ("a3", 1));
    assert_eq!(&*set.examples[2].context, "Zoë's 🧭 points north.");
    // Damaged files are errors; cutting anywhere and changing any byte never ends the process.
    for cut in 0..PARQUET.len() {
        assert!(DataSet::parse(&PARQUET[..cut], "data.parquet").is_err(), "{cut}");
    }
    for byte in 4..PARQUET.len() {
        let mut bytes = PARQUET.to_vec();
        bytes[byte] ^= 0x55;
        let _ = DataSet::parse(&bytes, "data.parquet");
    }
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_parquet_file_needs_its_feature() {
    let message = DataSet::parse(PARQUET, "data.parquet").unwrap_err().to_string();
    assert!(message.contains("build with the feature parquet"), "{message}");
}

#[test]
fn what_cannot_be_scored_is_refused_before_training() {
    let row =
        |answers: &str| format!(r#"{{"id": "{answers}", "context": "x", "question": "?", "answers": {answers}}}"#);
    let (with, without) = (
        row(r#"[{"text": "x", "answer_start": 0}]"#)
            .replace(r#""id": "[{"text": "x", "answer_start": 0}]""#, r#""id": "w""#),
        row("null"),
    );
    let mixed = parse(&format!("{with}\n{without}")).unwrap();
    assert!(mixed.check_for_scoring(true, false).is_ok());
    let message = mixed.check_for_scoring(false, true).unwrap_err().to_string();
    assert!(
        message.contains("1 of the 2") && message.contains("--version_2_with_negative"),
        "{message}"
    );
    let none = parse(&without).unwrap();
    assert!(none.check_for_scoring(false, true).is_ok());
    let message = none.check_for_scoring(false, false).unwrap_err().to_string();
    assert!(message.contains("--do_predict"), "{message}");
    assert!(parse("[]").unwrap().check_for_scoring(true, true).is_err());
}

#[test]
fn ids_stay_text_and_unknown_fields_are_passed_over() {
    let set = parse(
        r#"[{"id": "007", "context": "x", "question": "?", "answers": null, "is_impossible": true, "plausible_answers": [1]},
            {"id": 12345678901234567890, "context": "x", "question": "?"}]"#,
    )
    .unwrap();
    assert_eq!(set.examples[0].id, "007");
    assert_eq!(set.examples[1].id, "12345678901234567890");
    assert_eq!(set.unanswered(), 2);
}

#[test]
fn broken_json_is_refused_with_its_line_and_column() {
    let cut = &NESTED[..NESTED.find("nine tons\"}").unwrap()];
    assert!(message(cut).starts_with("data.json:4:"), "{}", message(cut));
    for (text, start) in [
        ("", "data.json: the file is empty"),
        ("  \r\n", "data.json: the file is empty"),
        ("{", "data.json:1:1: EOF"),
        ("42", "data.json:1:2: invalid type: integer `42`"),
        (
            "{\"data\": []} x",
            "data.json:1:1: an object with \"data\" must be alone",
        ),
        ("{}", "data.json:1:1: neither an article"),
        (
            "[{\"id\": 1}]",
            "data.json: entry 1: neither an article with \"paragraphs\" nor a complete row: \"question\", \"context\" missing",
        ),
        (
            "[{\"id\": 1.5}]",
            "data.json:1:11: invalid type: floating point `1.5`, expected an id",
        ),
        (
            "{\"data\": [{\"data\": []}]}",
            "data.json: entry 1: \"data\" is not expected here",
        ),
        (
            "[{\"answers\": {\"text\": [\"x\"], \"answer_start\": []}}]",
            "data.json:1:48: answers have 1 texts but 0 places",
        ),
        (
            "[{\"answers\": [{\"text\": \"x\", \"answer_start\": -1}]}]",
            "data.json:1:46: invalid value: integer `-1`",
        ),
    ] {
        let message = message(text);
        assert!(message.starts_with(start), "{text}: {message}");
    }
    let second = format!("{ROW_1}\n  {{\"id\": \"z\"}}\n");
    assert!(
        message(&second).starts_with("data.json:2:3: neither"),
        "{}",
        message(&second)
    );
    let latin_1 = DataSet::parse(b"[\n\xe9]", "data.json").unwrap_err();
    assert_eq!(latin_1.to_string(), "data.json:2:1: the file is not UTF-8");
}

#[test]
fn every_truncation_of_a_file_is_an_error_and_no_panic() {
    for cut in 0..NESTED.len() {
        assert!(parse(&NESTED[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = DataSet::read("no/such/file.json").unwrap_err();
    assert!(matches!(error, Error::Io { .. }));
    assert!(error.to_string().starts_with("no/such/file.json: "));
}

#[test]
fn an_id_used_twice_is_refused_naming_both_questions() {
    let text = format!("[{ROW_1}, {ROW_2}, {ROW_1}]");
    assert_eq!(message(&text), "data.json: questions 1 and 3 have the same id \"a1\"");
}

#[test]
fn places_are_code_points_and_misplaced_answers_are_counted() {
    let text = r#"[{"id": "1", "question": "?", "context": "é 😀 is 42", "answers": {"text": ["42"], "answer_start": [7]}},
      {"id": "2", "question": "?", "context": "é 😀 is 42, not 42", "answers": {"text": ["42"], "answer_start": [12]}},
      {"id": "3", "question": "?", "context": "abc", "answers": {"text": ["zebra"], "answer_start": [900]}},
      {"id": "4", "question": "?", "context": " \n", "answers": {"text": ["zebra"], "answer_start": [0]}}]"#;
    let mut set = parse(text).unwrap();
    assert_eq!(set.notes.misplaced_answers, 3);
    assert_eq!(set.notes.blank_contexts, 1);
    assert_eq!(set.notes.ids, ["2", "3", "4"]);
    assert_eq!(
        set.notes.lines(),
        [
            "3 answers are not at their answer_start in the context",
            "1 questions have a blank context",
            "first questions concerned: 2, 3, 4"
        ]
    );
    assert_eq!(set.realign_answers(), 1);
    assert_eq!(set.examples[1].answers[0].start, 15);
    assert_eq!(set.notes.misplaced_answers, 2);
}

#[test]
fn a_set_without_answers_cannot_be_trained_on() {
    let bare = r#"{"id": "1", "question": "?", "context": "abc"}"#;
    let message = |text: &str, version_2| {
        parse(text)
            .unwrap()
            .check_for_training(version_2)
            .unwrap_err()
            .to_string()
    };
    assert!(message(bare, true).contains("none of the 1 questions has an answer"));
    assert!(message("{\"data\": []}", false).contains("no questions"));
    let mixed = format!("{ROW_1}\n{bare}");
    assert!(message(&mixed, false).contains("1 of the 2 questions have no answer"));
    assert!(parse(&mixed).unwrap().check_for_training(true).is_ok());
    assert!(parse(NESTED).unwrap().check_for_training(false).is_ok());
}

#[test]
fn the_official_files_are_read() {
    for (file, questions, unanswered) in [
        ("dev-v1.1.json", 10_570, 0),
        ("dev-v1.1-small.json", 1_190, 0),
        ("train-v1.1-part.json", 11_877, 0),
        ("train-v2.0-mix.json", 8_420, 1_989),
        ("dev-v2.0-small.json", 2_805, 1_527),
    ] {
        let Some(path) = shared(file) else { continue };
        let set = DataSet::read(path).unwrap();
        assert_eq!((set.len(), set.unanswered()), (questions, unanswered), "{file}");
        assert_eq!(set.notes, Default::default(), "{file}");
    }
}
