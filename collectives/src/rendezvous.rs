//! How the ranks meet over TCP.
//!
//! Rank 0 listens at the meeting point. Every other rank connects to it, proves that it knows the job's secret, says
//! who it is and where it listens itself; when all have come, rank 0 sends everyone the list. Then each rank connects
//! to those between 0 and itself. The connections stay: they carry the data. Listening ends when all have met.
//!
//! ```text
//! connecting                               accepting
//! greeting: magic, challenge        ->
//!                                   <-     greeting: magic, challenge
//! introduction, proof               ->     checked; a wrong proof closes this connection only
//!                                   <-     verdict, proof of it
//! ```
//!
//! Everything before the proof has a fixed size and five seconds in all, on a thread of its own, so strangers can
//! neither block nor crash the meeting. Who proves the secret but does not fit (another world size, protocol or a rank
//! that has come already) is told why, and ends the meeting on both sides.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::auth::{PROOF, Secret, random};
use crate::communicator::{Communicator, Position};
use crate::error::{Error, Result, ranks};
use crate::frame::{Head, Kind, Reader, Writer, decode_failure};
use crate::launch::{Launch, Meeting};
use crate::options::{Backend, Options};
use crate::transport::mesh::Wire;
use crate::transport::{Wired, mesh, shared};

/// The version of everything that ranks say to each other.
const PROTOCOL: u32 = 2;
const MAGIC: [u8; 8] = *b"azulejo\n";
/// Time for one handshake, all in all.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes under way at once; further connections are closed.
const PENDING: usize = 64;
/// Pause between attempts to reach a rank that does not listen yet.
const RETRY: Duration = Duration::from_millis(50);
/// Longest message of the meeting: the list of a world of about 20,000 ranks.
const MESSAGE_LIMIT: usize = 1 << 20;
/// Longest introduction: all that is read from a stranger before its proof is checked.
const INTRODUCTION_LIMIT: usize = 512;

/// Joins the job that `launch` describes.
pub fn connect(launch: &Launch, options: &Options) -> Result<Communicator> {
    let position = Position {
        rank: launch.rank,
        world_size: launch.world_size,
        local_rank: launch.local_rank,
        local_size: launch.local_size,
    };
    let by_mpi = match options.backend {
        Backend::Automatic => cfg!(feature = "mpi") && launch.by_mpi(),
        Backend::Hybrid | Backend::Tcp => false,
        Backend::Mpi => true,
    };
    if by_mpi {
        let nodes = (0..launch.world_size).map(|rank| rank / launch.local_size.max(1));
        return Communicator::start(position, nodes.collect(), "mpi", over_mpi(launch)?, options);
    }
    let deadline = Instant::now() + options.join_deadline;
    let streams = if launch.world_size == 1 {
        vec![None]
    } else {
        Join::new(launch, options)?.meet()?
    };
    let shares = options.backend != Backend::Tcp;
    let (wires, nodes) = shared::meet::share(streams, launch.rank, shares, options.node.as_deref(), deadline)?;
    let of_memory = |wire: &Wire| matches!(wire, Wire::Shared(_));
    let name = match (
        wires.iter().flatten().all(of_memory),
        wires.iter().flatten().any(of_memory),
    ) {
        (true, true) => "shared memory",
        (false, true) => "shared memory and tcp",
        _ => "tcp",
    };
    Communicator::start(position, nodes, name, mesh::wire(wires, options.silence)?, options)
}

#[cfg(feature = "mpi")]
fn over_mpi(launch: &Launch) -> Result<Wired> {
    Ok(crate::transport::mpi::wire(launch.rank, launch.world_size))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_: &Launch) -> Result<Wired> {
    Err(Error::Mpi {
        reason: "this program was built without the feature \"mpi\"".into(),
    })
}

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Introduction {
    protocol: u32,
    rank: u32,
    world_size: u32,
    /// The rank that it wants to reach.
    target: u32,
    /// Where it listens; rank 0 needs it for the list.
    listens: Option<SocketAddr>,
}

impl Introduction {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let listens = self.listens.map(|address| address.to_string()).unwrap_or_default();
        w.word(self.protocol)
            .word(self.rank)
            .word(self.world_size)
            .word(self.target)
            .text(&listens);
        w.0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        let (protocol, rank, world_size, target) = (r.word()?, r.word()?, r.word()?, r.word()?);
        let listens = r.text()?;
        let listens = if listens.is_empty() {
            None
        } else {
            Some(listens.parse().ok()?)
        };
        Some(Self {
            protocol,
            rank,
            world_size,
            target,
            listens,
        })
    }
}

/// One side's conversation: both challenges, in the order connecting, accepting.
struct Channel {
    stream: TcpStream,
    challenges: [[u8; PROOF]; 2],
}

