//! How ranks that have met over TCP find out which of them are on one host, and come to share memory.
//!
//! Everyone tells everyone the host it is on: boot, network namespace, user namespace and user, and the name that the
//! program gives the node, if any. A network namespace of its own thus counts as a host of its own, whatever host
//! names and launchers say. Ranks that name the same host share memory. Of each pair the higher one connects to the
//! lower one's Unix socket, whose name and a token have come over TCP; the lower one makes the segment and hands it
//! over. The socket has no file, and the segment no name.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg, sockopt::socket_peercred,
};
use sha2::{Digest as _, Sha256};

use super::{LENGTH, Segment, Shared};
use crate::auth::random;
use crate::error::{Error, Result};
use crate::transport::mesh::Wire;

/// First bytes of a card.
const MARK: [u8; 4] = *b"host";
/// Mark, host, name of the Unix socket, token.
const CARD: usize = 4 + 32 + 16 + 16;
/// A host that is nobody's: the sender shares no memory.
const ALONE: [u8; 32] = [0; 32];
/// Mark, token, rank.
const HELLO: usize = 4 + 16 + 4;

/// What a rank tells the others.
struct Card {
    host: [u8; 32],
    name: [u8; 16],
    token: [u8; 16],
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        [&MARK[..], &self.host, &self.name, &self.token].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mark, rest) = bytes.split_first_chunk::<4>()?;
        let (host, rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_first_chunk()?;
        let (token, _) = rest.split_first_chunk()?;
        (*mark == MARK).then_some(Self {
            host: *host,
            name: *name,
            token: *token,
        })
    }
}

/// The host that this process is on, if the system tells; `node` sets apart what is on one host.
fn host(node: Option<&str>) -> Option<[u8; 32]> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let network = std::fs::read_link("/proc/self/ns/net").ok()?;
    let user = std::fs::read_link("/proc/self/ns/user").ok()?;
    let mut hash = Sha256::new();
    hash.update(&boot);
    for text in [
        network.to_string_lossy().as_ref(),
        user.to_string_lossy().as_ref(),
        &rustix::process::geteuid().as_raw().to_string(),
        node.unwrap_or_default(),
    ] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    Some(hash.finalize().into())
}

fn lost(rank: usize, reason: impl std::fmt::Display) -> Error {
    Error::PeerLost {
        rank,
        reason: format!("while the ranks came to share memory: {reason}"),
        reported_by: None,
    }
}

fn failed(action: &str, e: io::Error) -> Error {
    Error::SharedMemory {
        reason: format!("cannot {action}: {e}"),
    }
}

/// Replaces connections within a host by shared memory. Also says which ranks are on one host: for each rank the
/// number of its host, counted in order of first appearance, the same on all ranks.
pub(crate) fn share(
    streams: Vec<Option<TcpStream>>,
    rank: usize,
    shares: bool,
    node: Option<&str>,
    deadline: Instant,
) -> Result<(Vec<Option<Wire>>, Vec<usize>)> {
    let listens = UnixListener::bind_addr;
    let name: [u8; 16] = random()?;
    let address = SocketAddr::from_abstract_name(name).map_err(|e| failed("name a Unix socket", e))?;
    let host = if shares { host(node) } else { None };
    let own = Card {
        host: host.unwrap_or(ALONE),
        name,
        token: random()?,
    };
    let listener = match host {
        Some(_) => Some(listens(&address).map_err(|e| failed("listen on a Unix socket", e))?),
        None => None,
    };
    let cards = exchange(&streams, &own, deadline)?;

    let here = |other: usize| own.host != ALONE && cards[other].as_ref().is_some_and(|card| card.host == own.host);
    let mut shared: Vec<Option<Shared>> = (0..streams.len()).map(|_| None).collect();
    if let Some(listener) = listener {
        let lower: Vec<usize> = (0..rank).filter(|&other| here(other)).collect();
        let higher: Vec<usize> = (rank + 1..streams.len()).filter(|&other| here(other)).collect();
        let mut sockets = Vec::new();
        for other in lower {
            let card = cards[other].as_ref().ok_or_else(|| lost(other, "it said nothing"))?;
            sockets.push((other, approach(card, rank).map_err(|e| lost(other, e))?));
        }
        let given = receive_all(&listener, &own.token, &higher, deadline)?;
        for (other, socket) in sockets {
            shared[other] = Some(take(socket, deadline).map_err(|e| lost(other, e))?);
        }
        for (other, given) in given {
            shared[other] = Some(given);
        }
    }
    let nodes = number(&cards, &own, rank);
    let wires = streams.into_iter().zip(shared).map(|(stream, shared)| match shared {
        Some(shared) => Some(Wire::Shared(shared)),
        None => stream.map(Wire::Socket),
    });
    Ok((wires.collect(), nodes))
}

