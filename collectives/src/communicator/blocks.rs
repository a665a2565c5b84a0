//! Operations that move blocks without joining them: gather, scatter, all-to-all.

use super::{BLOCKING, Communicator};
use crate::algorithm::exchange::{Exchange, RANKS_LIMIT};
use crate::algorithm::gather::{BLOCK_LIMIT, Gather};
use crate::call::Operation;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::handle::Handle;

/// A block that the others can take.
pub(super) fn check_block<T>(block: &[T]) -> Result<()> {
    let bytes = size_of_val(block) as u64;
    if bytes > BLOCK_LIMIT {
        return Err(Error::TooLarge {
            bytes,
            limit: BLOCK_LIMIT,
        });
    }
    Ok(())
}

impl Communicator {
    /// The blocks of all ranks, in rank order, on every rank; all blocks are equally long. 1 step, `S (P-1)` bytes.
    pub fn all_gather<T: Element>(&self, block: &[T]) -> Result<Vec<T>> {
        Ok(self
            .start_gather(Operation::AllGather, None, block.to_vec(), BLOCKING)?
            .wait()?
            .concat())
    }

    /// The blocks of all ranks on every rank; their lengths may differ. 1 step.
    pub fn all_gather_v<T: Element>(&self, block: &[T]) -> Result<Vec<Vec<T>>> {
        self.start_all_gather_v(block.to_vec(), BLOCKING)?.wait()
    }

    /// [`Communicator::all_gather_v`] in the background.
    pub fn start_all_gather_v<T: Element>(&self, block: Vec<T>, priority: i32) -> Result<Handle<Vec<Vec<T>>>> {
        self.start_gather(Operation::AllGatherV, None, block, priority)
    }

    /// The blocks of all ranks on the root, `None` elsewhere; their lengths may differ. 1 step.
    pub fn gather_v<T: Element>(&self, block: &[T], root: usize) -> Result<Option<Vec<Vec<T>>>> {
        self.check_root(root)?;
        let handle = self.start_gather(Operation::GatherV { root }, Some(root), block.to_vec(), BLOCKING)?;
        let blocks = handle.wait()?;
        Ok((self.position.rank == root).then_some(blocks))
    }

    /// [`Communicator::all_gather_v`] of bytes.
    pub fn all_gather_bytes(&self, block: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather_v(block)
    }

    /// [`Communicator::gather_v`] of bytes.
    pub fn gather_bytes(&self, block: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        self.gather_v(block, root)
    }

    fn start_gather<T: Element>(
        &self,
        operation: Operation,
        root: Option<usize>,
        block: Vec<T>,
        priority: i32,
    ) -> Result<Handle<Vec<Vec<T>>>> {
        check_block(&block)?;
        let count = block.len();
        Ok(self.start_call(operation, count, T::CODE, Vec::new(), priority, |_| {
            Box::new(Gather::new(block, root, self.place(), self.segment_bytes))
        }))
    }

    /// Each rank's block of the root's buffer, which has one for each rank, all equally long; the other ranks' buffers
    /// do not matter. 1 step, `S (P-1)/P` bytes sent by the root.
    pub fn scatter<T: Element>(&self, buffer: &[T], root: usize) -> Result<Vec<T>> {
        self.check_root(root)?;
        if self.position.rank != root {
            return self.scatter_v(None, root);
        }
        self.check_blocks(buffer.len())?;
        let block = buffer.len() / self.position.world_size;
        let blocks = (0..self.position.world_size).map(|rank| buffer[rank * block..][..block].to_vec());
        self.scatter_v(Some(blocks.collect()), root)
    }

    /// The root's block for each rank; their lengths may differ. The root gives one for each rank, the others `None`.
    /// 1 step.
    pub fn scatter_v<T: Element>(&self, blocks: Option<Vec<Vec<T>>>, root: usize) -> Result<Vec<T>> {
        self.check_root(root)?;
        let ranks = self.position.world_size;
        let blocks = match blocks {
            Some(blocks) if self.position.rank == root => blocks,
            _ if self.position.rank == root => Vec::new(),
            _ => vec![Vec::new(); ranks],
        };
        let mut received = self
            .start_exchange(Operation::ScatterV { root }, blocks, 0, BLOCKING)?
            .wait()?;
        Ok(received.swap_remove(root))
    }

    /// Each rank's buffer has a block for each rank, all equally long; each rank gets, in rank order, the blocks that
    /// are for it. 2 steps, `S (P-1)/P` bytes sent a rank.
    pub fn all_to_all<T: Element>(&self, buffer: &[T]) -> Result<Vec<T>> {
        self.check_blocks(buffer.len())?;
        let block = buffer.len() / self.position.world_size;
        let blocks = (0..self.position.world_size).map(|rank| buffer[rank * block..][..block].to_vec());
        let handle = self.start_exchange(Operation::AllToAll, blocks.collect(), buffer.len(), BLOCKING)?;
        Ok(handle.wait()?.concat())
    }

    /// [`Communicator::all_to_all`] of blocks whose lengths may differ: `blocks` has one for each rank, the result one
    /// from each.
    pub fn all_to_all_v<T: Element>(&self, blocks: Vec<Vec<T>>) -> Result<Vec<Vec<T>>> {
        self.start_all_to_all_v(blocks, BLOCKING)?.wait()
    }

    /// [`Communicator::all_to_all_v`] in the background.
    pub fn start_all_to_all_v<T: Element>(&self, blocks: Vec<Vec<T>>, priority: i32) -> Result<Handle<Vec<Vec<T>>>> {
        self.start_exchange(Operation::AllToAllV, blocks, 0, priority)
    }

    fn start_exchange<T: Element>(
        &self,
        operation: Operation,
        blocks: Vec<Vec<T>>,
        count: usize,
        priority: i32,
    ) -> Result<Handle<Vec<Vec<T>>>> {
        let (rank, ranks) = self.place();
        if blocks.len() != ranks {
            return Err(Error::Length {
                expected: ranks,
                got: blocks.len(),
            });
        }
        if ranks > RANKS_LIMIT {
            return Err(Error::TooLarge {
                bytes: (ranks * size_of::<u64>()) as u64,
                limit: (RANKS_LIMIT * size_of::<u64>()) as u64,
            });
        }
        blocks.iter().try_for_each(|block| check_block(block))?;
        Ok(self.start_call(operation, count, T::CODE, Vec::new(), priority, |_| {
            Box::new(Exchange::new(blocks, rank, self.segment_bytes))
        }))
    }
}
