//! All-gather, gather and messages between two ranks: each rank sends its block straight to those who want it.
//!
//! With `P` ranks and blocks of `S` bytes: 1 step; each rank sends and receives `S (P-1)` bytes (gather: only the root
//! receives). Blocks of at most [`EAGER_LIMIT`] bytes travel with the description. Blocks may differ in length.

use super::{Algorithm, EAGER_LIMIT, Piece};
use crate::call::Call;
use crate::element::Element;
use crate::handle::Output;

/// Largest block of another rank, in bytes: a bound on what one description can make this rank allocate.
pub(crate) const BLOCK_LIMIT: u64 = 4 << 30;

pub(crate) struct Gather<T: Element> {
    rank: usize,
    /// The one rank that receives, or everyone.
    root: Option<usize>,
    blocks: Vec<Vec<T>>,
    /// Bytes of each rank's block that have arrived; `None` before its description has.
    got: Vec<Option<usize>>,
    /// Bytes of this rank's block handed out for each rank.
    sent: Vec<usize>,
    segment: usize,
    /// The result is this rank's block alone.
    only: Option<usize>,
}

impl<T: Element> Gather<T> {
    pub(crate) fn new(block: Vec<T>, root: Option<usize>, (rank, ranks): (usize, usize), segment_bytes: usize) -> Self {
        let mut blocks: Vec<Vec<T>> = vec![Vec::new(); ranks];
        blocks[rank] = block;
        let segment = (segment_bytes / size_of::<T>()).max(1) * size_of::<T>();
        Self {
            rank,
            root,
            blocks,
            got: vec![None; ranks],
            sent: vec![0; ranks],
            segment,
            only: None,
        }
    }

    /// One message: the result is the block of rank `only` alone.
    pub(crate) fn only(mut self, only: usize) -> Self {
        self.only = Some(only);
        self
    }

    fn receives(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }

    fn length(&self, rank: usize) -> usize {
        self.blocks[rank].len() * size_of::<T>()
    }

    /// Bytes that this rank sends to `to` apart from its description.
    fn to_send(&self, to: usize) -> usize {
        let length = self.length(self.rank);
        if to != self.rank && self.receives(to) && length > EAGER_LIMIT {
            length
        } else {
            0
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank;
        (0..self.blocks.len()).filter(move |&other| other != rank)
    }
}

impl<T: Element> Algorithm for Gather<T> {
    fn eager(&self) -> &[u8] {
        if self.length(self.rank) <= EAGER_LIMIT {
            bytemuck::cast_slice(&self.blocks[self.rank])
        } else {
            &[]
        }
    }

    fn ready(&mut self, from: usize, call: &Call, eager: &[u8]) -> Result<(), String> {
        let bytes = call.count.saturating_mul(size_of::<T>() as u64);
        let expected = if bytes <= EAGER_LIMIT as u64 { bytes as usize } else { 0 };
        if bytes > BLOCK_LIMIT || eager.len() != expected {
            return Err(format!(
                "announced {bytes} bytes and sent {} of them, limit {BLOCK_LIMIT}",
                eager.len()
            ));
        }
        self.got[from] = Some(expected);
        if self.receives(self.rank) {
            self.blocks[from] = vec![T::zeroed(); call.count as usize];
            bytemuck::cast_slice_mut(&mut self.blocks[from])[..expected].copy_from_slice(eager);
        }
        Ok(())
    }

    fn next(&mut self, to: usize) -> Option<Piece> {
        let (offset, length) = (self.sent[to], self.to_send(to));
        if offset == length {
            return None;
        }
        self.sent[to] = length.min(offset + self.segment);
        Some(Piece {
            slot: 0,
            offset,
            length: self.sent[to] - offset,
        })
    }

    fn bytes(&self, _: usize, piece: Piece) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks[self.rank])[piece.offset..][..piece.length]
    }

    fn place(&mut self, from: usize, piece: Piece) -> Result<&mut [u8], String> {
        let got = self.got[from].unwrap_or(0);
        let room = self.length(from) - got.min(self.length(from));
        if piece.offset != got || piece.length > room {
            return Err(format!(
                "sent {} bytes at {} of its block, expected at most {room} at {got}",
                piece.length, piece.offset
            ));
        }
        Ok(&mut bytemuck::cast_slice_mut(&mut self.blocks[from])[piece.offset..][..piece.length])
    }

    fn arrived(&mut self, from: usize, piece: Piece) {
        self.got[from] = Some(self.got[from].unwrap_or(0) + piece.length);
    }

    fn done(&self) -> bool {
        self.missing().is_empty() && self.others().all(|rank| self.sent[rank] == self.to_send(rank))
    }

    fn missing(&self) -> Vec<usize> {
        let receives = self.receives(self.rank);
        self.others()
            .filter(|&rank| receives && self.got[rank].is_none_or(|got| got < self.length(rank)))
            .collect()
    }

    fn finish(mut self: Box<Self>) -> Output {
        match self.only {
            Some(rank) => Box::new(std::mem::take(&mut self.blocks[rank])),
            None => Box::new(std::mem::take(&mut self.blocks)),
        }
    }
}
