//! Starts the ranks of one machine and watches over them.
//!
//! * Rank 0's output passes through; the others' lines are marked.
//! * The first rank that fails ends the job: the others have a moment to say what they saw, then SIGTERM, then SIGKILL.
//! * SIGINT and SIGTERM reach the ranks once each; ranks that end with status 130 after that have saved their work.
//! * Each rank is in a process group of its own, so that the terminal's Ctrl-C comes through the launcher alone.
//! * When the launcher dies, however it dies, the kernel ends the ranks.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal, test_kill_process,
};

use super::{Meeting, NodeShare, env, output};
use crate::auth::Secret;
use crate::error::{Error, Result};

/// How often the launcher looks after its ranks.
const LOOK: Duration = Duration::from_millis(10);
/// How long the other ranks may take to notice a failure by themselves and say what they saw.
const NOTICE: Duration = Duration::from_secs(3);
/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long ranks may save their work after Ctrl-C.
const SAVING: Duration = Duration::from_secs(300);
/// The status of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;
/// The status of a launcher that SIGTERM ended.
const TERMINATED: i32 = 128 + 15;
/// After the first failure, how long other ranks' failures are collected before one of them is called the cause:
/// ranks that fail because another has failed can end before that one is seen to have ended.
const SETTLE: Duration = Duration::from_millis(200);

/// The status of a rank that fails because another rank has. The launcher then looks for the other one's status.
pub const STATUS_PEER_LOST: i32 = 75;

/// A job on this machine: `nodes` nodes of `per_node` ranks, all of the same program.
#[derive(Clone, Debug)]
pub struct Local {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// The first rank to start here, how many, and the world.
    first: usize,
    here: usize,
    world: usize,
    per_node: usize,
    meeting: Option<Meeting>,
    secret: Option<Secret>,
    variables: Vec<(OsString, OsString)>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The status for the launcher to exit with: 0, or that of the first rank that failed (128 + signal for one that
    /// a signal ended), or 130 after Ctrl-C.
    pub status: i32,
    /// The first rank that failed, and how.
    pub failed: Option<(usize, String)>,
}

impl Local {
    /// `nodes * per_node` ranks of `program`, which stand for `nodes` nodes.
    pub fn new(program: impl Into<PathBuf>, nodes: usize, per_node: usize) -> Self {
        let (nodes, per_node) = (nodes.max(1), per_node.max(1));
        Self {
            program: program.into(),
            arguments: Vec::new(),
            first: 0,
            here: nodes * per_node,
            world: nodes * per_node,
            per_node,
            meeting: None,
            secret: None,
            variables: Vec::new(),
        }
    }

    /// This node's ranks of a job on several machines.
    pub fn share(program: impl Into<PathBuf>, share: &NodeShare) -> Self {
        Self {
            first: share.node * share.ranks_per_node,
            here: share.ranks_per_node,
            world: share.nodes * share.ranks_per_node,
            meeting: Some(share.meeting.clone()),
            ..Self::new(program, 1, share.ranks_per_node)
        }
    }

    /// The program's arguments.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// A variable that all ranks get.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// The secret; without one a job on one machine makes its own.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The variables of one rank, without the secret.
    fn describe(&self, rank: usize, meeting: &Meeting) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<(OsString, OsString)> = Vec::new();
        let mut set = |name: &str, value: String| variables.push((name.into(), value.into()));
        set("RANK", rank.to_string());
        set("WORLD_SIZE", self.world.to_string());
        set("LOCAL_RANK", (rank % self.per_node).to_string());
        set("LOCAL_WORLD_SIZE", self.per_node.to_string());
        set("GROUP_RANK", (rank / self.per_node).to_string());
        set(env::MACHINE_RANK, (rank - self.first).to_string());
        set(env::MACHINE_SIZE, self.here.to_string());
        match meeting {
            Meeting::Address { host, port } => {
                set("MASTER_ADDR", host.clone());
                set("MASTER_PORT", port.to_string());
            }
            Meeting::File(path) => variables.push((env::MEETING_FILE.into(), path.into())),
            Meeting::Unknown => {}
        }
        variables
    }

    /// What would be started, one line a rank; nothing is.
    pub fn dry_run(&self) -> Vec<String> {
        let meeting = self
            .meeting
            .clone()
            .unwrap_or_else(|| Meeting::File("(a new file)".into()));
        let line = |rank| {
            let mut words: Vec<String> = self
                .describe(rank, &meeting)
                .iter()
                .chain(&self.variables)
                .map(|(name, value)| format!("{}={}", name.display(), super::ssh::quote(&value.to_string_lossy())))
                .collect();
            words.push(super::ssh::quote(&self.program.to_string_lossy()));
            words.extend(
                self.arguments
                    .iter()
                    .map(|word| super::ssh::quote(&word.to_string_lossy())),
            );
            words.join(" ")
        };
        (self.first..self.first + self.here).map(line).collect()
    }

