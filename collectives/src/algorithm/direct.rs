//! Reductions by direct exchange, added in tree order: the exact default.
//!
//! The buffer is cut into one chunk per rank. Each rank sends the owner of a chunk its piece of it (reduce-scatter);
//! the owner adds the pieces in the order of the fixed tree and sends the sum to everyone (all-gather). With `P` ranks
//! and `S` bytes: 2 steps; each rank sends and receives `2 S (P-1)/P`, the bytes of a ring. The order of addition
//! depends on the micro-batch indices alone, and every rank receives the same bytes, so results are equal bit for bit
//! over ranks, runs, transports and world sizes.
//!
//! A rank whose micro-batches form several aligned subtrees sends each of them; `k` subtrees cost `k` times the bytes
//! of the first half.
//!
//! Both halves run at once: as soon as the first elements of a chunk have come from everyone, they are added and sent.
//! Sums are written over the rank's own first part. That is safe, because the sum of an element exists only after its
//! owner has received this rank's piece with that element in it.
//!
//! The piece of the last rank that a range waits for is added at once, from a small buffer that stays in the cache;
//! only pieces that come early are put aside.
//!
//! A reduction to one rank sends the sums to that rank alone, and a reduce-scatter, in which the chunks are the ranks'
//! blocks, to nobody: `S (P-1)/P` bytes fewer.
//!
//! Payloads of at most [`EAGER_LIMIT`] bytes of a plain all-reduce travel whole with the descriptions, and each rank
//! adds them itself: 1 step, `S (P-1)` bytes sent.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Algorithm, EAGER_LIMIT, Piece};
use crate::call::{Call, Operation};
use crate::chunks;
use crate::element::Element;
use crate::error::Result;
use crate::handle::Output;
use crate::op::ReduceOp;
use crate::tree_order::{self, Step, TreeNode};

/// Elements that are carried through the whole tree at a time: a few such blocks fit into the L1 cache.
const BLOCK: usize = 1024;
/// The slot of sums; lower ones are the sender's parts.
const SUM: u32 = u32::MAX;

/// Staging buffers that are used again by later operations, so that steady use allocates nothing.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Vec<Vec<u64>>>>);

/// Buffers kept: two large operations' worth for a world of 64.
const POOL_LIMIT: usize = 128;

impl Pool {
    /// A buffer of at least `bytes` bytes.
    fn take(&self, bytes: usize) -> Vec<u64> {
        let words = bytes.div_ceil(size_of::<u64>());
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = (0..spare.len())
            .filter(|&i| spare[i].len() >= words)
            .min_by_key(|&i| spare[i].len());
        match fits {
            Some(i) => spare.swap_remove(i),
            None => {
                if spare.len() == POOL_LIMIT {
                    spare.pop(); // The buffers kept are too small; one of them makes room.
                }
                vec![0; words]
            }
        }
    }

    fn give(&self, buffer: Vec<u64>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < POOL_LIMIT && !buffer.is_empty() {
            spare.push(buffer);
        }
    }
}

/// What is known of another rank.
struct Peer {
    parts: Vec<TreeNode>,
    /// Its pieces of this rank's chunk (or, in a small reduction, its whole payload), part after part.
    staged: Vec<u64>,
    /// Elements of each part that have arrived.
    got: Vec<usize>,
    /// The piece that is arriving, and whether it goes to [`Direct::landing`].
    incoming: Option<(Piece, bool)>,
    /// Elements of the sum of its chunk that have arrived.
    got_sum: usize,
    /// Pieces of parts handed out for sending: segment by segment, and in each segment part after part.
    sent_pieces: usize,
    /// Elements of the sum of this rank's chunk handed out for sending.
    sent_sum: usize,
}

/// Who gets the sums.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    Everyone,
    One(usize),
    /// Each rank its own block.
    Owners,
}

pub(crate) struct Direct<T: Element> {
    rank: usize,
    goal: Goal,
    op: ReduceOp,
    total: u64,
    count: usize,
    /// Elements of one piece.
    segment: usize,
    /// Payloads travel with the descriptions.
    small: bool,
    nodes: Vec<TreeNode>,
    /// This rank's parts; empty only where it has no micro-batch.
    parts: Vec<Vec<T>>,
    /// The result where this rank has no part of its own to write it over.
    result: Vec<T>,
    peers: Vec<Peer>,
    /// The order of addition and, for each part in it, the rank it comes from and its number there.
    steps: Vec<Step>,
    sources: Vec<(usize, usize)>,
    /// Elements of this rank's chunk that are added up.
    summed: usize,
    /// The piece that everything else waits for, of one rank at a time: while it is missing, no other rank's next
    /// piece can be the last of its range.
    landing: Vec<u64>,
    /// The rank whose piece lies there, complete.
    landed: Option<usize>,
    pool: Pool,
}

