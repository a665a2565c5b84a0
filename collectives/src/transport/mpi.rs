#![expect(unsafe_code, reason = "MPI writes into buffers while this code runs on; see `Lent`")]

//! The cluster's MPI as a transport: the one file that names the `mpi` crate.
//!
//! MPI moves bytes and nothing else. The operations, their order of addition and their checks are this crate's own, so
//! a mismatched call is found before MPI hears of it, and results have the bits that the other transports give. Each
//! frame is one message of bytes; the receiver learns its length from a matched probe before it makes room, so no
//! count can disagree.
//!
//! MPI makes no progress while a program computes, so the worker's thread polls. It alone initialises, calls and
//! finalises MPI, which therefore needs no more than the level "funneled".
//!
//! What this fence cannot prevent: MPI's own launcher may end all processes when one dies, before they have said whom
//! they miss; and finalising waits for all ranks without a deadline. After a failure MPI is not called again: requests
//! under way are forgotten with their buffers, and the process has to end without finalising.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::datatype::Equivalence as _;
use mpi::environment::Universe;
use mpi::request::{Request, StaticScope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination as _, Source as _};

use super::{Driver, Transport, Wake, Wired};
use crate::error::{Error, Result};
use crate::frame::{DATA_LIMIT, HEAD, Head};

/// The longest message: a head and the longest body. Far below the 2 GiB that MPI's counts can say.
const MESSAGE_LIMIT: usize = HEAD + DATA_LIMIT;
/// The pause between two looks: shorter when something happened lately.
const SHORT_PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_millis(1);
/// How long "lately" is.
const LATELY: Duration = Duration::from_millis(20);

/// A buffer that MPI uses while a request is under way.
struct Lent {
    // Invariant 1: the bytes are neither touched, moved nor freed while `request` is under way. They are on the heap,
    // so moving `Lent` does not move them.
    bytes: ManuallyDrop<Vec<u8>>,
    request: Option<Request<'static, [u8], StaticScope>>,
}

