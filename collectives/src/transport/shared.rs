//! Shared memory between two processes of a host as a pipe: a ring of bytes in each direction.
//!
//! Whoever waits sleeps in `poll` on the Unix socket over which the two met, with a flag set in the segment; the other
//! writes a byte to it when it has done what is waited for. While both are awake no system call is made. The socket
//! tells the other's end as well: the kernel closes it however a process ends.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};

use super::link::Pipe;

pub(crate) mod meet;
mod segment;

use segment::Segment;

/// Bytes under way in one direction: two pieces of the default size, which the caches of two cores hold.
const CAPACITY: usize = 512 << 10;
/// Each counter has cache lines of its own: the cores fetch them in pairs.
const LINE: usize = 128;
/// Where the rings' bytes begin.
const DATA: usize = 4096;
/// The length of a segment.
const LENGTH: usize = DATA + 2 * CAPACITY;

/// What a sleeper waits for.
const FOR_BYTES: u32 = 1;
const FOR_ROOM: u32 = 2;

/// One side, 0 or 1, of a segment. Ring `k` is written by side `k`.
pub(crate) struct Shared {
    segment: Segment,
    side: usize,
    socket: UnixStream,
    /// All bytes ever written; the other process can not change this count, only its copy in the segment.
    sent: u64,
    /// All bytes ever read.
    received: u64,
}

const fn asleep(side: usize) -> usize {
    LINE * (1 + side)
}

const fn written(ring: usize) -> usize {
    LINE * (4 + ring)
}

const fn read(ring: usize) -> usize {
    LINE * (6 + ring)
}

/// The place in the segment of the byte with number `count` of a ring, and how many follow it before the ring's end.
fn place(ring: usize, count: u64) -> (usize, usize) {
    let at = (count % CAPACITY as u64) as usize;
    (DATA + ring * CAPACITY + at, CAPACITY - at)
}

fn damaged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the shared memory is damaged")
}

impl Shared {
    fn new(segment: Segment, side: usize, socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            segment,
            side,
            socket,
            sent: 0,
            received: 0,
        })
    }

    /// Bytes that have come and are not read.
    fn waiting(&self) -> io::Result<usize> {
        let there = self.segment.long(written(1 - self.side)).load(Ordering::Acquire);
        match there.wrapping_sub(self.received) {
            n if n <= CAPACITY as u64 => Ok(n as usize),
            _ => Err(damaged()),
        }
    }

    /// Bytes that can be written.
    fn room(&self) -> io::Result<usize> {
        let gone = self.segment.long(read(self.side)).load(Ordering::Acquire);
        match self.sent.wrapping_sub(gone) {
            n if n <= CAPACITY as u64 => Ok(CAPACITY - n as usize),
            _ => Err(damaged()),
        }
    }

    /// Enough room to be worth a wake-up.
    fn has_room(&self) -> bool {
        // Damage shows when it is written.
        self.room().map_or(true, |room| room >= CAPACITY / 2)
    }

    /// Wakes the other side if it sleeps for `reason`.
    fn ring(&self, reason: u32) {
        // Pairs with the fence in `fall_asleep`: either this side sees the flag, or that side sees the bytes.
        fence(Ordering::SeqCst);
        let flag = self.segment.word(asleep(1 - self.side));
        if flag.load(Ordering::Relaxed) & reason != 0 && flag.swap(0, Ordering::Relaxed) != 0 {
            // A full socket means that wake-ups are on their way; a closed one shows when it is read.
            let _ = (&self.socket).write(&[1]);
        }
    }
}

