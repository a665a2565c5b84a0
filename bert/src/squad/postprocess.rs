//! Answers from logits: the best spans of each question over all its windows, as `run_qa.py` chooses and writes them.
//!
//! Of each window only its best starts and ends are kept ([`Candidates`]), so that the logits of a large data set need not be
//! held. Where `run_qa.py` has no defined order, for it sorts with an unstable sort, the lower token comes first.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::read::{DataSet, Example};
use crate::features::Feature;

/// How answers are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Starts, ends and answers that are looked at.
    pub n_best: usize,
    /// Longest answer, in tokens.
    pub max_answer_length: usize,
    /// Version 2: whether "no answer" is an answer, and if so, by how much its score must exceed that of the best span.
    pub null_threshold: Option<f64>,
    /// List a span that overlapping windows share once, with its best score. `run_qa.py` lists it once a window.
    pub once: bool,
}

impl Default for Choice {
    /// The defaults of `run_qa.py`, version 1.
    fn default() -> Self {
        Self {
            n_best: 20,
            max_answer_length: 30,
            null_threshold: None,
            once: false,
        }
    }
}

/// What is kept of a window's logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// The best starts with their logits, best first.
    pub starts: Vec<(u32, f32)>,
    /// The best ends.
    pub ends: Vec<(u32, f32)>,
    /// Start and end logit of the first token, which stands for "no answer".
    pub null: (f32, f32),
}

/// One possible answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Logit of its first token.
    pub start_logit: f32,
    /// Logit of its last token.
    pub end_logit: f32,
    /// Its text.
    pub text: String,
    /// Its share of the probability among the answers listed.
    pub probability: f64,
    /// Code points of the context, for answers that come from it.
    pub offsets: Option<(u32, u32)>,
}

/// The answers to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The question's id.
    pub id: String,
    /// The answer; empty for "no answer".
    pub text: String,
    /// The possible answers, best first; never empty.
    pub n_best: Vec<Span>,
    /// Version 2: score of "no answer" less that of the best span.
    pub null_odds: Option<f64>,
}

impl Candidates {
    /// Keeps the `n_best` best starts and ends of a window; both slices have one logit a token.
    pub fn new(starts: &[f32], ends: &[f32], n_best: usize) -> Self {
        let first = |logits: &[f32]| logits.first().copied().unwrap_or(0.0);
        Self {
            starts: top(starts, n_best),
            ends: top(ends, n_best),
            null: (first(starts), first(ends)),
        }
    }
}

/// Chooses the answer to every question. `candidates` belong to `features` one by one; the features of a question follow each
/// other in its windows' order.
///
/// A question without any window gets the answer `empty` in version 1, and no answer in version 2.
pub fn answers(set: &DataSet, features: &[Feature], candidates: &[Candidates], choice: &Choice) -> Vec<Answered> {
    assert_eq!(features.len(), candidates.len(), "features and their candidates");
    let mut windows = vec![Vec::new(); set.len()];
    for pair in features.iter().zip(candidates) {
        windows[pair.0.example].push(pair);
    }
    let pairs = set.examples.iter().zip(&windows);
    pairs
        .map(|(example, windows)| answer(example, windows, choice))
        .collect()
}

/// The answers' texts in the form of `eval_predictions.json`.
pub fn predictions(answers: &[Answered]) -> Value {
    let pairs = answers.iter().map(|a| (a.id.clone(), json!(a.text)));
    Value::Object(pairs.collect())
}

/// The answers' lists in the form of `eval_nbest_predictions.json`.
pub fn n_best_predictions(answers: &[Answered]) -> Value {
    let entry = |span: &Span| {
        let mut map = Map::new();
        let logits = [("start_logit", span.start_logit), ("end_logit", span.end_logit)];
        let logits = logits.map(|(key, logit)| (key.to_owned(), json!(f64::from(logit))));
        let text = ("text".to_owned(), json!(span.text));
        // The stand-in for a missing answer has its fields in another order, for it does not come from logits.
        if span.offsets.is_some() {
            map.extend(logits.into_iter().chain([text]));
        } else {
            map.extend([text].into_iter().chain(logits));
        }
        map.insert("probability".into(), json!(span.probability));
        Value::Object(map)
    };
    let pairs = answers
        .iter()
        .map(|a| (a.id.clone(), a.n_best.iter().map(entry).collect()));
    Value::Object(pairs.collect())
}

/// The scores of "no answer" in the form of `eval_null_odds.json`.
pub fn null_odds(answers: &[Answered]) -> Value {
    let pairs = answers.iter().filter_map(|a| Some((a.id.clone(), json!(a.null_odds?))));
    Value::Object(pairs.collect())
}

/// The `n` largest logits, best first, the lower token first among equals. A logit that is not a number ranks last.
fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let value = |token: &(u32, f32)| if token.1.is_nan() { f32::NEG_INFINITY } else { token.1 };
    let order = |a: &(u32, f32), b: &(u32, f32)| value(b).total_cmp(&value(a)).then(a.0.cmp(&b.0));
    let mut tokens: Vec<_> = (0..).zip(logits.iter().copied()).collect();
    if n < tokens.len() && n > 0 {
        tokens.select_nth_unstable_by(n - 1, order);
    }
    tokens.truncate(n);
    tokens.sort_unstable_by(order);
    tokens
}

