//! Broadcast along a binomial tree, passed on while it arrives.
//!
//! With `P` ranks and `S` bytes: `log2(P)` steps; the root sends at most `S log2(P)` bytes, everyone receives `S`. A
//! rank passes each piece on as soon as it has it, so a long broadcast takes about the time of its busiest sender.
//! At most [`EAGER_LIMIT`] bytes travel with the root's description: 1 step.

use super::{Algorithm, EAGER_LIMIT, Piece};
use crate::call::Call;
use crate::element::Element;
use crate::handle::Output;

pub(crate) struct Broadcast<T: Element> {
    rank: usize,
    root: usize,
    parent: usize,
    /// The ranks that this one sends to and the bytes handed out for each.
    children: Vec<(usize, usize)>,
    buffer: Vec<T>,
    /// Bytes of the buffer that are the root's.
    have: usize,
    segment: usize,
}

impl<T: Element> Broadcast<T> {
    pub(crate) fn new(buffer: Vec<T>, root: usize, (rank, ranks): (usize, usize), segment_bytes: usize) -> Self {
        let bytes = buffer.len() * size_of::<T>();
        // Ranks are counted from the root; a rank's parent has its lowest set bit cleared.
        let distance = (rank + ranks - root) % ranks;
        let lowest = if distance == 0 {
            ranks.next_power_of_two()
        } else {
            distance & distance.wrapping_neg()
        };
        let parent = (root + distance - if distance == 0 { 0 } else { lowest }) % ranks;
        let mut children = Vec::new();
        let mut step = lowest / 2;
        while step > 0 {
            if distance + step < ranks {
                children.push(((root + distance + step) % ranks, 0));
            }
            step /= 2;
        }
        if bytes <= EAGER_LIMIT {
            children.clear();
        }
        let have = if rank == root { bytes } else { 0 };
        let segment = (segment_bytes / size_of::<T>()).max(1) * size_of::<T>();
        Self {
            rank,
            root,
            parent,
            children,
            buffer,
            have,
            segment,
        }
    }

    fn length(&self) -> usize {
        self.buffer.len() * size_of::<T>()
    }
}

impl<T: Element> Algorithm for Broadcast<T> {
    fn eager(&self) -> &[u8] {
        let small = self.length() <= EAGER_LIMIT && self.rank == self.root;
        if small { bytemuck::cast_slice(&self.buffer) } else { &[] }
    }

    fn ready(&mut self, from: usize, _: &Call, eager: &[u8]) -> Result<(), String> {
        let expected = if from == self.root && self.length() <= EAGER_LIMIT {
            self.length()
        } else {
            0
        };
        if eager.len() != expected {
            return Err(format!(
                "sent {} bytes with its description, expected {expected}",
                eager.len()
            ));
        }
        if !eager.is_empty() {
            bytemuck::cast_slice_mut(&mut self.buffer).copy_from_slice(eager);
            self.have = expected;
        }
        Ok(())
    }

    fn next(&mut self, to: usize) -> Option<Piece> {
        let (have, segment) = (self.have, self.segment);
        let (_, sent) = self
            .children
            .iter_mut()
            .find(|(child, sent)| *child == to && *sent < have)?;
        let offset = *sent;
        *sent = have.min(offset + segment);
        Some(Piece {
            slot: 0,
            offset,
            length: *sent - offset,
        })
    }

    fn bytes(&self, _: usize, piece: Piece) -> &[u8] {
        &bytemuck::cast_slice(&self.buffer)[piece.offset..][..piece.length]
    }

    fn place(&mut self, from: usize, piece: Piece) -> Result<&mut [u8], String> {
        let room = self.length() - self.have;
        if from != self.parent || self.rank == self.root || piece.offset != self.have || piece.length > room {
            return Err(format!(
                "sent {} bytes at {} of a broadcast, expected at most {room} at {} from rank {}",
                piece.length, piece.offset, self.have, self.parent
            ));
        }
        Ok(&mut bytemuck::cast_slice_mut(&mut self.buffer)[piece.offset..][..piece.length])
    }

    fn arrived(&mut self, _: usize, piece: Piece) {
        self.have += piece.length;
    }

    fn done(&self) -> bool {
        let length = self.length();
        self.have == length && self.children.iter().all(|(_, sent)| *sent == length)
    }

    fn missing(&self) -> Vec<usize> {
        if self.have < self.length() {
            vec![self.parent]
        } else {
            Vec::new()
        }
    }

    fn finish(mut self: Box<Self>) -> Output {
        Box::new(std::mem::take(&mut self.buffer))
    }
}