/// Who came, and where each listens.
type Guests = (BTreeMap<usize, Channel>, Vec<Option<SocketAddr>>);

/// Why a connection did not come about.
enum Failed {
    /// Worth another attempt: not there yet, or broken off.
    Later(String),
    /// Not worth one.
    Never(Error),
}

struct Join<'a> {
    launch: &'a Launch,
    secret: Secret,
    started: Instant,
    deadline: Instant,
}

impl<'a> Join<'a> {
    fn new(launch: &'a Launch, options: &Options) -> Result<Self> {
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

    fn meet(mut self) -> Result<Vec<Option<TcpStream>>> {
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
                write_meeting(path, &local_address(&listener)?, &self.secret)?;
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
                let (address, secret) = read_meeting(path).map_err(Failed::Later)?;
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

/// What a handshake thread needs to know.
struct Reception {
    secret: Secret,
    rank: usize,
    world_size: usize,
    /// Ranks that have not come.
    absent: Mutex<Vec<usize>>,
    /// Connections that did not prove the secret.
    strangers: AtomicUsize,
    pending: AtomicUsize,
}

impl Reception {
    /// The accepting side of the handshake. `None`: a stranger.
    fn receive(&self, stream: TcpStream, address: SocketAddr) -> Result<Option<(Channel, Introduction)>> {
        let end = Instant::now() + HANDSHAKE;
        let Ok(challenge) = random() else { return Ok(None) };
        let mut channel = Channel {
            stream,
            challenges: [[0; PROOF], challenge],
        };
        let mut greeting = [0; MAGIC.len() + PROOF];
        if channel.read(&mut greeting, end).is_err() || greeting[..MAGIC.len()] != MAGIC {
            return Ok(None);
        }
        channel.challenges[0].copy_from_slice(&greeting[MAGIC.len()..]);
        if channel.write(&[&MAGIC[..], &challenge].concat(), end).is_err() {
            return Ok(None);
        }
        let Ok(body) = channel.receive_until(&self.secret, "introduction", INTRODUCTION_LIMIT, end) else {
            let _ = channel.write(&[0], end);
            return Ok(None);
        };
        let Some(introduction) = Introduction::decode(&body) else {
            return Ok(None);
        };
        let verdict = self.judge(&introduction, address);
        let text = verdict.as_ref().err().cloned().unwrap_or_default();
        let message = [
            &[1],
            channel.sealed(&self.secret, "verdict", text.as_bytes()).as_slice(),
        ]
        .concat();
        let told = channel.write(&message, end);
        match (verdict, told) {
            (Ok(()), Ok(())) => Ok(Some((channel, introduction))),
            (Ok(()), Err(_)) => {
                // It went away in the last moment; it may come again.
                self.absent
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(introduction.rank as usize);
                Ok(None)
            }
            (Err(reason), _) => Err(Error::Refused { reason }),
        }
    }

    fn judge(&self, who: &Introduction, address: SocketAddr) -> Result<(), String> {
        let (rank, world) = (self.rank, self.world_size);
        if who.protocol != PROTOCOL {
            return Err(format!(
                "rank {rank} speaks protocol {PROTOCOL}, {address} protocol {}",
                who.protocol
            ));
        }
        if who.world_size as usize != world {
            return Err(format!(
                "rank {rank} has a world of {world}, rank {} at {address} one of {}",
                who.rank, who.world_size
            ));
        }
        if who.target as usize != rank {
            return Err(format!("{address} looks for rank {} and found rank {rank}", who.target));
        }
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        match absent.iter().position(|&absent| absent == who.rank as usize) {
            Some(i) => {
                absent.remove(i);
                Ok(())
            }
            None => Err(format!(
                "rank {rank} expects no other rank {}, but {address} says it is that one",
                who.rank
            )),
        }
    }
}

impl Channel {
    /// Length, body and proof.
    fn sealed(&self, secret: &Secret, label: &str, body: &[u8]) -> Vec<u8> {
        let proof = secret.prove(label, &[&self.challenges[0], &self.challenges[1], body]);
        [&(body.len() as u32).to_le_bytes(), body, &proof].concat()
    }

    fn send(&mut self, secret: &Secret, label: &str, body: &[u8], time: Duration) -> Result<(), String> {
        let message = self.sealed(secret, label, body);
        self.write(&message, Instant::now() + time)
    }

    fn receive(&mut self, secret: &Secret, label: &str, time: Duration) -> Result<Vec<u8>, String> {
        self.receive_until(secret, label, MESSAGE_LIMIT, Instant::now() + time)
    }

    fn receive_until(&mut self, secret: &Secret, label: &str, limit: usize, end: Instant) -> Result<Vec<u8>, String> {
        let mut length = [0; 4];
        self.read(&mut length, end)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > limit {
            return Err(format!("a message of {length} bytes, limit {limit}"));
        }
        let mut body = vec![0; length];
        self.read(&mut body, end)?;
        let mut proof = [0; PROOF];
        self.read(&mut proof, end)?;
        let said: [&[u8]; 3] = [&self.challenges[0], &self.challenges[1], &body];
        if secret.accepts(&proof, label, &said) {
            Ok(body)
        } else {
            Err("a wrong proof".into())
        }
    }

    /// Fills `bytes` before `end`, however slowly they come.
    fn read(&mut self, mut bytes: &mut [u8], end: Instant) -> Result<(), String> {
        while !bytes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("no answer in time".into());
            }
            self.stream.set_read_timeout(Some(left)).map_err(|e| e.to_string())?;
            match self.stream.read(bytes) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(n) => bytes = &mut bytes[n..],
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8], end: Instant) -> Result<(), String> {
        while !bytes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("nothing could be sent in time".into());
            }
            self.stream.set_write_timeout(Some(left)).map_err(|e| e.to_string())?;
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e.to_string()),
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

/// Whether the other side has closed the connection.
fn ended(stream: &TcpStream) -> bool {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && fds[0].revents().intersects(gone)
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

fn wait_readable(listener: &TcpListener, time: Duration) {
    let timeout = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    // However the wait ends, accepting is tried next.
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
}

fn open(addresses: &[SocketAddr], time: Duration) -> Result<TcpStream, String> {
    let mut reason = "its name has no address".to_string();
    for address in addresses {
        match TcpStream::connect_timeout(address, time.max(Duration::from_millis(1))) {
            // A connection to a free port of this machine can meet itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                reason = "nobody listens there yet".into();
            }
            Ok(stream) => return Ok(stream),
            Err(e) => reason = format!("{address}: {e}"),
        }
    }
    Err(reason)
}

/// Listens on the first address that works, and on that alone.
fn listen(addresses: Vec<SocketAddr>) -> Result<TcpListener> {
    let mut failure = None;
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(e) => {
                failure.get_or_insert(Error::address(address, "listen on", e));
            }
        }
    }
    Err(failure.unwrap_or_else(|| {
        Error::address(
            "no address",
            "listen on",
            std::io::Error::from(ErrorKind::AddrNotAvailable),
        )
    }))
}

