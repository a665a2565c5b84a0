//! Reads questions, contexts and answers: official nested SQuAD JSON, flat rows inside `"data"`, a plain list, JSON lines,
//! CSV, and, with the feature `parquet`, parquet.
//!
//! The forms need no flag: a CSV is known by its name, the others by what the file contains. Ids stay text, answers' places are
//! counted in Unicode code points, and a byte order mark at the start of the file is skipped. What breaks training
//! is an error with the place in the file; what only harms it is counted in [`Notes`].

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::table;
use crate::error::{Error, Result};

/// A text span given as an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The answer's text.
    pub text: String,
    /// Its place in the context, in code points.
    pub start: usize,
}

/// One question about one context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Unique in its data set.
    pub id: String,
    /// The article's title, where the file has one.
    pub title: Arc<str>,
    /// The question as the file has it.
    pub question: String,
    /// The text to find the answer in, shared by the questions of a paragraph.
    pub context: Arc<str>,
    /// Accepted answers; none for an unanswerable question, or in a file to predict on.
    pub answers: Vec<Answer>,
}

/// Things worth a warning, counted while reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Answers whose text is not found at their place in the context.
    pub misplaced_answers: usize,
    /// Questions whose context is empty or blank.
    pub blank_contexts: usize,
    /// Ids of the first few questions that were counted.
    pub ids: Vec<String>,
}

/// Questions in the order of their file, with unique ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSet {
    /// Where the questions came from.
    pub path: PathBuf,
    /// The questions.
    pub examples: Vec<Example>,
    /// What was odd about them.
    pub notes: Notes,
}

impl DataSet {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is not UTF-8, is not of a known form (with line and column), or uses an id twice.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        Self::parse(&bytes, path)
    }

    /// Reads the contents of a file; `path` serves only for messages.
    ///
    /// # Errors
    /// As [`DataSet::read`].
    pub fn parse(bytes: &[u8], path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let examples = if table::is_parquet(bytes) {
            table::parse_parquet(bytes, path)?
        } else {
            let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            let text = std::str::from_utf8(bytes).map_err(|bad| {
                let (line, column) = place(bytes, bad.valid_up_to());
                Error::Json {
                    path: path.to_owned(),
                    line,
                    column,
                    message: "the file is not UTF-8".into(),
                }
            })?;
            if table::is_csv(path) {
                table::parse_csv(text, path)?
            } else {
                flatten(parse_rows(bytes, path)?)
            }
        };
        let set = Self {
            path: path.to_owned(),
            examples,
            notes: Notes::default(),
        };
        set.refuse_duplicates()?;
        let notes = take_notes(&set.examples);
        Ok(Self { notes, ..set })
    }

    /// Number of questions.
    pub fn len(&self) -> usize {
        self.examples.len()
    }

    /// Whether there is no question at all.
    pub fn is_empty(&self) -> bool {
        self.examples.is_empty()
    }

    /// Number of questions without an answer.
    pub fn unanswered(&self) -> usize {
        self.examples.iter().filter(|e| e.answers.is_empty()).count()
    }

    /// Fails unless the set can be trained on: it needs questions with answers, and questions without one only if
    /// `version_2` says that they are meant.
    ///
    /// # Errors
    /// [`Error::File`] with the reason.
    pub fn check_for_training(&self, version_2: bool) -> Result<()> {
        let unanswered = self.unanswered();
        let message = if self.is_empty() {
            "the data set has no questions".into()
        } else if unanswered == self.len() {
            format!(
                "none of the {} questions has an answer, so there is nothing to train on",
                self.len()
            )
        } else if unanswered > 0 && !version_2 {
            format!(
                "{unanswered} of the {} questions have no answer: this is version 2 data, \
                 which needs --version_2_with_negative",
                self.len()
            )
        } else {
            return Ok(());
        };
        Err(Error::file(&self.path, message))
    }

    /// Fails unless answers to these questions can be scored: version 1 needs an answer to every question, and unless
    /// `may_lack` is set, there must be answers at all.
    ///
    /// # Errors
    /// [`Error::File`] with the reason.
    pub fn check_for_scoring(&self, version_2: bool, may_lack: bool) -> Result<()> {
        let unanswered = self.unanswered();
        let message = if self.is_empty() {
            "the data set has no questions".into()
        } else if unanswered == self.len() && may_lack {
            return Ok(());
        } else if unanswered == self.len() && !version_2 {
            format!(
                "{unanswered} of the {} questions have no answer to score against: give the file as --test_file with \
                 --do_predict, or, where no answer is meant, --version_2_with_negative",
                self.len()
            )
        } else if unanswered > 0 && !version_2 {
            format!(
                "{unanswered} of the {} questions have no answer: this is version 2 data, \
                 which needs --version_2_with_negative",
                self.len()
            )
        } else {
            return Ok(());
        };
        Err(Error::file(&self.path, message))
    }

    /// Moves each misplaced answer to the nearest place where its text does stand in the context, and returns how many
    /// were moved. Answers whose text the context does not contain stay as they are.
    pub fn realign_answers(&mut self) -> usize {
        let mut moved = 0;
        for example in &mut self.examples {
            for answer in &mut example.answers {
                if stands_at(&example.context, answer) {
                    continue;
                }
                if let Some(start) = nearest(&example.context, answer) {
                    answer.start = start;
                    moved += 1;
                }
            }
        }
        self.notes = take_notes(&self.examples);
        moved
    }

    fn refuse_duplicates(&self) -> Result<()> {
        let mut seen = HashMap::with_capacity(self.len());
        for (index, example) in self.examples.iter().enumerate() {
            if let Some(first) = seen.insert(example.id.as_str(), index) {
                return Err(Error::DuplicateId {
                    path: self.path.clone(),
                    id: example.id.clone(),
                    first: first + 1,
                    second: index + 1,
                });
            }
        }
        Ok(())
    }
}