#[derive(Clone, Copy)]
struct Scored {
    score: f32,
    start_logit: f32,
    end_logit: f32,
    offsets: (u32, u32),
}

fn answer(example: &Example, windows: &[(&Feature, &Candidates)], choice: &Choice) -> Answered {
    let mut spans = Vec::new();
    let mut null: Option<Scored> = None;
    for (feature, candidates) in windows {
        let (start_logit, end_logit) = candidates.null;
        let score = start_logit + end_logit;
        if null.is_none_or(|least| least.score > score) {
            null = Some(Scored {
                score,
                start_logit,
                end_logit,
                offsets: (0, 0),
            });
        }
        collect_spans(&mut spans, feature, candidates, choice.max_answer_length);
    }
    let null = null.filter(|_| choice.null_threshold.is_some());
    spans.extend(null);
    spans.sort_by(|a: &Scored, b| b.score.total_cmp(&a.score)); // stable: the first found wins
    if choice.once {
        let mut seen = HashSet::new();
        spans.retain(|span| seen.insert(span.offsets));
    }
    spans.truncate(choice.n_best);
    if let Some(null) = null
        && !spans.iter().any(|span| span.offsets == (0, 0))
    {
        spans.push(null);
    }
    let n_best = finish(&spans, &example.context);
    let (text, null_odds) = match (choice.null_threshold, null) {
        (None, _) => (n_best[0].text.clone(), None),
        (Some(_), None) => (String::new(), None),
        (Some(threshold), Some(null)) => decide(&n_best, null, threshold),
    };
    Answered {
        id: example.id.clone(),
        text,
        n_best,
        null_odds,
    }
}

/// Every pair of a start and an end that is a span of the context and not too long.
fn collect_spans(spans: &mut Vec<Scored>, feature: &Feature, candidates: &Candidates, max_length: usize) {
    let place = |token: u32| feature.offsets.get(token as usize).copied().flatten();
    for &(start, start_logit) in &candidates.starts {
        let Some((from, _)) = place(start) else { continue };
        for &(end, end_logit) in &candidates.ends {
            let Some((_, to)) = place(end) else { continue };
            if end >= start && ((end - start) as usize) < max_length {
                spans.push(Scored {
                    score: start_logit + end_logit,
                    start_logit,
                    end_logit,
                    offsets: (from, to),
                });
            }
        }
    }
}

/// Texts and probabilities of the spans; a stand-in in front if there is nothing else to say.
fn finish(spans: &[Scored], context: &str) -> Vec<Span> {
    let bytes: Vec<_> = if context.is_ascii() {
        Vec::new()
    } else {
        context.char_indices().map(|(byte, _)| byte).collect()
    };
    let byte = |code_point: u32| match bytes.is_empty() {
        true => context.len().min(code_point as usize),
        false => bytes.get(code_point as usize).copied().unwrap_or(context.len()),
    };
    let text = |(from, to): (u32, u32)| context.get(byte(from)..byte(to)).unwrap_or_default();
    let mut list: Vec<_> = spans
        .iter()
        .map(|span| Span {
            start_logit: span.start_logit,
            end_logit: span.end_logit,
            text: text(span.offsets).to_owned(),
            probability: 0.0,
            offsets: Some(span.offsets),
        })
        .collect();
    let stand_in = list.is_empty() || (list.len() == 1 && list[0].text.is_empty());
    if stand_in {
        list.insert(
            0,
            Span {
                start_logit: 0.0,
                end_logit: 0.0,
                text: "empty".into(),
                probability: 0.0,
                offsets: None,
            },
        );
    }
    let scores: Vec<_> = list.iter().map(|span| span.start_logit + span.end_logit).collect();
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // numpy computes in f32 unless the stand-in, a Python float, makes it f64.
    let probabilities: Vec<f64> = if stand_in {
        softmax(
            &scores
                .iter()
                .map(|&s| (f64::from(s) - f64::from(largest)).exp())
                .collect::<Vec<_>>(),
        )
    } else {
        let exponentials: Vec<_> = scores.iter().map(|&s| f64::from(s - largest).exp() as f32).collect();
        let sum: f32 = exponentials.iter().sum();
        exponentials.iter().map(|&e| f64::from(e / sum)).collect()
    };
    for (span, probability) in list.iter_mut().zip(probabilities) {
        span.probability = probability;
    }
    list
}

fn softmax(exponentials: &[f64]) -> Vec<f64> {
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / sum).collect()
}

/// The version 2 answer: the best text, unless "no answer" is better by more than the threshold.
fn decide(n_best: &[Span], null: Scored, threshold: f64) -> (String, Option<f64>) {
    let Some(best) = n_best.iter().find(|span| !span.text.is_empty()) else {
        return (String::new(), None);
    };
    let odds = f64::from(null.score - best.start_logit - best.end_logit);
    let text = if odds > threshold { "" } else { &best.text };
    (text.to_owned(), Some(odds))
}
