//! The fixed binary tree by micro-batch index, in which every exact sum is added.
//!
//! Floating-point addition is not associative, so a sum that shall not depend on how many ranks took part needs one
//! fixed order. Here it is a binary tree over the global micro-batch indices, neighbours first: `((0+1)+(2+3))+...`.
//! A node `(level, index)` covers the micro-batches `index << level .. (index + 1) << level`, cut at the total; where
//! a right child lies wholly beyond the total, the node is its left child unchanged.
//!
//! A rank that holds a contiguous run of micro-batches adds inside the run as far as the tree allows and is left with
//! the few *maximal aligned subtrees* of the run ([`cover`]). [`TreeSum`] does that addition while micro-batches
//! arrive, and [`plan`] says how the subtrees of all ranks are joined.

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};

/// A node of the tree: the micro-batches `index << level .. (index + 1) << level`, cut at the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TreeNode {
    /// Height above the leaves; a leaf, which is one micro-batch, has level 0.
    pub level: u8,
    /// Position among the nodes of its level.
    pub index: u64,
}

impl TreeNode {
    /// The leaf of one micro-batch.
    pub const fn leaf(micro_batch: u64) -> Self {
        Self {
            level: 0,
            index: micro_batch,
        }
    }

    /// The micro-batches covered in a tree over `total` of them.
    pub fn range(self, total: u64) -> Range<u64> {
        let width = 1_u64.checked_shl(self.level.into()).unwrap_or(u64::MAX);
        let first = self.index.saturating_mul(width);
        first.min(total)..first.saturating_add(width).min(total)
    }

    fn parent(self) -> Self {
        Self {
            level: self.level + 1,
            index: self.index / 2,
        }
    }

    fn children(self) -> (Self, Self) {
        let level = self.level - 1;
        (
            Self {
                level,
                index: self.index * 2,
            },
            Self {
                level,
                index: self.index * 2 + 1,
            },
        )
    }

    /// The highest node with the same micro-batches. Where the total is not a power of two, several nodes at the right
    /// edge cover the same micro-batches and have the same value; this picks one name for all of them.
    fn highest(mut self, total: u64) -> Self {
        let root = root(total);
        while self.level < root.level {
            let parent = self.parent();
            if parent.range(total) != self.range(total) {
                break;
            }
            self = parent;
        }
        self
    }
}

impl fmt::Display for TreeNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subtree {} of level {}", self.index, self.level)
    }
}

/// The node that covers all `total` micro-batches.
fn root(total: u64) -> TreeNode {
    let level = if total <= 1 {
        0
    } else {
        64 - (total - 1).leading_zeros()
    };
    TreeNode {
        level: level as u8,
        index: 0,
    }
}

/// The maximal aligned subtrees that make up the run `range` of `total` micro-batches, from left to right.
///
/// A run of `n` micro-batches has at most `2 * log2(n) + 1` of them, and exactly one where it is a whole subtree.
pub fn cover(range: Range<u64>, total: u64) -> Vec<TreeNode> {
    let end = range.end.min(total);
    let mut nodes = Vec::new();
    let mut next = range.start;
    while next < end {
        let mut node = TreeNode::leaf(next).highest(total);
        loop {
            let parent = node.parent();
            let covered = parent.range(total);
            if node.level >= root(total).level || covered.start != next || covered.end > end {
                break;
            }
            node = parent;
        }
        next = node.range(total).end;
        nodes.push(node);
    }
    nodes
}

/// One step of joining parts: a stack machine, so that each partial sum exists once and stays in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Push part `i`.
    Push(usize),
    /// Add part `i` to the top.
    AddPart(usize),
    /// Pop the top and add it to what lies below.
    Add,
}

/// The steps that join `parts` into the sum over all `total` micro-batches, in tree order.
///
/// `parts` may come in any order; together they must cover every micro-batch exactly once.
pub(crate) fn plan(parts: &[TreeNode], total: u64) -> Result<Vec<Step>> {
    // Sorted by first micro-batch; `order[k]` is the position in `parts`.
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|&i| parts[i].range(total).start);
    let mut expected = 0;
    for &i in &order {
        let range = parts[i].range(total);
        if range.is_empty() || parts[i].level > root(total).level {
            return Err(Error::Parts {
                reason: format!("{} lies outside {total} micro-batches", parts[i]),
            });
        }
        if range.start != expected {
            let (what, at) = if range.start > expected {
                ("missing", expected)
            } else {
                ("given twice", range.start)
            };
            return Err(Error::Parts {
                reason: format!("micro-batch {at} of {total} is {what}"),
            });
        }
        expected = range.end;
    }
    if expected != total || total == 0 {
        return Err(Error::Parts {
            reason: format!("micro-batch {expected} of {total} is missing"),
        });
    }

    let mut steps = Vec::with_capacity(2 * parts.len());
    let mut next = 0;
    walk(root(total), total, parts, &order, &mut next, &mut steps);
    Ok(steps)
}

