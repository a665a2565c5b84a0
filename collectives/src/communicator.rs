//! The public handle of a rank.

use std::fmt;
use std::sync::Arc;

use crate::algorithm::broadcast::Broadcast;
use crate::algorithm::direct::Direct;
use crate::algorithm::{Algorithm, Notice};
use crate::call::{Call, Operation, PARTS_LIMIT};
use crate::element::Element;
use crate::element::private::Arithmetic as _;
use crate::error::{Error, Result};
use crate::frame::DATA_LIMIT;
use crate::group::Group;
use crate::handle::Handle;
use crate::op::ReduceOp;
use crate::options::Options;
use crate::transport::{Wired, thread};
use crate::tree_order::TreeNode;
use crate::worker::Worker;

mod blocks;
mod message;
mod split;

/// Operations whose result the program is waiting for go before those that it started for later.
const BLOCKING: i32 = i32::MAX;

/// Where a rank stands in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
}

/// A rank's end of the group. `Send + Sync`: threads of a rank may share it, as long as all ranks make their calls in
/// the same order.
///
/// Dropping it waits for the operations under way and says goodbye to the others; dropping it in a panic tells them
/// that this rank has failed.
pub struct Communicator {
    position: Position,
    segment_bytes: usize,
    transport: &'static str,
    group: Arc<Group>,
    /// The number of each world rank's host.
    nodes: Arc<[usize]>,
    worker: Arc<Worker>,
}

/// `ranks` communicators joined inside this process: for tests and examples, one for each thread.
pub fn threads(ranks: usize) -> Result<Vec<Communicator>> {
    threads_with(ranks, &Options::default())
}

/// [`threads`] with options.
pub fn threads_with(ranks: usize, options: &Options) -> Result<Vec<Communicator>> {
    let wired = thread::wire(ranks).into_iter().enumerate();
    wired
        .map(|(rank, wired)| {
            let position = Position {
                rank,
                world_size: ranks,
                local_rank: rank,
                local_size: ranks,
            };
            Communicator::start(position, vec![0; ranks], "threads", wired, options)
        })
        .collect()
}

impl Communicator {
    /// `nodes` has the number of each rank's host.
    pub(crate) fn start(
        position: Position,
        nodes: Vec<usize>,
        transport: &'static str,
        wired: Wired,
        options: &Options,
    ) -> Result<Self> {
        let segment_bytes = options.segment_bytes.clamp(1, DATA_LIMIT);
        let worker = Worker::start(wired, position.rank, position.world_size, options)?;
        Ok(Self {
            position,
            segment_bytes,
            transport,
            group: Arc::new(Group::new(0, (0..position.world_size).collect())),
            nodes: nodes.into(),
            worker: Arc::new(worker),
        })
    }

    /// This rank, counted from 0.
    pub fn rank(&self) -> usize {
        self.position.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.position.world_size
    }

    /// This rank among those of its node, counted from 0.
    pub fn local_rank(&self) -> usize {
        self.position.local_rank
    }

    /// The number of ranks on this node.
    pub fn local_size(&self) -> usize {
        self.position.local_size
    }

    /// The name of the transport that was chosen.
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// The failure that ended this communicator, if one did.
    pub fn failure(&self) -> Option<Error> {
        self.worker.failure()
    }

    fn place(&self) -> (usize, usize) {
        (self.position.rank, self.position.world_size)
    }

