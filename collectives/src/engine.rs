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

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::algorithm::{Algorithm, Piece};
use crate::call::Call;
use crate::error::{Error, Result};
use crate::frame::{self, Head, Kind, Reader};
use crate::group::{Group, Stream, count_of};
use crate::handle::Output;
use crate::options::Options;
use crate::transport::{Driver, Transport};
use crate::worker::{Promise, Queue, Submission, lock};

/// How often a rank says that it lives when it has nothing else to say.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a failing or leaving worker tries to tell the others.
const FAREWELL: Duration = Duration::from_secs(1);
/// How far another rank may be ahead in call order; its descriptions are kept until this rank calls too.
const AHEAD_LIMIT: u64 = 1 << 16;

/// An operation under way.
struct Active {
    group: Arc<Group>,
    number: u64,
    priority: i32,
    call: Call,
    algorithm: Box<dyn Algorithm>,
    promise: Promise,
    started: Instant,
    /// Whose description has come, by place in the group; this rank's own entry is set.
    ready: Vec<bool>,
    waiting_for: usize,
    /// Frames with its data that are being sent.
    in_flight: usize,
}

impl Active {
    /// Whether rank `from` takes part and its description has not come.
    fn lacks(&self, from: usize) -> bool {
        self.group.place(from).is_some_and(|place| !self.ready[place])
    }

    /// Rank `other`'s place, if it takes part and its description has come.
    fn partner(&self, other: usize) -> Option<usize> {
        self.group.place(other).filter(|&place| self.ready[place])
    }

    /// The ranks at these places.
    fn ranks(&self, places: impl IntoIterator<Item = usize>) -> Vec<usize> {
        places.into_iter().map(|place| self.group.members[place]).collect()
    }
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

pub(crate) struct Engine {
    rank: usize,
    deadline: Duration,
    silence: Duration,
    queue: Arc<Mutex<Queue>>,
    peers: Vec<Peer>,
    /// In call order.
    active: Vec<Active>,
    /// How many operations of each stream this rank has called.
    called: BTreeMap<Stream, u64>,
    /// Descriptions of operations that this rank has not called yet: by number, (from, description, eager payload).
    early: BTreeMap<u64, Vec<(usize, Call, Vec<u8>)>>,
    failure: Option<Error>,
}

impl Engine {
    pub(crate) fn new(rank: usize, ranks: usize, options: &Options, queue: Arc<Mutex<Queue>>) -> Self {
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
            called: BTreeMap::new(),
            early: BTreeMap::new(),
            failure: None,
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.peers.len()).filter(move |&other| other != rank)
    }

