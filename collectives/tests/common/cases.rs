//! The suite that every transport passes: run by all ranks of a world of any size, each with its communicator.
//!
//! Inputs are functions of (rank, index), so each rank computes the expected result by itself.

use azulejo_collectives::{Communicator, Element, Error, ReduceOp, TreeNode, TreeSum};
use half::{bf16, f16};

/// A case: its name and what each rank does.
pub(crate) type Case = (&'static str, fn(&Communicator) -> Result<(), String>);

/// Lengths that meet no boundary, all boundaries, and several segments.
const COUNTS: [usize; 9] = [0, 1, 2, 15, 17, 100, 1023, 4099, 70_001];

pub(crate) const CASES: [Case; 18] = [
    ("barrier", barrier),
    ("broadcast from every root", broadcast),
    ("all-gather", all_gather),
    ("all-gather of unequal blocks", all_gather_bytes),
    ("gather to every root", gather_bytes),
    ("all-reduce of every type", all_reduce_types),
    ("all-reduce adds in tree order", all_reduce_order),
    ("tree sums of every split", tree_sums),
    ("many operations at once, by priority", many_at_once),
    ("reduce to every root", reduce),
    ("reduce-scatter", reduce_scatter),
    ("averages of every type", averages),
    ("gather of every type", gather_types),
    ("scatter from every root", scatter),
    ("all-to-all", all_to_all),
    ("all-to-all of unequal blocks", all_to_all_v),
    ("messages", messages),
    ("parts of the world", splits),
];

fn text(error: Error) -> String {
    error.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], expected: &[T]) -> Result<(), String> {
    if got.len() != expected.len() {
        return Err(format!("{what}: {} elements, expected {}", got.len(), expected.len()));
    }
    match got.iter().zip(expected).position(|(a, b)| a != b) {
        Some(i) => Err(format!(
            "{what}: element {i} is {:?}, expected {:?}",
            got[i], expected[i]
        )),
        None => Ok(()),
    }
}

/// A reproducible number without a pattern, between -1 and 1.
pub(crate) fn noise(rank: u64, i: usize) -> f32 {
    let mut x = (rank << 32 | i as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((x >> 40) as f32 / (1_u64 << 23) as f32) - 1.0
}

/// The sum in tree order, from its definition.
fn naive(mut level: Vec<f32>) -> f32 {
    while level.len() > 1 {
        level = level
            .chunks(2)
            .map(|pair| pair.iter().copied().reduce(|a, b| a + b).expect("a chunk is not empty"))
            .collect();
    }
    level[0]
}

fn barrier(comm: &Communicator) -> Result<(), String> {
    for _ in 0..5 {
        comm.barrier().map_err(text)?;
    }
    Ok(())
}

fn broadcast(comm: &Communicator) -> Result<(), String> {
    for root in 0..comm.world_size() {
        for count in COUNTS {
            let value = |i: usize| (i * 31 + root * 7) as u32;
            let mut buffer: Vec<u32> = (0..count)
                .map(|i| if comm.rank() == root { value(i) } else { 0 })
                .collect();
            comm.broadcast(&mut buffer, root).map_err(text)?;
            let expected: Vec<u32> = (0..count).map(value).collect();
            same(&format!("{count} from {root}"), &buffer, &expected)?;
        }
    }
    match comm.broadcast(&mut [0_u8], comm.world_size()) {
        Err(Error::Root { .. }) => Ok(()),
        other => Err(format!("a root beyond the world gave {other:?}")),
    }
}

fn all_gather(comm: &Communicator) -> Result<(), String> {
    for count in COUNTS {
        let block = |rank: usize| (0..count).map(move |i| (i + rank * 1000) as i64);
        let own: Vec<i64> = block(comm.rank()).collect();
        let got = comm.all_gather(&own).map_err(text)?;
        let expected: Vec<i64> = (0..comm.world_size()).flat_map(block).collect();
        same(&format!("{count} a rank"), &got, &expected)?;
    }
    Ok(())
}

fn block_of(rank: usize) -> Vec<u8> {
    let length = [0, 3, 5000, 70_000, 1, 4096, 4097, 9][rank % 8];
    (0..length).map(|i| (i * 7 + rank) as u8).collect()
}

fn all_gather_bytes(comm: &Communicator) -> Result<(), String> {
    let got = comm.all_gather_bytes(&block_of(comm.rank())).map_err(text)?;
    let expected: Vec<Vec<u8>> = (0..comm.world_size()).map(block_of).collect();
    same("blocks", &got, &expected)
}

fn gather_bytes(comm: &Communicator) -> Result<(), String> {
    for root in 0..comm.world_size() {
        let got = comm.gather_bytes(&block_of(comm.rank()), root).map_err(text)?;
        if comm.rank() == root {
            let expected: Vec<Vec<u8>> = (0..comm.world_size()).map(block_of).collect();
            same("blocks", &got.ok_or("the root got nothing")?, &expected)?;
        } else if got.is_some() {
            return Err("another rank than the root got blocks".into());
        }
    }
    Ok(())
}

/// Small whole numbers: every sum of them is exact in every type, so an integer sum is the oracle.
fn typed<T: Element + PartialEq + std::fmt::Debug>(
    comm: &Communicator,
    from: impl Fn(i64) -> T + Copy,
) -> Result<(), String> {
    let ranks = comm.world_size();
    let value = |rank: usize, i: usize| ((i + rank * 5) % 13) as i64;
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        for count in COUNTS {
            let mut buffer: Vec<T> = (0..count).map(|i| from(value(comm.rank(), i))).collect();
            comm.all_reduce(&mut buffer, op).map_err(text)?;
            let join = |a, b| match op {
                ReduceOp::Min => std::cmp::min(a, b),
                ReduceOp::Max => std::cmp::max(a, b),
                _ => a + b,
            };
            let expected: Vec<T> = (0..count)
                .map(|i| {
                    from(
                        (0..ranks)
                            .map(|rank| value(rank, i))
                            .reduce(join)
                            .expect("there is a rank"),
                    )
                })
                .collect();
            same(&format!("{op} of {count} x {}", T::NAME), &buffer, &expected)?;
        }
    }
    Ok(())
}

