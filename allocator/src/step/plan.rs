//! From lifetimes to offsets: pure.
//!
//! Time is counted in takes. Buffer `i` is born by take `i` and is alive for the takes before `dies`; so two buffers
//! `i < j` are alive together exactly when `dies` of `i` is above `j`. Offsets are given largest buffer first, each into
//! the tightest gap between the buffers that are alive together with it and already have a place.

/// A buffer of a recorded step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// Bytes, a multiple of the alignment.
    pub(crate) bytes: usize,
    /// Takes made when it was dropped; above its own index.
    pub(crate) dies: usize,
}

/// Places for the buffers of a step in one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) offsets: Vec<usize>,
    pub(crate) total: usize,
}

/// Whether two buffers, given with their indices, are alive at the same time.
fn together(buffers: &[Buffer], a: usize, b: usize) -> bool {
    let (first, second) = (a.min(b), a.max(b));
    buffers[first].dies > second
}

/// Gives each buffer an offset such that buffers that are alive together do not overlap.
pub(crate) fn layout(buffers: &[Buffer]) -> Layout {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].bytes), i));
    let mut offsets = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for &i in &order {
        let bytes = buffers[i].bytes;
        if bytes == 0 {
            continue;
        }
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| together(buffers, i, j))
            .map(|&j| (offsets[j], offsets[j] + buffers[j].bytes))
            .collect();
        taken.sort_unstable();
        let (mut best, mut best_gap, mut end) = (None, usize::MAX, 0);
        for (from, to) in taken {
            if from >= end && from - end >= bytes && from - end < best_gap {
                (best, best_gap) = (Some(end), from - end);
            }
            end = end.max(to);
        }
        offsets[i] = best.unwrap_or(end);
        total = total.max(offsets[i] + bytes);
        placed.push(i);
    }
    Layout { offsets, total }
}

/// For each buffer, those whose place overlaps its own: at most one of such a pair may be alive at any time.
pub(crate) fn overlaps(buffers: &[Buffer], layout: &Layout) -> Vec<Vec<usize>> {
    let range = |i: usize| layout.offsets[i]..layout.offsets[i] + buffers[i].bytes;
    let overlap = |i: usize, j: usize| range(i).start < range(j).end && range(j).start < range(i).end;
    (0..buffers.len())
        .map(|i| (0..buffers.len()).filter(|&j| j != i && overlap(i, j)).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_one_after_the_other_share_a_place() {
        let buffers = [
            Buffer { bytes: 64, dies: 1 },
            Buffer { bytes: 128, dies: 2 },
            Buffer { bytes: 64, dies: 3 },
        ];
        assert_eq!(
            layout(&buffers),
            Layout {
                offsets: vec![0, 0, 0],
                total: 128
            }
        );
    }

    #[test]
    fn a_gap_is_filled() {
        // 0 lives throughout; 1 and 2 follow each other.
        let buffers = [
            Buffer { bytes: 64, dies: 3 },
            Buffer { bytes: 256, dies: 2 },
            Buffer { bytes: 192, dies: 3 },
        ];
        assert_eq!(layout(&buffers).total, 256 + 64);
    }

    #[test]
    fn living_buffers_never_overlap_and_the_block_is_no_larger_than_the_sum() {
        let seed = 0x5eed_0001_u64;
        eprintln!("seed {seed:#x}");
        let mut state = seed;
        let mut draw = |below: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 33) as usize) % below
        };
        for case in 0..500 {
            let count = 1 + draw(60);
            let mut buffers = Vec::new();
            for i in 0..count {
                // Short lives are as common as long ones.
                let longest = (count - i).min(1 + draw(count));
                buffers.push(Buffer {
                    bytes: 64 * draw(20),
                    dies: i + 1 + draw(longest),
                });
            }
            let layout = layout(&buffers);
            let overlaps = overlaps(&buffers, &layout);
            let mut peak = 0;
            for now in 0..count {
                let alive: Vec<usize> = (0..=now).filter(|&i| buffers[i].dies > now).collect();
                peak = peak.max(alive.iter().map(|&i| buffers[i].bytes).sum::<usize>());
                for &a in &alive {
                    assert!(
                        alive.iter().all(|b| !overlaps[a].contains(b)),
                        "case {case}, take {now}: {buffers:?}"
                    );
                }
            }
            assert!(layout.total >= peak && layout.total <= buffers.iter().map(|buffer| buffer.bytes).sum());
        }
    }
}
