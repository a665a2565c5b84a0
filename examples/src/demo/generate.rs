//! Passages that state facts, and questions about them.

use std::ops::Range;

use super::random::Random;
use super::words::{
    ADJECTIVES, AT, CENTURIES, FACTS, FACTS_HELD_OUT, FAMILY, FAMILY_END, FILLERS, GIVEN, GIVEN_END, NOUNS, PLACE,
    PLACE_END, QUESTIONS, QUESTIONS_HELD_OUT, THEMES, Verb,
};

/// Which names, years, items and frames are drawn from. The two parts share words, never their combinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Pre-training and fine-tuning.
    Train,
    /// Evaluation.
    HeldOut,
}

impl Part {
    /// One pair in five of any two word halves is held out.
    fn owns(self, first: usize, second: usize) -> bool {
        (first * 3 + second).is_multiple_of(5) == (self == Self::HeldOut)
    }

    fn fact_frames(self) -> &'static [&'static str] {
        match self {
            Self::Train => &FACTS,
            Self::HeldOut => &FACTS_HELD_OUT,
        }
    }

    fn question_frames(self, slot: Slot) -> &'static [&'static str] {
        match self {
            Self::Train => QUESTIONS[slot as usize],
            Self::HeldOut => QUESTIONS_HELD_OUT[slot as usize],
        }
    }
}

/// What a word of a fact is, and so what a question can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Who did it.
    Person,
    /// What it was done to.
    Item,
    /// Where.
    Place,
    /// In which year.
    Year,
}

/// The four slots in the order of their numbers.
pub const SLOTS: [Slot; 4] = [Slot::Person, Slot::Item, Slot::Place, Slot::Year];

/// A fact as the passage states it: byte ranges in the context (which is ASCII, so bytes are characters).
#[derive(Clone, Debug)]
pub struct Fact {
    /// The sentence.
    pub sentence: Range<usize>,
    /// Where each slot's words stand.
    pub words: [Range<usize>; 4],
    values: [String; 4],
}

/// A text of four to six facts of one kind, told of different people, items, places and years.
#[derive(Clone, Debug)]
pub struct Passage {
    /// The text.
    pub context: String,
    /// What it states, in the order of the sentences.
    pub facts: Vec<Fact>,
    theme: usize,
    part: Part,
}

/// A question with its one answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// The text.
    pub text: String,
    /// The fact it is about, as an index into [`Passage::facts`].
    pub fact: usize,
    /// What it asks for.
    pub slot: Slot,
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

impl Passage {
    /// A passage of `facts` facts (at most 16).
    #[must_use]
    pub fn generate(random: &mut Random, part: Part, facts: usize) -> Self {
        let theme = random.below(THEMES.len());
        // Beginnings differ within a passage, so that two of its names never look alike.
        let given = random.distinct(GIVEN.len(), facts);
        let family = random.distinct(FAMILY.len(), facts);
        let place = random.distinct(PLACE.len(), facts);
        let adjective = random.distinct(ADJECTIVES.len(), facts);
        let mut years = random.distinct(100, facts);
        let mut nouns: Vec<usize> = Vec::with_capacity(facts);
        let mut passage = Self {
            context: String::new(),
            facts: Vec::with_capacity(facts),
            theme,
            part,
        };
        for i in 0..facts {
            let noun = loop {
                let noun = random.below(NOUNS.len());
                if part.owns(adjective[i], noun) && !nouns.contains(&noun) {
                    break noun;
                }
            };
            nouns.push(noun);
            let mut join = |first: usize, ends: &[&'static str]| loop {
                let end = random.below(ends.len());
                if part.owns(first, end) {
                    break ends[end];
                }
            };
            let given_end = join(given[i], &GIVEN_END);
            let family_end = join(family[i], &FAMILY_END);
            let place_end = join(place[i], &PLACE_END);
            // Three centuries cannot cover five remainders: a year whose centuries all belong to the other part moves
            // on to the next one that is free.
            let mut year = years[i];
            let owned = |year: usize| (0..CENTURIES.len()).any(|century| part.owns(century, year));
            while !owned(year) || (year != years[i] && years.contains(&year)) {
                year = (year + 1) % 100;
            }
            years[i] = year;
            let century = loop {
                let century = random.below(CENTURIES.len());
                if part.owns(century, year) {
                    break century;
                }
            };
            let values = [
                format!(
                    "{}{given_end} {}{family_end}",
                    capitalised(GIVEN[given[i]]),
                    capitalised(FAMILY[family[i]])
                ),
                format!("{} {}", ADJECTIVES[adjective[i]], NOUNS[noun]),
                format!("{}{place_end}", capitalised(PLACE[place[i]])),
                format!("{}{year:02}", CENTURIES[century]),
            ];
            if random.percent(if i == 0 { 40 } else { 10 }) {
                passage.append(random.choose::<&str>(&FILLERS));
            }
            let verb = random.choose(THEMES[theme]);
            let frame = random.choose(part.fact_frames());
            let start = passage.append("");
            let (sentence, words) = render(random, frame, verb, &values, "a");
            passage.context.push_str(&sentence);
            passage.facts.push(Fact {
                sentence: start..passage.context.len(),
                words: words.map(|range| start + range.start..start + range.end),
                values,
            });
        }
        if random.percent(20) {
            passage.append(random.choose::<&str>(&FILLERS));
        }
        passage
    }