impl Pipe for Shared {
    fn send(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let room = self.room()?;
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut count = 0;
        for from in [first, second] {
            let mut from = &from[..from.len().min(room - count)];
            while !from.is_empty() {
                let (at, to_end) = place(self.side, self.sent + count as u64);
                let (now, later) = from.split_at(from.len().min(to_end));
                self.segment.write(at, now);
                count += now.len();
                from = later;
            }
        }
        self.sent += count as u64;
        self.segment
            .long(written(self.side))
            .store(self.sent, Ordering::Release);
        self.ring(FOR_BYTES);
        Ok(count)
    }

    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let mut waiting = self.waiting()?;
        if waiting == 0 {
            // Nothing in the ring: a wake-up, or the end. What was written before the end is read first.
            match self.socket.read(&mut [0; 64]) {
                Ok(n) if n > 0 => return Err(ErrorKind::WouldBlock.into()),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Err(e),
                // A reset is an end too: of a process that had not read all its wake-ups.
                _ => {
                    waiting = self.waiting()?;
                    if waiting == 0 {
                        return Ok(0);
                    }
                }
            }
        }
        let ring = 1 - self.side;
        let mut count = 0;
        for to in [first, second] {
            let room = to.len().min(waiting - count);
            let mut to = &mut to[..room];
            while !to.is_empty() {
                let (at, to_end) = place(ring, self.received + count as u64);
                let n = to.len().min(to_end);
                let (now, later) = to.split_at_mut(n);
                self.segment.read(at, now);
                count += n;
                to = later;
            }
        }
        self.received += count as u64;
        self.segment.long(read(ring)).store(self.received, Ordering::Release);
        if count == waiting || CAPACITY - (waiting - count) >= CAPACITY / 2 {
            self.ring(FOR_ROOM);
        }
        Ok(count)
    }

    fn shut(&mut self) {
        // An error means that the other side is gone already, which shows when it is read.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn polls_for_room(&self) -> bool {
        false
    }

    fn is_ready(&mut self, for_room: bool) -> bool {
        // Damage shows when it is read.
        self.waiting().map_or(true, |waiting| waiting > 0) || (for_room && self.has_room())
    }

    fn fall_asleep(&mut self, for_room: bool) -> bool {
        let reason = FOR_BYTES | if for_room { FOR_ROOM } else { 0 };
        self.segment.word(asleep(self.side)).store(reason, Ordering::Relaxed);
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        !self.is_ready(for_room)
    }

    fn wake_up(&mut self) {
        self.segment.word(asleep(self.side)).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Shared, Shared) {
        let (segment, fd) = Segment::create(LENGTH).unwrap();
        let other = Segment::open(&fd, LENGTH).unwrap();
        let (one, two) = UnixStream::pair().unwrap();
        (
            Shared::new(segment, 0, one).unwrap(),
            Shared::new(other, 1, two).unwrap(),
        )
    }

    #[test]
    fn bytes_come_in_order_through_every_position_of_the_ring() {
        let (mut one, mut two) = pair();
        let (mut next, mut expected) = (0_u64, 0_u64);
        // Lengths that share no factor with the ring's, so that each position is an end once.
        for round in 0..5000_usize {
            let bytes: Vec<u8> = (0..(round * 37) % 1999 + 1)
                .map(|i| ((next + i as u64) % 251) as u8)
                .collect();
            let (head, body) = bytes.split_at(bytes.len() / 3);
            next += one.send(head, body).unwrap() as u64;
            let (mut first, mut second) = (vec![0; round % 500], vec![0; 1700]);
            while two.is_ready(false) {
                let n = two.receive(&mut first, &mut second).unwrap();
                for byte in first.iter().chain(&second).take(n) {
                    assert_eq!(*byte, (expected % 251) as u8, "byte {expected}");
                    expected += 1;
                }
            }
        }
        assert_eq!(next, expected);
    }

    #[test]
    fn a_full_ring_takes_no_more_and_an_empty_one_gives_nothing() {
        let (mut one, mut two) = pair();
        let much = vec![7; CAPACITY + 1];
        assert_eq!(one.send(&much, &much).unwrap(), CAPACITY);
        assert_eq!(one.send(&much, &[]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut place = vec![0; CAPACITY];
        assert_eq!(two.receive(&mut place, &mut [0]).unwrap(), CAPACITY);
        assert_eq!(
            two.receive(&mut place, &mut []).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }

    #[test]
    fn the_last_bytes_are_read_before_the_end() {
        let (mut one, mut two) = pair();
        one.send(b"last words", &[]).unwrap();
        drop(one);
        let mut place = [0; 64];
        assert_eq!(two.receive(&mut place, &mut []).unwrap(), 10);
        assert_eq!(two.receive(&mut place, &mut []).unwrap(), 0);
    }

    #[test]
    fn a_sleeper_is_woken_and_an_awake_one_left_alone() {
        let (mut one, mut two) = pair();
        one.send(b"a", &[]).unwrap();
        assert!(!two.fall_asleep(false), "a byte is there already");
        two.wake_up();
        let mut place = [0; 8];
        two.receive(&mut place, &mut []).unwrap();
        assert!(two.fall_asleep(false));
        one.send(b"b", &[]).unwrap();
        assert_eq!(
            two.socket.read(&mut place).unwrap(),
            1,
            "one wake-up, for the byte that was slept for"
        );
    }

    #[test]
    fn counters_that_cannot_be_are_damage() {
        let (mut one, two) = pair();
        two.segment.long(written(1)).store(u64::MAX, Ordering::Relaxed);
        assert!(one.is_ready(false));
        let error = one.receive(&mut [0; 8], &mut []).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        two.segment.long(read(0)).store(9, Ordering::Relaxed);
        assert_eq!(one.send(&[0], &[]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
