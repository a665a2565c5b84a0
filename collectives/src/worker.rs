//! The progress thread of a rank: it alone drives the transport, so operations advance while the program computes.
//!
//! Operations are numbered in call order, which must be the same on all ranks. When a rank calls its n-th operation,
//! its worker sends every other rank the description of the call. A rank sends data to another only after it has that
//! rank's description of the same operation and both agree. Three things follow:
//!
//! * a mismatched call is found before any byte of payload moves, and both sides are named;
//! * whoever receives data has a place for them, so nothing needs to be buffered and any number of operations can be
//!   under way at once;
//! * ranks need not agree on an order of execution: each sends what is ready, highest priority first.
//!
//! ```text
//! loop:
//!     take what was submitted: number it, send its description, apply descriptions that came early
//!     let the transport send and receive until something happens (at most until the next timer)
//!     complete operations that are done
//!     timers: heartbeats, ranks that are silent for too long, operations past their deadline
//! ```
//!
//! The first failure wins: every rank that can still be reached is told the same cause, then every operation is
//! completed with it, and the worker ends.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::algorithm::direct::Pool;
use crate::algorithm::{Algorithm, Piece};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::frame::{self, Head, Kind, Reader};
use crate::handle::{Completion, Output};
use crate::transport::{Driver, Transport, Wake, Wired};

/// How often a rank says that it lives when it has nothing else to say.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a failing or leaving worker tries to tell the others.
const FAREWELL: Duration = Duration::from_secs(1);
/// How far another rank may be ahead in call order; its descriptions are kept until this rank calls too.
const AHEAD_LIMIT: u64 = 1 << 16;

/// Runs at the start of the communication thread, for instance to pin it.
pub type StartHook = Arc<dyn Fn() + Send + Sync>;

/// What carries the data between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// MPI where an MPI launcher has started the rank and the feature `mpi` is compiled in, else [`Backend::Hybrid`].
    #[default]
    Automatic,
    /// Shared memory between the ranks of a host, TCP between hosts.
    Hybrid,
    /// TCP, also inside a host.
    Tcp,
    /// The cluster's MPI.
    Mpi,
}

/// How a communicator behaves.
#[derive(Clone)]
pub struct Options {
    /// The longest that an operation may take from its call on this rank to its end. Ranks may be this far apart.
    pub deadline: Duration,
    /// How long a rank may be silent before it counts as frozen or cut off. Live ranks speak every second.
    pub silence: Duration,
    /// How long the ranks may take to meet.
    pub join_deadline: Duration,
    /// Bytes of one piece of data: what can be sent before something more urgent, and the grain of overlap.
    pub segment_bytes: usize,
    /// Runs first on the communication thread.
    pub start_hook: Option<StartHook>,
    /// What carries the data.
    pub backend: Backend,
    /// The node that this rank counts itself to, where that is not the host it runs on: ranks with different names
    /// share no memory. For trials in which one machine stands for several nodes.
    pub node: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(300),
            silence: Duration::from_secs(8),
            join_deadline: Duration::from_secs(120),
            // Large enough that system calls and wake-ups are cheap, small enough to stay in the L2 cache.
            segment_bytes: 128 << 10,
            start_hook: None,
            backend: Backend::Automatic,
            node: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("deadline", &self.deadline)
            .field("silence", &self.silence)
            .field("join_deadline", &self.join_deadline)
            .field("segment_bytes", &self.segment_bytes)
            .field("backend", &self.backend)
            .field("node", &self.node)
            .field("start_hook", &self.start_hook.is_some())
            .finish()
    }
}

/// An operation on its way from a caller to the worker.
struct Submission {
    call: Call,
    priority: i32,
    algorithm: Box<dyn Algorithm>,
    promise: Promise,
}

/// A completion that is kept whatever happens: dropped without a result, it tells of the worker's end.
struct Promise(Arc<Completion>);

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.complete(Err(Error::Worker {
            reason: "it ended before the operation did".into(),
        }));
    }
}