fn all_reduce_types(comm: &Communicator) -> Result<(), String> {
    typed(comm, |x| x as f32)?;
    typed(comm, |x| x as f64)?;
    typed(comm, |x| bf16::from_f32(x as f32))?;
    typed(comm, |x| f16::from_f32(x as f32))?;
    typed(comm, |x| x as i32)?;
    typed(comm, |x| x)?;
    typed(comm, |x| x as u8)?;
    typed(comm, |x| x as u32)?;
    typed(comm, |x| x as u64)?;
    let mut lost = [if comm.rank() == comm.world_size() - 1 {
        f32::NAN
    } else {
        1.0
    }];
    comm.all_reduce(&mut lost, ReduceOp::Max).map_err(text)?;
    if lost[0].is_nan() {
        Ok(())
    } else {
        Err(format!("the maximum with a NaN is {}", lost[0]))
    }
}

fn all_reduce_order(comm: &Communicator) -> Result<(), String> {
    let ranks = comm.world_size();
    for count in COUNTS {
        let mut buffer: Vec<f32> = (0..count).map(|i| noise(comm.rank() as u64, i)).collect();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).map_err(text)?;
        let sum = |i| naive((0..ranks).map(|rank| noise(rank as u64, i)).collect());
        let expected: Vec<f32> = (0..count).map(sum).collect();
        same(&format!("{count} x f32"), &buffer, &expected)?;

        // 16-bit floats: added in f32, rounded once.
        let mut buffer: Vec<bf16> = (0..count)
            .map(|i| bf16::from_f32(noise(comm.rank() as u64, i)))
            .collect();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).map_err(text)?;
        let value = |rank: usize, i| bf16::from_f32(noise(rank as u64, i)).to_f32();
        let sum = |i| bf16::from_f32(naive((0..ranks).map(|rank| value(rank, i)).collect()));
        let expected: Vec<bf16> = (0..count).map(sum).collect();
        same(&format!("{count} x bf16"), &buffer, &expected)?;
    }
    Ok(())
}