    /// Starts the ranks and stays until all have ended.
    pub fn run(&self) -> Result<Outcome> {
        let secret = match &self.secret {
            Some(secret) => Some(secret.clone()),
            None if self.meeting.is_none() => Some(Secret::generate()?),
            None => None,
        };
        // A new folder for each job; random, because the launcher's number may have been another's before.
        let folder = match &self.meeting {
            Some(_) => None,
            None => Some(Folder::new()?),
        };
        let meeting = match (&self.meeting, &folder) {
            (Some(meeting), _) => meeting.clone(),
            (None, Some(folder)) => Meeting::File(folder.0.join("meeting")),
            (None, None) => unreachable!("a job without a meeting point has a folder"),
        };
        let mut ranks = Supervised::new()?;
        for rank in self.first..self.first + self.here {
            let mut command = Command::new(&self.program);
            command.args(&self.arguments).stdin(Stdio::null());
            for name in env::DESCRIBING {
                command.env_remove(name);
            }
            command.envs(self.describe(rank, &meeting));
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            command.env(env::LAUNCHER, std::process::id().to_string());
            if let Some(secret) = &secret {
                command.env(env::SECRET, secret.expose());
            }
            ranks.start(rank, rank == 0, command, None)?;
        }
        ranks.supervise()
    }
}

/// A folder of this user alone that goes away with the job.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let name = u128::from_le_bytes(crate::auth::random()?);
        let path = std::env::temp_dir().join(format!("azulejo-job-{name:032x}"));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::address(path.display(), "make the folder", e))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left behind it does no harm: the secret in it is used up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends this process when its launcher ends, if it has one on this machine.
pub(super) fn tie_to_launcher(variable: &dyn Fn(&str) -> Option<String>) -> Result<()> {
    let Some(launcher) = variable(env::LAUNCHER).and_then(|text| text.parse::<i32>().ok()) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| Error::process("follow the launcher", e.into()))?;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    // Either the launcher died before the line above, or this is a grandchild with an inherited variable: then it is
    // not for this process to end.
    if parent != launcher && Pid::from_raw(launcher).is_none_or(|pid| test_kill_process(pid).is_err()) {
        return Err(Error::Process {
            action: "go on: the launcher has ended".into(),
            source: Arc::new(std::io::Error::from(std::io::ErrorKind::NotFound)),
        });
    }
    Ok(())
}

/// How a rank is told things: by signals, or through the pipe of the ssh that runs it.
enum Line {
    Signals,
    Pipe(ChildStdin),
}

struct Rank {
    rank: usize,
    child: Child,
    line: Line,
    ended: Option<ExitStatus>,
}

struct Failure {
    rank: usize,
    status: ExitStatus,
}

impl Failure {
    /// How likely this is a consequence rather than the cause: a signal is hardly ever, a status of the rank's own
    /// choice seldom, the general 1 perhaps, the one for it always.
    fn suspicion(&self) -> u8 {
        match self.status.code() {
            None => 0,
            Some(STATUS_PEER_LOST) => 3,
            Some(1) => 2,
            Some(_) => 1,
        }
    }
}

/// Ranks under way. Dropped early, it ends them.
pub(super) struct Supervised {
    ranks: Vec<Rank>,
    outputs: Vec<JoinHandle<()>>,
    signals: Signals,
}