    pub(crate) fn run(mut self, mut transport: Box<dyn Transport>) {
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

    /// Tells the others, as far as they can be reached.
    ///
    /// After a failure links stay open until the others have ended theirs too, or the time is up: closing one with
    /// unread data in it can cut off what was just said, and the other side would blame this rank.
    fn farewell(&mut self, transport: &mut dyn Transport) {
        let stays = self.failure.is_none() && transport.stays_for_goodbyes();
        let end = Instant::now() + if stays { self.deadline } else { FAREWELL };
        let mut shut = false;
        loop {
            let unsaid = self.others().any(|other| {
                let peer = &self.peers[other];
                !peer.gone && (peer.outgoing.is_some() || !peer.control.is_empty() || (stays && !peer.left))
            });
            if !unsaid && self.failure.is_none() {
                transport.end();
                return;
            }
            if !unsaid && !std::mem::replace(&mut shut, true) && !transport.shut() {
                return;
            }
            let over = shut && self.others().all(|other| self.peers[other].gone);
            let left = end.saturating_duration_since(Instant::now());
            if over || left.is_zero() || (stays && self.failure.is_some()) {
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
            group,
            call,
            priority,
            algorithm,
            promise,
        } = submission;
        if let Some(failure) = &self.failure {
            promise.0.complete(Err(failure.clone()));
            return;
        }
        let count = self.called.entry(group.stream).or_default();
        let number = group.stream.number(*count);
        *count += 1;
        let mut body = call.encode();
        body.extend_from_slice(algorithm.eager());
        let others: Vec<usize> = group
            .members
            .iter()
            .copied()
            .filter(|&member| member != self.rank)
            .collect();
        for &to in &others {
            self.post(to, Kind::Ready, number, body.clone());
        }
        let ready = group.members.iter().map(|&member| member == self.rank).collect();
        self.active.push(Active {
            group: group.clone(),
            number,
            priority,
            call,
            algorithm,
            promise,
            started: Instant::now(),
            ready,
            waiting_for: others.len(),
            in_flight: 0,
        });
        if others.is_empty() {
            self.all_ready(number, self.rank);
        }
        let mut early = self.early.remove(&number).unwrap_or_default();
        let (ours, theirs) = early.drain(..).partition(|(from, ..)| group.place(*from).is_some());
        early = theirs;
        if !early.is_empty() {
            self.early.insert(number, early);
        }
        let ours: Vec<(usize, Call, Vec<u8>)> = ours;
        for (from, theirs, eager) in ours {
            if let Err(reason) = self.ready(from, number, theirs, &eager) {
                self.lost(from, reason);
            }
        }
        let gone = others
            .into_iter()
            .find(|&other| (self.peers[other].left || self.peers[other].gone) && !self.has(other, number));
        if let Some(rank) = gone {
            self.fail_left(rank, number);
        }
    }

    fn has(&self, from: usize, number: u64) -> bool {
        self.find(number, from).is_none_or(|active| !active.lacks(from))
    }

    fn fail_left(&mut self, rank: usize, number: u64) {
        let call = self
            .find(number, rank)
            .map(|active| active.call.to_string())
            .unwrap_or_default();
        let reason = format!("left the job before operation {}, {call}", count_of(number));
        self.fail(Error::PeerLost {
            rank,
            reason,
            reported_by: None,
        });
    }

    /// The operation with this number in which rank `with` takes part.
    fn find(&self, number: u64, with: usize) -> Option<&Active> {
        self.active
            .iter()
            .find(|active| active.number == number && active.group.place(with).is_some())
    }

    fn find_mut(&mut self, number: u64, with: usize) -> Option<&mut Active> {
        self.active
            .iter_mut()
            .find(|active| active.number == number && active.group.place(with).is_some())
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
        let count = count_of(number);
        let Some(active) = self.find_mut(number, from) else {
            return Err(format!("described operation {count} again after its end"));
        };
        let Some(place) = active.group.place(from).filter(|&place| !active.ready[place]) else {
            return Err(format!("described operation {count} twice"));
        };
        active.ready[place] = true;
        if !active.call.agrees(&theirs) {
            let mut sides = [(rank, active.call.to_string()), (from, theirs.to_string())];
            sides.sort();
            let [one, other] = sides;
            self.fail(Error::Mismatch {
                number: count,
                one,
                other,
            });
            return Ok(());
        }
        active.algorithm.ready(place, &theirs, eager)?;
        active.waiting_for -= 1;
        if active.waiting_for == 0 {
            self.all_ready(number, from);
        }
        Ok(())
    }

    fn all_ready(&mut self, number: u64, with: usize) {
        if let Some(active) = self.find_mut(number, with)
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
            let unready = (0..active.ready.len()).filter(|&place| !active.ready[place]);
            let mut missing = active.ranks(unready);
            if missing.is_empty() {
                missing = active.ranks(active.algorithm.missing());
            }
            if missing.is_empty() {
                missing = self
                    .others()
                    .filter(|&other| self.peers[other].outgoing.is_some())
                    .collect();
            }
            let call = format!("operation {}, {}", count_of(active.number), active.call);
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
                    .find(|active| active.lacks(from))
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
                let count = count_of(head.number);
                let called = self.called.get(&Stream::of(head.number, from)).copied().unwrap_or(0);
                if count < called {
                    return self.ready(from, head.number, call, eager);
                }
                if count - called > AHEAD_LIMIT {
                    return Err(format!("is {} operations ahead, limit {AHEAD_LIMIT}", count - called));
                }
                let early = self.early.entry(head.number).or_default();
                if early.iter().any(|(rank, ..)| *rank == from) {
                    return Err(format!("described operation {count} twice"));
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
                let fits = active.priority <= below && active.partner(to).is_some();
                if fits && order.is_none_or(|(_, best)| active.priority > best) {
                    order = Some((i, active.priority));
                }
            }
            let (_, priority) = order.take()?;
            for active in self.active.iter_mut().filter(|active| active.priority == priority) {
                if let Some(place) = active.partner(to)
                    && let Some(piece) = active.algorithm.next(place)
                {
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
            Some(Outgoing::Data(number, piece)) => match self
                .find(*number, to)
                .and_then(|active| Some((active, active.partner(to)?)))
            {
                Some((active, place)) => active.algorithm.bytes(place, *piece),
                None => unreachable!("operation {number} ended while its data were being sent"),
            },
            None => &[],
        }
    }

    fn sent(&mut self, to: usize) {
        if let Some(Outgoing::Data(number, _)) = self.peers[to].outgoing.take()
            && let Some(active) = self.find_mut(number, to)
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
            let active = self.find_mut(head.number, from);
            let Some((active, place)) = active.and_then(|active| {
                let place = active.partner(from)?;
                Some((active, place))
            }) else {
                return Err(format!(
                    "sent data for operation {}, which is not under way",
                    count_of(head.number)
                ));
            };
            active.algorithm.place(place, piece)?;
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
                .find(|active| active.number == *number && active.group.place(from).is_some())
                .and_then(|active| {
                    let place = active.partner(from)?;
                    active.algorithm.place(place, *piece).ok()
                })
                .unwrap_or_default(),
            None => &mut [],
        }
    }

    fn arrived(&mut self, from: usize) -> Result<(), String> {
        match self.peers[from].incoming.take() {
            Some(Incoming::Control(head, body)) => self.control(from, head, &body),
            Some(Incoming::Data(number, piece)) => {
                if let Some(active) = self.find_mut(number, from)
                    && let Some(place) = active.partner(from)
                {
                    active.algorithm.arrived(place, piece);
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