/// The parts that a rank brings when it holds the micro-batches `first..end` of `total`.
pub(crate) fn parts(first: u64, end: u64, total: u64, count: usize) -> Vec<(TreeNode, Vec<f32>)> {
    let mut sum = TreeSum::new(total);
    for micro_batch in first..end {
        let mut gradient = sum.spare().unwrap_or_else(|| vec![0.0; count]);
        for (i, x) in gradient.iter_mut().enumerate() {
            *x = noise(micro_batch, i);
        }
        sum.add(micro_batch, gradient).expect("micro-batches rise");
    }
    sum.finish()
}

/// The micro-batches of a rank when `total` are dealt as evenly as possible, in order.
pub(crate) fn dealt(rank: usize, ranks: usize, total: u64) -> (u64, u64) {
    let at = |rank: usize| rank as u64 * total / ranks as u64;
    (at(rank), at(rank + 1))
}

fn tree_sums(comm: &Communicator) -> Result<(), String> {
    for total in [1, 2, 3, 5, 8, 13, 24] {
        for count in [0, 1, 100, 4099, 70_001] {
            let (first, end) = dealt(comm.rank(), comm.world_size(), total);
            let parts = parts(first, end, total, count);
            let handle = if parts.is_empty() {
                comm.start_all_reduce_tree_without_parts(vec![f32::NAN; count], total, 0)
            } else {
                comm.start_all_reduce_tree(parts, total, 0)
            };
            let got = handle.and_then(|handle| handle.wait()).map_err(text)?;
            let sum = |i| naive((0..total).map(|micro_batch| noise(micro_batch, i)).collect());
            let expected: Vec<f32> = (0..count).map(sum).collect();
            same(&format!("{count} elements, {total} micro-batches"), &got, &expected)?;
        }
    }
    Ok(())
}

fn many_at_once(comm: &Communicator) -> Result<(), String> {
    let ranks = comm.world_size();
    let start = |k: usize| {
        let buffer: Vec<f32> = (0..20_000).map(|i| noise((comm.rank() + k) as u64, i)).collect();
        comm.start_all_reduce(buffer, ReduceOp::Sum, (k % 3) as i32)
    };
    let handles: Vec<_> = (0..12).map(start).collect();
    comm.barrier().map_err(text)?;
    // Waited for in another order than they were started in.
    for (k, handle) in handles.into_iter().enumerate().rev() {
        let got = handle.wait().map_err(text)?;
        let sum = |i| naive((0..ranks).map(|rank| noise((rank + k) as u64, i)).collect());
        let expected: Vec<f32> = (0..20_000).map(sum).collect();
        same(&format!("operation {k}"), &got, &expected)?;
    }
    Ok(())
}

fn reduce(comm: &Communicator) -> Result<(), String> {
    let ranks = comm.world_size();
    for root in 0..ranks {
        for count in COUNTS {
            let own: Vec<f32> = (0..count).map(|i| noise(comm.rank() as u64, i)).collect();
            let mut buffer = own.clone();
            comm.reduce(&mut buffer, ReduceOp::Sum, root).map_err(text)?;
            let sum = |i| naive((0..ranks).map(|rank| noise(rank as u64, i)).collect());
            let expected = if comm.rank() == root {
                (0..count).map(sum).collect()
            } else {
                own
            };
            same(&format!("{count} x f32 to {root}"), &buffer, &expected)?;
        }
    }
    Ok(())
}

fn reduce_scatter(comm: &Communicator) -> Result<(), String> {
    let ranks = comm.world_size();
    for block in [0, 1, 3, 100, 1030, 20_003] {
        let buffer: Vec<f32> = (0..block * ranks).map(|i| noise(comm.rank() as u64, i)).collect();
        let got = comm.reduce_scatter(&buffer, ReduceOp::Sum).map_err(text)?;
        let sum = |i| naive((0..ranks).map(|rank| noise(rank as u64, i)).collect());
        let expected: Vec<f32> = (comm.rank() * block..(comm.rank() + 1) * block).map(sum).collect();
        same(&format!("blocks of {block} x f32"), &got, &expected)?;
    }
    match comm.reduce_scatter(&vec![0_u8; ranks + 1], ReduceOp::Sum) {
        Err(Error::Length { .. }) => Ok(()),
        Ok(_) if ranks == 1 => Ok(()),
        other => Err(format!("blocks of unequal length gave {other:?}")),
    }
}

