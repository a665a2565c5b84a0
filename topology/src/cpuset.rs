//! Sets of CPUs and of NUMA nodes.
//!
//! A CPU is identified by the number the kernel gives it, and nothing is ever inferred from that number: every place on
//! a machine is a set of CPUs. The sets grow as needed, so that a machine of 2,048 CPUs is no special case.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The number the kernel gives to a logical CPU.
pub type CpuId = usize;
/// The number the kernel gives to a NUMA node.
pub type NodeId = usize;
/// A set of NUMA nodes.
pub type NodeSet = CpuSet;

/// Largest id that a text may name. The kernel's own limit is 8,192; the bound keeps a corrupt file from asking for a
/// set of gigabytes.
const MAX_ID: usize = 1 << 20;

/// A set of CPU ids (or, as [`NodeSet`], of node ids), written as the kernel writes it: `0-3,8`.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// Bit `i % 64` of word `i / 64` is set when `i` is in the set. Invariant: the last word is not zero, so that equal
    /// sets have equal words.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        CpuSet::default()
    }

    /// The set with one element.
    pub fn single(id: usize) -> Self {
        let mut set = CpuSet::new();
        set.insert(id);
        set
    }

    /// The set of a machine word mask; bit `i` of word `w` stands for `64 w + i`.
    pub fn from_words(words: &[u64]) -> Self {
        let mut set = CpuSet { words: words.to_vec() };
        set.trim();
        set
    }

    /// The words of the set, lowest ids first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    /// Puts `id` into the set.
    pub fn insert(&mut self, id: usize) {
        let word = id / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (id % 64);
    }

    /// Takes `id` out of the set.
    pub fn remove(&mut self, id: usize) {
        if let Some(word) = self.words.get_mut(id / 64) {
            *word &= !(1 << (id % 64));
            self.trim();
        }
    }

    /// Whether `id` is in the set.
    pub fn contains(&self, id: usize) -> bool {
        self.words.get(id / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set has no element.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Smallest element.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// Largest element.
    pub fn last(&self) -> Option<usize> {
        self.words
            .last()
            .map(|word| self.words.len() * 64 - 1 - word.leading_zeros() as usize)
    }

    /// The elements in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(w, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                if rest == 0 {
                    return None;
                }
                let bit = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                Some(w * 64 + bit)
            })
        })
    }

    /// Elements of both sets.
    pub fn and(&self, other: &CpuSet) -> CpuSet {
        let words: Vec<u64> = self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect();
        CpuSet::from_words(&words)
    }

    /// Elements of either set.
    pub fn or(&self, other: &CpuSet) -> CpuSet {
        let (long, short) = if self.words.len() >= other.words.len() {
            (self, other)
        } else {
            (other, self)
        };
        let mut words = long.words.clone();
        for (word, more) in words.iter_mut().zip(&short.words) {
            *word |= more;
        }
        CpuSet { words }
    }

    /// Elements of `self` that are not in `other`.
    pub fn minus(&self, other: &CpuSet) -> CpuSet {
        let mut set = self.clone();
        for (word, less) in set.words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
        set.trim();
        set
    }

    /// Whether every element is in `other`.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.minus(other).is_empty()
    }

    /// Whether the sets share an element.
    pub fn intersects(&self, other: &CpuSet) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// Reads the kernel's list form, `0-3,8`; the empty text is the empty set. `None` for any other text, for a range
    /// that runs backwards, and for ids above a million.
    pub fn parse_list(text: &str) -> Option<CpuSet> {
        let mut set = CpuSet::new();
        let text = text.trim();
        if text.is_empty() {
            return Some(set);
        }
        for part in text.split(',') {
            let (from, to) = match part.split_once('-') {
                Some((from, to)) => (parse_id(from)?, parse_id(to)?),
                None => {
                    let id = parse_id(part)?;
                    (id, id)
                }
            };
            if from > to {
                return None;
            }
            // Largest first, so that the words are sized once.
            for id in (from..=to).rev() {
                set.insert(id);
            }
        }
        Some(set)
    }

    /// Reads the kernel's mask form: groups of up to eight hexadecimal digits, most significant group first, separated
    /// by commas.
    pub fn parse_mask(text: &str) -> Option<CpuSet> {
        let text = text.trim();
        let groups: Vec<&str> = text.split(',').collect();
        if groups.len() > MAX_ID / 32 {
            return None;
        }
        let mut words = vec![0u64; groups.len().div_ceil(2)];
        for (at, group) in groups.iter().rev().enumerate() {
            let group = group.trim_start_matches("0x");
            if group.is_empty() || group.len() > 8 || !group.bytes().all(|c| c.is_ascii_hexdigit()) {
                return None;
            }
            let bits = u64::from(u32::from_str_radix(group, 16).ok()?);
            words[at / 2] |= bits << (at % 2 * 32);
        }
        Some(CpuSet::from_words(&words))
    }
}

