//! The built-in demo: SQuAD-format data made by a generator, and the tiny encoder that was pre-trained on its text.
//!
//! A passage states four or five facts of one kind, each about another person, item, place and year, so the answer to
//! a question always has at least three rivals of its own type. The evaluation part has names, items and years that
//! are other combinations of the same halves, and frames for facts and questions that training never shows.

pub mod blind;
mod dataset;
mod encoder;
pub mod generate;
pub mod pretrain;
pub mod random;
pub mod vocabulary;
mod words;

pub use dataset::{DEV_QUESTIONS, TRAIN_QUESTIONS, write_dataset};
pub use encoder::unpack_encoder;