impl<T: Element> Direct<T> {
    /// `parts` are this rank's aligned subtrees, all `count` long; `result` is used where there are none.
    pub(crate) fn new(
        call: &Call,
        parts: Vec<Vec<T>>,
        result: Vec<T>,
        (rank, ranks): (usize, usize),
        segment_bytes: usize,
        pool: Pool,
    ) -> Self {
        let (op, total, goal) = match call.operation {
            Operation::AllReduce { op } => (op, ranks as u64, Goal::Everyone),
            Operation::Reduce { op, root } => (op, ranks as u64, Goal::One(root)),
            Operation::ReduceScatter { op } => (op, ranks as u64, Goal::Owners),
            Operation::TreeSum { total } => (ReduceOp::Sum, total, Goal::Everyone),
            other => unreachable!("{other:?} is no reduction"),
        };
        let count = call.count as usize;
        let small = !matches!(call.operation, Operation::TreeSum { .. }) && count * size_of::<T>() <= EAGER_LIMIT;
        let peer = |_| Peer {
            parts: Vec::new(),
            staged: Vec::new(),
            got: Vec::new(),
            incoming: None,
            got_sum: 0,
            sent_pieces: 0,
            sent_sum: 0,
        };
        Self {
            rank,
            goal,
            op,
            total,
            count,
            segment: (segment_bytes / size_of::<T>()).max(1),
            small,
            nodes: call.parts.clone(),
            parts,
            result,
            peers: (0..ranks).map(peer).collect(),
            steps: Vec::new(),
            sources: Vec::new(),
            summed: 0,
            landing: Vec::new(),
            landed: None,
            pool,
        }
    }

    /// The elements that this rank adds up.
    fn chunk(&self) -> Range<usize> {
        if self.small {
            0..self.count
        } else {
            self.chunk_of(self.rank)
        }
    }

    fn chunk_of(&self, rank: usize) -> Range<usize> {
        let ranks = self.peers.len();
        match self.goal {
            Goal::Owners => {
                let block = self.count / ranks;
                rank * block..(rank + 1) * block
            }
            _ => chunks::owned(self.count, rank, ranks),
        }
    }

    /// Whether `rank` gets the sums of the other ranks' chunks.
    fn gets_sums(&self, rank: usize) -> bool {
        match self.goal {
            Goal::Everyone => true,
            Goal::One(root) => rank == root,
            Goal::Owners => false,
        }
    }

    /// The elements that this rank expects of the sums of `rank`'s chunk.
    fn expected_sum(&self, rank: usize) -> usize {
        if self.gets_sums(self.rank) {
            self.chunk_of(rank).len()
        } else {
            0
        }
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.peers.iter().enumerate().filter(|(rank, _)| *rank != self.rank)
    }

    fn target(&mut self) -> &mut Vec<T> {
        self.parts.first_mut().unwrap_or(&mut self.result)
    }

    /// Whether `piece` of `from` is all that the sums of its range wait for.
    fn is_last(&self, from: usize, piece: Piece) -> bool {
        let start = piece.offset / size_of::<T>();
        let end = start + piece.length / size_of::<T>();
        let others_have = |(rank, peer): (usize, &Peer)| rank == from || peer.got.iter().all(|&got| got >= end);
        !self.steps.is_empty()
            && start == self.summed
            && piece.length <= self.segment * size_of::<T>()
            && self.peers[from].got.len() == 1
            && self.others().all(others_have)
    }

    /// Adds whatever has come from everyone.
    fn advance(&mut self) {
        if self.steps.is_empty() {
            return; // Not everyone has called yet.
        }
        let length = self.chunk().len();
        let complete = self
            .others()
            .flat_map(|(_, peer)| &peer.got)
            .fold(length, |least, &got| least.min(got));
        if complete <= self.summed {
            return;
        }
        let ranks = self.peers.len();
        match self.op {
            ReduceOp::Sum => self.add(complete, |a, b| T::join(ReduceOp::Sum, a, b), |sum| sum),
            ReduceOp::Min => self.add(complete, |a, b| T::join(ReduceOp::Min, a, b), |least| least),
            ReduceOp::Max => self.add(complete, |a, b| T::join(ReduceOp::Max, a, b), |most| most),
            ReduceOp::Average => self.add(
                complete,
                |a, b| T::join(ReduceOp::Sum, a, b),
                |sum| T::divide(sum, ranks),
            ),
        }
        self.summed = complete;
    }

