//! What a rank calls: the description that is compared between ranks before any byte of payload moves.

use std::fmt;

use crate::element;
use crate::frame::{Reader, Writer};
use crate::op::ReduceOp;
use crate::tree_order::TreeNode;

/// The most subtrees that one rank may bring: twice the levels of the largest tree.
pub(crate) const PARTS_LIMIT: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Barrier,
    Broadcast {
        root: usize,
    },
    AllGather,
    /// Lengths may differ; everyone gets everything.
    AllGatherV,
    /// Lengths may differ; the root gets everything.
    GatherV {
        root: usize,
    },
    AllReduce {
        op: ReduceOp,
    },
    Reduce {
        op: ReduceOp,
        root: usize,
    },
    /// Each rank gets its block of the result.
    ReduceScatter {
        op: ReduceOp,
    },
    /// Lengths may differ; each rank gets its block from the root.
    ScatterV {
        root: usize,
    },
    /// Each rank gets a block from each; all are equally long.
    AllToAll,
    /// Lengths may differ.
    AllToAllV,
    /// From one rank to another; the receiver learns the length.
    Message {
        tag: u32,
    },
    /// Parts by micro-batch index out of `total`.
    TreeSum {
        total: u64,
    },
}

/// One rank's side of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    /// Code of the element type.
    pub(crate) element: u8,
    /// Elements given.
    pub(crate) count: u64,
    /// The subtrees that the rank brings (tree sums only).
    pub(crate) parts: Vec<TreeNode>,
}

impl Call {
    /// Whether both ranks can mean the same operation.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let free = matches!(
            self.operation,
            Operation::AllGatherV
                | Operation::GatherV { .. }
                | Operation::ScatterV { .. }
                | Operation::AllToAllV
                | Operation::Message { .. }
        );
        self.operation == other.operation && self.element == other.element && (free || self.count == other.count)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let (code, argument) = match self.operation {
            Operation::Barrier => (1, 0),
            Operation::Broadcast { root } => (2, root as u64),
            Operation::AllGather => (3, 0),
            Operation::AllGatherV => (4, 0),
            Operation::GatherV { root } => (5, root as u64),
            Operation::AllReduce { op } => (6, u64::from(op.code())),
            Operation::TreeSum { total } => (7, total),
            Operation::Reduce { op, root } => (8, (root as u64) << 8 | u64::from(op.code())),
            Operation::ReduceScatter { op } => (9, u64::from(op.code())),
            Operation::ScatterV { root } => (10, root as u64),
            Operation::AllToAll => (11, 0),
            Operation::AllToAllV => (12, 0),
            Operation::Message { tag } => (13, u64::from(tag)),
        };
        w.byte(code).byte(self.element).long(argument).long(self.count);
        w.word(self.parts.len() as u32);
        for part in &self.parts {
            w.byte(part.level).long(part.index);
        }
        w.0
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<Self> {
        let (code, element, argument, count) = (r.byte()?, r.byte()?, r.long()?, r.long()?);
        let root = usize::try_from(argument).ok()?;
        let operation = match code {
            1 => Operation::Barrier,
            2 => Operation::Broadcast { root },
            3 => Operation::AllGather,
            4 => Operation::AllGatherV,
            5 => Operation::GatherV { root },
            6 => Operation::AllReduce {
                op: ReduceOp::from_code(u8::try_from(argument).ok()?)?,
            },
            7 => Operation::TreeSum { total: argument },
            8 => Operation::Reduce {
                op: ReduceOp::from_code((argument & 0xff) as u8)?,
                root: root >> 8,
            },
            9 => Operation::ReduceScatter {
                op: ReduceOp::from_code(u8::try_from(argument).ok()?)?,
            },
            10 => Operation::ScatterV { root },
            11 => Operation::AllToAll,
            12 => Operation::AllToAllV,
            13 => Operation::Message {
                tag: u32::try_from(argument).ok()?,
            },
            _ => return None,
        };
        let parts = r.word()? as usize;
        if parts > PARTS_LIMIT {
            return None;
        }
        let parts = (0..parts)
            .map(|_| {
                Some(TreeNode {
                    level: r.byte()?,
                    index: r.long()?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            operation,
            element,
            count,
            parts,
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = format!("{} x {}", self.count, element::name_of(self.element));
        match self.operation {
            Operation::Barrier => write!(f, "barrier"),
            Operation::Broadcast { root } => write!(f, "broadcast(root {root}, {size})"),
            Operation::AllGather => write!(f, "all_gather({size})"),
            Operation::AllGatherV => write!(f, "all_gather_v({})", element::name_of(self.element)),
            Operation::GatherV { root } => write!(f, "gather_v(root {root}, {})", element::name_of(self.element)),
            Operation::Reduce { op, root } => write!(f, "reduce({op}, root {root}, {size})"),
            Operation::ReduceScatter { op } => write!(f, "reduce_scatter({op}, {size})"),
            Operation::ScatterV { root } => write!(f, "scatter_v(root {root}, {})", element::name_of(self.element)),
            Operation::AllToAll => write!(f, "all_to_all({size})"),
            Operation::AllToAllV => write!(f, "all_to_all_v({})", element::name_of(self.element)),
            Operation::Message { tag } => write!(f, "message(tag {tag}, {})", element::name_of(self.element)),
            Operation::AllReduce { op } => write!(f, "all_reduce({op}, {size})"),
            Operation::TreeSum { total } => {
                write!(f, "all_reduce_tree({size}, {total} micro-batches)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_survive_the_wire() {
        let call = |operation, count, parts| Call {
            operation,
            element: 1,
            count,
            parts,
        };
        let calls = [
            call(Operation::Barrier, 0, vec![]),
            call(Operation::Broadcast { root: 3 }, 5, vec![]),
            call(Operation::AllReduce { op: ReduceOp::Max }, 1 << 40, vec![]),
            call(
                Operation::Reduce {
                    op: ReduceOp::Average,
                    root: 300,
                },
                1,
                vec![],
            ),
            call(Operation::ReduceScatter { op: ReduceOp::Min }, 1, vec![]),
            call(Operation::ScatterV { root: 2 }, 1, vec![]),
            call(Operation::AllToAll, 1, vec![]),
            call(Operation::AllToAllV, 1, vec![]),
            call(Operation::Message { tag: u32::MAX }, 1, vec![]),
            call(
                Operation::TreeSum { total: 8 },
                7,
                vec![TreeNode::leaf(3), TreeNode { level: 2, index: 1 }],
            ),
        ];
        for call in calls {
            assert_eq!(Call::decode(&mut Reader(&call.encode())), Some(call));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Call::decode(&mut Reader(&bytes));
        }
    }
}