/// Values whose average is exact: the whole sum is a multiple of the number of ranks.
fn average<T: Element + PartialEq + std::fmt::Debug>(
    comm: &Communicator,
    from: impl Fn(i64) -> T,
) -> Result<(), String> {
    let ranks = comm.world_size() as i64;
    for count in [1, 17, 5003] {
        let value = |rank: i64, i: usize| 100 + (i % 50) as i64 + 2 * rank;
        let mut buffer: Vec<T> = (0..count).map(|i| from(value(comm.rank() as i64, i))).collect();
        comm.all_reduce(&mut buffer, ReduceOp::Average).map_err(text)?;
        let expected: Vec<T> = (0..count)
            .map(|i| from((0..ranks).map(|rank| value(rank, i)).sum::<i64>() / ranks))
            .collect();
        same(&format!("average of {count} x {}", T::NAME), &buffer, &expected)?;
    }
    Ok(())
}

fn averages(comm: &Communicator) -> Result<(), String> {
    average(comm, |x| x as f32)?;
    average(comm, |x| x as f64)?;
    average(comm, |x| bf16::from_f32(x as f32))?;
    average(comm, |x| f16::from_f32(x as f32))?;
    average(comm, |x| x as i32)?;
    average(comm, |x| -x)?;
    // Eight of these do not fit into a byte together.
    average(comm, |x| x as u8)?;
    average(comm, |x| x as u32)?;
    average(comm, |x| x as u64)
}

fn gathered<T: Element + PartialEq + std::fmt::Debug>(
    comm: &Communicator,
    from: impl Fn(usize) -> T + Copy,
) -> Result<(), String> {
    let block = move |rank: usize| (0..rank * 700 + 3).map(move |i| from((i + rank) % 100));
    let own: Vec<T> = block(comm.rank()).collect();
    let expected: Vec<Vec<T>> = (0..comm.world_size()).map(|rank| block(rank).collect()).collect();
    same(T::NAME, &comm.all_gather_v(&own).map_err(text)?, &expected)?;
    let root = comm.world_size() - 1;
    match comm.gather_v(&own, root).map_err(text)? {
        Some(got) if comm.rank() == root => same(T::NAME, &got, &expected),
        None if comm.rank() != root => Ok(()),
        other => Err(format!(
            "gather to {root} gave rank {} {:?}",
            comm.rank(),
            other.is_some()
        )),
    }
}

fn gather_types(comm: &Communicator) -> Result<(), String> {
    gathered(comm, |x| x as f32)?;
    gathered(comm, |x| x as f64)?;
    gathered(comm, |x| bf16::from_f32(x as f32))?;
    gathered(comm, |x| f16::from_f32(x as f32))?;
    gathered(comm, |x| x as i32)?;
    gathered(comm, |x| x as i64)?;
    gathered(comm, |x| x as u8)
}

fn scatter(comm: &Communicator) -> Result<(), String> {
    let ranks = comm.world_size();
    for root in 0..ranks {
        for block in [0, 1, 5, 40_001] {
            let value = |i: usize| (i * 3 + root) as i32;
            let all: Vec<i32> = (0..block * ranks).map(value).collect();
            let given: &[i32] = if comm.rank() == root { &all } else { &[] };
            let got = comm.scatter(given, root).map_err(text)?;
            same(
                &format!("{block} from {root}"),
                &got,
                &all[comm.rank() * block..][..block],
            )?;
        }
        let blocks = || (0..ranks).map(block_of).collect();
        let got = comm.scatter_v((comm.rank() == root).then(blocks), root).map_err(text)?;
        same(&format!("unequal blocks from {root}"), &got, &block_of(comm.rank()))?;
    }
    match comm.scatter(&[0_u8], ranks) {
        Err(Error::Root { .. }) => Ok(()),
        other => Err(format!("a root beyond the world gave {other:?}")),
    }
}

fn all_to_all(comm: &Communicator) -> Result<(), String> {
    let (me, ranks) = (comm.rank(), comm.world_size());
    for block in [0, 1, 7, 30_001] {
        let value = |from: usize, to: usize, i: usize| (from * 1_000_003 + to * 1009 + i) as u64;
        let own: Vec<u64> = (0..ranks)
            .flat_map(|to| (0..block).map(move |i| value(me, to, i)))
            .collect();
        let got = comm.all_to_all(&own).map_err(text)?;
        let expected: Vec<u64> = (0..ranks)
            .flat_map(|from| (0..block).map(move |i| value(from, me, i)))
            .collect();
        same(&format!("blocks of {block}"), &got, &expected)?;
    }
    Ok(())
}