    fn add(
        &mut self,
        complete: usize,
        join: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy,
        last: impl Fn(T::Wide) -> T::Wide,
    ) {
        let chunk = self.chunk();
        let depth = depth(&self.steps);
        let mut stack = vec![[T::Wide::default(); BLOCK]; depth];
        let mut start = self.summed;
        while start < complete {
            let n = BLOCK.min(complete - start);
            let mut top = 0;
            for step in &self.steps {
                match *step {
                    Step::Push(part) => {
                        for (to, from) in stack[top][..n].iter_mut().zip(self.source(part, start, n)) {
                            *to = from.widen();
                        }
                        top += 1;
                    }
                    Step::AddPart(part) => {
                        for (to, from) in stack[top - 1][..n].iter_mut().zip(self.source(part, start, n)) {
                            *to = join(*to, from.widen());
                        }
                    }
                    Step::Add => {
                        top -= 1;
                        let (below, above) = stack.split_at_mut(top);
                        for (to, from) in below[top - 1][..n].iter_mut().zip(&above[0][..n]) {
                            *to = join(*to, *from);
                        }
                    }
                }
            }
            let at = chunk.start + start;
            for (to, from) in self.target()[at..at + n].iter_mut().zip(&stack[0][..n]) {
                *to = T::narrow(last(*from));
            }
            start += n;
        }
    }

    /// `n` elements of a part, counted from the start of this rank's chunk.
    fn source(&self, part: usize, start: usize, n: usize) -> &[T] {
        let (rank, part) = self.sources[part];
        let chunk = self.chunk();
        if rank == self.rank {
            &self.parts[part][chunk.start + start..][..n]
        } else if self.landed == Some(rank) {
            // What lies there begins where the sums end.
            &bytemuck::cast_slice(&self.landing)[start - self.summed..][..n]
        } else {
            &bytemuck::cast_slice(&self.peers[rank].staged)[part * chunk.len() + start..][..n]
        }
    }
}

/// The most blocks that lie on the stack at once.
fn depth(steps: &[Step]) -> usize {
    let (mut top, mut most) = (0, 0);
    for step in steps {
        match step {
            Step::Push(_) => top += 1,
            Step::Add => top -= 1,
            Step::AddPart(_) => {}
        }
        most = most.max(top);
    }
    most
}

impl<T: Element> Algorithm for Direct<T> {
    fn eager(&self) -> &[u8] {
        if self.small {
            bytemuck::cast_slice(&self.parts[0])
        } else {
            &[]
        }
    }

    fn ready(&mut self, from: usize, call: &Call, eager: &[u8]) -> Result<(), String> {
        let length = self.chunk().len();
        let expected = if self.small { length * size_of::<T>() } else { 0 };
        if eager.len() != expected || (self.small && call.parts.len() != 1) {
            return Err(format!(
                "sent {} bytes with its description, expected {expected}",
                eager.len()
            ));
        }
        let mut staged = self.pool.take(call.parts.len() * length * size_of::<T>());
        bytemuck::cast_slice_mut(&mut staged)[..eager.len()].copy_from_slice(eager);
        let peer = &mut self.peers[from];
        peer.staged = staged;
        peer.got = vec![if self.small { length } else { 0 }; call.parts.len()];
        peer.parts.clone_from(&call.parts);
        Ok(())
    }

    fn all_ready(&mut self) -> Result<()> {
        let mut nodes = Vec::new();
        for (rank, peer) in self.peers.iter().enumerate() {
            let parts = if rank == self.rank { &self.nodes } else { &peer.parts };
            nodes.extend(parts);
            self.sources.extend((0..parts.len()).map(|part| (rank, part)));
        }
        self.steps = tree_order::plan(&nodes, self.total)?;
        self.advance();
        Ok(())
    }

    fn next(&mut self, to: usize) -> Option<Piece> {
        if self.small {
            return None;
        }
        let size = size_of::<T>();
        let theirs = self.chunk_of(to).len();
        let sums = if self.gets_sums(to) { self.summed } else { 0 };
        let peer = &mut self.peers[to];
        let piece = |slot, start, end| Piece {
            slot,
            offset: start * size,
            length: (end - start) * size,
        };
        // Sums first: the newest are still in the cache.
        if peer.sent_sum < sums {
            let start = peer.sent_sum;
            peer.sent_sum = sums.min(start + self.segment);
            return Some(piece(SUM, start, peer.sent_sum));
        }
        if !self.parts.is_empty() {
            let (segment, part) = (peer.sent_pieces / self.parts.len(), peer.sent_pieces % self.parts.len());
            let start = segment * self.segment;
            if start < theirs {
                peer.sent_pieces += 1;
                return Some(piece(part as u32, start, theirs.min(start + self.segment)));
            }
        }
        None
    }