impl Lent {
    fn new(mut bytes: Vec<u8>, start: impl FnOnce(&'static mut [u8]) -> Request<'static, [u8], StaticScope>) -> Self {
        // SAFETY: the slice lives as long as the request: invariant 1, kept by `finish` and `drop`.
        let lent = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) };
        let request = Some(start(lent));
        Self {
            bytes: ManuallyDrop::new(bytes),
            request,
        }
    }

    /// Whether MPI is done with the buffer.
    fn is_done(&mut self) -> bool {
        if let Some(request) = self.request.take()
            && let Err(request) = request.test()
        {
            self.request = Some(request);
        }
        self.request.is_none()
    }

    /// The buffer, after [`Lent::is_done`].
    fn finish(mut self) -> Vec<u8> {
        assert!(self.request.is_none(), "the request is still under way");
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        match self.request.take() {
            // The bytes stay where they are for as long as the process lives: invariant 1.
            Some(request) => std::mem::forget(request),
            // SAFETY: no request is under way, and `drop` runs once.
            None => unsafe { ManuallyDrop::drop(&mut self.bytes) },
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

struct Mpi {
    /// `None` only while it is being finalised.
    universe: ManuallyDrop<Universe>,
    comm: ManuallyDrop<SimpleCommunicator>,
    rank: usize,
    outgoing: Vec<Option<Lent>>,
    /// Messages on their way in, in the order of each sender.
    incoming: Vec<VecDeque<Lent>>,
    spare: Vec<Vec<u8>>,
    woken: Arc<Flag>,
    busy: Instant,
}

/// The transport for a rank that an MPI launcher has started; MPI must agree on rank and world.
pub(crate) fn wire(rank: usize, ranks: usize) -> Wired {
    let woken = Arc::new(Flag(AtomicBool::new(false)));
    let waker = woken.clone();
    Wired::new(
        move || Mpi::start(rank, ranks, woken).map(|mpi| Box::new(mpi) as Box<dyn Transport>),
        waker,
    )
}

impl Mpi {
    fn start(rank: usize, ranks: usize, woken: Arc<Flag>) -> Result<Self> {
        let fail = |reason: String| Error::Mpi { reason };
        let (universe, level) = mpi::initialize_with_threading(Threading::Funneled)
            .ok_or_else(|| fail("it has been initialised before in this process".into()))?;
        let world = universe.world();
        let (own_rank, own_size) = (world.rank() as usize, world.size() as usize);
        if (own_rank, own_size) != (rank, ranks) {
            return Err(fail(format!(
                "the launcher says rank {rank} of {ranks}, the library ({}) rank {own_rank} of {own_size}: was this \
                 program started by another MPI's mpirun?",
                library()
            )));
        }
        if level < Threading::Funneled {
            return Err(fail(format!(
                "{} grants {level:?}, expected at least Funneled",
                library()
            )));
        }
        Ok(Self {
            comm: ManuallyDrop::new(world.duplicate()),
            universe: ManuallyDrop::new(universe),
            rank,
            outgoing: (0..ranks).map(|_| None).collect(),
            incoming: (0..ranks).map(|_| VecDeque::new()).collect(),
            spare: Vec::new(),
            woken,
            busy: Instant::now(),
        })
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes
    }

    /// Sends what can be sent; whether anything moved.
    fn send(&mut self, driver: &mut dyn Driver) -> bool {
        let mut moved = false;
        for to in 0..self.outgoing.len() {
            while to != self.rank {
                if let Some(lent) = &mut self.outgoing[to] {
                    if !lent.is_done() {
                        break;
                    }
                    self.spare.extend(self.outgoing[to].take().map(Lent::finish));
                    driver.sent(to);
                }
                let Some(head) = driver.begin(to) else { break };
                let mut bytes = self.buffer();
                bytes.extend(head.encode());
                bytes.extend_from_slice(driver.body(to));
                let peer = self.comm.process_at_rank(to as i32);
                self.outgoing[to] = Some(Lent::new(bytes, |bytes| peer.immediate_send(StaticScope, &*bytes)));
                moved = true;
            }
        }
        moved
    }

    /// Receives what has come; whether anything moved.
    fn receive(&mut self, driver: &mut dyn Driver) -> bool {
        let mut moved = false;
        while let Some((message, status)) = self.comm.any_process().immediate_matched_probe() {
            let from = status.source_rank() as usize;
            let length = status.count(u8::equivalent_datatype()) as usize;
            // A matched message must be received even when it is no frame, or MPI keeps it for ever.
            let mut bytes = self.buffer();
            bytes.resize(length, 0);
            let lent = Lent::new(bytes, |bytes| {
                message.immediate_matched_receive_into(StaticScope, bytes)
            });
            self.incoming[from].push_back(lent);
            moved = true;
        }
        for from in 0..self.incoming.len() {
            while self.incoming[from].front_mut().is_some_and(Lent::is_done) {
                let Some(bytes) = self.incoming[from].pop_front().map(Lent::finish) else {
                    break;
                };
                driver.heard(from);
                if let Err(reason) = deliver(driver, from, &bytes) {
                    driver.lost(from, reason);
                }
                self.spare.push(bytes);
                moved = true;
            }
        }
        moved
    }
}

fn library() -> String {
    mpi::environment::library_version()
        .unwrap_or_default()
        .lines()
        .next()
        .unwrap_or("unknown")
        .trim()
        .to_string()
}

fn deliver(driver: &mut dyn Driver, from: usize, bytes: &[u8]) -> Result<(), String> {
    let (head, body) = bytes
        .split_first_chunk::<HEAD>()
        .ok_or("sent a message without a head")?;
    let head = Head::decode(head)?;
    if bytes.len() > MESSAGE_LIMIT || head.length as usize != body.len() {
        return Err(format!("announced {} bytes and sent {}", head.length, body.len()));
    }
    driver.accept(from, head)?;
    driver.place(from).copy_from_slice(body);
    driver.arrived(from)
}

impl Transport for Mpi {
    fn progress(&mut self, driver: &mut dyn Driver, timeout: Duration) {
        let end = Instant::now() + timeout;
        loop {
            // Both, always: what is received makes room for what is sent.
            let moved = self.receive(driver) | self.send(driver);
            let now = Instant::now();
            if moved {
                self.busy = now;
            }
            if moved || self.woken.0.swap(false, Ordering::Acquire) || now >= end {
                return;
            }
            let pause = if now - self.busy < LATELY {
                SHORT_PAUSE
            } else {
                LONG_PAUSE
            };
            std::thread::sleep(pause.min(end - now));
        }
    }

    fn stays_for_goodbyes(&self) -> bool {
        true
    }

    fn end(&mut self) {
        // SAFETY: the worker calls this once, as the last thing; `comm` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.comm) };
        // SAFETY: as above; dropping the universe finalises MPI.
        unsafe { ManuallyDrop::drop(&mut self.universe) };
    }
}
