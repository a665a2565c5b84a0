//! A team of threads for fork-join work.
//!
//! [`Team::run`] calls a closure once for each member and returns when all calls have returned. The thread that calls
//! is member 0, so a team of one has no other thread and costs nothing. Members wait between rounds by spinning for a
//! bounded time and then sleeping in the kernel; how long is decided by [`Spin`].
//!
//! Three promises: a panic in any member reaches the caller after all members have finished; a `run` inside a `run`,
//! or while another thread is using the team, calls the closure for every member one after the other on the calling
//! thread instead of waiting for anybody, so there is no deadlock; dropping the team ends and joins its threads.

mod barrier;
mod job;

use std::thread::JoinHandle;
use std::time::Duration;

use crate::affinity::pin_current_thread;
use crate::cpuset::{CpuId, CpuSet};
use crate::error::Error;
use job::{Board, Member};

/// How long a member spins for the next round before it sleeps in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spin {
    /// [`Spin::For`] 100 microseconds when the team has no more threads than the calling thread has CPUs to run on,
    /// [`Spin::Never`] otherwise.
    ///
    /// The figure is a few times what it costs to wake a sleeping thread (10 to 50 microseconds), which is the classic
    /// bound: spinning for as long as the alternative costs is at worst twice as slow as the better choice.
    #[default]
    Auto,
    /// Sleep at once. Right when several processes share the CPUs: a member that spins keeps the others from working.
    Never,
    /// Spin for this long. A member that finds itself preempted while it spins takes it that others want its CPU, and
    /// sleeps at once for a while.
    For(Duration),
}

/// What a [`Team`] is made of.
#[derive(Clone, Debug, Default)]
pub struct TeamConfig {
    /// One entry a member: the CPU it is pinned to, or `None` to leave it where the kernel puts it. The first entry is
    /// for the thread that calls [`Team::new`].
    pub cpus: Vec<Option<CpuId>>,
    /// How long members spin.
    pub spin: Spin,
}

impl TeamConfig {
    /// A team of `threads` members that are not pinned.
    pub fn unpinned(threads: usize) -> Self {
        TeamConfig {
            cpus: vec![None; threads],
            spin: Spin::Auto,
        }
    }

    /// A team with one member pinned to each of `cpus`.
    pub fn pinned(cpus: &CpuSet) -> Self {
        TeamConfig {
            cpus: cpus.iter().map(Some).collect(),
            spin: Spin::Auto,
        }
    }
}

/// A team of threads that run one closure together. See the crate's documentation for an example.
#[derive(Debug)]
pub struct Team {
    board: std::sync::Arc<Board>,
    /// Threads of members 1 and up.
    handles: Vec<JoinHandle<()>>,
}

/// The figure of [`Spin::Auto`].
const AUTO_SPIN: Duration = Duration::from_micros(100);

impl Team {
    /// Starts the members and pins them. The calling thread is member 0 and is pinned as well, if the configuration
    /// names a CPU for it, and stays so after the team is gone.
    ///
    /// On an error all threads that had been started have ended.
    pub fn new(config: TeamConfig) -> Result<Team, Error> {
        let threads = config.cpus.len();
        if threads == 0 {
            return Err(Error::EmptyTeam);
        }
        let spin = match config.spin {
            Spin::Never => Duration::ZERO,
            Spin::For(bound) => bound,
            // Asked before anybody is pinned: afterwards this thread has one CPU only.
            Spin::Auto => match crate::affinity::allowed_cpus() {
                Ok(cpus) if threads <= cpus.len() => AUTO_SPIN,
                _ => Duration::ZERO,
            },
        };
        if let Some(cpu) = config.cpus[0] {
            pin_member(0, cpu)?;
        }
        let (board, members) = Board::new(threads - 1, spin);
        let mut team = Team {
            board,
            handles: Vec::with_capacity(threads - 1),
        };
        let (report, reports) = std::sync::mpsc::channel();
        for (member, &cpu) in members.into_iter().zip(&config.cpus[1..]) {
            let report = report.clone();
            let index = member.index();
            let body = move || serve(member, cpu, report);
            match std::thread::Builder::new().name(format!("team-{index}")).spawn(body) {
                Ok(handle) => team.handles.push(handle),
                // Dropping the team stops and joins those that run.
                Err(source) => {
                    return Err(Error::Spawn {
                        member: index,
                        members: threads,
                        source,
                    });
                }
            }
        }
        drop(report);
        // Ends when every member has reported and dropped its sender.
        for outcome in reports {
            outcome?;
        }
        Ok(team)
    }

    /// Number of members, the caller included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `task(member)` once for every member from 0 to `threads() - 1`, each on its own thread, and returns when
    /// all calls have returned. Writes made by the members are visible to the caller afterwards.
    ///
    /// The calls must not wait for each other, because they are made one after the other when `run` is nested or the
    /// team is in use by another thread.
    ///
    /// # Panics
    /// When a call panicked, with the payload of the panic of the lowest member, after all calls have ended. The team
    /// stays usable.
    pub fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        self.board.fork_join(task);
    }
}

/// A panic in a task leaves the team as it was before the round.
impl std::panic::RefUnwindSafe for Team {}

impl Drop for Team {
    fn drop(&mut self) {
        self.board.stop();
        for handle in self.handles.drain(..) {
            // A member catches the panics of its tasks, so there is nothing to hear from it.
            let _ = handle.join();
        }
    }
}

/// The life of one member: pin, report, then work until the team is dropped.
fn serve(mut member: Member, cpu: Option<CpuId>, report: std::sync::mpsc::Sender<Result<(), Error>>) {
    let outcome = match cpu {
        Some(cpu) => pin_member(member.index(), cpu),
        None => Ok(()),
    };
    // The receiver is gone only when `Team::new` has failed already; the member then hears the stop.
    let _ = report.send(outcome);
    drop(report);
    member.serve();
}

fn pin_member(member: usize, cpu: CpuId) -> Result<(), Error> {
    let readback = pin_current_thread(&CpuSet::single(cpu)).map_err(|error| Error::TeamPin {
        member,
        cpu,
        reason: error.to_string(),
    })?;
    if readback.is_exact() {
        return Ok(());
    }
    Err(Error::TeamPin {
        member,
        cpu,
        reason: format!("the kernel reports CPUs {:#} instead", readback.actual),
    })
}