impl Notes {
    /// One line a warning; nothing if there is nothing to warn about.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.misplaced_answers > 0 {
            lines.push(format!(
                "{} answers are not at their answer_start in the context",
                self.misplaced_answers
            ));
        }
        if self.blank_contexts > 0 {
            lines.push(format!("{} questions have a blank context", self.blank_contexts));
        }
        if !lines.is_empty() {
            lines.push(format!("first questions concerned: {}", self.ids.join(", ")));
        }
        lines
    }
}

/// Byte place of a code point, which may be the text's end; `None` beyond it.
pub(crate) fn byte_of(text: &str, code_point: usize) -> Option<usize> {
    if text.is_ascii() {
        return (code_point <= text.len()).then_some(code_point);
    }
    let ends = std::iter::once(text.len());
    text.char_indices().map(|(byte, _)| byte).chain(ends).nth(code_point)
}

fn stands_at(context: &str, answer: &Answer) -> bool {
    byte_of(context, answer.start).is_some_and(|byte| context[byte..].starts_with(&answer.text))
}

fn nearest(context: &str, answer: &Answer) -> Option<usize> {
    if answer.text.is_empty() {
        return None;
    }
    context
        .char_indices()
        .enumerate()
        .filter(|(_, (byte, _))| context[*byte..].starts_with(&answer.text))
        .map(|(code_point, _)| code_point)
        .min_by_key(|start| start.abs_diff(answer.start))
}

fn take_notes(examples: &[Example]) -> Notes {
    let mut notes = Notes::default();
    for example in examples {
        let misplaced = example
            .answers
            .iter()
            .filter(|answer| !stands_at(&example.context, answer))
            .count();
        let blank = example.context.chars().all(super::word::is_space);
        notes.misplaced_answers += misplaced;
        notes.blank_contexts += usize::from(blank);
        if (misplaced > 0 || blank) && notes.ids.len() < NOTED_IDS {
            notes.ids.push(example.id.clone());
        }
    }
    notes
}

/// Enough to find what is wrong with a file, few enough for one line.
const NOTED_IDS: usize = 5;

/// An object of the file: the outermost one, an article, a paragraph or a row. Which one it is, its fields tell.
#[derive(Deserialize)]
struct Row {
    data: Option<Vec<Row>>,
    title: Option<String>,
    paragraphs: Option<Vec<Paragraph>>,
    id: Option<Id>,
    question: Option<String>,
    context: Option<String>,
    #[serde(default)]
    answers: Answers,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    id: Id,
    question: String,
    #[serde(default)]
    answers: Answers,
}

fn parse_rows(bytes: &[u8], path: &Path) -> Result<Vec<Row>> {
    let first = bytes.get(skip_space(bytes, 0));
    if first.is_none() {
        return Err(Error::file(path, "the file is empty"));
    }
    let located = |error: serde_json::Error| Error::Json {
        path: path.to_owned(),
        line: error.line(),
        column: error.column(),
        message: without_place(&error),
    };
    let rows = if first == Some(&b'[') {
        serde_json::from_slice::<Vec<Row>>(bytes).map_err(located)?
    } else {
        // One object with "data", or any number of rows one after the other (JSON lines).
        let mut objects = serde_json::Deserializer::from_slice(bytes).into_iter::<Row>();
        let mut rows = Vec::new();
        loop {
            let begin = objects.byte_offset();
            let Some(object) = objects.next() else { break };
            let object = object.map_err(&located)?;
            let complain = |message: &str| {
                let (line, column) = place(bytes, skip_space(bytes, begin));
                Error::Json {
                    path: path.to_owned(),
                    line,
                    column,
                    message: message.into(),
                }
            };
            if let Some(data) = object.data {
                if skip_space(bytes, objects.byte_offset()) != bytes.len() || !rows.is_empty() {
                    return Err(complain("an object with \"data\" must be alone in its file"));
                }
                return check_rows(data, path);
            }
            if let Some(lack) = object.lacks() {
                return Err(complain(&lack));
            }
            rows.push(object);
        }
        rows
    };
    check_rows(rows, path)
}