#[derive(Default)]
struct Queue {
    submissions: VecDeque<Submission>,
    failure: Option<Error>,
    /// No more operations will come. `Some(true)`: because the caller panicked.
    closing: Option<bool>,
}

/// The side of the worker that callers hold.
pub(crate) struct Worker {
    queue: Arc<Mutex<Queue>>,
    waker: Arc<dyn Wake>,
    thread: Option<JoinHandle<()>>,
    pub(crate) pool: Pool,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub(crate) fn start(wired: Wired, rank: usize, ranks: usize, options: &Options) -> Result<Self> {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let hook = options.start_hook.clone();
        let engine = Engine::new(rank, ranks, options, queue.clone());
        let shared = queue.clone();
        let Wired { make, waker } = wired;
        let (tell, made) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("collectives {rank}"))
            .spawn(move || {
                let run = AssertUnwindSafe(|| {
                    if let Some(hook) = hook {
                        hook();
                    }
                    // The other end waits for this; it cannot be gone.
                    match make() {
                        Ok(transport) => {
                            let _ = tell.send(Ok(()));
                            engine.run(transport);
                        }
                        Err(error) => drop(tell.send(Err(error))),
                    }
                });
                let ended = catch_unwind(run).map_err(|panic| panic_text(panic.as_ref()));
                let reason = ended.err().unwrap_or_else(|| "the communicator is closed".into());
                let mut queue = lock(&shared);
                queue.failure.get_or_insert(Error::Worker { reason });
                queue.submissions.clear();
            })
            .map_err(|e| Error::process("start the communication thread", e))?;
        made.recv().map_err(|_| Error::Worker {
            reason: "it ended before it had a transport".into(),
        })??;
        Ok(Self {
            queue,
            waker,
            thread: Some(thread),
            pool: Pool::default(),
        })
    }

    /// Hands an operation to the worker. After a failure the completion holds it at once.
    pub(crate) fn submit(&self, call: Call, priority: i32, algorithm: Box<dyn Algorithm>) -> Arc<Completion> {
        let completion = Arc::new(Completion::default());
        let mut queue = lock(&self.queue);
        match &queue.failure {
            Some(failure) => completion.complete(Err(failure.clone())),
            None => {
                let promise = Promise(completion.clone());
                queue.submissions.push_back(Submission {
                    call,
                    priority,
                    algorithm,
                    promise,
                });
                drop(queue);
                self.waker.wake();
            }
        }
        completion
    }

    /// The failure that ended the communicator, if one did.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.queue).failure.clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.queue).closing = Some(std::thread::panicking());
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("no message"))
}

/// An operation under way.
struct Active {
    number: u64,
    priority: i32,
    call: Call,
    algorithm: Box<dyn Algorithm>,
    promise: Promise,
    started: Instant,
    /// Ranks whose description has come; this rank's own entry is set.
    ready: Vec<bool>,
    waiting_for: usize,
    /// Frames with its data that are being sent.
    in_flight: usize,
}

enum Outgoing {
    Control(Vec<u8>),
    Data(u64, Piece),
}

enum Incoming {
    Control(Head, Vec<u8>),
    Data(u64, Piece),
}

struct Peer {
    /// Frames that go before any data.
    control: VecDeque<(Head, Vec<u8>)>,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    heard: Instant,
    spoken: Instant,
    /// It said goodbye.
    left: bool,
    /// Its link is closed.
    gone: bool,
}

impl Peer {
    fn wants_heartbeats(&self) -> bool {
        !self.gone && !self.left && self.outgoing.is_none() && self.control.is_empty()
    }
}

struct Engine {
    rank: usize,
    deadline: Duration,
    silence: Duration,
    queue: Arc<Mutex<Queue>>,
    peers: Vec<Peer>,
    /// In call order.
    active: Vec<Active>,
    /// The number of the next operation that this rank calls.
    next: u64,
    /// Descriptions of operations that this rank has not called yet: by number, (from, description, eager payload).
    early: BTreeMap<u64, Vec<(usize, Call, Vec<u8>)>>,
    failure: Option<Error>,
}

