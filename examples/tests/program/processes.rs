//! Other processes, as `/proc` shows them.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{LIMIT, Running};

/// A process that was there, known by its number and its start time.
#[derive(Debug)]
pub(crate) struct Process {
    id: u32,
    started: String,
}

/// The fields of a process's line in `/proc` behind its name.
fn fields(id: u32) -> Option<Vec<String>> {
    let line = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = line.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

impl Process {
    fn of(id: u32) -> Option<Process> {
        let started = fields(id)?.get(19)?.clone();
        Some(Process { id, started })
    }

    /// Whether it still runs; one that only waits to be collected does not.
    pub(crate) fn runs(&self) -> bool {
        fields(self.id).is_some_and(|fields| fields[19] == self.started && fields[0] != "Z")
    }

    /// A variable of its environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let all = fs::read(format!("/proc/{}/environ", self.id)).ok()?;
        let mut pairs = all.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.id, name);
    }
}

/// The processes that a launcher has started, once they have become ranks and trained or waited a little.
pub(crate) fn children(of: &Running) -> Vec<Process> {
    let parent = of.id().to_string();
    let end = Instant::now() + LIMIT;
    loop {
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let ids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let children: Vec<Process> = ids
            .filter(|id| fields(*id).is_some_and(|fields| fields[1] == parent))
            .filter_map(Process::of)
            .collect();
        let world = children.iter().find_map(|child| child.variable("WORLD_SIZE"));
        if world.is_some_and(|world| world == children.len().to_string()) {
            return children;
        }
        assert!(Instant::now() < end, "no ranks: {}{}", of.out(), of.err());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to one process.
pub(crate) fn signal(id: u32, name: &str) {
    send(&id.to_string(), name);
}

/// Sends a signal to all processes of the group that `leader` leads.
pub(crate) fn signal_group(leader: u32, name: &str) {
    send(&format!("-{leader}"), name);
}

fn send(to: &str, name: &str) {
    // The shell's own `kill`, which every shell has.
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$1\" -- \"$2\"", "sh", name, to])
        .status();
    assert!(status.unwrap().success(), "kill -s {name} -- {to}");
}