    fn start_call<R: 'static>(
        &self,
        operation: Operation,
        count: usize,
        element: u8,
        parts: Vec<TreeNode>,
        priority: i32,
        algorithm: impl FnOnce(&Call) -> Box<dyn Algorithm>,
    ) -> Handle<R> {
        let call = Call {
            operation,
            element,
            count: count as u64,
            parts,
        };
        let algorithm = algorithm(&call);
        Handle::new(self.worker.submit(self.group.clone(), call, priority, algorithm))
    }

    fn check_root(&self, root: usize) -> Result<()> {
        let world_size = self.position.world_size;
        if root < world_size {
            Ok(())
        } else {
            Err(Error::Root { root, world_size })
        }
    }

    /// Returns when all ranks have called it. 1 step, `P - 1` messages a rank.
    pub fn barrier(&self) -> Result<()> {
        self.start_call(Operation::Barrier, 0, 0, Vec::new(), BLOCKING, |_| Box::new(Notice))
            .wait()
    }

    /// Joins the buffers of all ranks, element by element, in the order of the fixed tree with the ranks as leaves;
    /// every rank gets the same bytes. 2 steps, `2 S (P-1)/P` bytes sent a rank (up to 4 KiB: 1 step, `S (P-1)`).
    ///
    /// After an error the buffer holds what it held before.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let result = self.start_all_reduce(buffer.to_vec(), op, BLOCKING).wait()?;
        buffer.copy_from_slice(&result);
        Ok(())
    }

    /// [`Communicator::all_reduce`] in the background: takes the buffer, and the handle gives it back with the result.
    pub fn start_all_reduce<T: Element>(&self, buffer: Vec<T>, op: ReduceOp, priority: i32) -> Handle<Vec<T>> {
        self.start_reduction(Operation::AllReduce { op }, buffer, priority)
    }

    fn start_reduction<T: Element>(&self, operation: Operation, buffer: Vec<T>, priority: i32) -> Handle<Vec<T>> {
        let parts = vec![TreeNode::leaf(self.position.rank as u64)];
        self.start_call(operation, buffer.len(), T::CODE, parts, priority, |call| {
            let pool = self.worker.pool.clone();
            Box::new(Direct::new(
                call,
                vec![buffer],
                Vec::new(),
                self.place(),
                self.segment_bytes,
                pool,
            ))
        })
    }

    /// Joins the buffers of all ranks like [`Communicator::all_reduce`]; the result is in the root's buffer, the other
    /// ranks' buffers stay as they are. 2 steps, `S` bytes sent a rank, the root `S (P-1)/P`.
    pub fn reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        self.check_root(root)?;
        let handle = self.start_reduction(Operation::Reduce { op, root }, buffer.to_vec(), BLOCKING);
        let result = handle.wait()?;
        if root == self.position.rank {
            buffer.copy_from_slice(&result);
        }
        Ok(())
    }

    /// Joins the buffers of all ranks like [`Communicator::all_reduce`]; each rank gets its block of the result, of
    /// which there are as many as ranks, all equally long. 1 step, `S (P-1)/P` bytes sent a rank.
    pub fn reduce_scatter<T: Element>(&self, buffer: &[T], op: ReduceOp) -> Result<Vec<T>> {
        self.start_reduce_scatter(buffer.to_vec(), op, BLOCKING)?.wait()
    }

    /// [`Communicator::reduce_scatter`] in the background.
    pub fn start_reduce_scatter<T: Element>(
        &self,
        buffer: Vec<T>,
        op: ReduceOp,
        priority: i32,
    ) -> Result<Handle<Vec<T>>> {
        self.check_blocks(buffer.len())?;
        Ok(self.start_reduction(Operation::ReduceScatter { op }, buffer, priority))
    }

    /// A buffer of `count` elements has a block for each rank.
    fn check_blocks(&self, count: usize) -> Result<()> {
        let ranks = self.position.world_size;
        if count.is_multiple_of(ranks) {
            Ok(())
        } else {
            let expected = count.next_multiple_of(ranks);
            Err(Error::Length { expected, got: count })
        }
    }

    /// Sums the gradients of all `total` micro-batches in the order of the fixed tree, in the background.
    ///
    /// `parts` are this rank's aligned subtrees, as [`TreeSum`](crate::TreeSum) leaves them: at least one, all equally
    /// long. The subtrees of all ranks together must make up the whole tree. The sum has the same bits for every
    /// number of ranks and every split of the micro-batches. The handle gives back the first buffer with the sum in
    /// it. Operations of higher `priority` go first.
    pub fn start_all_reduce_tree(
        &self,
        parts: Vec<(TreeNode, Vec<f32>)>,
        total: u64,
        priority: i32,
    ) -> Result<Handle<Vec<f32>>> {
        if parts.is_empty() {
            let reason = "this rank has none; start_all_reduce_tree_without_parts is for that".into();
            return Err(Error::Parts { reason });
        }
        self.tree_sum(parts, Vec::new(), total, priority)
    }

    /// [`Communicator::start_all_reduce_tree`] for a rank that has no micro-batch: `buffer` has the length of the
    /// others' gradients; its contents do not matter, and the handle gives it back with the sum.
    pub fn start_all_reduce_tree_without_parts(
        &self,
        buffer: Vec<f32>,
        total: u64,
        priority: i32,
    ) -> Result<Handle<Vec<f32>>> {
        self.tree_sum(Vec::new(), buffer, total, priority)
    }

    fn tree_sum(
        &self,
        parts: Vec<(TreeNode, Vec<f32>)>,
        result: Vec<f32>,
        total: u64,
        priority: i32,
    ) -> Result<Handle<Vec<f32>>> {
        let count = parts.first().map_or(result.len(), |(_, part)| part.len());
        if let Some((_, other)) = parts.iter().find(|(_, part)| part.len() != count) {
            return Err(Error::Length {
                expected: count,
                got: other.len(),
            });
        }
        if parts.len() > PARTS_LIMIT {
            return Err(Error::Parts {
                reason: format!("{} of them, limit {PARTS_LIMIT}", parts.len()),
            });
        }
        let (nodes, buffers) = parts.into_iter().unzip();
        let handle = self.start_call(
            Operation::TreeSum { total },
            count,
            f32::CODE,
            nodes,
            priority,
            |call| {
                let pool = self.worker.pool.clone();
                Box::new(Direct::new(
                    call,
                    buffers,
                    result,
                    self.place(),
                    self.segment_bytes,
                    pool,
                ))
            },
        );
        Ok(handle)
    }

    /// Fills every rank's buffer with the root's. `log2(P)` steps, at most `S log2(P)` bytes sent a rank.
    ///
    /// After an error the buffer holds what it held before.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let result = self.start_broadcast(buffer.to_vec(), root, BLOCKING)?.wait()?;
        buffer.copy_from_slice(&result);
        Ok(())
    }

    /// [`Communicator::broadcast`] in the background.
    pub fn start_broadcast<T: Element>(&self, buffer: Vec<T>, root: usize, priority: i32) -> Result<Handle<Vec<T>>> {
        self.check_root(root)?;
        let count = buffer.len();
        Ok(self.start_call(
            Operation::Broadcast { root },
            count,
            T::CODE,
            Vec::new(),
            priority,
            |_| Box::new(Broadcast::new(buffer, root, self.place(), self.segment_bytes)),
        ))
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("position", &self.position)
            .field("transport", &self.transport)
            .field("failure", &self.failure())
            .finish()
    }
}