impl Engine {
    fn new(rank: usize, ranks: usize, options: &Options, queue: Arc<Mutex<Queue>>) -> Self {
        let now = Instant::now();
        let peer = |_| Peer {
            control: VecDeque::new(),
            outgoing: None,
            incoming: None,
            heard: now,
            spoken: now,
            left: false,
            gone: false,
        };
        Self {
            rank,
            deadline: options.deadline,
            silence: options.silence,
            queue,
            peers: (0..ranks).map(peer).collect(),
            active: Vec::new(),
            next: 0,
            early: BTreeMap::new(),
            failure: None,
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.peers.len()).filter(move |&other| other != rank)
    }

    fn run(mut self, mut transport: Box<dyn Transport>) {
        let mut last = Instant::now();
        loop {
            let closing = self.take_submissions();
            self.complete();
            if self.failure.is_none() && closing == Some(true) {
                self.fail(Error::PeerLost {
                    rank: self.rank,
                    reason: "panicked".into(),
                    reported_by: None,
                });
            }
            if self.failure.is_some() {
                break;
            }
            if closing.is_some() && self.active.is_empty() {
                for to in self.others() {
                    self.post(to, Kind::Goodbye, 0, Vec::new());
                }
                break;
            }
            let timeout = self.until_next_timer();
            let before = Instant::now();
            transport.progress(&mut self, timeout);
            self.complete();

            // A process that was stopped, or a machine that slept, must not blame the others for its own absence.
            let now = Instant::now();
            let absent = now.saturating_duration_since(last).saturating_sub(timeout + HEARTBEAT);
            if !absent.is_zero() {
                for peer in &mut self.peers {
                    peer.heard += absent.min(now.saturating_duration_since(peer.heard));
                }
            }
            last = before.max(last);
            if self.failure.is_none() {
                self.timers(now);
            }
            last = last.max(now);
        }
        self.farewell(transport.as_mut());
        self.publish();
    }

    /// Tells the others, as far as they can be reached. Links stay open until they have read it or the time is up:
    /// closing with unread data in the socket would cut off what was just said.
    fn farewell(&mut self, transport: &mut dyn Transport) {
        let stays = self.failure.is_none() && transport.stays_for_goodbyes();
        let end = Instant::now() + if stays { self.deadline } else { FAREWELL };
        loop {
            let unsaid = self.others().any(|other| {
                let peer = &self.peers[other];
                !peer.gone && (peer.outgoing.is_some() || !peer.control.is_empty() || (stays && !peer.left))
            });
            let left = end.saturating_duration_since(Instant::now());
            if !unsaid && self.failure.is_none() {
                transport.end();
            }
            if !unsaid || left.is_zero() || (stays && self.failure.is_some()) {
                return;
            }
            transport.progress(self, left.min(HEARTBEAT));
            if self.failure.is_none() {
                self.timers(Instant::now());
            }
        }
    }

    fn take_submissions(&mut self) -> Option<bool> {
        let mut queue = lock(&self.queue);
        let submissions = std::mem::take(&mut queue.submissions);
        let closing = queue.closing;
        drop(queue);
        for submission in submissions {
            self.activate(submission);
        }
        closing
    }

