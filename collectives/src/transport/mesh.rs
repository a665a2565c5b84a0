//! The transport between processes: one pipe to each other rank, shared memory where both are on one host, else TCP.
//! All are driven by the worker's thread, which sleeps in one `poll` for all of them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Link, Pipe};
use super::shared::Shared;
use super::{Driver, Transport, Wake, Wired, tcp};
use crate::error::{Error, Result};

/// How long to look for what is about to come before going to sleep, where each rank of this host has a core: a sleep
/// and its end cost about as much.
const SPIN: Duration = Duration::from_micros(30);
/// Where there are more ranks than cores, the core is given away instead, this many times.
const YIELDS: u32 = 4;
/// After this many rounds without a `poll` there is one, or a busy pipe would hide the others' ends.
const ROUNDS: u32 = 32;

/// What there is between this rank and another.
pub(crate) enum Wire {
    Socket(TcpStream),
    Shared(Shared),
}

struct Mesh {
    links: Vec<Option<Link>>,
    bell: Arc<Bell>,
    wakeups: UnixStream,
    /// Some pipe is shared memory, so that looking pays.
    looks: bool,
    /// Each rank of this host can have a core.
    spins: bool,
    rounds: u32,
}

/// Wakes the worker. A byte is written only where it sleeps.
struct Bell {
    rung: AtomicBool,
    asleep: AtomicBool,
    stream: UnixStream,
}

impl Wake for Bell {
    fn wake(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // A full pipe means that a wake-up is on its way already.
            let _ = (&self.stream).write(&[1]);
        }
    }
}

/// The transport over established wires, one for each other rank.
pub(crate) fn wire(wires: Vec<Option<Wire>>, silence: Duration) -> Result<Wired> {
    let fail = |e| Error::process("prepare a connection", e);
    let mut links = Vec::with_capacity(wires.len());
    let mut here = 1;
    for wire in wires {
        let pipe: Option<Box<dyn Pipe>> = match wire {
            Some(Wire::Socket(stream)) => Some(Box::new(tcp::Socket::new(stream, silence).map_err(fail)?)),
            Some(Wire::Shared(shared)) => {
                here += 1;
                Some(Box::new(shared))
            }
            None => None,
        };
        links.push(pipe.map(Link::new));
    }
    let (wakeups, stream) = UnixStream::pair().map_err(fail)?;
    wakeups.set_nonblocking(true).map_err(fail)?;
    stream.set_nonblocking(true).map_err(fail)?;
    let bell = Arc::new(Bell {
        rung: AtomicBool::new(false),
        asleep: AtomicBool::new(false),
        stream,
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mesh = Mesh {
        links,
        bell: bell.clone(),
        wakeups,
        looks: here > 1,
        spins: here <= cores,
        rounds: 0,
    };
    Ok(Wired::new(move || Ok(Box::new(mesh)), bell))
}

impl Mesh {
    /// One attempt on each link; a link that fails is closed and reported.
    fn each(
        &mut self,
        driver: &mut dyn Driver,
        mut attempt: impl FnMut(&mut Link, usize, &mut dyn Driver) -> Result<(), String>,
    ) {
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Some(open) = link
                && let Err(reason) = attempt(open, peer, driver)
            {
                *link = None;
                driver.lost(peer, reason);
            }
        }
    }

    fn open(&mut self) -> impl Iterator<Item = (usize, &mut Link)> {
        self.links
            .iter_mut()
            .enumerate()
            .filter_map(|(peer, link)| link.as_mut().map(|link| (peer, link)))
    }

    /// Whether there is something to do that no `poll` is needed to see.
    fn is_ready(&mut self) -> bool {
        self.bell.rung.load(Ordering::Acquire)
            || self.open().any(|(_, link)| {
                let for_room = link.is_writing();
                link.pipe.is_ready(for_room)
            })
    }

    /// Looks for what is about to come; whether it came.
    fn look(&mut self, timeout: Duration) -> bool {
        if self.is_ready() {
            return true;
        }
        if self.spins {
            let start = Instant::now();
            let end = SPIN.min(timeout);
            while start.elapsed() < end {
                for _ in 0..50 {
                    std::hint::spin_loop();
                }
                if self.is_ready() {
                    return true;
                }
            }
            return false;
        }
        for _ in 0..YIELDS {
            rustix::thread::sched_yield();
            if self.is_ready() {
                return true;
            }
        }
        false
    }

    /// Waits for an event. For each link: whether something may have come through it.
    fn wait(&mut self, expects: bool, timeout: Duration) -> Vec<bool> {
        let mut readable = vec![false; self.links.len()];
        let ready = self.looks && expects && self.look(timeout);
        self.rounds += 1;
        if !ready || self.rounds >= ROUNDS {
            self.rounds = 0;
            self.sleep(&mut readable, if ready { Duration::ZERO } else { timeout });
        }
        self.bell.rung.store(false, Ordering::Release);
        for (peer, link) in self.open() {
            readable[peer] |= link.pipe.is_ready(false);
        }
        readable
    }

    fn sleep(&mut self, readable: &mut [bool], timeout: Duration) {
        let mut asleep = !timeout.is_zero();
        if asleep {
            self.bell.asleep.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            for (_, link) in self.open() {
                let for_room = link.is_writing();
                asleep &= link.pipe.fall_asleep(for_room);
            }
            asleep &= !self.bell.rung.load(Ordering::SeqCst);
        }
        let mut fds = vec![PollFd::new(&self.wakeups, PollFlags::IN)];
        let open = || {
            self.links
                .iter()
                .enumerate()
                .filter_map(|(peer, link)| link.as_ref().map(|link| (peer, link)))
        };
        fds.extend(open().map(|(_, link)| {
            let room = link.is_writing() && link.pipe.polls_for_room();
            let writing = if room { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::from_borrowed_fd(link.pipe.socket(), PollFlags::IN | writing)
        }));
        let timeout = if asleep { timeout } else { Duration::ZERO };
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // An interrupted wait is a short one.
        if poll(&mut fds, Some(&timeout)).is_ok() {
            for (fd, (peer, _)) in fds[1..].iter().zip(open()) {
                readable[peer] = fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
            }
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = (&self.wakeups).read(&mut [0; 64]);
            }
        }
        self.bell.asleep.store(false, Ordering::SeqCst);
        for (_, link) in self.open() {
            link.pipe.wake_up();
        }
    }
}

impl Transport for Mesh {
    fn progress(&mut self, driver: &mut dyn Driver, timeout: Duration) {
        self.each(driver, Link::write);
        let readable = self.wait(driver.expects(), timeout);
        self.each(driver, |link, peer, driver| {
            if readable[peer] {
                link.read(peer, driver).map(drop)
            } else {
                Ok(())
            }
        });
        self.each(driver, Link::write);
    }
    fn shut(&mut self) -> bool {
        for (_, link) in self.open() {
            link.pipe.shut();
        }
        true
    }
}
