//! Real processes for tests: the test program starts itself again, with a mode in a variable.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The variable that tells a started test program what to be.
pub(crate) const MODE: &str = "AZULEJO_TEST_MODE";

/// What this process shall be, if it was started by a test.
pub(crate) fn mode() -> Option<String> {
    std::env::var(MODE).ok()
}

/// This test program again, running only the test `entry`, in `mode`.
pub(crate) fn myself(entry: &str, mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([entry, "--exact", "--nocapture", "--test-threads=1"])
        .env(MODE, mode);
    command
}

/// A rank as a process.
pub(crate) struct RankProcess {
    pub(crate) rank: usize,
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

/// Starts `world` ranks in `mode` that meet through a file in `folder`.
pub(crate) fn start(entry: &str, mode: &str, world: usize, folder: &Path) -> Vec<RankProcess> {
    (0..world)
        .map(|rank| start_one(entry, mode, rank, world, folder))
        .collect()
}

pub(crate) fn start_one(entry: &str, mode: &str, rank: usize, world: usize, folder: &Path) -> RankProcess {
    let mut command = myself(entry, mode);
    for (name, value) in [
        ("RANK", rank),
        ("WORLD_SIZE", world),
        ("LOCAL_RANK", rank),
        ("LOCAL_WORLD_SIZE", world),
    ] {
        command.env(name, value.to_string());
    }
    command.env("AZULEJO_MEETING_FILE", folder.join("meeting"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    RankProcess { rank, child, output }
}

impl RankProcess {
    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_raw(self.child.id() as i32).unwrap()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// Reads its output up to a line that contains `word`.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let mut seen = String::new();
        loop {
            let before = seen.len();
            if self.output.read_line(&mut seen).unwrap() == 0 {
                panic!("rank {} ended before it said {word:?}:\n{seen}", self.rank);
            }
            if seen[before..].contains(word) {
                return;
            }
        }
    }

    /// Its status and the rest of its output, which must be complete before `end`.
    pub(crate) fn finish(mut self, end: Instant) -> (ExitStatus, String) {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "rank {} has not ended in time", self.rank);
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (status, rest)
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // Of a process that has ended this is an error without meaning.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
