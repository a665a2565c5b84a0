//! A micro-batch without padding: the tokens of all sequences one after the other.

use crate::config::Config;
use crate::error::{Error, Result};
use std::ops::Range;

/// `t` tokens of `s` sequences, with the answers to learn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Token ids. `(t)`
    pub ids: Vec<u32>,
    /// Row of the position table, counted from 0 in every sequence. `(t)`
    pub positions: Vec<u32>,
    /// Row of the token type table; not read by DistilBERT. `(t)`
    pub token_types: Vec<u8>,
    /// Sequence `i` is the tokens from `cu_seqlens[i]` to `cu_seqlens[i + 1]`. `(s + 1)`
    pub cu_seqlens: Vec<u32>,
    /// First token of the answer, counted inside its sequence. A label outside the sequence is ignored. `(s)`
    pub starts: Vec<u32>,
    /// Last token of the answer, likewise. `(s)`
    pub ends: Vec<u32>,
    /// The sample's place in the whole training run, from which its dropout masks follow. `(s)`
    pub sample_index: Vec<u64>,
}

impl Batch {
    /// A batch without sequences.
    pub fn new() -> Batch {
        Batch {
            cu_seqlens: vec![0],
            ..Batch::default()
        }
    }

    /// Appends a sequence. `token_types` may be empty, which means all 0.
    pub fn push(&mut self, ids: &[u32], token_types: &[u8], start: u32, end: u32, sample_index: u64) {
        if self.cu_seqlens.is_empty() {
            self.cu_seqlens.push(0);
        }
        self.ids.extend_from_slice(ids);
        self.positions.extend(0..ids.len() as u32);
        self.token_types.extend_from_slice(token_types);
        self.token_types.resize(self.ids.len(), 0);
        self.cu_seqlens.push(self.ids.len() as u32);
        self.starts.push(start);
        self.ends.push(end);
        self.sample_index.push(sample_index);
    }

    /// Forgets all sequences and keeps the memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.token_types.clear();
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
        self.starts.clear();
        self.ends.clear();
        self.sample_index.clear();
    }

    /// Tokens of all sequences (`t`).
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of sequences (`s`).
    pub fn sequences(&self) -> usize {
        self.cu_seqlens.len().saturating_sub(1)
    }

    /// The tokens of sequence `i`.
    pub fn sequence(&self, i: usize) -> Range<usize> {
        self.cu_seqlens[i] as usize..self.cu_seqlens[i + 1] as usize
    }

    /// The token ranges of the sequences in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.sequences()).map(|i| self.sequence(i))
    }

    /// Checks that every index is inside the model's tables and that the lengths agree. Everything that computes
    /// checks its batch once, here, and may index without fear afterwards.
    pub fn check(&self, config: &Config) -> Result<()> {
        let (t, s) = (self.tokens(), self.sequences());
        let lengths = [
            ("positions", self.positions.len(), t),
            ("token types", self.token_types.len(), t),
            ("start labels", self.starts.len(), s),
            ("end labels", self.ends.len(), s),
            ("sample indices", self.sample_index.len(), s),
        ];
        for (what, got, expected) in lengths {
            if got != expected {
                return refuse(format!("expected {expected} {what}, got {got}"));
            }
        }
        if s == 0 {
            return refuse("no sequence".into());
        }
        if self.cu_seqlens[0] != 0 || self.cu_seqlens[s] as usize != t || !self.cu_seqlens.is_sorted_by(|a, b| a < b) {
            return refuse(format!("sequence bounds do not rise from 0 to {t} tokens"));
        }
        if let Some(id) = self.ids.iter().find(|&&id| id as usize >= config.vocabulary) {
            return refuse(format!("token id {id} of a vocabulary of {}", config.vocabulary));
        }
        if let Some(p) = self.positions.iter().find(|&&p| p as usize >= config.positions) {
            return refuse(format!("position {p} of a model of {} positions", config.positions));
        }
        if config.token_types > 0
            && let Some(k) = self.token_types.iter().find(|&&k| usize::from(k) >= config.token_types)
        {
            return refuse(format!("token type {k} of a model of {}", config.token_types));
        }
        Ok(())
    }
}

fn refuse<T>(reason: String) -> Result<T> {
    Err(Error::Batch { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_sequences() {
        let mut batch = Batch::new();
        batch.push(&[2, 5, 3], &[0, 0, 1], 1, 2, 7);
        batch.push(&[2, 3], &[], 0, 0, 8);
        assert_eq!(batch.cu_seqlens, [0, 3, 5]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 1]);
        assert_eq!(batch.token_types, [0, 0, 1, 0, 0]);
        assert_eq!(batch.ranges().collect::<Vec<_>>(), [0..3, 3..5]);
        batch.check(&Config::bert(6, 12, 1, 3, 20).unwrap()).unwrap();
        batch.clear();
        assert_eq!((batch.tokens(), batch.sequences()), (0, 0));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let config = Config::bert(6, 12, 1, 3, 20).unwrap();
        let good = {
            let mut batch = Batch::new();
            batch.push(&[2, 5, 3], &[0, 0, 1], 1, 2, 7);
            batch
        };
        good.check(&config).unwrap();
        type Spoil = fn(&mut Batch);
        let spoilt: [(&str, Spoil); 6] = [
            ("token id 6", |b| b.ids[1] = 6),
            ("position 512", |b| b.positions[0] = 512),
            ("token type 2", |b| b.token_types[0] = 2),
            ("start labels", |b| b.starts.clear()),
            ("do not rise", |b| b.cu_seqlens[1] = 2),
            ("no sequence", Batch::clear),
        ];
        for (expected, spoil) in spoilt {
            let mut batch = good.clone();
            spoil(&mut batch);
            let message = batch.check(&config).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
