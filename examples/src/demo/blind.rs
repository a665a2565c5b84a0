//! Baselines that do not read the question.

use super::generate::{Part, Passage, Question, SLOTS};
use super::random::Random;

/// Share of questions, in percent, that each blind strategy answers.
#[derive(Clone, Copy, Debug)]
pub struct Blind {
    /// The best answer from the passage alone: the slot and the place in order that were asked for most in training.
    pub passage_only: f64,
    /// Told what kind of word is asked for: the place in order that was right most often for that kind in training.
    pub told_the_kind: f64,
    /// Told the kind: one of its words by chance.
    pub chance: f64,
}

/// Where the answer stands among the words of its kind, in reading order.
fn rank(passage: &Passage, question: &Question) -> usize {
    let start = passage.answer_range(question).start;
    passage
        .facts
        .iter()
        .filter(|fact| fact.words[question.slot as usize].start < start)
        .count()
}

fn sample(random: &mut Random, part: Part) -> (Passage, Question) {
    let facts = 4 + random.below(2);
    let passage = Passage::generate(random, part, facts);
    let (fact, slot) = (random.below(facts), SLOTS[random.below(SLOTS.len())]);
    let question = passage.ask(random, fact, slot);
    (passage, question)
}

/// Learns from `questions` training questions, then answers as many of the evaluation part. Words of one kind never
/// share a word within a passage, so that exact match and F1 are one number here.
#[must_use]
pub fn measure(seed: u64, questions: usize) -> Blind {
    let mut random = Random::new(seed);
    let mut counts = [[0usize; 8]; 4];
    for _ in 0..questions {
        let (passage, question) = sample(&mut random, Part::Train);
        counts[question.slot as usize][rank(&passage, &question)] += 1;
    }
    let best = |ranks: &[usize; 8]| (0..8).max_by_key(|&r| ranks[r]).unwrap_or(0);
    let slot = (0..4)
        .max_by_key(|&slot| counts[slot][best(&counts[slot])])
        .unwrap_or(0);
    let (mut passage_only, mut told, mut chance) = (0usize, 0usize, 0usize);
    for _ in 0..questions {
        let (passage, question) = sample(&mut random, Part::HeldOut);
        let asked = question.slot as usize;
        let right = rank(&passage, &question);
        passage_only += usize::from(asked == slot && right == best(&counts[slot]));
        told += usize::from(right == best(&counts[asked]));
        chance += usize::from(right == random.below(passage.facts.len()));
    }
    let percent = |count: usize| 100.0 * count as f64 / questions as f64;
    Blind {
        passage_only: percent(passage_only),
        told_the_kind: percent(told),
        chance: percent(chance),
    }
}
