//! Rows of questions in CSV and parquet files.
//!
//! A table needs the columns `id`, `question` and `context`; `title` and the answers may be there. In CSV the answers are
//! JSON in a column `answers`, or one answer in the columns `answer_text` and `answer_start`. In parquet, as the Hub has
//! it, `answers` is a struct of the lists `text` and `answer_start`.

use std::path::Path;

use super::read::{Answer, Answers, Example, Shared, without_place};
use crate::error::{Error, Result};

/// Whether a file is a CSV by its name.
pub(super) fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv"))
}

/// Whether a file is parquet by its first bytes.
pub(super) fn is_parquet(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PAR1")
}

/// Reads the rows of a CSV.
pub(super) fn parse_csv(text: &str, path: &Path) -> Result<Vec<Example>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let broken = |e: csv::Error| {
        let line = e.position().map_or(1, csv::Position::line);
        let message = match e.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("the row has {len} fields, the header has {expected_len}")
            }
            _ => e.to_string(),
        };
        Error::file(path, format!("line {line}: {message}"))
    };
    let header = reader.headers().map_err(broken)?.clone();
    let column = |name: &str| header.iter().position(|field| field.trim() == name);
    let needed = |name: &str| {
        column(name).ok_or_else(|| {
            let found: Vec<_> = header.iter().collect();
            Error::file(path, format!("line 1: no column {name:?} among {}", found.join(", ")))
        })
    };
    let (id, question, context) = (needed("id")?, needed("question")?, needed("context")?);
    let title = column("title");
    let answers = column("answers");
    let one = column("answer_text").zip(column("answer_start"));

    let mut contexts = Shared::default();
    let mut examples = Vec::new();
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(broken)? {
        let line = record.position().map_or(0, csv::Position::line);
        let field = |column: usize| record.get(column).unwrap_or_default();
        let complain = |message: String| Error::file(path, format!("line {line}, question {:?}: {message}", field(id)));
        if field(id).is_empty() {
            return Err(Error::file(path, format!("line {line}: the id is empty")));
        }
        let answers = match (answers.map(field), one.map(|(text, start)| (field(text), field(start)))) {
            (Some(json), _) if !json.trim().is_empty() => {
                let answers: Answers = serde_json::from_str(json)
                    .map_err(|e| complain(format!("answers are not the JSON of answers: {}", without_place(&e))))?;
                answers.0
            }
            (_, Some((text, start))) if !text.is_empty() => {
                let start = start
                    .trim()
                    .parse()
                    .map_err(|_| complain(format!("answer_start is {start:?}, expected a whole number")))?;
                vec![Answer {
                    text: text.to_owned(),
                    start,
                }]
            }
            _ => Vec::new(),
        };
        examples.push(Example {
            id: field(id).to_owned(),
            title: title.map(field).unwrap_or_default().into(),
            question: field(question).to_owned(),
            context: contexts.share(field(context).to_owned()),
            answers,
        });
    }
    Ok(examples)
}

/// Reads the rows of a parquet file.
#[cfg(not(feature = "parquet"))]
pub(super) fn parse_parquet(_: &[u8], path: &Path) -> Result<Vec<Example>> {
    Err(Error::file(
        path,
        "this build does not read parquet files: build with the feature parquet, or save the data as JSON",
    ))
}

/// Reads the rows of a parquet file.
#[cfg(feature = "parquet")]
pub(super) fn parse_parquet(bytes: &[u8], path: &Path) -> Result<Vec<Example>> {
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    // The parquet crate checks much, but not everything in a damaged file.
    std::panic::catch_unwind(|| rows_of_parquet(bytes))
        .unwrap_or_else(|_| Err("the file is damaged".into()))
        .map_err(|reason| Error::file(path, reason))
}

#[cfg(feature = "parquet")]
fn rows_of_parquet(bytes: bytes::Bytes) -> std::result::Result<Vec<Example>, String> {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::Field;

    let reader = SerializedFileReader::new(bytes).map_err(|e| e.to_string())?;
    let mut contexts = Shared::default();
    let mut examples = Vec::new();
    for (index, row) in reader.get_row_iter(None).map_err(|e| e.to_string())?.enumerate() {
        let row = row.map_err(|e| format!("row {}: {e}", index + 1))?;
        let complain = |message: String| format!("row {}: {message}", index + 1);
        let find = |name: &str| {
            row.get_column_iter()
                .find(|(column, _)| *column == name)
                .map(|(_, field)| field)
        };
        let text = |name: &str| match find(name) {
            Some(Field::Str(text)) => Ok(text.clone()),
            Some(Field::Int(number)) => Ok(number.to_string()),
            Some(Field::Long(number)) => Ok(number.to_string()),
            Some(other) => Err(complain(format!("column {name:?} is {other}, expected a text"))),
            None => {
                let columns: Vec<_> = row.get_column_iter().map(|(column, _)| column.as_str()).collect();
                Err(complain(format!("no column {name:?} among {}", columns.join(", "))))
            }
        };
        let id = text("id")?;
        let answers = match find("answers") {
            None | Some(Field::Null) => Vec::new(),
            Some(field) => {
                answers_of(field).map_err(|reason| complain(format!("question {id:?}: answers: {reason}")))?
            }
        };
        examples.push(Example {
            title: find("title").map_or(Ok(String::new()), |_| text("title"))?.into(),
            question: text("question")?,
            context: contexts.share(text("context")?),
            id,
            answers,
        });
    }
    Ok(examples)
}

#[cfg(feature = "parquet")]
fn answers_of(field: &parquet::record::Field) -> std::result::Result<Vec<Answer>, String> {
    use parquet::record::Field;

    let Field::Group(group) = field else {
        return Err(format!("{field}, expected a struct of the lists text and answer_start"));
    };
    let list = |name: &str| match group.get_column_iter().find(|(column, _)| *column == name) {
        Some((_, Field::ListInternal(list))) => Ok(list.elements().to_vec()),
        _ => Err(format!("no list {name:?} in {field}")),
    };
    let (texts, starts) = (list("text")?, list("answer_start")?);
    if texts.len() != starts.len() {
        return Err(format!("{} texts but {} places", texts.len(), starts.len()));
    }
    let pairs = texts.into_iter().zip(starts).map(|pair| match pair {
        (Field::Str(text), Field::Int(start)) => Ok((text, i64::from(start))),
        (Field::Str(text), Field::Long(start)) => Ok((text, start)),
        (text, start) => Err(format!("{text} at {start}, expected a text and a whole number")),
    });
    let answer = |(text, start): (String, i64)| match usize::try_from(start) {
        Ok(start) => Ok(Answer { text, start }),
        Err(_) => Err(format!("answer_start is {start}, expected at least 0")),
    };
    pairs.map(|pair| pair.and_then(answer)).collect()
}