fn walk(node: TreeNode, total: u64, parts: &[TreeNode], order: &[usize], next: &mut usize, steps: &mut Vec<Step>) {
    let part = order[*next];
    if parts[part].highest(total) == node.highest(total) {
        *next += 1;
        steps.push(Step::Push(part));
        return;
    }
    let (left, right) = node.children();
    walk(left, total, parts, order, next, steps);
    if right.range(total).is_empty() {
        return;
    }
    let before = steps.len();
    walk(right, total, parts, order, next, steps);
    // A right child that is a single part is added straight from where it lies.
    if let [Step::Push(part)] = steps[before..] {
        steps[before] = Step::AddPart(part);
    } else {
        steps.push(Step::Add);
    }
}

/// Adds the gradients of a rank's run of micro-batches, neighbours first, into few aligned subtrees.
///
/// Micro-batches are given in rising order. Buffers that were added into another are kept and handed out again by
/// [`TreeSum::spare`], so a run of any length needs `log2` of it many.
///
/// ```
/// use azulejo_collectives::TreeSum;
///
/// let mut sum = TreeSum::new(8);
/// for micro_batch in 4..8 {
///     let mut gradient = sum.spare().unwrap_or_else(|| vec![0.0; 3]);
///     gradient.fill(micro_batch as f32);
///     sum.add(micro_batch, gradient)?;
/// }
/// let parts = sum.finish();
/// assert_eq!(parts.len(), 1); // 4..8 is a whole subtree.
/// assert_eq!(parts[0].1, [22.0; 3]);
/// # Ok::<(), azulejo_collectives::Error>(())
/// ```
#[derive(Debug)]
pub struct TreeSum {
    total: u64,
    next: u64,
    stack: Vec<(TreeNode, Vec<f32>)>,
    spare: Vec<Vec<f32>>,
}

