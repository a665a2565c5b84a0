//! Gradients of biases: sums over the rows of a matrix, in an order that the sizes alone decide.

use crate::error::Result;
use crate::ops::{BLOCK, Context, share};
use crate::precision::Operand;

/// `sums += sum over t of x`, block by block. sums `(n)`, x `(t, n)`
pub(crate) fn add<T: Operand>(cx: Context, sums: &mut [f32], x: &[T]) -> Result<()> {
    let n = sums.len();
    let blocks = x.len().div_ceil(BLOCK * n);
    let mut partial = cx.take::<f32>("column sums of blocks", blocks * n)?; // (blocks, n)
    share(
        cx.exec,
        partial.chunks_mut(n).zip(x.chunks(BLOCK * n)),
        |(partial, x)| {
            partial.fill(0.0);
            cx.rows.column_sums(partial, x);
        },
    );
    cx.rows.column_sums(sums, &partial);
    Ok(())
}
