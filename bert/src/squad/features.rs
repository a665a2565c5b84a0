//! Questions and contexts to windows of tokens, with labels for training: what `run_qa.py` makes of them.
//!
//! A window is `[CLS] question [SEP] piece of the context [SEP]`. A context that does not fit is cut into pieces that
//! overlap by `stride` tokens:
//!
//! ```text
//! budget = max_length - 3 - tokens of the question
//! pieces begin at 0, budget - stride, 2 (budget - stride), ... until one reaches the context's end
//! ```
//!
//! The `tokenizers` crate would cut too, but from 0.23 on it stops tokenising a text at `max_length` and so loses its later
//! windows, and it panics at a stride that does not advance. Each context is tokenised once, however many questions are asked about it. Questions are spread over threads; the order of
//! the result is that of the data set.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::read::{Answer, DataSet, Example};
use super::word::is_space;
use crate::error::{Error, Result};
use crate::features::Feature;
use crate::tokenizer::{Tokenizer, Tokens};

/// How contexts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens in a window at most, special tokens included.
    pub max_length: usize,
    /// Tokens by which neighbouring pieces of a context overlap.
    pub stride: usize,
    /// Cut the end of questions that leave no room for more context than the stride, instead of refusing them.
    pub cut_questions: bool,
}

impl Default for Windows {
    /// The defaults of `run_qa.py`.
    fn default() -> Self {
        Self {
            max_length: 384,
            stride: 128,
            cut_questions: false,
        }
    }
}

/// Makes windows with labels, from the first answer of each question.
///
/// The label of a window that does not hold the whole answer, or of a question without one, is `[CLS]`. An answer that begins
/// in the last token of its window gets the window's last index (`[SEP]`) as its start: `run_qa.py` searches to the end
/// of the row, and what is there is taken for the text's beginning. With padding its row, and so its label, is longer.
///
/// # Errors
/// [`Error::QuestionTooLong`] and [`Error::StrideTooLarge`], for the first question concerned.
pub fn training_features(set: &DataSet, tokenizer: &Tokenizer, windows: &Windows) -> Result<Vec<Feature>> {
    build(set, tokenizer, windows, |feature, context, example| {
        let (start, end) = example
            .answers
            .first()
            .map_or((0, 0), |answer| label(feature, context, answer));
        (feature.start, feature.end) = (start, end);
    })
}

/// Makes windows without labels.
///
/// # Errors
/// As [`training_features`].
pub fn evaluation_features(set: &DataSet, tokenizer: &Tokenizer, windows: &Windows) -> Result<Vec<Feature>> {
    build(set, tokenizer, windows, |_, _, _| {})
}

/// Makes the windows of one question, whose place in its data set is `index`. For questions that come one at a time.
///
/// # Errors
/// As [`training_features`].
pub fn windows_of(example: &Example, index: usize, tokenizer: &Tokenizer, windows: &Windows) -> Result<Vec<Feature>> {
    let context = tokenizer.encode(&example.context)?;
    cut(example, index, &context, tokenizer, windows, &|_, _, _| {})
}

fn build(
    set: &DataSet,
    tokenizer: &Tokenizer,
    windows: &Windows,
    finish: impl Fn(&mut Feature, Range<usize>, &Example) + Sync,
) -> Result<Vec<Feature>> {
    let mut first = 0;
    let paragraphs: Vec<_> = set
        .examples
        .chunk_by(|a, b| Arc::ptr_eq(&a.context, &b.context))
        .map(|examples| {
            first += examples.len();
            (first - examples.len(), examples)
        })
        .collect();
    // Collected before the first error is looked for, so that it is always the same one.
    let features: Vec<Result<Vec<Feature>>> = paragraphs
        .into_par_iter()
        .map(|(first, examples)| {
            let context = tokenizer.encode(&examples[0].context)?;
            let mut features = Vec::with_capacity(examples.len());
            for (index, example) in (first..).zip(examples) {
                features.append(&mut cut(example, index, &context, tokenizer, windows, &finish)?);
            }
            Ok(features)
        })
        .collect();
    let mut all = Vec::with_capacity(set.len());
    for features in features {
        all.append(&mut features?);
    }
    Ok(all)
}

fn cut(
    example: &Example,
    index: usize,
    context: &Tokens,
    tokenizer: &Tokenizer,
    windows: &Windows,
    finish: &impl Fn(&mut Feature, Range<usize>, &Example),
) -> Result<Vec<Feature>> {
    let mut question = tokenizer.encode(example.question.trim_start_matches(is_space))?.ids;
    let room = windows.max_length.saturating_sub(3);
    if windows.cut_questions && question.len() + context.ids.len() > room {
        // One token more than the stride must fit, so that the windows advance.
        question.truncate(room.saturating_sub(windows.stride + 1).max(question.len().min(1)));
    }
    let pieces = pieces(&example.id, question.len(), context.ids.len(), windows)?;
    let before = question.len() + 2; // [CLS] and [SEP]
    let features = pieces.into_iter().map(|piece| {
        let length = before + piece.len() + 1;
        let mut ids = Vec::with_capacity(length);
        ids.push(tokenizer.cls());
        ids.extend(&question);
        ids.push(tokenizer.sep());
        ids.extend(&context.ids[piece.clone()]);
        ids.push(tokenizer.sep());
        let mut token_types = vec![0; before];
        token_types.resize(length, 1);
        let mut offsets = vec![None; before];
        offsets.extend(context.offsets[piece.clone()].iter().copied().map(Some));
        offsets.push(None);
        let mut feature = Feature {
            ids,
            token_types,
            offsets,
            example: index,
            start: 0,
            end: 0,
        };
        finish(&mut feature, before..before + piece.len(), example);
        feature
    });
    Ok(features.collect())
}

/// The pieces of a context of `context` tokens.
fn pieces(id: &str, question: usize, context: usize, windows: &Windows) -> Result<Vec<Range<usize>>> {
    let Windows { max_length, stride, .. } = *windows;
    let room = max_length.saturating_sub(3); // [CLS], [SEP], [SEP]
    if question + context <= room {
        return Ok(std::iter::once(0..context).collect());
    }
    let budget = room.saturating_sub(question);
    if budget == 0 {
        return Err(Error::QuestionTooLong {
            id: id.into(),
            tokens: question,
            limit: room.saturating_sub(1),
            max_length,
        });
    }
    if stride >= budget {
        return Err(Error::StrideTooLarge {
            id: id.into(),
            budget,
            stride,
        });
    }
    let starts = (0..context).step_by(budget - stride);
    let mut pieces = Vec::new();
    for start in starts {
        let end = context.min(start + budget);
        pieces.push(start..end);
        if end == context {
            break;
        }
    }
    Ok(pieces)
}

/// First and last token of an answer in a window whose context tokens are `context`.
fn label(feature: &Feature, context: Range<usize>, answer: &Answer) -> (u32, u32) {
    let from = answer.start as u64;
    let to = from + answer.text.chars().count() as u64;
    let place = |token: usize| {
        let (start, end) = feature.offsets[token].unwrap_or_default();
        (u64::from(start), u64::from(end))
    };
    let holds = !context.is_empty() && place(context.start).0 <= from && place(context.end - 1).1 >= to;
    if !holds {
        return (0, 0);
    }
    let start = match context.clone().find(|&token| place(token).0 > from) {
        Some(after) => after - 1,
        None => feature.len() - 1,
    };
    let end = match context.clone().rev().find(|&token| place(token).1 < to) {
        Some(before) => before + 1,
        None => context.start,
    };
    (start as u32, end as u32)
}
