//! A buffer cut among ranks: pure.

use std::ops::Range;

/// Elements in a row that always go to the same rank: a cache line of the widest element.
const GRAIN: usize = 16;

/// The run of `count` elements that rank `rank` of `ranks` owns. Runs are contiguous, in rank order, differ by at most
/// one grain of 16 elements, and may be empty.
pub(crate) fn owned(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let grains = count.div_ceil(GRAIN);
    let (each, extra) = (grains / ranks, grains % ranks);
    let start = rank * each + rank.min(extra);
    let end = start + each + usize::from(rank < extra);
    (start * GRAIN).min(count)..(end * GRAIN).min(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_touch_and_cover_everything() {
        for count in [0, 1, 15, 16, 17, 100, 1000, 4099] {
            for ranks in 1..=9 {
                let mut next = 0;
                for rank in 0..ranks {
                    let run = owned(count, rank, ranks);
                    assert_eq!(run.start, next.min(count), "{count} elements, rank {rank} of {ranks}");
                    next = run.end;
                }
                assert_eq!(next, count, "{count} elements over {ranks} ranks");
            }
        }
    }
}
