//! TCP between processes: one connection per pair of ranks, driven by `poll` on the worker's thread.
//!
//! Sockets never block. Head and body of a frame leave in one vectored write straight from the operation's buffer;
//! a body is read straight into its place, together with the head that follows. Reading and writing take turns, so
//! large frames in both directions cannot lock each other up.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Driver, Transport, Wake, Wired};
use crate::error::{Error, Result};
use crate::frame::{HEAD, Head};

/// Bytes read from one rank before the next has its turn.
const TURN: usize = 1 << 20;

struct Writing {
    head: [u8; HEAD],
    /// Bytes of head and body that are written.
    done: usize,
    length: usize,
}

struct Link {
    stream: TcpStream,
    writing: Option<Writing>,
    /// The head that is being read.
    head: [u8; HEAD],
    head_done: usize,
    /// The body that is being read: bytes left to read, of how many.
    body: Option<(usize, usize)>,
}

struct Tcp {
    links: Vec<Option<Link>>,
    wakeups: UnixStream,
}

struct Waker(UnixStream);

impl Wake for Waker {
    fn wake(&self) {
        // A full pipe means that a wake-up is on its way already.
        let _ = (&self.0).write(&[1]);
    }
}

/// The transport over established connections, one for each other rank.
pub(crate) fn wire(streams: Vec<Option<TcpStream>>, silence: Duration) -> Result<Wired> {
    let fail = |e| Error::process("prepare a connection", e);
    let mut links = Vec::with_capacity(streams.len());
    for stream in streams {
        if let Some(stream) = &stream {
            stream.set_nodelay(true).map_err(fail)?;
            stream.set_nonblocking(true).map_err(fail)?;
            let socket = socket2::SockRef::from(stream);
            // Data that the other side does not acknowledge mean that it is cut off; the worker's own limit on
            // silence covers the rest.
            socket.set_tcp_user_timeout(Some(silence)).map_err(fail)?;
            socket.set_keepalive(true).map_err(fail)?;
        }
        links.push(stream.map(|stream| Link {
            stream,
            writing: None,
            head: [0; HEAD],
            head_done: 0,
            body: None,
        }));
    }
    let (wakeups, waker) = UnixStream::pair().map_err(fail)?;
    wakeups.set_nonblocking(true).map_err(fail)?;
    waker.set_nonblocking(true).map_err(fail)?;
    let tcp = Tcp { links, wakeups };
    Ok(Wired::new(move || Ok(Box::new(tcp)), Arc::new(Waker(waker))))
}

/// Whether the error only means "later".
fn later(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn broken(e: &std::io::Error) -> String {
    match e.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            "closed its connection: it ended or was killed".into()
        }
        ErrorKind::TimedOut => "does not acknowledge data: its machine or the way to it is gone".into(),
        _ => format!("cannot be reached any more: {e}"),
    }
}

impl Link {
    /// Writes until the socket is full or the driver has nothing more.
    fn write(&mut self, peer: usize, driver: &mut dyn Driver) -> Result<(), String> {
        loop {
            let writing = match &mut self.writing {
                Some(writing) => writing,
                None => match driver.begin(peer) {
                    Some(head) => {
                        let length = head.length as usize;
                        self.writing.insert(Writing {
                            head: head.encode(),
                            done: 0,
                            length,
                        })
                    }
                    None => return Ok(()),
                },
            };
            let body = driver.body(peer);
            let from_head = &writing.head[writing.done.min(HEAD)..];
            let from_body = &body[writing.done.saturating_sub(HEAD)..];
            match self
                .stream
                .write_vectored(&[IoSlice::new(from_head), IoSlice::new(from_body)])
            {
                Ok(n) => writing.done += n,
                Err(e) if later(&e) => return Ok(()),
                Err(e) => return Err(broken(&e)),
            }
            if writing.done == HEAD + writing.length {
                self.writing = None;
                driver.sent(peer);
            }
        }
    }

    /// Reads until the socket is empty or the turn is over.
    fn read(&mut self, peer: usize, driver: &mut dyn Driver) -> Result<(), String> {
        let mut turn = 0;
        while turn < TURN {
            let (left, length) = self.body.unwrap_or((0, 0));
            let head_room = &mut self.head[self.head_done..];
            let wanted = left + head_room.len();
            let result = if left > 0 {
                let place = &mut driver.place(peer)[length - left..];
                self.stream
                    .read_vectored(&mut [IoSliceMut::new(place), IoSliceMut::new(head_room)])
            } else {
                self.stream.read(head_room)
            };
            let n = match result {
                Ok(0) => return Err("closed its connection: it ended or was killed".into()),
                Ok(n) => n,
                Err(e) if later(&e) => return Ok(()),
                Err(e) => return Err(broken(&e)),
            };
            driver.heard(peer);
            turn += n;
            let of_body = n.min(left);
            self.head_done += n - of_body;
            if of_body < left {
                self.body = Some((left - of_body, length));
            } else if self.body.take().is_some() {
                driver.arrived(peer)?;
            }
            while self.body.is_none() && self.head_done == HEAD {
                let head = Head::decode(&self.head)?;
                self.head_done = 0;
                driver.accept(peer, head)?;
                match head.length as usize {
                    0 => driver.arrived(peer)?,
                    length => self.body = Some((length, length)),
                }
            }
            if n < wanted {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Tcp {
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

    /// Waits for an event. For each link: whether it can be read.
    fn wait(&self, timeout: Duration) -> Vec<bool> {
        let open = || {
            self.links
                .iter()
                .enumerate()
                .filter_map(|(peer, link)| link.as_ref().map(|link| (peer, link)))
        };
        let mut fds = vec![PollFd::new(&self.wakeups, PollFlags::IN)];
        fds.extend(open().map(|(_, link)| {
            let writing = if link.writing.is_some() {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            PollFd::new(&link.stream, PollFlags::IN | writing)
        }));
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut readable = vec![false; self.links.len()];
        // An interrupted wait is a short one.
        if poll(&mut fds, Some(&timeout)).is_ok() {
            for (fd, (peer, _)) in fds[1..].iter().zip(open()) {
                readable[peer] = fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
            }
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = (&self.wakeups).read(&mut [0; 64]);
            }
        }
        readable
    }
}

impl Transport for Tcp {
    fn progress(&mut self, driver: &mut dyn Driver, timeout: Duration) {
        self.each(driver, Link::write);
        let readable = self.wait(timeout);
        self.each(driver, |link, peer, driver| {
            if readable[peer] {
                link.read(peer, driver)
            } else {
                Ok(())
            }
        });
        self.each(driver, Link::write);
    }
}