    fn bytes(&self, to: usize, piece: Piece) -> &[u8] {
        let (buffer, chunk) = match piece.slot {
            SUM => (self.parts.first().unwrap_or(&self.result), self.chunk_of(self.rank)),
            part => (&self.parts[part as usize], self.chunk_of(to)),
        };
        &bytemuck::cast_slice(&buffer[chunk])[piece.offset..][..piece.length]
    }

    fn place(&mut self, from: usize, piece: Piece) -> Result<&mut [u8], String> {
        let size = size_of::<T>();
        let chunk = self.chunk();
        let (got, expected) = match piece.slot {
            SUM => (self.peers[from].got_sum, self.expected_sum(from)),
            part => match self.peers[from].got.get(part as usize) {
                Some(got) => (*got, chunk.len()),
                None => return Err(format!("sent part {part}, which it had not announced")),
            },
        };
        if let Some((known, lands)) = self.peers[from].incoming
            && known == piece
            && lands
        {
            return Ok(&mut bytemuck::cast_slice_mut(&mut self.landing)[..piece.length]);
        }
        let room = expected.saturating_sub(got) * size;
        if self.small || piece.offset != got * size || piece.length > room || !piece.length.is_multiple_of(size) {
            return Err(format!(
                "sent {} bytes at {} of a chunk, expected at most {room} at {}",
                piece.length,
                piece.offset,
                got * size
            ));
        }
        if self.peers[from].incoming.is_none_or(|(known, _)| known != piece) {
            let lands = piece.slot != SUM && self.is_last(from, piece);
            self.peers[from].incoming = Some((piece, lands));
            if lands {
                if self.landing.is_empty() {
                    self.landing = self.pool.take(self.segment * size);
                }
                return Ok(&mut bytemuck::cast_slice_mut(&mut self.landing)[..piece.length]);
            }
        }
        let bytes: &mut [u8] = if piece.slot == SUM {
            let chunk = self.chunk_of(from);
            bytemuck::cast_slice_mut(&mut self.target()[chunk])
        } else {
            let start = piece.slot as usize * chunk.len() * size;
            &mut bytemuck::cast_slice_mut(&mut self.peers[from].staged)[start..]
        };
        Ok(&mut bytes[piece.offset..][..piece.length])
    }

    fn arrived(&mut self, from: usize, piece: Piece) {
        let elements = piece.length / size_of::<T>();
        let peer = &mut self.peers[from];
        let lands = peer.incoming.take().is_some_and(|(_, lands)| lands);
        if piece.slot == SUM {
            peer.got_sum += elements;
        } else {
            peer.got[piece.slot as usize] += elements;
            self.landed = lands.then_some(from);
            self.advance();
            self.landed = None;
        }
    }

    fn done(&self) -> bool {
        let length = self.chunk().len();
        let sent = |rank: usize, peer: &Peer| {
            let pieces = self.chunk_of(rank).len().div_ceil(self.segment) * self.parts.len();
            peer.sent_pieces == pieces && peer.sent_sum == if self.gets_sums(rank) { length } else { 0 }
        };
        self.summed == length
            && !self.steps.is_empty()
            && (self.small
                || self
                    .others()
                    .all(|(rank, peer)| sent(rank, peer) && peer.got_sum == self.expected_sum(rank)))
    }

    fn missing(&self) -> Vec<usize> {
        let length = self.chunk().len();
        let late = |(rank, peer): &(usize, &Peer)| {
            peer.got.iter().any(|&got| got < length) || peer.got_sum < self.expected_sum(*rank)
        };
        self.others().filter(late).map(|(rank, _)| rank).collect()
    }

    fn finish(mut self: Box<Self>) -> Output {
        let own = self.chunk_of(self.rank);
        let mut result = std::mem::take(self.target());
        if self.goal == Goal::Owners {
            result.truncate(own.end);
            result.drain(..own.start);
        }
        Box::new(result)
    }
}

impl<T: Element> Drop for Direct<T> {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            self.pool.give(std::mem::take(&mut peer.staged));
        }
        self.pool.give(std::mem::take(&mut self.landing));
    }
}
