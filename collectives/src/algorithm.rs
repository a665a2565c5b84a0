//! What an algorithm is: a state machine that says which bytes of its buffers may go to whom, and takes what comes.
//!
//! An algorithm never waits and never sees a socket. The worker asks it for the next piece for a rank whenever the
//! transport can take one, and hands it the place for a piece that arrives, so that bytes are written from and read
//! into the buffers themselves. Pieces from one rank to another arrive in the order in which they were sent.

pub(crate) mod broadcast;
pub(crate) mod direct;
pub(crate) mod exchange;
pub(crate) mod gather;

use crate::call::Call;
use crate::error::Result;
use crate::handle::Output;

/// Payloads up to this size travel inside the description, which saves a round trip.
pub(crate) const EAGER_LIMIT: usize = 4 << 10;

/// A piece of one of an operation's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Which buffer; the algorithm gives the numbers their meaning.
    pub(crate) slot: u32,
    /// Where in it, in bytes.
    pub(crate) offset: usize,
    /// How much of it, in bytes.
    pub(crate) length: usize,
}

pub(crate) trait Algorithm: Send {
    /// The payload, when it is so small that it travels with the description.
    fn eager(&self) -> &[u8] {
        &[]
    }

    /// Rank `from` has called the operation too; `call` agrees with this rank's. Data come from it only afterwards.
    /// The text of an error says what `from` did wrong.
    fn ready(&mut self, from: usize, call: &Call, eager: &[u8]) -> Result<(), String>;

    /// All ranks have called the operation.
    fn all_ready(&mut self) -> Result<()> {
        Ok(())
    }

    /// The next piece for rank `to`, which has called the operation; each piece is returned once.
    fn next(&mut self, to: usize) -> Option<Piece>;

    /// The bytes of a piece that [`Algorithm::next`] returned for `to`.
    fn bytes(&self, to: usize, piece: Piece) -> &[u8];

    /// The place for a piece from `from`, or what is wrong with it.
    fn place(&mut self, from: usize, piece: Piece) -> Result<&mut [u8], String>;

    /// A piece from `from` is complete.
    fn arrived(&mut self, from: usize, piece: Piece);

    /// Whether everything has been asked for by [`Algorithm::next`], and everything expected has arrived.
    fn done(&self) -> bool;

    /// The ranks from which something is still expected.
    fn missing(&self) -> Vec<usize>;

    /// The result.
    fn finish(self: Box<Self>) -> Output;
}

/// An operation whose descriptions say everything: the barrier.
pub(crate) struct Notice;

impl Algorithm for Notice {
    fn ready(&mut self, _: usize, _: &Call, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn next(&mut self, _: usize) -> Option<Piece> {
        None
    }

    fn bytes(&self, _: usize, _: Piece) -> &[u8] {
        &[]
    }

    fn place(&mut self, _: usize, _: Piece) -> Result<&mut [u8], String> {
        Err("sent data for a barrier".into())
    }

    fn arrived(&mut self, _: usize, _: Piece) {}

    fn done(&self) -> bool {
        true
    }

    fn missing(&self) -> Vec<usize> {
        Vec::new()
    }

    fn finish(self: Box<Self>) -> Output {
        Box::new(())
    }
}
