//! The order of the training data: `run_qa.py`'s permutation, cut into micro-batches.
//!
//! Trainer draws a fresh permutation for every epoch with `torch.randperm` from a generator seeded
//! with `seed + epoch`. That generator is MT19937 with 32-bit seeding, and the permutation is a
//! forward shuffle, so the same order can be produced here and a run can be compared with the
//! original sample by sample.
//!
//! The permutation is cut into **micro-batches** in order; a **step** takes the next
//! `micro_batches_per_step` of them; each rank computes a contiguous run of a step's micro-batches
//! ([`share`]). The list of micro-batches does not depend on the number of ranks, which is why the
//! result of a run does not either.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use rand_mt::Mt;

/// What `torch.randperm(n, generator)` returns for a CPU generator seeded with `seed`.
///
/// Only the low 32 bits of the seed matter, as in PyTorch.
///
/// ```
/// assert_eq!(azulejo_bert::sampler::permutation(10, 42), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]);
/// ```
pub fn permutation(n: usize, seed: u64) -> Vec<u32> {
    assert!(n <= MAX_SAMPLES, "a permutation of {n} samples, at most {MAX_SAMPLES}");
    let mut generator = Mt::new(seed as u32);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in 0..n.saturating_sub(1) {
        let z = generator.next_u32() as usize % (n - i);
        order.swap(i, i + z);
    }
    order
}

/// From here on PyTorch switches to another algorithm (`u32::MAX / 20`, so that the modulo's bias stays small).
pub const MAX_SAMPLES: usize = (u32::MAX / 20) as usize;

/// How the samples of a run are dealt out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampler {
    /// Number of training samples (features).
    pub samples: usize,
    /// Samples of a micro-batch: `per_device_train_batch_size`.
    pub micro_batch: usize,
    /// Micro-batches of a step: ranks times `gradient_accumulation_steps`.
    pub micro_batches_per_step: usize,
    /// Seed of the order; epoch `e` uses `seed + e`.
    pub seed: u64,
    /// Leave out the micro-batch at the end of an epoch that is not full.
    pub drop_last: bool,
    /// Tokens of each sample, to deal out samples of like length together (`--group_by_length`); none for the plain order.
    pub lengths: Option<Arc<[u32]>>,
}

impl Sampler {
    /// Micro-batches of an epoch.
    pub fn micro_batches_per_epoch(&self) -> usize {
        if self.drop_last {
            self.samples / self.micro_batch
        } else {
            self.samples.div_ceil(self.micro_batch)
        }
    }

    /// Optimiser steps of an epoch. The last one takes the micro-batches that are left, however few.
    pub fn steps_per_epoch(&self) -> usize {
        self.micro_batches_per_epoch().div_ceil(self.micro_batches_per_step)
    }

    /// The order of the samples in `epoch`.
    pub fn epoch(&self, epoch: usize) -> Epoch {
        let order = permutation(self.samples, self.seed.wrapping_add(epoch as u64));
        Epoch {
            sampler: self.clone(),
            order: match &self.lengths {
                None => order,
                Some(lengths) => grouped(order, lengths, self.micro_batch * self.micro_batches_per_step),
            },
        }
    }
}

/// Sorts pieces of an order by length, the longest sample first, as Trainer's sampler for `group_by_length` does with
/// batches of `batch` samples. The longest sample of all comes first, so that a lack of memory shows at once.
fn grouped(mut order: Vec<u32>, lengths: &[u32], batch: usize) -> Vec<u32> {
    let length = |sample: u32| lengths.get(sample as usize).copied().unwrap_or(0);
    let piece = batch * (order.len() / (batch * 4)).clamp(1, 50);
    order
        .chunks_mut(piece)
        .for_each(|piece| piece.sort_by_key(|&sample| Reverse(length(sample)))); // stable
    let firsts = (0..order.len()).step_by(piece);
    // Of equal lengths the first counts.
    if let Some(longest) = firsts.min_by_key(|&at| Reverse(length(order[at]))) {
        order.swap(0, longest);
    }
    order
}

/// One epoch's order, to be asked for its steps.
#[derive(Debug, Clone)]
pub struct Epoch {
    sampler: Sampler,
    order: Vec<u32>,
}

impl Epoch {
    /// The micro-batches of step `step` of this epoch: sample numbers, in order.
    pub fn step(&self, step: usize) -> impl ExactSizeIterator<Item = &[u32]> + Clone {
        let s = &self.sampler;
        let first = step * s.micro_batches_per_step;
        let last = (first + s.micro_batches_per_step).min(s.micro_batches_per_epoch());
        (first..last).map(|m| &self.order[m * s.micro_batch..((m + 1) * s.micro_batch).min(s.samples)])
    }
}