impl Supervised {
    /// None yet. From here on the launcher's signals are the ranks'.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            ranks: Vec::new(),
            outputs: Vec::new(),
            signals: Signals::new()?,
        })
    }

    /// Starts one rank; `greeting` is written to its standard input, which then stays open.
    pub(super) fn start(
        &mut self,
        rank: usize,
        plain: bool,
        mut command: Command,
        greeting: Option<&str>,
    ) -> Result<()> {
        use std::os::unix::process::CommandExt as _;
        command.process_group(0);
        if !plain {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let program = command_name(&command);
        let spawned = command.spawn();
        let mut child = spawned.map_err(|e| Error::process(format!("start rank {rank} ({program})"), e))?;
        let outputs = [
            child
                .stdout
                .take()
                .map(|from| output::mark(rank, from, std::io::stdout())),
            child
                .stderr
                .take()
                .map(|from| output::mark(rank, from, std::io::stderr())),
        ];
        let mut line = Line::Signals;
        if let Some(greeting) = greeting
            && let Some(mut pipe) = child.stdin.take()
        {
            use std::io::Write as _;
            // A failing write means that the process is gone, which the supervision sees.
            let _ = pipe.write_all(greeting.as_bytes()).and_then(|()| pipe.flush());
            line = Line::Pipe(pipe);
        }
        self.ranks.push(Rank {
            rank,
            child,
            line,
            ended: None,
        });
        for output in outputs.into_iter().flatten() {
            self.outputs
                .push(output.map_err(|e| Error::process("read a rank's output", e))?);
        }
        Ok(())
    }

    /// Watches until all have ended.
    pub(super) fn supervise(mut self) -> Result<Outcome> {
        let mut told = 0;
        let (mut interrupted, mut asked): (Option<Instant>, Option<Instant>) = (None, None);
        let mut failures: Vec<Failure> = Vec::new();
        let mut first_failure: Option<Instant> = None;
        let mut ended_by_us = false;
        loop {
            let running = self.look(|rank, status| {
                let saved = interrupted.is_some() && code(status) == INTERRUPTED;
                if code(status) != 0 && !saved {
                    // What ends later ends because of the first, or because it was told to.
                    if first_failure.get_or_insert_with(Instant::now).elapsed() < SETTLE && !ended_by_us {
                        failures.push(Failure { rank, status });
                    }
                }
            })?;
            if running == 0 {
                break;
            }
            let interrupts = self.signals.interrupts.load(Ordering::Relaxed);
            if interrupts > told {
                told = interrupts;
                interrupted.get_or_insert_with(Instant::now);
                self.tell(Signal::INT);
            }
            let terminate = self.signals.terminate.load(Ordering::Relaxed);
            let after = |start: Option<Instant>, limit: Duration| start.is_some_and(|start| start.elapsed() >= limit);
            let over = terminate || after(first_failure, NOTICE) || after(interrupted, SAVING);
            if over && asked.is_none() {
                asked = Some(Instant::now());
                ended_by_us = true;
                self.tell(Signal::TERM);
            }
            if after(asked, GRACE) {
                self.kill();
            }
            std::thread::sleep(LOOK);
        }
        // What the ranks have written is shown before the launcher says how they ended.
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end && !self.outputs.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(LOOK);
        }
        // After Ctrl-C ranks end one after the other, and the later ones may miss the earlier ones: that is no failure.
        let cause = failures
            .iter()
            .min_by_key(|failure| failure.suspicion())
            .filter(|failure| interrupted.is_none() || failure.status.code() != Some(STATUS_PEER_LOST));
        let status = match cause {
            Some(failure) => code(failure.status),
            None if self.signals.terminate.load(Ordering::Relaxed) => TERMINATED,
            None if interrupted.is_some() => INTERRUPTED,
            None => 0,
        };
        Ok(Outcome {
            status,
            failed: cause.map(|failure| (failure.rank, describe(failure.status))),
        })
    }

    /// Looks after all ranks; the number that still run.
    fn look(&mut self, mut ended: impl FnMut(usize, ExitStatus)) -> Result<usize> {
        let mut running = 0;
        for rank in self.ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
            let status = rank
                .child
                .try_wait()
                .map_err(|e| Error::process(format!("watch rank {}", rank.rank), e))?;
            match status {
                Some(status) => {
                    rank.ended = Some(status);
                    ended(rank.rank, status);
                }
                None => running += 1,
            }
        }
        Ok(running)
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Rank> {
        self.ranks.iter_mut().filter(|rank| rank.ended.is_none())
    }

    fn tell(&mut self, signal: Signal) {
        for rank in self.running() {
            match &mut rank.line {
                // The rank itself, not its group: what it has started is its own business.
                Line::Signals => drop(Pid::from_raw(rank.child.id() as i32).map(|pid| kill_process(pid, signal))),
                Line::Pipe(pipe) => {
                    use std::io::Write as _;
                    let word = if signal == Signal::INT {
                        "interrupt\n"
                    } else {
                        "terminate\n"
                    };
                    let _ = pipe.write_all(word.as_bytes()).and_then(|()| pipe.flush());
                }
            }
        }
    }

    fn kill(&mut self) {
        for rank in self.running() {
            if let Some(pid) = Pid::from_raw(rank.child.id() as i32) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Every rank that is not waited for is still this process's child, so its number is its own.
        self.kill();
        for rank in self.running() {
            let _ = rank.child.wait();
        }
    }
}

fn command_name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status.signal() {
        Some(signal) => format!("was ended by signal {signal}"),
        None => format!("ended with status {}", code(status)),
    }
}

/// The launcher's own signals, as long as it supervises.
struct Signals {
    interrupts: Arc<AtomicUsize>,
    terminate: Arc<AtomicBool>,
    handle: signal_hook::iterator::Handle,
}

impl Signals {
    fn new() -> Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let fail = |e| Error::process("handle signals", e);
        let mut source = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(fail)?;
        let handle = source.handle();
        let (interrupts, terminate) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let seen = (interrupts.clone(), terminate.clone());
        let watch = move || {
            for signal in source.forever() {
                if signal == SIGINT {
                    seen.0.fetch_add(1, Ordering::Relaxed);
                } else {
                    seen.1.store(true, Ordering::Relaxed);
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map_err(fail)?;
        Ok(Self {
            interrupts,
            terminate,
            handle,
        })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}
