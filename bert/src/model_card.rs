//! The `README.md` of a trained model's folder: what it was made from, how, and what it scores.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::results::python_float;

/// What a model card tells.
#[derive(Debug, Clone, Default)]
pub struct ModelCard {
    /// Name of the model: that of its folder.
    pub name: String,
    /// What it was fine-tuned from.
    pub base_model: String,
    /// Name of the data set, or of its file.
    pub dataset: String,
    /// Settings, by name, in the order to show them in.
    pub settings: Vec<(String, String)>,
    /// Results of evaluation by name (`eval_f1`).
    pub metrics: Map<String, Value>,
    /// Entries of the log (`loss`, `step`, `epoch`, `eval_f1`, ...).
    pub log_history: Vec<Value>,
    /// File with the curves, if there is one.
    pub plot: Option<String>,
}

impl ModelCard {
    /// The card in Markdown, with the head that the Hub reads.
    pub fn to_markdown(&self) -> String {
        let mut out = String::from("---\nlibrary_name: transformers\n");
        // Writing to a string cannot fail.
        let _ = writeln!(out, "base_model: {}", quoted(&self.base_model));
        out.push_str("pipeline_tag: question-answering\ntags:\n- question-answering\n- azulejo\n");
        let _ = writeln!(out, "datasets:\n- {}", quoted(&self.dataset));
        let _ = writeln!(
            out,
            "model-index:\n- name: {}\n  results: []\n---\n",
            quoted(&self.name)
        );
        let _ = writeln!(out, "# {}\n", self.name);
        let _ = writeln!(
            out,
            "This model answers questions about a text by marking the answer in it. It is {}, fine-tuned on {} with azulejo {} \
             on CPUs. Its folder is in transformers' layout: `pipeline(\"question-answering\", ...)` loads it.",
            self.base_model,
            self.dataset,
            env!("CARGO_PKG_VERSION")
        );
        let scores: Vec<_> = self
            .metrics
            .iter()
            .filter_map(|(name, value)| Some((name, text(value)?)))
            .collect();
        if !scores.is_empty() {
            out.push_str("\n## Results\n\n| metric | value |\n|---|---|\n");
            for (name, value) in scores {
                let _ = writeln!(out, "| {} | {value} |", name.strip_prefix("eval_").unwrap_or(name));
            }
        }
        out.push_str("\n## Training\n\n");
        for (name, value) in &self.settings {
            let _ = writeln!(out, "- {name}: {value}");
        }
        self.write_log(&mut out);
        if let Some(file) = &self.plot {
            let _ = writeln!(out, "\n![curves of the training]({file})");
        }
        out
    }

    fn write_log(&self, out: &mut String) {
        let columns: Vec<&str> = ["epoch", "step", "loss", "eval_exact_match", "eval_exact", "eval_f1"]
            .into_iter()
            .filter(|column| self.log_history.iter().any(|entry| entry.get(column).is_some()))
            .collect();
        let rows: Vec<_> = self
            .log_history
            .iter()
            .filter(|entry| entry.get("loss").is_some() || entry.get("eval_f1").is_some())
            .collect();
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(out, "\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        // Long runs are thinned out: a card is for people.
        let every = rows.len().div_ceil(40);
        for row in rows.iter().rev().step_by(every).rev() {
            let cells: Vec<_> = columns
                .iter()
                .map(|column| row.get(column).and_then(text).unwrap_or_default())
                .collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
}

fn text(value: &Value) -> Option<String> {
    let Value::Number(number) = value else {
        return None;
    };
    match number.as_f64() {
        Some(x) if number.is_f64() => Some(python_float((x * 1e4).round() / 1e4)),
        _ => Some(number.to_string()),
    }
}

/// A text as YAML reads it, whatever is in it: a JSON string is one.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_card_has_a_head_results_and_a_table() {
        let entry = |step: u64| json!({"loss": 4.0 / step as f64, "step": step, "epoch": step as f64 / 10.0});
        let mut log_history: Vec<Value> = (1..=100).map(entry).collect();
        log_history.push(json!({"train_loss": 1.0, "step": 100}));
        let card = ModelCard {
            name: "debug: squad".into(),
            base_model: "distilbert-base-uncased".into(),
            dataset: "squad".into(),
            settings: vec![("learning_rate".into(), "5e-05".into())],
            metrics: json!({"eval_f1": 86.123456, "eval_samples": 10784})
                .as_object()
                .cloned()
                .unwrap(),
            log_history,
            plot: Some("training_curves.svg".into()),
        };
        let text = card.to_markdown();
        assert!(
            text.starts_with("---\nlibrary_name: transformers\nbase_model: distilbert-base-uncased\n"),
            "{text}"
        );
        assert!(text.contains("- name: \"debug: squad\"\n"), "{text}");
        assert!(text.contains("| f1 | 86.1235 |\n| samples | 10784 |"), "{text}");
        assert!(text.contains("- learning_rate: 5e-05\n"));
        assert!(text.contains("| epoch | step | loss |\n|---|---|---|\n"), "{text}");
        assert!(
            text.contains("| 10.0 | 100 | 0.04 |"),
            "the last entry is always there: {text}"
        );
        let rows = text.lines().filter(|line| line.matches(" | ").count() == 2).count();
        assert_eq!(rows, 1 + 34, "a head, and a third of the entries: {text}");
        assert!(text.ends_with("![curves of the training](training_curves.svg)\n"));
    }
}
