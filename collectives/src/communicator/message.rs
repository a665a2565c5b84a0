//! Messages from one rank to another.

use std::sync::Arc;

use super::blocks::check_block;
use super::{BLOCKING, Communicator};
use crate::algorithm::gather::Gather;
use crate::call::{Call, Operation};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::handle::Handle;

/// Places in a message's group.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl Communicator {
    /// Sends `block` to rank `to`, which must receive it; returns when it has begun to. Two ranks that send each other
    /// something first and receive then wait for each other: one of them uses [`Communicator::start_send`].
    ///
    /// What a rank sends to another is received in the order in which it was sent, over all communicators that both
    /// are in. Where sender and receiver name different tags or types, both get [`Error::Mismatch`]. 1 step.
    pub fn send<T: Element>(&self, block: &[T], to: usize, tag: u32) -> Result<()> {
        self.start_send(block.to_vec(), to, tag, BLOCKING)?.wait().map(drop)
    }

    /// [`Communicator::send`] in the background; the handle gives the block back.
    pub fn start_send<T: Element>(&self, block: Vec<T>, to: usize, tag: u32, priority: i32) -> Result<Handle<Vec<T>>> {
        check_block(&block)?;
        self.start_message(block, self.position.rank, to, to, tag, priority)
    }

    /// What rank `from` sends to this rank, whatever its length.
    pub fn receive<T: Element>(&self, from: usize, tag: u32) -> Result<Vec<T>> {
        self.start_receive(from, tag, BLOCKING)?.wait()
    }

    /// [`Communicator::receive`] in the background.
    pub fn start_receive<T: Element>(&self, from: usize, tag: u32, priority: i32) -> Result<Handle<Vec<T>>> {
        self.start_message(Vec::new(), from, self.position.rank, from, tag, priority)
    }

    fn start_message<T: Element>(
        &self,
        block: Vec<T>,
        sender: usize,
        receiver: usize,
        partner: usize,
        tag: u32,
        priority: i32,
    ) -> Result<Handle<Vec<T>>> {
        if partner >= self.position.world_size || partner == self.position.rank {
            return Err(Error::Partner {
                partner,
                rank: self.position.rank,
                world_size: self.position.world_size,
            });
        }
        let members = &self.group.members;
        let group = Group::message(members[sender], members[receiver], members[self.position.rank]);
        let call = Call {
            operation: Operation::Message { tag },
            element: T::CODE,
            count: block.len() as u64,
            parts: Vec::new(),
        };
        let place = if self.position.rank == sender { SENDER } else { RECEIVER };
        let gather = Gather::new(block, Some(RECEIVER), (place, 2), self.segment_bytes).only(SENDER);
        Ok(Handle::new(self.worker.submit(
            Arc::new(group),
            call,
            priority,
            Box::new(gather),
        )))
    }
}
