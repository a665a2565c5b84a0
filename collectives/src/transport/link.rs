//! Frames over a pipe of bytes: what sockets and shared memory have in common.
//!
//! A pipe never blocks. Head and body of a frame leave in one write straight from the operation's buffer; a body is
//! read straight into its place, together with the head that follows. Reading and writing take turns, so large frames
//! in both directions cannot lock each other up.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

use super::Driver;
use crate::frame::{HEAD, Head};

/// Bytes read from one rank before the next has its turn.
const TURN: usize = 1 << 20;

/// Carries bytes to and from one other rank, in order.
pub(super) trait Pipe: Send {
    /// Writes what fits of both, the first before the second; `WouldBlock` where nothing does.
    fn send(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize>;

    /// Fills the first place, then the second, with what is there: fewer bytes than both take mean that no more have
    /// come. `Ok(0)` is the end, `WouldBlock` that nothing has come yet.
    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize>;

    /// What `poll` can wait for: it becomes readable when something has come or the other side is gone.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Whether `poll` on the socket says when there is room again. Else [`Pipe::fall_asleep`] must be told.
    fn polls_for_room(&self) -> bool {
        true
    }

    /// Whether bytes have come that no `poll` is needed to see, or (`for_room`) room for some.
    fn is_ready(&mut self, _for_room: bool) -> bool {
        false
    }

    /// From now on the other side makes the socket readable when bytes come or (`for_room`) room for some. False: they
    /// are there already.
    fn fall_asleep(&mut self, _for_room: bool) -> bool {
        true
    }

    /// The end of [`Pipe::fall_asleep`].
    fn wake_up(&mut self) {}

    /// Nothing more will be sent: the other side reads what is under way and then the end.
    fn shut(&mut self);
}

struct Writing {
    head: [u8; HEAD],
    /// Bytes of head and body that are written.
    done: usize,
    length: usize,
}

/// One other rank's pipe, and the frames on their way through it.
pub(super) struct Link {
    pub(super) pipe: Box<dyn Pipe>,
    writing: Option<Writing>,
    /// The head that is being read.
    head: [u8; HEAD],
    head_done: usize,
    /// The body that is being read: bytes left to read, of how many.
    body: Option<(usize, usize)>,
}

/// Whether the error only means "later".
fn later(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn broken(e: &io::Error) -> String {
    match e.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            "closed its connection: it ended or was killed".into()
        }
        ErrorKind::TimedOut => "does not acknowledge data: its machine or the way to it is gone".into(),
        _ => format!("cannot be reached any more: {e}"),
    }
}

impl Link {
    pub(super) fn new(pipe: Box<dyn Pipe>) -> Self {
        Self {
            pipe,
            writing: None,
            head: [0; HEAD],
            head_done: 0,
            body: None,
        }
    }

    /// Whether a frame waits for room.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Writes until the pipe is full or the driver has nothing more.
    ///
    /// Where the other side is gone, what it said before is read first: it may be why it went.
    pub(super) fn write(&mut self, peer: usize, driver: &mut dyn Driver) -> Result<(), String> {
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
            match self.pipe.send(from_head, from_body) {
                Ok(n) => writing.done += n,
                Err(e) if later(&e) => return Ok(()),
                Err(e) => {
                    while self.read(peer, driver)? > 0 {}
                    return Err(broken(&e));
                }
            }
            if writing.done == HEAD + writing.length {
                self.writing = None;
                driver.sent(peer);
            }
        }
    }

    /// Reads until the pipe is empty or the turn is over; how many bytes.
    pub(super) fn read(&mut self, peer: usize, driver: &mut dyn Driver) -> Result<usize, String> {
        let mut turn = 0;
        while turn < TURN {
            let (left, length) = self.body.unwrap_or((0, 0));
            let head_room = &mut self.head[self.head_done..];
            let wanted = left + head_room.len();
            let place: &mut [u8] = if left > 0 {
                &mut driver.place(peer)[length - left..]
            } else {
                &mut []
            };
            let n = match self.pipe.receive(place, head_room) {
                Ok(0) => return Err("closed its connection: it ended or was killed".into()),
                Ok(n) => n,
                Err(e) if later(&e) => return Ok(turn),
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
                return Ok(turn);
            }
        }
        Ok(turn)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::frame::Kind;

    /// Its other side has spoken and gone.
    struct Gone {
        unread: VecDeque<u8>,
        socket: std::os::unix::net::UnixStream,
    }

    impl Pipe for Gone {
        fn send(&mut self, _: &[u8], _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }

        fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
            let (one, two) = (
                self.unread.read_some(first, usize::MAX),
                self.unread.read_some(second, 5),
            );
            Ok(one + two)
        }

        fn socket(&self) -> BorrowedFd<'_> {
            std::os::fd::AsFd::as_fd(&self.socket)
        }

        fn shut(&mut self) {}
    }

    trait ReadSome {
        fn read_some(&mut self, to: &mut [u8], most: usize) -> usize;
    }

    impl ReadSome for VecDeque<u8> {
        fn read_some(&mut self, to: &mut [u8], most: usize) -> usize {
            let n = self.len().min(to.len()).min(most);
            for (to, from) in to.iter_mut().zip(self.drain(..n)) {
                *to = from;
            }
            n
        }
    }

    /// Has a frame to send, and notes what comes.
    #[derive(Default)]
    struct Notes {
        place: Vec<u8>,
        arrived: Vec<Vec<u8>>,
    }

    impl Driver for Notes {
        fn begin(&mut self, _: usize) -> Option<Head> {
            Some(Head::control(Kind::Heartbeat, 0, 0))
        }
        fn body(&self, _: usize) -> &[u8] {
            &[]
        }
        fn sent(&mut self, _: usize) {}
        fn accept(&mut self, _: usize, head: Head) -> Result<(), String> {
            self.place = vec![0; head.length as usize];
            Ok(())
        }
        fn place(&mut self, _: usize) -> &mut [u8] {
            &mut self.place
        }
        fn arrived(&mut self, _: usize) -> Result<(), String> {
            self.arrived.push(std::mem::take(&mut self.place));
            Ok(())
        }
        fn expects(&self) -> bool {
            false
        }
        fn heard(&mut self, _: usize) {}
        fn lost(&mut self, _: usize, _: String) {}
    }

    #[test]
    fn last_words_are_heard_although_writing_fails_first() {
        let words: [&[u8]; 2] = [b"rank 2 is lost", b""];
        let mut unread = VecDeque::new();
        for body in words {
            unread.extend(Head::control(Kind::Abort, 0, body.len()).encode());
            unread.extend(body);
        }
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut link = Link::new(Box::new(Gone { unread, socket }));
        let mut notes = Notes::default();
        let reason = link.write(1, &mut notes).unwrap_err();
        assert_eq!(notes.arrived, words);
        assert!(reason.contains("ended or was killed"), "{reason}");
    }
}
