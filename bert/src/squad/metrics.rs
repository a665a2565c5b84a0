//! How good answers are: exact match and F1, as the official scripts of SQuAD 1.1 and 2.0 compute them.
//!
//! Both compare after [`normalise`]. They differ in answers that normalise to nothing: version 1.1 gives them an F1 of 0
//! even where both sides are empty, version 2.0 an F1 of 1 exactly then.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};

use super::read::{DataSet, Example, without_place};
use super::word::{is_space, is_word};
use crate::error::{Error, Result};

/// Predicted texts by question id, in the order in which they were made.
pub type Predictions = [(String, String)];

/// The score of version 1.1, in per cent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Share of answers that equal a gold answer.
    pub exact_match: f64,
    /// Mean overlap with the best gold answer.
    pub f1: f64,
    /// Questions without a prediction, which score 0.
    pub missing: usize,
}

/// A share of the questions of a version 2.0 score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Exact match in per cent.
    pub exact: f64,
    /// F1 in per cent.
    pub f1: f64,
    /// Number of questions.
    pub total: usize,
}

/// The score of version 2.0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoresV2 {
    /// All questions that have a prediction.
    pub all: Part,
    /// Those with an answer, if there are any.
    pub has_answer: Option<Part>,
    /// Those without, if there are any.
    pub no_answer: Option<Part>,
    /// The best exact match that some threshold on the no-answer probability would have given, and the threshold.
    pub best_exact: (f64, f64),
    /// The same for F1.
    pub best_f1: (f64, f64),
    /// Questions without a prediction, which are left out.
    pub missing: usize,
}

/// How sure the predictions are that there is no answer, for [`score_v2`].
#[derive(Clone, Debug, Default)]
pub struct NoAnswer {
    /// Probability by question id; 0 where absent.
    pub probabilities: HashMap<String, f64>,
    /// Above this probability a prediction counts as "no answer". `None` leaves the predictions as they are, which is
    /// what `run_qa.py` asks for.
    pub threshold: Option<f64>,
}

/// Scores predictions as version 1.1 does. A question without gold answers scores 0.
pub fn score(set: &DataSet, predictions: &Predictions) -> Scores {
    let predicted = by_id(predictions);
    let (mut exact, mut f1, mut missing) = (0usize, 0.0, 0);
    for example in &set.examples {
        let Some(prediction) = predicted.get(example.id.as_str()) else {
            missing += 1;
            continue;
        };
        let prediction = normalise(prediction);
        let gold: Vec<_> = example.answers.iter().map(|a| normalise(&a.text)).collect();
        exact += usize::from(gold.contains(&prediction));
        f1 += best(gold.iter().map(|gold| overlap(&prediction, gold)));
    }
    let total = set.len().max(1) as f64;
    Scores {
        exact_match: 100.0 * exact as f64 / total,
        f1: 100.0 * f1 / total,
        missing,
    }
}

/// Scores predictions as version 2.0 does; an empty prediction says that there is no answer.
pub fn score_v2(set: &DataSet, predictions: &Predictions, no_answer: &NoAnswer) -> ScoresV2 {
    let predicted = by_id(predictions);
    let mut raw = HashMap::with_capacity(set.len());
    let mut parts = [Sum::default(), Sum::default()]; // without an answer, with one
    let mut all = Sum::default();
    for example in &set.examples {
        let Some(prediction) = predicted.get(example.id.as_str()) else {
            continue;
        };
        let answered = !example.answers.is_empty();
        let pair = compare_v2(example, prediction);
        raw.insert(example.id.as_str(), (pair, answered));
        let probability = no_answer.of(&example.id);
        let pair = match no_answer.threshold {
            Some(threshold) if probability > threshold => [f64::from(u8::from(!answered)); 2],
            _ => pair,
        };
        all.add(pair);
        parts[usize::from(answered)].add(pair);
    }
    let without = set.unanswered();
    ScoresV2 {
        all: all.part().unwrap_or(Part {
            exact: 0.0,
            f1: 0.0,
            total: 0,
        }),
        has_answer: parts[1].part(),
        no_answer: parts[0].part(),
        best_exact: best_threshold(predictions, &raw, 0, without, no_answer),
        best_f1: best_threshold(predictions, &raw, 1, without, no_answer),
        missing: set.len() - raw.len(),
    }
}

/// Lower case, without ASCII punctuation, without the words *a*, *an*, *the*, and with single spaces.
pub fn normalise(text: &str) -> String {
    let bare: String = text
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_ascii_punctuation())
        .collect();
    let spaced = remove_articles(&bare);
    let words: Vec<_> = spaced.split(is_space).filter(|w| !w.is_empty()).collect();
    words.join(" ")
}