    /// Appends a sentence after a blank; where it starts.
    fn append(&mut self, sentence: &str) -> usize {
        if !self.context.is_empty() {
            self.context.push(' ');
        }
        let start = self.context.len();
        self.context.push_str(sentence);
        start
    }

    /// A question for `slot` of fact number `fact`.
    #[must_use]
    pub fn ask(&self, random: &mut Random, fact: usize, slot: Slot) -> Question {
        let verb = random.choose(THEMES[self.theme]);
        let frame = random.choose(self.part.question_frames(slot));
        let (text, _) = render(random, frame, verb, &self.facts[fact].values, "the");
        Question { text, fact, slot }
    }

    /// The answer's words.
    #[must_use]
    pub fn answer(&self, question: &Question) -> &str {
        &self.context[self.answer_range(question)]
    }

    /// Where the answer stands.
    #[must_use]
    pub fn answer_range(&self, question: &Question) -> Range<usize> {
        self.facts[question.fact].words[question.slot as usize].clone()
    }
}

/// Fills a frame; where each slot's words went (empty ranges for slots that the frame leaves out).
fn render(
    random: &mut Random,
    frame: &str,
    verb: &Verb,
    values: &[String; 4],
    article: &str,
) -> (String, [Range<usize>; 4]) {
    let mut text = String::with_capacity(96);
    let mut words = [const { 0..0 }; 4];
    let mut rest = frame;
    while let Some(open) = rest.find('{') {
        text.push_str(&rest[..open]);
        let close = open + rest[open..].find('}').unwrap_or(rest.len() - open - 1);
        let slot = match &rest[open + 1..close] {
            "P" => Some(Slot::Person),
            "I" => Some(Slot::Item),
            "L" => Some(Slot::Place),
            "Y" => Some(Slot::Year),
            "base" => {
                text.push_str(verb.base);
                None
            }
            "past" => {
                text.push_str(verb.past);
                None
            }
            "done" => {
                text.push_str(verb.done);
                None
            }
            _ => {
                text.push_str(random.choose::<&str>(&AT));
                None
            }
        };
        if let Some(slot) = slot {
            let value = &values[slot as usize];
            if slot == Slot::Item {
                text.push_str(article);
                if article == "a" && value.starts_with(['a', 'e', 'i', 'o', 'u']) {
                    text.push('n');
                }
                text.push(' ');
            }
            words[slot as usize] = text.len()..text.len() + value.len();
            text.push_str(value);
        }
        rest = &rest[close + 1..];
    }
    text.push_str(rest);
    // Every piece is ASCII: one letter becomes one letter and no range moves.
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    (text, words)
}