/// The number of each rank's host.
fn number(cards: &[Option<Card>], own: &Card, rank: usize) -> Vec<usize> {
    let mut seen: Vec<[u8; 32]> = Vec::new();
    let mut nodes = Vec::with_capacity(cards.len());
    for (other, card) in cards.iter().enumerate() {
        let host = if other == rank {
            own.host
        } else {
            card.as_ref().map_or(ALONE, |card| card.host)
        };
        let known = seen.iter().position(|&known| known == host && host != ALONE);
        nodes.push(known.unwrap_or_else(|| {
            seen.push(host);
            seen.len() - 1
        }));
    }
    nodes
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Sends the card to all and reads theirs. All are waited for at once, so the first that ends is the one that is
/// blamed.
fn exchange(streams: &[Option<TcpStream>], own: &Card, deadline: Instant) -> Result<Vec<Option<Card>>> {
    let message = own.encode();
    let mut read: Vec<Vec<u8>> = streams.iter().map(|_| Vec::new()).collect();
    for (other, stream) in streams.iter().enumerate() {
        if let Some(mut stream) = stream.as_ref() {
            // It fits into the socket's buffer, which is empty.
            stream.write_all(&message).map_err(|e| lost(other, e))?;
            stream.set_nonblocking(true).map_err(|e| lost(other, e))?;
        }
    }
    loop {
        let open: Vec<(usize, &TcpStream)> = streams
            .iter()
            .enumerate()
            .filter_map(|(other, stream)| stream.as_ref().map(|stream| (other, stream)))
            .filter(|(other, _)| read[*other].len() < CARD)
            .collect();
        if open.is_empty() {
            break;
        }
        if until(deadline).is_zero() {
            let absent: Vec<usize> = open.iter().map(|(other, _)| *other).collect();
            return Err(Error::Join {
                reason: format!("{} did not say which host they are on", crate::error::ranks(&absent)),
                waited: Duration::ZERO,
            });
        }
        let mut fds: Vec<PollFd<'_>> = open
            .iter()
            .map(|(_, stream)| PollFd::new(stream, PollFlags::IN))
            .collect();
        let wait = until(deadline).min(Duration::from_secs(1));
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&wait));
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for ((other, mut stream), ready) in open.into_iter().zip(ready) {
            if !ready {
                continue;
            }
            let mut room = [0; CARD];
            let wanted = CARD - read[other].len();
            match stream.read(&mut room[..wanted]) {
                Ok(0) => return Err(lost(other, "it closed its connection: it ended or was killed")),
                Ok(n) => read[other].extend_from_slice(&room[..n]),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(lost(other, e)),
            }
        }
    }
    let mut cards = Vec::with_capacity(streams.len());
    for (other, (stream, bytes)) in streams.iter().zip(&read).enumerate() {
        cards.push(match stream {
            Some(_) => Some(Card::decode(bytes).ok_or_else(|| lost(other, "it speaks another protocol"))?),
            None => None,
        });
    }
    Ok(cards)
}

/// Connects to a lower rank and says who comes.
fn approach(card: &Card, rank: usize) -> io::Result<UnixStream> {
    let mut socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(card.name)?)?;
    socket.write_all(&[&MARK[..], &card.token, &(rank as u32).to_le_bytes()].concat())?;
    Ok(socket)
}

