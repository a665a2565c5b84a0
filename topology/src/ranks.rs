//! How many ranks a plan is for: a number, or so many for each package, NUMA node or shared L3 cache.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::Error;

/// A part of the machine that gets ranks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A socket.
    Package,
    /// A NUMA node that has CPUs.
    NumaNode,
    /// The cores that share a third-level cache.
    L3,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Package => "package",
            Place::NumaNode => "numa",
            Place::L3 => "l3",
        }
    }
}

/// The ranks on this machine. Written and read as `8`, `package`, `numa`, `l3`, or `numa:2` for two on each NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ranks {
    /// So many on the whole machine.
    Total(usize),
    /// So many on each of its places.
    Per(Place, usize),
}

impl From<usize> for Ranks {
    fn from(ranks: usize) -> Self {
        Ranks::Total(ranks)
    }
}

impl FromStr for Ranks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let failed = || Error::Parse {
            origin: "ranks".to_owned(),
            text: text.to_owned(),
            expected: "a number, package, numa or l3, or two on each as in numa:2",
        };
        // A sign is not a number of ranks, though `usize` would read it.
        let number = |text: &str| match text.parse() {
            Ok(number) if number > 0 && !text.starts_with('+') => Ok(number),
            _ => Err(failed()),
        };
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        match name.to_ascii_lowercase().as_str() {
            "package" | "socket" => Ok(Ranks::Per(Place::Package, number(count)?)),
            "numa" | "node" => Ok(Ranks::Per(Place::NumaNode, number(count)?)),
            "l3" | "l3cache" => Ok(Ranks::Per(Place::L3, number(count)?)),
            _ => Ok(Ranks::Total(number(text)?)),
        }
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ranks::Total(ranks) => write!(f, "{ranks}"),
            Ranks::Per(place, 1) => f.write_str(place.name()),
            Ranks::Per(place, ranks) => write!(f, "{}:{ranks}", place.name()),
        }
    }
}

impl Serialize for Ranks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read_as_they_are_written() {
        for text in ["1", "8", "package", "numa", "l3", "package:2", "numa:3", "l3:2"] {
            assert_eq!(text.parse::<Ranks>().unwrap().to_string(), text);
        }
        assert_eq!("Socket".parse::<Ranks>().unwrap(), Ranks::Per(Place::Package, 1));
        for text in ["", "0", "-1", "+1", "numa:0", "numa:", "core", "2:2"] {
            let message = text.parse::<Ranks>().unwrap_err().to_string();
            assert!(message.starts_with("ranks: expected"), "{message}");
        }
    }
}
