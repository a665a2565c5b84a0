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
    AllGatherBytes,
    /// Lengths may differ; the root gets everything.
    GatherBytes {
        root: usize,
    },
    AllReduce {
        op: ReduceOp,
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
            Operation::AllGatherBytes | Operation::GatherBytes { .. }
        );
        self.operation == other.operation && self.element == other.element && (free || self.count == other.count)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let (code, argument) = match self.operation {
            Operation::Barrier => (1, 0),
            Operation::Broadcast { root } => (2, root as u64),
            Operation::AllGather => (3, 0),
            Operation::AllGatherBytes => (4, 0),
            Operation::GatherBytes { root } => (5, root as u64),
            Operation::AllReduce { op } => (6, u64::from(op.code())),
            Operation::TreeSum { total } => (7, total),
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
            4 => Operation::AllGatherBytes,
            5 => Operation::GatherBytes { root },
            6 => Operation::AllReduce {
                op: ReduceOp::from_code(u8::try_from(argument).ok()?)?,
            },
            7 => Operation::TreeSum { total: argument },
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
            Operation::AllGatherBytes => write!(f, "all_gather_bytes"),
            Operation::GatherBytes { root } => write!(f, "gather_bytes(root {root})"),
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