    fn activate(&mut self, submission: Submission) {
        let Submission {
            call,
            priority,
            algorithm,
            promise,
        } = submission;
        if let Some(failure) = &self.failure {
            promise.0.complete(Err(failure.clone()));
            return;
        }
        let number = self.next;
        self.next += 1;
        let mut body = call.encode();
        body.extend_from_slice(algorithm.eager());
        for to in self.others() {
            self.post(to, Kind::Ready, number, body.clone());
        }
        let ranks = self.peers.len();
        let mut ready = vec![false; ranks];
        ready[self.rank] = true;
        self.active.push(Active {
            number,
            priority,
            call,
            algorithm,
            promise,
            started: Instant::now(),
            ready,
            waiting_for: ranks - 1,
            in_flight: 0,
        });
        if ranks == 1 {
            self.all_ready(number);
        }
        for (from, theirs, eager) in self.early.remove(&number).unwrap_or_default() {
            if let Err(reason) = self.ready(from, number, theirs, &eager) {
                self.lost(from, reason);
            }
        }
        let gone = self
            .others()
            .find(|&other| (self.peers[other].left || self.peers[other].gone) && !self.has(other, number));
        if let Some(rank) = gone {
            self.fail_left(rank, number);
        }
    }

    fn has(&self, from: usize, number: u64) -> bool {
        self.find(number).is_none_or(|active| active.ready[from])
    }

    fn fail_left(&mut self, rank: usize, number: u64) {
        let call = self
            .find(number)
            .map(|active| active.call.to_string())
            .unwrap_or_default();
        let reason = format!("left the job before operation {number}, {call}");
        self.fail(Error::PeerLost {
            rank,
            reason,
            reported_by: None,
        });
    }

    fn find(&self, number: u64) -> Option<&Active> {
        self.active.iter().find(|active| active.number == number)
    }

    fn find_mut(&mut self, number: u64) -> Option<&mut Active> {
        self.active.iter_mut().find(|active| active.number == number)
    }

    fn post(&mut self, to: usize, kind: Kind, number: u64, body: Vec<u8>) {
        let peer = &mut self.peers[to];
        if !peer.gone {
            peer.control.push_back((Head::control(kind, number, body.len()), body));
        }
    }

    /// Rank `from` has called operation `number`, which this rank has called too.
    fn ready(&mut self, from: usize, number: u64, theirs: Call, eager: &[u8]) -> Result<(), String> {
        let rank = self.rank;
        let Some(active) = self.find_mut(number) else {
            return Err(format!("described operation {number} again after its end"));
        };
        if std::mem::replace(&mut active.ready[from], true) {
            return Err(format!("described operation {number} twice"));
        }
        if !active.call.agrees(&theirs) {
            let mut sides = [(rank, active.call.to_string()), (from, theirs.to_string())];
            sides.sort();
            let [one, other] = sides;
            self.fail(Error::Mismatch { number, one, other });
            return Ok(());
        }
        active.algorithm.ready(from, &theirs, eager)?;
        active.waiting_for -= 1;
        if active.waiting_for == 0 {
            self.all_ready(number);
        }
        Ok(())
    }

    fn all_ready(&mut self, number: u64) {
        if let Some(active) = self.find_mut(number)
            && let Err(error) = active.algorithm.all_ready()
        {
            self.fail(error);
        }
    }

    /// Completes what is done.
    fn complete(&mut self) {
        if self.failure.is_some() {
            return; // Buffers stay: a frame with their bytes may be half sent.
        }
        let done = |active: &mut Active| active.waiting_for == 0 && active.in_flight == 0 && active.algorithm.done();
        for active in self.active.extract_if(.., done) {
            let output: Output = active.algorithm.finish();
            active.promise.0.complete(Ok(output));
        }
    }

    /// The first failure is the one that everybody sees.
    fn fail(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        let body = frame::encode_failure(&error);
        for to in self.others() {
            // What was queued has lost its meaning; a frame that is half sent is finished first.
            self.peers[to].control.clear();
            self.post(to, Kind::Abort, 0, body.clone());
        }
        self.failure = Some(error);
    }

    /// Lets the callers see the failure. Only now, after the farewell: a caller that ends its process at once must not
    /// cut off what the others are being told, or they would blame this rank.
    fn publish(&mut self) {
        let Some(failure) = &self.failure else { return };
        let mut queue = lock(&self.queue);
        queue.failure = Some(failure.clone());
        let waiting = queue.submissions.drain(..).map(|submission| submission.promise);
        for promise in waiting {
            promise.0.complete(Err(failure.clone()));
        }
        for active in &self.active {
            active.promise.0.complete(Err(failure.clone()));
        }
    }