fn local_address(listener: &TcpListener) -> Result<SocketAddr> {
    listener
        .local_addr()
        .map_err(|e| Error::address("the listener", "read the address of", e))
}

/// The addresses of the meeting point on rank 0's own machine.
fn resolve_here(host: &str, port: u16, several_nodes: bool) -> Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|e| Error::address(format_args!("{host}:{port}"), "resolve", e))?
        .collect();
    // Debian maps a machine's own name to 127.0.1.1, where no other machine can reach it.
    let unreachable = several_nodes && host.parse::<IpAddr>().is_err() && host != "localhost";
    if unreachable && addresses.iter().all(|address| address.ip().is_loopback()) {
        let reason = format!(
            "{host} is {} here, which other nodes cannot reach: give an address of this machine's network",
            addresses
                .first()
                .map(|address| address.ip().to_string())
                .unwrap_or_default()
        );
        return Err(Error::Variable {
            name: "MASTER_ADDR".into(),
            reason,
        });
    }
    Ok(addresses)
}

/// The meeting file: address and secret, readable by its owner alone, there at once or not at all.
fn write_meeting(path: &Path, address: &SocketAddr, secret: &Secret) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let fail = |e| Error::address(path.display(), "write the meeting file", e);
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(fail)?;
        check_owner(folder).map_err(fail)?;
    }
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(fail)?;
    file.write_all(format!("{address} {}\n", secret.expose()).as_bytes())
        .map_err(fail)?;
    fs::rename(&temporary, path).map_err(fail)
}

fn read_meeting(path: &Path) -> Result<(SocketAddr, Secret), String> {
    if let Some(folder) = path.parent() {
        check_owner(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (address, secret) = text.trim().split_once(' ').ok_or("the meeting file is damaged")?;
    let address = address
        .parse()
        .map_err(|e| format!("the meeting file is damaged: {e}"))?;
    Ok((address, Secret::new(secret).map_err(|e| e.to_string())?))
}

/// The folder must be this user's own and closed to others, or somebody could place another file in it.
fn check_owner(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let about = fs::metadata(folder)?;
    let own = about.uid() == rustix::process::geteuid().as_raw();
    if own && about.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(std::io::Error::new(
            ErrorKind::PermissionDenied,
            "the folder is open to other users",
        ))
    }
}