fn check_rows(rows: Vec<Row>, path: &Path) -> Result<Vec<Row>> {
    for (index, row) in rows.iter().enumerate() {
        if let Some(lack) = row.lacks() {
            return Err(Error::file(path, format!("entry {}: {lack}", index + 1)));
        }
    }
    Ok(rows)
}

impl Row {
    /// What keeps this object from being an article or a row.
    fn lacks(&self) -> Option<String> {
        if self.data.is_some() {
            return Some("\"data\" is not expected here".into());
        }
        if self.paragraphs.is_some() {
            return None;
        }
        let fields = [
            ("id", self.id.is_some()),
            ("question", self.question.is_some()),
            ("context", self.context.is_some()),
        ];
        let missing: Vec<_> = fields
            .iter()
            .filter(|(_, there)| !there)
            .map(|(name, _)| format!("{name:?}"))
            .collect();
        (!missing.is_empty()).then(|| {
            format!(
                "neither an article with \"paragraphs\" nor a complete row: {} missing",
                missing.join(", ")
            )
        })
    }
}

fn flatten(rows: Vec<Row>) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut contexts = Shared::default();
    for row in rows {
        let title: Arc<str> = row.title.unwrap_or_default().into();
        if let Some(paragraphs) = row.paragraphs {
            for paragraph in paragraphs {
                let context: Arc<str> = paragraph.context.into();
                examples.extend(paragraph.qas.into_iter().map(|qa| Example {
                    id: qa.id.0,
                    title: title.clone(),
                    question: qa.question,
                    context: context.clone(),
                    answers: qa.answers.0,
                }));
            }
        } else if let (Some(id), Some(question), Some(context)) = (row.id, row.question, row.context) {
            examples.push(Example {
                id: id.0,
                title,
                question,
                context: contexts.share(context),
                answers: row.answers.0,
            });
        }
    }
    examples
}

/// Neighbouring rows of a flat file repeat their context; it is kept once.
#[derive(Default)]
pub(super) struct Shared(Option<Arc<str>>);

impl Shared {
    pub(super) fn share(&mut self, text: String) -> Arc<str> {
        match &self.0 {
            Some(last) if **last == *text => last.clone(),
            _ => self.0.insert(text.into()).clone(),
        }
    }
}

/// An id: text, or a whole number that is taken as its text.
struct Id(String);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = Id;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id (text or a whole number)")
            }
            fn visit_str<E>(self, text: &str) -> std::result::Result<Id, E> {
                Ok(Id(text.to_owned()))
            }
            fn visit_u64<E>(self, number: u64) -> std::result::Result<Id, E> {
                Ok(Id(number.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> std::result::Result<Id, E> {
                Ok(Id(number.to_string()))
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

/// Answers: a list of `{"text", "answer_start"}` (nested form), or one object of two lists (flat form), or null.
#[derive(Default)]
pub(super) struct Answers(pub(super) Vec<Answer>);

impl<'de> Deserialize<'de> for Answers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct One {
            text: String,
            answer_start: usize,
        }
        struct AnswersVisitor;
        impl<'de> Visitor<'de> for AnswersVisitor {
            type Value = Answers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of answers, or an object with the lists \"text\" and \"answer_start\"")
            }
            fn visit_unit<E>(self) -> std::result::Result<Answers, E> {
                Ok(Answers::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Answers, A::Error> {
                let mut answers = Vec::new();
                while let Some(One { text, answer_start }) = list.next_element()? {
                    answers.push(Answer {
                        text,
                        start: answer_start,
                    });
                }
                Ok(Answers(answers))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Answers, A::Error> {
                let (mut texts, mut starts) = (Vec::<String>::new(), Vec::<usize>::new());
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "text" => texts = map.next_value()?,
                        "answer_start" => starts = map.next_value()?,
                        _ => {
                            map.next_value::<de::IgnoredAny>()?;
                        }
                    }
                }
                if texts.len() != starts.len() {
                    return Err(de::Error::custom(format!(
                        "answers have {} texts but {} places",
                        texts.len(),
                        starts.len()
                    )));
                }
                let pairs = texts.into_iter().zip(starts);
                Ok(Answers(pairs.map(|(text, start)| Answer { text, start }).collect()))
            }
        }
        deserializer.deserialize_any(AnswersVisitor)
    }
}

fn skip_space(bytes: &[u8], from: usize) -> usize {
    let rest = &bytes[from..];
    from + rest.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(rest.len())
}

/// Line and column, counted from 1, of a byte.
fn place(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = &bytes[..at];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|b| **b != b'\n').count() + 1;
    (line, column)
}

/// The message of a JSON error without its trailing place, which the caller prints in front.
pub(crate) fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(cut) => text[..cut].to_owned(),
        None => text,
    }
}
