//! Gradients of biases: sums over the rows of a matrix, in an order that the sizes alone decide.

use crate::ops::{BLOCK, Context, share};
use crate::precision::Operand;

/// `sums += sum over t of x`. sums `(n)`, x `(t, n)`
pub(crate) fn add<T: Operand>(cx: Context, sums: &mut [f32], x: &[T]) {
    let n = sums.len();
    let blocks = x.len().div_ceil(BLOCK * n);
    let mut partial = cx.buffers.take::<f32>("column sums of blocks", blocks * n); // (blocks, n)
    share(
        cx.exec,
        partial.chunks_mut(n).zip(x.chunks(BLOCK * n)),
        |(partial, x)| {
            partial.fill(0.0);
            for x in x.chunks(n) {
                for (sum, x) in partial.iter_mut().zip(x) {
                    *sum += x.to_f32();
                }
            }
        },
    );
    add_blocks(sums, &partial);
}

/// `sums += sum over blocks of partial`, first block first. sums `(n)`, partial `(blocks, n)`
pub(crate) fn add_blocks(sums: &mut [f32], partial: &[f32]) {
    let n = sums.len();
    for block in partial.chunks(n) {
        for (sum, p) in sums.iter_mut().zip(block) {
            *sum += p;
        }
    }
}