    fn until_next_timer(&self) -> Duration {
        let now = Instant::now();
        let deadline = self.active.iter().map(|active| active.started + self.deadline).min();
        // A peer that is being written to needs no heartbeat, and one that has left wants none.
        let beats = self
            .others()
            .map(|other| &self.peers[other])
            .filter(|peer| peer.wants_heartbeats());
        let beat = beats.map(|peer| peer.spoken + HEARTBEAT);
        let next = beat.chain(deadline).min();
        next.map_or(HEARTBEAT, |next| next.saturating_duration_since(now))
            .min(HEARTBEAT)
    }

    fn timers(&mut self, now: Instant) {
        for other in self.others() {
            let peer = &self.peers[other];
            if peer.gone || peer.left {
                continue;
            }
            let silent = now.saturating_duration_since(peer.heard);
            if silent > self.silence {
                let reason = format!("has been silent for {:.1} s: frozen or cut off", silent.as_secs_f64());
                self.fail(Error::PeerLost {
                    rank: other,
                    reason,
                    reported_by: None,
                });
                return;
            }
            if peer.wants_heartbeats() && now.saturating_duration_since(peer.spoken) >= HEARTBEAT {
                self.post(other, Kind::Heartbeat, 0, Vec::new());
            }
        }
        let late = self
            .active
            .iter()
            .find(|active| now.saturating_duration_since(active.started) > self.deadline);
        if let Some(active) = late {
            let mut missing: Vec<usize> = self.others().filter(|&other| !active.ready[other]).collect();
            if missing.is_empty() {
                missing = active.algorithm.missing();
            }
            if missing.is_empty() {
                missing = self
                    .others()
                    .filter(|&other| self.peers[other].outgoing.is_some())
                    .collect();
            }
            let call = format!("operation {}, {}", active.number, active.call);
            self.fail(Error::Deadline {
                missing,
                call,
                waited: now - active.started,
                reported_by: None,
            });
        }
    }

    fn control(&mut self, from: usize, head: Head, body: &[u8]) -> Result<(), String> {
        match head.kind {
            Kind::Heartbeat | Kind::Data => Ok(()),
            Kind::Goodbye => {
                self.peers[from].left = true;
                let waits = self
                    .active
                    .iter()
                    .find(|active| !active.ready[from])
                    .map(|active| active.number);
                if let Some(number) = waits {
                    self.fail_left(from, number);
                }
                Ok(())
            }
            Kind::Abort => {
                let failure = frame::decode_failure(from, body).ok_or("sent an abort without a cause")?;
                self.fail(failure);
                Ok(())
            }
            Kind::Ready if self.failure.is_some() => Ok(()),
            Kind::Ready => {
                let mut reader = Reader(body);
                let call = Call::decode(&mut reader).ok_or("sent a description that is none")?;
                let eager = reader.0;
                if head.number < self.next {
                    return self.ready(from, head.number, call, eager);
                }
                if head.number - self.next > AHEAD_LIMIT {
                    return Err(format!(
                        "is {} operations ahead, limit {AHEAD_LIMIT}",
                        head.number - self.next
                    ));
                }
                let early = self.early.entry(head.number).or_default();
                if early.iter().any(|(rank, ..)| *rank == from) {
                    return Err(format!("described operation {} twice", head.number));
                }
                early.push((from, call, eager.to_vec()));
                Ok(())
            }
        }
    }
}

