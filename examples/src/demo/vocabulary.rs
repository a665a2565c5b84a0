//! The demo's own WordPiece vocabulary: every word of the generator whole, every made-up name in two pieces.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::words::{
    ADJECTIVES, AT, CENTURIES, FACTS, FACTS_HELD_OUT, FAMILY, FAMILY_END, FILLERS, GIVEN, GIVEN_END, NOUNS, PLACE,
    PLACE_END, QUESTIONS, QUESTIONS_HELD_OUT, THEMES,
};

/// The piece that fills up a batch.
pub const PAD: u32 = 0;
/// The piece for what has no piece.
pub const UNKNOWN: u32 = 1;
/// The first piece of every input.
pub const CLS: u32 = 2;
/// The piece after the question and after the passage.
pub const SEP: u32 = 3;

/// The vocabulary's pieces, in the order of their numbers.
#[must_use]
pub fn pieces() -> Vec<String> {
    let mut pieces: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        .map(String::from)
        .to_vec();
    pieces.extend(('!'..='~').filter(char::is_ascii_punctuation).map(String::from));
    let letters = || ('0'..='9').chain('a'..='z');
    pieces.extend(letters().map(String::from));
    pieces.extend(letters().map(|letter| format!("##{letter}")));
    let mut words = BTreeSet::new();
    let frames = FACTS
        .iter()
        .chain(&FACTS_HELD_OUT)
        .chain(QUESTIONS.iter().copied().flatten());
    for text in frames
        .chain(QUESTIONS_HELD_OUT.iter().copied().flatten())
        .chain(&FILLERS)
    {
        let mut outside = true;
        let plain: String = text
            .chars()
            .map(|letter| {
                match letter {
                    '{' => outside = false,
                    '}' => outside = true,
                    _ => {}
                }
                if outside && letter.is_ascii_alphabetic() {
                    letter.to_ascii_lowercase()
                } else {
                    ' '
                }
            })
            .collect();
        words.extend(plain.split(' ').filter(|word| !word.is_empty()).map(String::from));
    }
    words.extend(["a", "an", "the"].map(String::from));
    words.extend(AT.map(String::from));
    for verb in THEMES.iter().copied().flatten() {
        words.extend([verb.base, verb.past, verb.done].map(String::from));
    }
    for list in [&ADJECTIVES[..], &NOUNS, &CENTURIES, &GIVEN, &FAMILY, &PLACE] {
        words.extend(list.iter().map(|&word| word.to_owned()));
    }
    for list in [&GIVEN_END[..], &FAMILY_END, &PLACE_END] {
        words.extend(list.iter().map(|end| format!("##{end}")));
    }
    words.extend((0..100).map(|year| format!("##{year:02}")));
    let known: BTreeSet<String> = pieces.iter().cloned().collect();
    pieces.extend(words.difference(&known).cloned());
    pieces
}

/// Looks pieces up. It reads the generator's ASCII text and no other; users' text goes through the real tokenizer.
#[derive(Debug)]
pub struct Vocabulary {
    numbers: HashMap<String, u32>,
}

impl Default for Vocabulary {
    fn default() -> Self {
        Self {
            numbers: pieces().into_iter().zip(0..).collect(),
        }
    }
}

impl Vocabulary {
    /// How many pieces there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Never: the vocabulary has pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The pieces of `text` with the bytes that each covers.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<(u32, Range<usize>)> {
        let lower = text.to_ascii_lowercase();
        let bytes = lower.as_bytes();
        let mut out = Vec::with_capacity(text.len() / 3);
        let mut start = 0;
        while start < bytes.len() {
            let mut end = start + 1;
            if bytes[start].is_ascii_alphanumeric() {
                while end < bytes.len() && bytes[end].is_ascii_alphanumeric() {
                    end += 1;
                }
            }
            if !bytes[start].is_ascii_whitespace() {
                self.encode_word(&lower, start..end, &mut out);
            }
            start = end;
        }
        out
    }

    /// Longest piece first, as WordPiece does.
    fn encode_word(&self, text: &str, word: Range<usize>, out: &mut Vec<(u32, Range<usize>)>) {
        let before = out.len();
        let mut start = word.start;
        while start < word.end {
            let found = (start + 1..=word.end).rev().find_map(|end| {
                let piece = &text[start..end];
                let number = if start == word.start {
                    self.numbers.get(piece)
                } else {
                    self.numbers.get(&format!("##{piece}"))
                };
                number.map(|&number| (number, start..end))
            });
            let Some(found) = found else {
                out.truncate(before);
                out.push((UNKNOWN, word));
                return;
            };
            start = found.1.end;
            out.push(found);
        }
    }
}