fn all_to_all_v(comm: &Communicator) -> Result<(), String> {
    let (me, ranks) = (comm.rank(), comm.world_size());
    // Each pair has a length of its own, and some have none.
    let block = |from: usize, to: usize| -> Vec<u8> {
        let length = (from * 7919 + to * 104_729) % 50_000 * ((from + to) % 3);
        (0..length).map(|i| (i * 7 + from + 3 * to) as u8).collect()
    };
    let got = comm
        .all_to_all_v((0..ranks).map(|to| block(me, to)).collect())
        .map_err(text)?;
    let expected: Vec<Vec<u8>> = (0..ranks).map(|from| block(from, me)).collect();
    same("blocks", &got, &expected)?;
    match comm.all_to_all_v::<u8>(vec![Vec::new(); ranks + 1]) {
        Err(Error::Length { .. }) => Ok(()),
        other => Err(format!("a block too many gave {other:?}")),
    }
}

fn messages(comm: &Communicator) -> Result<(), String> {
    let (me, ranks) = (comm.rank(), comm.world_size());
    if ranks > 1 {
        // Around the ring, several sizes, all under way at once; a barrier in between takes part in no order of theirs.
        let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let message = |from: usize, k: usize| -> Vec<u32> {
            (0..[0, 5, 3000, 90_000][k])
                .map(|i| (i + from * 10 + k) as u32)
                .collect()
        };
        let sends: Vec<_> = (0..4)
            .map(|k| comm.start_send(message(me, k), next, k as u32, 0))
            .collect();
        comm.barrier().map_err(text)?;
        for k in 0..4 {
            let got: Vec<u32> = comm.receive(previous, k as u32).map_err(text)?;
            same(&format!("message {k}"), &got, &message(previous, k))?;
        }
        for sent in sends {
            sent.and_then(|sent| sent.wait()).map_err(text)?;
        }
    }
    for partner in [me, ranks] {
        match comm.send(&[1_u8], partner, 0) {
            Err(Error::Partner { .. }) => {}
            other => return Err(format!("a message from {me} to {partner} gave {other:?}")),
        }
    }
    Ok(())
}

fn splits(comm: &Communicator) -> Result<(), String> {
    let (me, ranks) = (comm.rank(), comm.world_size());
    // By parity, counted backwards; the parts work at the same time, and the world in between.
    let half = comm
        .split(Some(me as u64 % 2), -(me as i64))
        .map_err(text)?
        .ok_or("no part")?;
    let members: Vec<usize> = (0..ranks).rev().filter(|rank| rank % 2 == me % 2).collect();
    if half.world_size() != members.len() || members.get(half.rank()) != Some(&me) {
        return Err(format!("rank {me} is {} of {}", half.rank(), half.world_size()));
    }
    let handle = half.start_all_reduce(vec![noise(me as u64, 0); 20_000], ReduceOp::Sum, 0);
    let mut all = [1_u32];
    comm.all_reduce(&mut all, ReduceOp::Sum).map_err(text)?;
    same("the world", &all, &[ranks as u32])?;
    let sum = naive(members.iter().map(|&rank| noise(rank as u64, 0)).collect());
    same("the half", &handle.wait().map_err(text)?, &vec![sum; 20_000])?;
    // A part of a part, and ranks that are in none.
    let color = (half.rank() < 2).then_some(7);
    match half.split(color, 0).map_err(text)? {
        Some(pair) => {
            let expected: Vec<u64> = members.iter().take(2).map(|&rank| rank as u64).collect();
            same("the pair", &pair.all_gather(&[me as u64]).map_err(text)?, &expected)?;
            if pair.world_size() == 2 && pair.rank() == 0 {
                pair.send(&[41_i32, 42], 1, 9).map_err(text)?;
            } else if pair.world_size() == 2 {
                same("a message in a part", &pair.receive(0, 9).map_err(text)?, &[41_i32, 42])?;
            }
        }
        None if color.is_none() => {}
        None => return Err("a color but no part".into()),
    }
    drop(half);
    comm.barrier().map_err(text)
}
