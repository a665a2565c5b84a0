//! The JSON files that scripts and dashboards around Trainer read: `train_results.json`,
//! `eval_results.json`, `all_results.json`, `trainer_state.json`.
//!
//! They are written as Python writes them, to the character: sorted keys, the same indentation,
//! `5e-05` and not `5e-5`, `1.0` and not `1`, everything outside ASCII escaped.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::checkpoint::Folder;
use crate::error::{Error, Result};

/// A JSON text as Python's `json.dumps(value, indent=indent, sort_keys=sort_keys)` gives it.
///
/// ```
/// let value = serde_json::json!({"f1": 51.75, "epoch": 3.0, "learning_rate": 5e-5});
/// assert_eq!(
///     azulejo_bert::results::python_json(&value, 4, true),
///     "{\n    \"epoch\": 3.0,\n    \"f1\": 51.75,\n    \"learning_rate\": 5e-05\n}"
/// );
/// ```
pub fn python_json(value: &Value, indent: usize, sort_keys: bool) -> String {
    let mut out = String::new();
    write_value(&mut out, value, indent, sort_keys, 0);
    out
}

/// The text of a float as Python's `repr` gives it: the shortest digits that read back as the same
/// number, with an exponent below 1e-4 and from 1e16.
pub fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    // Rust's `{:e}` gives the shortest digits too, as `d.ddde-5`: only the layout differs.
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Python's `round(x, digits)`, for the numbers that Trainer rounds before writing them.
pub fn rounded(x: f64, digits: usize) -> f64 {
    // The decimal text of a float is rounded exactly, half to even, by both languages.
    format!("{x:.digits$}").parse().unwrap_or(x)
}

fn write_value(out: &mut String, value: &Value, indent: usize, sort_keys: bool, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() => out.push_str(&python_float(x)),
            _ => out.push_str(&n.to_string()),
        },
        Value::String(s) => write_string(out, s),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                new_item(out, i, indent, depth + 1);
                write_value(out, item, indent, sort_keys, depth + 1);
            }
            new_line(out, indent, depth);
            out.push(']');
        }
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            out.push('{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                new_item(out, i, indent, depth + 1);
                write_string(out, key);
                out.push_str(": ");
                write_value(out, item, indent, sort_keys, depth + 1);
            }
            new_line(out, indent, depth);
            out.push('}');
        }
    }
}

fn new_item(out: &mut String, index: usize, indent: usize, depth: usize) {
    if index > 0 {
        out.push(',');
    }
    new_line(out, indent, depth);
}

fn new_line(out: &mut String, indent: usize, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent * depth));
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// Writes the metrics of one part of a run, as `Trainer.save_metrics` does: `<split>_results.json`
/// holds them alone, and `all_results.json` is what it held before with these on top.
pub fn save_metrics(folder: &Path, split: &str, metrics: &Map<String, Value>) -> Result<()> {
    let text = python_json(&Value::Object(metrics.clone()), 4, true);
    let mut files = Folder::open(folder)?;
    files.add(&format!("{split}_results.json"), |out| out.write_all(text.as_bytes()))?;

    let all = folder.join("all_results.json");
    let mut merged = match std::fs::read(&all) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(Value::Object(map)) => map,
            // A file that is not an object of metrics is not ours to keep.
            _ => Map::new(),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Map::new(),
        Err(e) => return Err(Error::io(&all)(e)),
    };
    merged.extend(metrics.clone());
    let text = python_json(&Value::Object(merged), 4, true);
    files.add("all_results.json", |out| out.write_all(text.as_bytes()))?;
    files.commit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The right-hand sides are what Python 3.12's `repr` prints.
    #[test]
    fn floats_read_as_in_python() {
        for (x, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (5e-5, "5e-05"),
            (1e-4, "0.0001"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e22, "1.25e+22"),
            (1e-100, "1e-100"),
            (f64::MAX, "1.7976931348623157e+308"),
            (51.75, "51.75"),
            (f64::from(0.1f32), "0.10000000149011612"),
            (86.206_244_087_038_78, "86.20624408703878"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }

    #[test]
    fn rounding_is_half_to_even_on_the_exact_value() {
        assert_eq!(rounded(2.675, 2), 2.67, "2.675 is stored a little below");
        assert_eq!(rounded(0.125, 2), 0.12);
        assert_eq!(rounded(0.375, 2), 0.38);
        assert_eq!(rounded(12.0, 3), 12.0);
    }

    #[test]
    fn text_is_that_of_python() {
        let value = json!({"b": [1, 2.0, []], "a": "é😀\"\u{7f}\n", "c": {}, "n": null});
        assert_eq!(
            python_json(&value, 2, true),
            "{\n  \"a\": \"\\u00e9\\ud83d\\ude00\\\"\\u007f\\n\",\n  \"b\": [\n    1,\n    2.0,\n    []\n  ],\n  \"c\": {},\n  \"n\": null\n}"
        );
        assert!(python_json(&value, 2, false).starts_with("{\n  \"b\""));
    }

    #[test]
    fn all_results_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let object = |v: Value| v.as_object().unwrap().clone();
        save_metrics(
            folder.path(),
            "train",
            &object(json!({"epoch": 1.0, "train_loss": 2.5})),
        )
        .unwrap();
        save_metrics(folder.path(), "eval", &object(json!({"epoch": 2.0, "eval_f1": 50.0}))).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            read("train_results.json"),
            "{\n    \"epoch\": 1.0,\n    \"train_loss\": 2.5\n}"
        );
        assert_eq!(
            read("all_results.json"),
            "{\n    \"epoch\": 2.0,\n    \"eval_f1\": 50.0,\n    \"train_loss\": 2.5\n}"
        );
    }
}
