//! The promise: the same micro-batches give the same bits, whatever the number of ranks, the split among them, the
//! transport and the segment size.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "common/cases.rs"]
#[allow(dead_code, reason = "this program uses its inputs only")]
mod cases;
#[path = "common/joined.rs"]
mod joined;

use azulejo_collectives::{Communicator, Options, threads_with};

/// Elements: several segments of the small size, and a last one that is not full.
const COUNT: usize = 5_003;

/// The bits of the sum over `total` micro-batches, which every rank must get alike; `cuts[r]..cuts[r + 1]` are rank
/// `r`'s micro-batches.
fn bits(ranks: Vec<Communicator>, cuts: &[u64], total: u64) -> Vec<u32> {
    let results: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let run = |comm: Communicator| {
            let parts = cases::parts(cuts[comm.rank()], cuts[comm.rank() + 1], total, COUNT);
            let handle = if parts.is_empty() {
                comm.start_all_reduce_tree_without_parts(vec![f32::NAN; COUNT], total, 0)
            } else {
                comm.start_all_reduce_tree(parts, total, 0)
            };
            handle.unwrap().wait().unwrap().iter().map(|x| x.to_bits()).collect()
        };
        let ranks: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(results.iter().all(|result| *result == results[0]), "ranks differ");
    results.into_iter().next().unwrap()
}

fn even(ranks: usize, total: u64) -> Vec<u64> {
    (0..=ranks as u64).map(|rank| rank * total / ranks as u64).collect()
}

#[test]
fn every_world_size_split_transport_and_segment_gives_the_same_bits() {
    let large = Options::default();
    let small = Options {
        segment_bytes: 640,
        ..Options::default()
    };
    for total in [1, 2, 3, 5, 8, 16, 21] {
        let expected = bits(threads_with(1, &large).unwrap(), &[0, total], total);
        for ranks in [1, 2, 3, 4, 5, 8] {
            for options in [&large, &small] {
                let got = bits(threads_with(ranks, options).unwrap(), &even(ranks, total), total);
                assert!(got == expected, "{total} micro-batches on {ranks} ranks, {options:?}");
            }
        }
        let got = bits(joined::over_tcp(3, &small), &even(3, total), total);
        assert!(got == expected, "{total} micro-batches on 3 ranks over TCP");
        let got = bits(joined::over_memory(3, &small), &even(3, total), total);
        assert!(got == expected, "{total} micro-batches on 3 ranks that share memory");
        let got = bits(joined::over_both(4, 2, &small), &even(4, total), total);
        assert!(got == expected, "{total} micro-batches on two nodes of two ranks");
    }
}

#[test]
fn crooked_splits_give_the_same_bits() {
    let total = 13;
    let options = Options {
        segment_bytes: 640,
        ..Options::default()
    };
    let expected = bits(threads_with(1, &options).unwrap(), &[0, total], total);
    for cuts in [
        [0, 0, 13, 13],
        [0, 1, 2, 13],
        [0, 6, 7, 13],
        [0, 5, 12, 13],
        [0, 12, 12, 13],
    ] {
        let got = bits(threads_with(3, &options).unwrap(), &cuts, total);
        assert!(got == expected, "cuts {cuts:?}");
    }
}

/// What the order is good for: another order of the same numbers gives other bits.
#[test]
fn the_inputs_can_tell_orders_apart() {
    let in_order = |order: &[u64]| {
        let sum = |i| {
            order
                .iter()
                .map(|&m| cases::noise(m, i))
                .fold(0.0_f32, |a, b| a + b)
                .to_bits()
        };
        (0..COUNT).map(sum).collect::<Vec<u32>>()
    };
    assert_ne!(in_order(&[0, 1, 2, 3, 4, 5]), in_order(&[5, 4, 3, 2, 1, 0]));
}