/// Accepts the higher ranks of this host and gives each a segment. Other users and whoever does not know the token are
/// sent away.
fn receive_all(
    listener: &UnixListener,
    token: &[u8; 16],
    expected: &[usize],
    deadline: Instant,
) -> Result<Vec<(usize, Shared)>> {
    let mut given: Vec<(usize, Shared)> = Vec::new();
    while given.len() < expected.len() {
        let fd = &mut [PollFd::new(listener, PollFlags::IN)];
        let wait = until(deadline).min(Duration::from_secs(1));
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        if poll(fd, Some(&wait)) != Ok(1) {
            if until(deadline).is_zero() {
                let absent = expected
                    .iter()
                    .find(|rank| !given.iter().any(|(given, _)| given == *rank));
                return Err(lost(absent.copied().unwrap_or(0), "it did not come for its segment"));
            }
            continue;
        }
        let Ok((socket, _)) = listener.accept() else { continue };
        let same_user = socket_peercred(&socket).is_ok_and(|credentials| credentials.uid == rustix::process::geteuid());
        if !same_user {
            continue;
        }
        let Some(rank) = greet(&socket, token, deadline).filter(|rank| expected.contains(rank)) else {
            continue;
        };
        let shared = give(socket).map_err(|e| failed("share memory with another rank of this host", e))?;
        given.push((rank, shared));
    }
    Ok(given)
}

/// The rank that knows the token.
fn greet(mut socket: &UnixStream, token: &[u8; 16], deadline: Instant) -> Option<usize> {
    let wait = until(deadline).clamp(Duration::from_millis(1), Duration::from_secs(5));
    socket.set_read_timeout(Some(wait)).ok()?;
    let mut hello = [0; HELLO];
    socket.read_exact(&mut hello).ok()?;
    let (mark, rest) = hello.split_first_chunk::<4>()?;
    let (said, rest) = rest.split_first_chunk::<16>()?;
    let rank = u32::from_le_bytes(*rest.first_chunk::<4>()?);
    (*mark == MARK && said == token).then_some(rank as usize)
}

/// Makes a segment and hands it over.
fn give(socket: UnixStream) -> io::Result<Shared> {
    let (segment, fd) = Segment::create(LENGTH)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(&socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Shared::new(segment, 0, socket)
}

/// Takes the segment that a lower rank hands over.
fn take(socket: UnixStream, deadline: Instant) -> io::Result<Shared> {
    socket.set_read_timeout(Some(until(deadline).max(Duration::from_millis(1))))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    let fd = fds
        .pop()
        .filter(|_| received.bytes == 1)
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it ended or could not make a segment"))?;
    Shared::new(Segment::open(&fd, LENGTH)?, 1, socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_survive_the_wire_and_others_are_refused() {
        let card = Card {
            host: [1; 32],
            name: [2; 16],
            token: [3; 16],
        };
        let bytes = card.encode();
        assert_eq!(bytes.len(), CARD);
        let read = Card::decode(&bytes).unwrap();
        assert_eq!((read.host, read.name, read.token), (card.host, card.name, card.token));
        assert!(Card::decode(&[0; CARD]).is_none());
        assert!(Card::decode(&bytes[..CARD - 1]).is_none());
    }

    #[test]
    fn a_named_node_is_a_host_of_its_own() {
        assert_eq!(host(Some("a")), host(Some("a")));
        assert_ne!(host(Some("a")), host(Some("b")));
        assert_ne!(host(Some("a")), host(None));
    }

    #[test]
    fn strangers_at_the_unix_socket_are_sent_away() {
        let name: [u8; 16] = random().unwrap();
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let token = [9; 16];
        let card = |token| Card {
            host: ALONE,
            name,
            token,
        };
        let wrong = approach(&card([8; 16]), 1).unwrap();
        let unexpected = approach(&card(token), 5).unwrap();
        let right = approach(&card(token), 1).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        let given = receive_all(&listener, &token, &[1], deadline).unwrap();
        assert_eq!(given.len(), 1);
        assert!(take(right, deadline).is_ok());
        assert!(take(wrong, deadline).is_err());
        assert!(take(unexpected, deadline).is_err());
    }
}
