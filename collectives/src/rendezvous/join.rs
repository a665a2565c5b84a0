//! One rank's way to all others: rank 0 leads, the others follow its list.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use super::address::{ended, listen, local_address, open, resolve_here, wait_readable};
use super::channel::{Channel, Introduction, MESSAGE_LIMIT};
use super::reception::Reception;
use super::{HANDSHAKE, MAGIC, PROTOCOL, meeting_file};
use crate::auth::{PROOF, Secret, random};
use crate::error::{Error, Result, ranks};
use crate::frame::{Head, Kind, Reader, Writer, decode_failure};
use crate::launch::{Launch, Meeting};
use crate::options::Options;

/// Handshakes under way at once; further connections are closed.
const PENDING: usize = 64;
/// Pause between attempts to reach a rank that does not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// Who came, and where each listens.
type Guests = (BTreeMap<usize, Channel>, Vec<Option<SocketAddr>>);

/// Why a connection did not come about.
enum Failed {
    /// Worth another attempt: not there yet, or broken off.
    Later(String),
    /// Not worth one.
    Never(Error),
}

pub(super) struct Join<'a> {
    launch: &'a Launch,
    secret: Secret,
    started: Instant,
    deadline: Instant,
}

impl<'a> Join<'a> {
    pub(super) fn new(launch: &'a Launch, options: &Options) -> Result<Self> {
        let started = Instant::now();
        let secret = match (&launch.secret, &launch.meeting) {
            (Some(secret), Meeting::Address { .. } | Meeting::File(_)) => secret.clone(),
            // The file is readable by its owner alone; the secret in it is read when the address is.
            (None, Meeting::File(_)) if launch.rank == 0 => Secret::generate()?,
            (None, Meeting::File(_)) => Secret::new("unknown until the meeting file is read")?,
            (_, Meeting::Unknown) => return Err(nowhere()),
            (None, Meeting::Address { host, .. }) => {
                let reason = format!(
                    "there is none, and the ranks meet at {host}: set AZULEJO_SECRET or AZULEJO_SECRET_FILE to the same \
                     for all ranks"
                );
                return Err(Error::Secret { reason });
            }
        };
        Ok(Self {
            launch,
            secret,
            started,
            deadline: started + options.join_deadline,
        })
    }

    pub(super) fn meet(mut self) -> Result<Vec<Option<TcpStream>>> {
        if self.launch.rank == 0 {
            self.lead()
        } else {
            self.follow()
        }
    }