fn parse_id(text: &str) -> Option<usize> {
    let text = text.trim();
    // `usize::from_str` would accept a plus sign.
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&id| id <= MAX_ID)
}

impl FromStr for CpuSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        CpuSet::parse_list(text).ok_or_else(|| Error::Parse {
            origin: "CPU list".to_owned(),
            text: text.to_owned(),
            expected: "ids and ranges such as 0-3,8",
        })
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Self {
        let mut set = CpuSet::new();
        for id in ids {
            set.insert(id);
        }
        set
    }
}

impl Extend<usize> for CpuSet {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl fmt::Display for CpuSet {
    /// The kernel's list form. The empty set is the empty text, or `none` in the alternate form `{:#}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut ids = self.iter().peekable();
        while let Some(from) = ids.next() {
            let mut to = from;
            while ids.peek() == Some(&(to + 1)) {
                to += 1;
                ids.next();
            }
            if !text.is_empty() {
                text.push(',');
            }
            if from == to {
                text.push_str(&from.to_string());
            } else {
                text.push_str(&format!("{from}-{to}"));
            }
        }
        if text.is_empty() && f.alternate() {
            text.push_str("none");
        }
        f.pad(&text)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_writes_them() {
        for (text, ids) in [
            ("", vec![]),
            ("0", vec![0]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("63-65", vec![63, 64, 65]),
            ("2047", vec![2047]),
        ] {
            let set = CpuSet::parse_list(text).unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), ids, "{text}");
            assert_eq!(set.to_string(), text);
            assert_eq!(set.len(), ids.len());
            assert_eq!(set.first(), ids.first().copied());
            assert_eq!(set.last(), ids.last().copied());
        }
        assert_eq!(format!("{:#}", CpuSet::new()), "none");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "x",
            "3-1",
            "1,,2",
            "-1",
            "+1",
            "1-",
            "0-99999999999",
            "18446744073709551616",
            "1 2",
        ] {
            assert!(CpuSet::parse_list(text).is_none(), "{text:?}");
        }
        for text in ["", "g", "123456789", "1,", ",1"] {
            assert!(CpuSet::parse_mask(text).is_none(), "{text:?}");
        }
        let message = "3-1".parse::<CpuSet>().unwrap_err().to_string();
        assert_eq!(message, "CPU list: expected ids and ranges such as 0-3,8, got \"3-1\"");
    }

    #[test]
    fn masks_have_their_most_significant_group_first() {
        assert_eq!(CpuSet::parse_mask("f").unwrap().to_string(), "0-3");
        assert_eq!(CpuSet::parse_mask("00000001,00000000").unwrap().to_string(), "32");
        assert_eq!(
            CpuSet::parse_mask("80000000,00000000,00000001").unwrap().to_string(),
            "0,95"
        );
        assert_eq!(CpuSet::parse_mask("0,0").unwrap(), CpuSet::new());
    }

    #[test]
    fn set_algebra_agrees_with_a_sorted_list() {
        // Linear congruential draws; the seed is the constant below.
        let mut state = 0x1234_5678_u64;
        let mut draw = |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for round in 0..200 {
            let a: Vec<usize> = (0..draw(40)).map(|_| draw(300) as usize).collect();
            let b: Vec<usize> = (0..draw(40)).map(|_| draw(300) as usize).collect();
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            for id in 0..320 {
                let (in_a, in_b) = (a.contains(&id), b.contains(&id));
                assert_eq!(x.and(&y).contains(id), in_a && in_b, "round {round}, id {id}");
                assert_eq!(x.or(&y).contains(id), in_a || in_b, "round {round}, id {id}");
                assert_eq!(x.minus(&y).contains(id), in_a && !in_b, "round {round}, id {id}");
            }
            assert_eq!(x.intersects(&y), !x.and(&y).is_empty());
            assert!(x.and(&y).is_subset(&x));
            assert_eq!(CpuSet::parse_list(&x.to_string()), Some(x.clone()));
            let mut emptied = x.clone();
            for &id in &a {
                emptied.remove(id);
            }
            assert_eq!(emptied, CpuSet::new());
        }
    }
}