/// The contiguous run of `items` things that belongs to `rank` of `world`; the runs of all ranks
/// cover everything once, in the order of the ranks, and differ by at most one in length.
pub fn share(items: usize, rank: usize, world: usize) -> Range<usize> {
    assert!(rank < world, "rank {rank} of {world}");
    rank * items / world..(rank + 1) * items / world
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values printed by torch 2.8: `torch.randperm(n, generator=torch.Generator().manual_seed(seed))`.
    #[test]
    fn the_order_is_that_of_torch() {
        assert_eq!(permutation(0, 3), [0u32; 0]);
        assert_eq!(permutation(1, 0), [0]);
        assert_eq!(permutation(2, 7), [1, 0]);
        assert_eq!(permutation(5, 0xffff_ffff), [1, 3, 4, 2, 0]);
        assert_eq!(permutation(10, 42), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]);
        assert_eq!(permutation(10, 5), [1, 4, 9, 6, 3, 5, 0, 2, 8, 7]);
        assert_eq!(
            permutation(10, (1 << 32) + 5),
            permutation(10, 5),
            "only 32 bits of the seed count"
        );
        assert_eq!(
            permutation(37, 43),
            [
                16, 13, 2, 36, 17, 31, 0, 28, 8, 12, 14, 35, 5, 11, 7, 29, 3, 6, 34, 22, 19, 30, 27, 32, 18, 10, 21,
                25, 23, 33, 1, 15, 24, 9, 26, 20, 4
            ]
        );
    }

    /// The training set's 88,524 features, and a long one: FNV-1a over the little-endian numbers, made by the same torch.
    #[test]
    fn long_orders_are_those_of_torch() {
        let fnv = |order: &[u32]| {
            order
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
                    (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
                })
        };
        let squad = permutation(88_524, 42);
        assert_eq!(squad[..5], [67_938, 66_210, 32_584, 9_517, 13_710]);
        assert_eq!(fnv(&squad), 0x2123_1969_5d2f_b1b1);
        assert_eq!(fnv(&permutation(100_000, 44)), 0x3cac_2f64_0ca8_e71d);
    }

    #[test]
    fn an_epoch_is_dealt_out_once() {
        let sampler = Sampler {
            samples: 37,
            micro_batch: 4,
            micro_batches_per_step: 3,
            seed: 43,
            drop_last: false,
            lengths: None,
        };
        assert_eq!(sampler.micro_batches_per_epoch(), 10);
        assert_eq!(sampler.steps_per_epoch(), 4);
        let epoch = sampler.epoch(0);
        let steps: Vec<_> = (0..4).map(|s| epoch.step(s).collect::<Vec<_>>()).collect();
        assert_eq!(steps.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
        assert_eq!(steps.concat().concat(), permutation(37, 43));
        assert_eq!(steps[3][0].len(), 1, "the last micro-batch holds what is left");
        assert_ne!(sampler.epoch(1).order, epoch.order);

        let dropping = Sampler {
            drop_last: true,
            ..sampler
        };
        assert_eq!(dropping.micro_batches_per_epoch(), 9);
        assert!((0..dropping.steps_per_epoch()).all(|s| epoch.step(s).all(|m| m.len() == 4)));
    }

    /// Values of `get_length_grouped_indices` of transformers 4.55 with torch 2.8: lengths 7 i mod 23, batches of 2, the
    /// generator seeded with 42; then 500 lengths i i mod 97, batches of 4.
    #[test]
    fn groups_are_those_of_transformers() {
        let sampler = |lengths: Vec<u32>, micro_batch: usize, micro_batches_per_step: usize| Sampler {
            samples: lengths.len(),
            micro_batch,
            micro_batches_per_step,
            seed: 42,
            drop_last: false,
            lengths: Some(lengths.into()),
        };
        let short = sampler((0..20).map(|i| 7 * i % 23).collect(), 1, 2);
        assert_eq!(
            short.epoch(0).order,
            [13, 15, 18, 14, 1, 4, 10, 0, 3, 6, 8, 11, 2, 12, 17, 7, 16, 19, 9, 5]
        );
        let long = sampler((0..500).map(|i| i * i % 97).collect(), 2, 2);
        let order = long.epoch(0).order;
        assert_eq!(order[..12], [366, 75, 22, 463, 313, 119, 177, 114, 317, 335, 53, 461]);
        let sum = order
            .iter()
            .fold(0u64, |h, x| h.wrapping_mul(31).wrapping_add(u64::from(*x)));
        assert_eq!(sum, 4173188021538255680);
    }

    #[test]
    fn shares_cover_everything_in_order() {
        for items in 0..20 {
            for world in 1..9 {
                let runs: Vec<_> = (0..world).map(|rank| share(items, rank, world)).collect();
                assert_eq!(
                    runs.iter().cloned().flatten().collect::<Vec<_>>(),
                    (0..items).collect::<Vec<_>>()
                );
                let longest = runs.iter().map(Range::len).max();
                let shortest = runs.iter().map(Range::len).min();
                assert!(longest.zip(shortest).is_some_and(|(l, s)| l - s <= 1));
            }
        }
        assert_eq!(share(8, 3, 4), 6..8);
    }
}
