//! Extractive question answering on data in SQuAD's formats: reading, windows and labels, answers from logits, scores.
//!
//! Behaviour follows Hugging Face's `run_qa.py`; where it differs, the item says so.

pub mod features;
pub mod metrics;
pub mod postprocess;
pub mod read;
mod table;
mod word;