impl Driver for Engine {
    fn begin(&mut self, to: usize) -> Option<Head> {
        let now = Instant::now();
        let peer = &mut self.peers[to];
        debug_assert!(peer.outgoing.is_none(), "rank {to} has a frame under way already");
        if peer.gone {
            return None;
        }
        if let Some((head, body)) = peer.control.pop_front() {
            peer.outgoing = Some(Outgoing::Control(body));
            peer.spoken = now;
            return Some(head);
        }
        if self.failure.is_some() {
            return None;
        }
        // Highest priority first; among equals the earliest call.
        let mut order: Option<(usize, i32)> = None;
        let mut below = i32::MAX;
        loop {
            for (i, active) in self.active.iter().enumerate() {
                let fits = active.ready[to] && active.priority <= below;
                if fits && order.is_none_or(|(_, best)| active.priority > best) {
                    order = Some((i, active.priority));
                }
            }
            let (_, priority) = order.take()?;
            for active in self
                .active
                .iter_mut()
                .filter(|active| active.ready[to] && active.priority == priority)
            {
                if let Some(piece) = active.algorithm.next(to) {
                    active.in_flight += 1;
                    let head = Head {
                        kind: Kind::Data,
                        number: active.number,
                        slot: piece.slot,
                        offset: piece.offset as u64,
                        length: piece.length as u32,
                    };
                    self.peers[to].outgoing = Some(Outgoing::Data(active.number, piece));
                    self.peers[to].spoken = now;
                    return Some(head);
                }
            }
            below = priority.checked_sub(1)?;
        }
    }

    fn body(&self, to: usize) -> &[u8] {
        match &self.peers[to].outgoing {
            Some(Outgoing::Control(body)) => body,
            Some(Outgoing::Data(number, piece)) => match self.find(*number) {
                Some(active) => active.algorithm.bytes(to, *piece),
                None => unreachable!("operation {number} ended while its data were being sent"),
            },
            None => &[],
        }
    }

    fn sent(&mut self, to: usize) {
        if let Some(Outgoing::Data(number, _)) = self.peers[to].outgoing.take()
            && let Some(active) = self.find_mut(number)
        {
            active.in_flight -= 1;
        }
        self.peers[to].spoken = Instant::now();
    }

    fn accept(&mut self, from: usize, head: Head) -> Result<(), String> {
        if self.peers[from].gone {
            return Err("sent something after its end".into());
        }
        let incoming = if head.kind == Kind::Data {
            let offset = usize::try_from(head.offset).map_err(|_| "sent data at an impossible place".to_string())?;
            let piece = Piece {
                slot: head.slot,
                offset,
                length: head.length as usize,
            };
            let active = self.find_mut(head.number).filter(|active| active.ready[from]);
            let Some(active) = active else {
                return Err(format!(
                    "sent data for operation {}, which is not under way",
                    head.number
                ));
            };
            active.algorithm.place(from, piece)?;
            Incoming::Data(head.number, piece)
        } else {
            Incoming::Control(head, vec![0; head.length as usize])
        };
        self.peers[from].incoming = Some(incoming);
        Ok(())
    }

    fn place(&mut self, from: usize) -> &mut [u8] {
        let Self { peers, active, .. } = self;
        match &mut peers[from].incoming {
            Some(Incoming::Control(_, body)) => body,
            Some(Incoming::Data(number, piece)) => active
                .iter_mut()
                .find(|active| active.number == *number)
                .and_then(|active| active.algorithm.place(from, *piece).ok())
                .unwrap_or_default(),
            None => &mut [],
        }
    }

    fn arrived(&mut self, from: usize) -> Result<(), String> {
        match self.peers[from].incoming.take() {
            Some(Incoming::Control(head, body)) => self.control(from, head, &body),
            Some(Incoming::Data(number, piece)) => {
                if let Some(active) = self.find_mut(number) {
                    active.algorithm.arrived(from, piece);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn expects(&self) -> bool {
        !self.active.is_empty()
    }

    fn heard(&mut self, from: usize) {
        self.peers[from].heard = Instant::now();
    }

    fn lost(&mut self, from: usize, reason: String) {
        let peer = &mut self.peers[from];
        if std::mem::replace(&mut peer.gone, true) {
            return;
        }
        peer.control.clear();
        if !peer.left {
            self.fail(Error::PeerLost {
                rank: from,
                reason,
                reported_by: None,
            });
        }
    }
}