impl TreeSum {
    /// An empty sum in a tree over `total` micro-batches (of all ranks together).
    pub fn new(total: u64) -> Self {
        Self {
            total,
            next: 0,
            stack: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Adds the gradient of one micro-batch. After an error the sum is as it was before.
    pub fn add(&mut self, micro_batch: u64, gradient: Vec<f32>) -> Result<()> {
        self.add_with(micro_batch, gradient, |total, other| {
            for (a, b) in total.iter_mut().zip(other) {
                *a += *b;
            }
        })
    }

    /// The same with the caller's way to add the second list to the first element by element, which may use its threads.
    pub fn add_with(
        &mut self,
        micro_batch: u64,
        gradient: Vec<f32>,
        mut add: impl FnMut(&mut [f32], &[f32]),
    ) -> Result<()> {
        if micro_batch >= self.total {
            return Err(Error::Parts {
                reason: format!("micro-batch {micro_batch} lies outside {} micro-batches", self.total),
            });
        }
        if micro_batch < self.next {
            return Err(Error::Parts {
                reason: format!("micro-batch {micro_batch} comes after micro-batch {}", self.next - 1),
            });
        }
        if let Some((_, other)) = self.stack.last()
            && other.len() != gradient.len()
        {
            return Err(Error::Length {
                expected: other.len(),
                got: gradient.len(),
            });
        }
        self.next = micro_batch + 1;
        let (mut node, mut sum) = (TreeNode::leaf(micro_batch).highest(self.total), gradient);
        while let Some((left, _)) = self.stack.last()
            && left.level == node.level
            && left.index + 1 == node.index
            && left.index % 2 == 0
        {
            let (left, mut total) = self.stack.pop().expect("the stack's last entry was just seen");
            add(&mut total, &sum);
            self.spare.push(std::mem::replace(&mut sum, total));
            node = left.parent().highest(self.total);
        }
        self.stack.push((node, sum));
        Ok(())
    }

    /// Empties the sum for a tree over another number of micro-batches; its buffers become spare.
    pub fn restart(&mut self, total: u64) {
        self.total = total;
        self.next = 0;
        let old = self.stack.drain(..).map(|(_, buffer)| buffer);
        self.spare.extend(old);
    }

    /// A buffer that is free again, with old numbers in it.
    pub fn spare(&mut self) -> Option<Vec<f32>> {
        self.spare.pop()
    }

    /// Gives a buffer to the spare ones, for instance one that a finished all-reduce returned.
    pub fn recycle(&mut self, buffer: Vec<f32>) {
        self.spare.push(buffer);
    }

    /// The sum over all micro-batches, if they are all in it; the sum is then empty for the next step (spare buffers stay).
    pub fn take_total(&mut self) -> Option<Vec<f32>> {
        let [(node, _)] = &self.stack[..] else { return None };
        if node.range(self.total) != (0..self.total) {
            return None;
        }
        self.next = 0;
        self.stack.pop().map(|(_, total)| total)
    }

    /// The aligned subtrees, from left to right, and leaves the sum empty for the next step (spare buffers stay).
    pub fn take(&mut self) -> Vec<(TreeNode, Vec<f32>)> {
        self.next = 0;
        std::mem::take(&mut self.stack)
    }

    /// The aligned subtrees, from left to right.
    pub fn finish(self) -> Vec<(TreeNode, Vec<f32>)> {
        self.stack
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, as plainly as it can be written.
    fn naive(values: &[f32]) -> f32 {
        let mut level = values.to_vec();
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap())
                .collect();
        }
        level[0]
    }

    fn run(steps: &[Step], parts: &[f32]) -> f32 {
        let mut stack = Vec::new();
        for step in steps {
            match *step {
                Step::Push(i) => stack.push(parts[i]),
                Step::AddPart(i) => *stack.last_mut().unwrap() += parts[i],
                Step::Add => {
                    let right = stack.pop().unwrap();
                    *stack.last_mut().unwrap() += right;
                }
            }
        }
        assert_eq!(stack.len(), 1);
        stack[0]
    }

    #[test]
    fn one_leaf() {
        assert_eq!(cover(0..1, 1), [TreeNode { level: 0, index: 0 }]);
        assert_eq!(plan(&[TreeNode::leaf(0)], 1).unwrap(), [Step::Push(0)]);
    }

    #[test]
    fn a_cover_takes_what_is_whole() {
        let node = |level, index| TreeNode { level, index };
        assert_eq!(cover(0..4, 8), [node(2, 0)]);
        assert_eq!(cover(1..7, 8), [node(0, 1), node(1, 1), node(1, 2), node(0, 6)]);
        // 4 is the right edge of five micro-batches: alone it is a whole subtree of level 2.
        assert_eq!(cover(4..5, 5), [node(2, 1)]);
        assert_eq!(cover(3..3, 5), []);
    }

    #[test]
    fn gaps_and_overlaps_are_refused() {
        let text = |parts: &[TreeNode], total| plan(parts, total).unwrap_err().to_string();
        assert!(text(&[TreeNode::leaf(0)], 2).contains("micro-batch 1 of 2 is missing"));
        assert!(text(&[TreeNode::leaf(1)], 2).contains("micro-batch 0 of 2 is missing"));
        assert!(text(&[TreeNode::leaf(0), TreeNode::leaf(0)], 1).contains("given twice"));
        assert!(text(&[TreeNode { level: 60, index: 9 }], 2).contains("outside"));
        assert!(
            text(
                &[TreeNode {
                    level: 255,
                    index: u64::MAX
                }],
                2
            )
            .contains("outside")
        );
        assert!(text(&[], 1).contains("missing"));
    }

    proptest! {
        /// Whatever the split over ranks, the bits are those of the naive tree.
        #[test]
        fn every_split_gives_the_bits_of_the_naive_tree(
            values in prop::collection::vec(-1e3f32..1e3, 1..70),
            cuts in prop::collection::vec(0usize..70, 0..9),
            swap in any::<bool>(),
        ) {
            let total = values.len() as u64;
            let mut cuts: Vec<u64> = cuts.into_iter().map(|c| (c as u64).min(total)).collect();
            cuts.extend([0, total]);
            cuts.sort_unstable();
            let mut parts = Vec::new();
            for pair in cuts.windows(2) {
                let mut sum = TreeSum::new(total);
                for i in pair[0]..pair[1] {
                    let mut buffer = sum.spare().unwrap_or_else(|| vec![0.0]);
                    buffer[0] = values[i as usize];
                    sum.add(i, buffer).unwrap();
                }
                let run = sum.finish();
                let nodes: Vec<TreeNode> = run.iter().map(|part| part.0).collect();
                prop_assert_eq!(nodes, cover(pair[0]..pair[1], total));
                parts.extend(run);
            }
            if swap {
                parts.reverse();
            }
            let nodes: Vec<TreeNode> = parts.iter().map(|part| part.0).collect();
            let numbers: Vec<f32> = parts.iter().map(|part| part.1[0]).collect();
            let sum = run(&plan(&nodes, total).unwrap(), &numbers);
            prop_assert_eq!(sum.to_bits(), naive(&values).to_bits());
        }
    }
}
