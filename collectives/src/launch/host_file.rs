//! Host files of both dialects: pure.
//!
//! Hydra writes `host` or `host:n`, Open MPI `host slots=n max_slots=m`; both have `#` comments. IPv6 addresses stand
//! in brackets when a number follows (`[fe80::1]:4`). A host that is named twice has the sum of its ranks.

use crate::error::{Error, Result};

/// A host and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, as ssh takes it.
    pub name: String,
    /// Ranks on it, where the file says.
    pub slots: Option<usize>,
}

/// The hosts of a host file, in order.
pub fn parse_host_file(text: &str) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let fail = |reason: String| Error::HostFile { line: i + 1, reason };
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let (name, mut slots) = split_host(first).map_err(fail)?;
        if name.starts_with('-') || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._:%@".contains(c)) {
            return Err(fail(format!("{name:?} is no host name")));
        }
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| fail(format!("{word:?} is not understood")))?;
            let number = || {
                let n = value.parse::<usize>().ok().filter(|&n| n > 0);
                n.ok_or_else(|| fail(format!("expected a positive number after {key}=, got {value:?}")))
            };
            match key {
                "slots" => slots = Some(number()?),
                "max_slots" | "max-slots" => drop(number()?),
                // Hydra's options on a host's line that do not concern the number of ranks.
                "user" | "ifname" | "binding" => {}
                _ => return Err(fail(format!("{word:?} is not understood"))),
            }
        }
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.slots = Some(host.slots.unwrap_or(1).saturating_add(slots.unwrap_or(1))),
            None => hosts.push(Host { name, slots }),
        }
    }
    if hosts.is_empty() {
        return Err(Error::HostFile {
            line: text.lines().count(),
            reason: "it names no host".into(),
        });
    }
    Ok(hosts)
}

fn split_host(word: &str) -> Result<(String, Option<usize>), String> {
    let (name, number) = if let Some(rest) = word.strip_prefix('[') {
        let (name, rest) = rest
            .split_once(']')
            .ok_or_else(|| format!("{word:?} lacks a closing bracket"))?;
        match rest {
            "" => (name, None),
            rest => (
                name,
                Some(
                    rest.strip_prefix(':')
                        .ok_or_else(|| format!("{word:?} is not understood"))?,
                ),
            ),
        }
    } else {
        match word.split_once(':') {
            // More than one colon: an IPv6 address without a number.
            Some((_, rest)) if rest.contains(':') => (word, None),
            Some((name, number)) => (name, Some(number)),
            None => (word, None),
        }
    };
    let number = number.map(|text| {
        let n = text.parse::<usize>().ok().filter(|&n| n > 0);
        n.ok_or_else(|| format!("expected a positive number after {name}:, got {text:?}"))
    });
    Ok((name.to_string(), number.transpose()?))
}

/// Places `ranks` ranks: the host of each, as an index into `hosts`.
///
/// Hosts are filled in order, each with `per_host` ranks or else its own number (1 where it has none); when all are
/// full, dealing starts again at the first, as Hydra does.
pub fn place(hosts: &[Host], ranks: usize, per_host: Option<usize>) -> Vec<usize> {
    let shares = hosts
        .iter()
        .map(|host| per_host.or(host.slots).unwrap_or(1).max(1))
        .enumerate();
    let round = shares.flat_map(|(host, share)| std::iter::repeat_n(host, share.min(ranks)));
    let round: Vec<usize> = round.collect();
    round.into_iter().cycle().take(ranks).collect()
}