/// Puts a space where an article stands as a word of its own.
fn remove_articles(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if is_word(c) {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            out.push_str(if matches!(word, "a" | "an" | "the") { " " } else { word });
            rest = after;
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// F1 of two normalised texts as bags of words; 0 without a common word.
fn overlap(prediction: &str, gold: &str) -> f64 {
    let mut left: HashMap<&str, usize> = HashMap::new();
    let gold_words = words(gold).inspect(|word| *left.entry(word).or_default() += 1).count();
    let (mut predicted_words, mut same) = (0usize, 0usize);
    for word in words(prediction) {
        predicted_words += 1;
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            same += 1;
        }
    }
    if same == 0 {
        return 0.0;
    }
    let precision = same as f64 / predicted_words as f64;
    let recall = same as f64 / gold_words as f64;
    (2.0 * precision * recall) / (precision + recall)
}

fn words(normalised: &str) -> impl Iterator<Item = &str> {
    normalised.split(' ').filter(|word| !word.is_empty())
}

/// Exact match and F1 of one prediction.
fn compare_v2(example: &Example, prediction: &str) -> [f64; 2] {
    let prediction = normalise(prediction);
    let mut gold: Vec<_> = example
        .answers
        .iter()
        .map(|a| normalise(&a.text))
        .filter(|gold| !gold.is_empty())
        .collect();
    if gold.is_empty() {
        gold.push(String::new());
    }
    let exact = f64::from(u8::from(gold.contains(&prediction)));
    let f1 = best(gold.iter().map(|gold| {
        if gold.is_empty() || prediction.is_empty() {
            f64::from(u8::from(*gold == prediction))
        } else {
            overlap(&prediction, gold)
        }
    }));
    [exact, f1]
}

fn best(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn by_id(predictions: &Predictions) -> HashMap<&str, &str> {
    predictions.iter().map(|(id, text)| (&**id, &**text)).collect()
}

impl NoAnswer {
    fn of(&self, id: &str) -> f64 {
        self.probabilities.get(id).copied().unwrap_or(0.0)
    }
}

#[derive(Default)]
struct Sum {
    exact: f64,
    f1: f64,
    total: usize,
}

impl Sum {
    fn add(&mut self, [exact, f1]: [f64; 2]) {
        self.exact += exact;
        self.f1 += f1;
        self.total += 1;
    }

    fn part(&self) -> Option<Part> {
        (self.total > 0).then(|| Part {
            exact: 100.0 * self.exact / self.total as f64,
            f1: 100.0 * self.f1 / self.total as f64,
            total: self.total,
        })
    }
}

/// Calls questions answered one after the other, the surest first, starting from none, and keeps the best sum.
///
/// With equal probabilities the order is that of the predictions, as the official script's stable sort has it.
fn best_threshold(
    predictions: &Predictions,
    raw: &HashMap<&str, ([f64; 2], bool)>,
    which: usize,
    unanswered: usize,
    no_answer: &NoAnswer,
) -> (f64, f64) {
    let mut order: Vec<_> = predictions
        .iter()
        .map(|(id, text)| (no_answer.of(id), id, text))
        .collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut now = unanswered as f64;
    let (mut best, mut threshold) = (now, 0.0);
    for (probability, id, text) in order {
        let Some((pair, answered)) = raw.get(id.as_str()) else {
            continue;
        };
        now += match (answered, text.is_empty()) {
            (true, _) => pair[which],
            (false, true) => 0.0,
            (false, false) => -1.0,
        };
        if now > best {
            (best, threshold) = (now, probability);
        }
    }
    (100.0 * best / raw.len().max(1) as f64, threshold)
}

/// Reads a file of predictions: one JSON object, id to text.
///
/// # Errors
/// If it cannot be read or is something else (with line and column).
pub fn read_predictions(path: impl AsRef<Path>) -> Result<Vec<(String, String)>> {
    read_map(path.as_ref())
}

/// Reads a file of no-answer probabilities, or null odds: one JSON object, id to number.
///
/// # Errors
/// As [`read_predictions`].
pub fn read_probabilities(path: impl AsRef<Path>) -> Result<HashMap<String, f64>> {
    Ok(read_map(path.as_ref())?.into_iter().collect())
}

/// The entries of a JSON object in their order; of equal keys the last counts.
fn read_map<T: DeserializeOwned>(path: &Path) -> Result<Vec<(String, T)>> {
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let Entries(entries) = serde_json::from_slice(bytes).map_err(|e| Error::Json {
        path: path.to_owned(),
        line: e.line(),
        column: e.column(),
        message: without_place(&e),
    })?;
    Ok(entries)
}

struct Entries<T>(Vec<(String, T)>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct EntriesVisitor<T>(Vec<(String, T)>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for EntriesVisitor<T> {
            type Value = Entries<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that has question ids as its keys")
            }
            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> std::result::Result<Entries<T>, A::Error> {
                while let Some(entry) = map.next_entry()? {
                    self.0.push(entry);
                }
                Ok(Entries(self.0))
            }
        }
        deserializer.deserialize_map(EntriesVisitor(Vec::new()))
    }
}