    fn world(&self) -> usize {
        self.launch.world_size
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn late(&self, reason: String) -> Error {
        Error::Join {
            reason,
            waited: self.started.elapsed(),
        }
    }

    // ---- rank 0 ----

    fn lead(&mut self) -> Result<Vec<Option<TcpStream>>> {
        let listener = match &self.launch.meeting {
            Meeting::Address { host, port } => listen(resolve_here(
                host,
                *port,
                self.launch.local_size < self.launch.world_size,
            )?)?,
            Meeting::Unknown => return Err(nowhere()),
            Meeting::File(path) => {
                let listener = listen(vec![SocketAddr::from(([127, 0, 0, 1], 0))])?;
                meeting_file::write(path, &local_address(&listener)?, &self.secret)?;
                listener
            }
        };
        let outcome = self.gather(&listener);
        if let Meeting::File(path) = &self.launch.meeting {
            // Nobody needs it any more; a leftover is harmless, as its secret is used up.
            let _ = fs::remove_file(path);
        }
        let (mut channels, addresses) = outcome?;
        let mut list = Writer::default();
        list.byte(1).word(addresses.len() as u32);
        for address in &addresses {
            list.text(&address.map(|address| address.to_string()).unwrap_or_default());
        }
        for (rank, channel) in channels.iter_mut() {
            let sent = channel.send(&self.secret, "list", &list.0, self.left().max(HANDSHAKE));
            sent.map_err(|e| lost(*rank, &e))?;
        }
        let mut streams: Vec<Option<TcpStream>> = (0..self.world()).map(|_| None).collect();
        for (rank, channel) in channels {
            streams[rank] = Some(channel.stream);
        }
        Ok(streams)
    }

    /// Accepts until all ranks are there; failing, tells those who are.
    fn gather(&self, listener: &TcpListener) -> Result<Guests> {
        let mut channels = BTreeMap::new();
        let mut addresses = vec![None; self.world()];
        let expected: Vec<usize> = (1..self.world()).collect();
        let outcome = self.accept_all(listener, &expected, |arrival| {
            if let Some((rank, channel, introduction)) = arrival {
                addresses[rank] = introduction.listens;
                channels.insert(rank, channel);
            }
            match channels.iter().find(|(_, channel)| ended(&channel.stream)) {
                Some((rank, _)) => Err(lost(*rank, "it ended or was killed")),
                None => Ok(()),
            }
        });
        if let Err(error) = outcome {
            let mut notice = Writer::default();
            notice.byte(0).text(&error.to_string());
            for channel in channels.values_mut() {
                // Whoever cannot be told sees the connection close.
                let _ = channel.send(&self.secret, "list", &notice.0, Duration::from_secs(1));
            }
            return Err(error);
        }
        Ok((channels, addresses))
    }

    // ---- the others ----

    fn follow(&mut self) -> Result<Vec<Option<TcpStream>>> {
        let (mut leader, listener) = self.reach_leader()?;
        let list = leader
            .receive(&self.secret, "list", self.left() + HANDSHAKE)
            .map_err(|reason| lost(0, &reason))?;
        let addresses = self.decode_list(&list)?;

        let rank = self.launch.rank;
        let lower: Vec<(usize, SocketAddr)> = (1..rank).map(|lower| (lower, addresses[lower])).collect();
        let higher: Vec<usize> = (rank + 1..self.world()).collect();
        let mut streams: Vec<Option<TcpStream>> = (0..self.world()).map(|_| None).collect();
        let this = &*self;
        let stream_to_leader = &leader.stream;
        // Connecting and accepting go on together, or two ranks could wait for each other.
        let connected = std::thread::scope(|scope| {
            let connecting = scope.spawn(move || {
                lower
                    .into_iter()
                    .map(|(rank, address)| Ok((rank, this.reach(rank, address, stream_to_leader)?)))
                    .collect::<Result<Vec<_>>>()
            });
            let accepted = this.accept_all(&listener, &higher, |arrival| {
                if let Some((rank, channel, _)) = arrival {
                    streams[rank] = Some(channel.stream);
                }
                check_leader(stream_to_leader)
            });
            let connected = connecting.join().unwrap_or_else(|_| {
                Err(Error::Worker {
                    reason: "connecting panicked".into(),
                })
            });
            accepted.and(connected)
        })?;
        for (rank, stream) in connected {
            streams[rank] = Some(stream);
        }
        streams[0] = Some(leader.stream);
        Ok(streams)
    }

    fn decode_list(&self, list: &[u8]) -> Result<Vec<SocketAddr>> {
        let mut r = Reader(list);
        let damaged = || Error::Refused {
            reason: "rank 0 sent a list of ranks that is none".into(),
        };
        if r.byte() != Some(1) {
            return Err(self.late(r.text().ok_or_else(damaged)?));
        }
        if r.word() != Some(self.world() as u32) {
            return Err(damaged());
        }
        let mut addresses = Vec::with_capacity(self.world());
        for rank in 0..self.world() {
            let text = r.text().ok_or_else(damaged)?;
            addresses.push(if rank == 0 {
                SocketAddr::from(([0, 0, 0, 0], 0)) // Never used: the connection to rank 0 exists.
            } else {
                text.parse().map_err(|_| damaged())?
            });
        }
        Ok(addresses)
    }

    /// Connects to rank 0, which may start later than this rank, and listens on the address that the way to it uses.
    fn reach_leader(&mut self) -> Result<(Channel, TcpListener)> {
        loop {
            let attempt = self.leader_addresses().and_then(|addresses| {
                let stream = open(&addresses, self.left().min(HANDSHAKE)).map_err(Failed::Later)?;
                let own = stream.local_addr().map_err(|e| Failed::Later(e.to_string()))?.ip();
                let listener = listen(vec![SocketAddr::new(own, 0)]).map_err(Failed::Never)?;
                let listens = local_address(&listener).map_err(Failed::Never)?;
                Ok((self.introduce(stream, 0, Some(listens))?, listener))
            });
            match attempt {
                Ok(reached) => return Ok(reached),
                Err(Failed::Never(error)) => return Err(error),
                Err(Failed::Later(reason)) if self.left().is_zero() => {
                    return Err(self.late(format!("rank 0 at {} does not answer: {reason}", self.launch.meeting)));
                }
                Err(Failed::Later(_)) => std::thread::sleep(RETRY.min(self.left())),
            }
        }
    }

    fn leader_addresses(&mut self) -> Result<Vec<SocketAddr>, Failed> {
        match &self.launch.meeting {
            Meeting::Address { host, port } => {
                // A name may appear later than the program.
                let addresses = (host.as_str(), *port).to_socket_addrs();
                addresses
                    .map(Iterator::collect)
                    .map_err(|e| Failed::Later(format!("its name is not known: {e}")))
            }
            Meeting::Unknown => Err(Failed::Never(nowhere())),
            Meeting::File(path) => {
                let (address, secret) = meeting_file::read(path).map_err(Failed::Later)?;
                self.secret = secret;
                Ok(vec![address])
            }
        }
    }

    fn reach(&self, rank: usize, address: SocketAddr, leader: &TcpStream) -> Result<TcpStream> {
        loop {
            check_leader(leader)?;
            let stream = open(&[address], self.left().min(HANDSHAKE)).map_err(Failed::Later);
            match stream.and_then(|stream| self.introduce(stream, rank, None)) {
                Ok(channel) => return Ok(channel.stream),
                Err(Failed::Never(error)) => return Err(error),
                Err(Failed::Later(reason)) if self.left().is_zero() => {
                    return Err(self.late(format!("rank {rank} at {address} does not answer: {reason}")));
                }
                Err(Failed::Later(_)) => std::thread::sleep(RETRY.min(self.left())),
            }
        }
    }

    // ---- both ----

    /// The connecting side of the handshake.
    fn introduce(&self, stream: TcpStream, target: usize, listens: Option<SocketAddr>) -> Result<Channel, Failed> {
        let later = |reason: String| Failed::Later(format!("the handshake broke off: {reason}"));
        let end = Instant::now() + HANDSHAKE;
        let challenge = random().map_err(Failed::Never)?;
        let mut channel = Channel {
            stream,
            challenges: [challenge, [0; PROOF]],
        };
        channel.write(&[&MAGIC[..], &challenge].concat(), end).map_err(later)?;
        let mut greeting = [0; MAGIC.len() + PROOF];
        channel.read(&mut greeting, end).map_err(later)?;
        let (magic, challenge) = greeting.split_at(MAGIC.len());
        let here = channel
            .stream
            .peer_addr()
            .map_or_else(|_| String::new(), |address| format!(" at {address}"));
        if magic != MAGIC {
            let reason = format!("what answers{here} in place of rank {target} is another program");
            return Err(Failed::Never(Error::Refused { reason }));
        }
        channel.challenges[1].copy_from_slice(challenge);

        let introduction = Introduction {
            protocol: PROTOCOL,
            rank: self.launch.rank as u32,
            world_size: self.launch.world_size as u32,
            target: target as u32,
            listens,
        };
        let body = introduction.encode();
        let message = channel.sealed(&self.secret, "introduction", &body);
        channel.write(&message, end).map_err(later)?;
        // One byte tells a wrong proof from a verdict, for the sake of a clear message; what counts is proven below.
        let mut known = [0];
        channel.read(&mut known, end).map_err(later)?;
        if known != [1] {
            let reason = format!("rank {target}{here} does not accept this rank's proof: the secrets differ");
            return Err(Failed::Never(Error::Secret { reason }));
        }
        let verdict = channel
            .receive_until(&self.secret, "verdict", MESSAGE_LIMIT, end)
            .map_err(|reason| {
                let reason = format!("rank {target}{here} does not prove that it knows it: {reason}");
                Failed::Never(Error::Secret { reason })
            })?;
        if verdict.is_empty() {
            Ok(channel)
        } else {
            let reason = String::from_utf8_lossy(&verdict).into_owned();
            Err(Failed::Never(Error::Refused { reason }))
        }
    }

    /// Accepts one connection from each rank in `expected`; `event` takes them and, in between, looks around.
    fn accept_all(
        &self,
        listener: &TcpListener,
        expected: &[usize],
        mut event: impl FnMut(Option<(usize, Channel, Introduction)>) -> Result<()>,
    ) -> Result<()> {
        let fail = |e| Error::process("accept connections", e);
        listener.set_nonblocking(true).map_err(fail)?;
        let here = Arc::new(Reception {
            secret: self.secret.clone(),
            rank: self.launch.rank,
            world_size: self.launch.world_size,
            absent: Mutex::new(expected.to_vec()),
            strangers: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
        });
        let (send, arrivals) = mpsc::channel::<Result<(Channel, Introduction)>>();
        let mut waiting_for = expected.len();
        while waiting_for > 0 {
            match arrivals.recv_timeout(Duration::ZERO) {
                Ok(Ok((channel, introduction))) => {
                    event(Some((introduction.rank as usize, channel, introduction)))?;
                    waiting_for -= 1;
                    continue;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
            if self.left().is_zero() {
                let absent = here.absent.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let strangers = match here.strangers.load(Ordering::Relaxed) {
                    0 => String::new(),
                    n => format!("; {n} connections did not prove the secret"),
                };
                let came = self.world() - 1 - absent.len();
                let of = format!("{} of {} came to rank {}", came, self.world() - 1, self.launch.rank);
                return Err(self.late(format!("{} did not come ({of}{strangers})", ranks(&absent))));
            }
            match listener.accept() {
                Ok((stream, address)) => {
                    if here.pending.fetch_add(1, Ordering::Relaxed) >= PENDING {
                        here.pending.fetch_sub(1, Ordering::Relaxed);
                        continue; // Dropped, which closes it; a rank of ours will try again.
                    }
                    let (reception, send) = (here.clone(), send.clone());
                    // Not joined: it ends within the handshake's time.
                    let started = std::thread::Builder::new().name("handshake".into()).spawn(move || {
                        let outcome = reception.receive(stream, address);
                        reception.pending.fetch_sub(1, Ordering::Relaxed);
                        match outcome {
                            Ok(Some(arrival)) => drop(send.send(Ok(arrival))),
                            Ok(None) => drop(reception.strangers.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => drop(send.send(Err(error))),
                        }
                    });
                    started.map_err(fail)?;
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock) => {
                    // Arrivals are looked at every few milliseconds; a rank waits here once in its life.
                    wait_readable(listener, self.left().min(Duration::from_millis(5)));
                    event(None)?;
                }
                // The other side gave up before it was accepted, or descriptors are short for the moment.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Ok(())
    }
}

fn nowhere() -> Error {
    let reason = "it is not set, and the ranks are on several nodes: set it to the address of rank 0's node, and \
                  MASTER_PORT to a free port there"
        .into();
    Error::Variable {
        name: "MASTER_ADDR".into(),
        reason,
    }
}

fn lost(rank: usize, how: &str) -> Error {
    Error::PeerLost {
        rank,
        reason: format!("was lost while the ranks met: {how}"),
        reported_by: None,
    }
}

/// Rank 0 is at work as soon as it has sent the list. When it closes the connection before this rank has met all
/// others, it has failed or has said who has.
fn check_leader(stream: &TcpStream) -> Result<()> {
    if !ended(stream) {
        return Ok(());
    }
    let mut said = Vec::new();
    // Nothing more comes than what has come; how reading it ends does not matter.
    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    let _ = stream.take(MESSAGE_LIMIT as u64).read_to_end(&mut said);
    let mut rest = said.as_slice();
    while let Some((head, behind)) = rest.split_first_chunk()
        && let Ok(head) = Head::decode(head)
        && let Some((body, behind)) = behind.split_at_checked(head.length as usize)
    {
        if head.kind == Kind::Abort
            && let Some(cause) = decode_failure(0, body)
        {
            return Err(cause);
        }
        rest = behind;
    }
    Err(lost(0, "it ended or was killed"))
}
