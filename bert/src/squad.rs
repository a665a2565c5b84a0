//! Extractive question answering on data in SQuAD's formats: reading, windows and labels, answers from logits, scores.
//!
//! Behaviour follows Hugging Face's `run_qa.py`; where this differs the item says so.

pub mod read;

/// What Python's `str.isspace` accepts: white space of Unicode, and the four separators U+001C to U+001F.
pub(crate) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}
