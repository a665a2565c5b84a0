//! All-to-all and scatter: each rank sends each other rank a block of its own.
//!
//! With `P` ranks and blocks of `S` bytes: 2 steps; each rank sends and receives `S (P-1)` bytes (scatter: only the root
//! sends). The lengths travel with the description, so blocks may differ in length.

use super::gather::BLOCK_LIMIT;
use super::{Algorithm, Piece};
use crate::call::Call;
use crate::element::Element;
use crate::frame::CONTROL_LIMIT;
use crate::handle::Output;

/// The most ranks whose lengths fit into a description.
pub(crate) const RANKS_LIMIT: usize = (CONTROL_LIMIT - 64) / size_of::<u64>();

pub(crate) struct Exchange<T: Element> {
    rank: usize,
    /// By receiver.
    outgoing: Vec<Vec<T>>,
    /// By sender.
    incoming: Vec<Vec<T>>,
    /// The lengths of the outgoing blocks, as they travel.
    lengths: Vec<u8>,
    /// Bytes of each incoming block that have arrived; `None` before its length has.
    got: Vec<Option<usize>>,
    /// Bytes of each outgoing block handed out.
    sent: Vec<usize>,
    segment: usize,
}

impl<T: Element> Exchange<T> {
    /// `outgoing` has a block, maybe an empty one, for each rank.
    pub(crate) fn new(mut outgoing: Vec<Vec<T>>, rank: usize, segment_bytes: usize) -> Self {
        let ranks = outgoing.len();
        let lengths = outgoing
            .iter()
            .flat_map(|block| (block.len() as u64).to_le_bytes())
            .collect();
        let mut incoming: Vec<Vec<T>> = vec![Vec::new(); ranks];
        incoming[rank] = std::mem::take(&mut outgoing[rank]);
        let mut got = vec![None; ranks];
        got[rank] = Some(size_of_val(incoming[rank].as_slice()));
        Self {
            rank,
            outgoing,
            incoming,
            lengths,
            got,
            sent: vec![0; ranks],
            segment: (segment_bytes / size_of::<T>()).max(1) * size_of::<T>(),
        }
    }

    fn expected(&self, from: usize) -> usize {
        size_of_val(self.incoming[from].as_slice())
    }

    fn to_send(&self, to: usize) -> usize {
        size_of_val(self.outgoing[to].as_slice())
    }
}

impl<T: Element> Algorithm for Exchange<T> {
    fn eager(&self) -> &[u8] {
        &self.lengths
    }

    fn ready(&mut self, from: usize, _: &Call, eager: &[u8]) -> Result<(), String> {
        let own = eager.chunks_exact(size_of::<u64>()).nth(self.rank);
        let length = own.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let length = length.filter(|_| eager.len() == self.lengths.len());
        let Some(length) = length else {
            return Err(format!(
                "sent {} bytes of lengths, expected {}",
                eager.len(),
                self.lengths.len()
            ));
        };
        if length.saturating_mul(size_of::<T>() as u64) > BLOCK_LIMIT {
            return Err(format!("announced {length} elements, limit {BLOCK_LIMIT} bytes"));
        }
        self.incoming[from] = vec![T::zeroed(); length as usize];
        self.got[from] = Some(0);
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

    fn bytes(&self, to: usize, piece: Piece) -> &[u8] {
        &bytemuck::cast_slice(&self.outgoing[to])[piece.offset..][..piece.length]
    }

    fn place(&mut self, from: usize, piece: Piece) -> Result<&mut [u8], String> {
        let got = self.got[from].unwrap_or(0);
        let room = self.expected(from).saturating_sub(got);
        if piece.offset != got || piece.length > room {
            return Err(format!(
                "sent {} bytes at {} of a block, expected at most {room} at {got}",
                piece.length, piece.offset
            ));
        }
        Ok(&mut bytemuck::cast_slice_mut(&mut self.incoming[from])[piece.offset..][..piece.length])
    }

    fn arrived(&mut self, from: usize, piece: Piece) {
        self.got[from] = Some(self.got[from].unwrap_or(0) + piece.length);
    }

    fn done(&self) -> bool {
        self.missing().is_empty() && (0..self.outgoing.len()).all(|to| self.sent[to] == self.to_send(to))
    }

    fn missing(&self) -> Vec<usize> {
        (0..self.incoming.len())
            .filter(|&from| self.got[from].is_none_or(|got| got < self.expected(from)))
            .collect()
    }

    fn finish(mut self: Box<Self>) -> Output {
        Box::new(std::mem::take(&mut self.incoming))
    }
}
