//! Rows of tables, added up: words, positions and token types.

use crate::ops::{BLOCK, Context, share};

/// `x += table[index]`, or `x = table[index]` for the first table. x `(t, h)`, index `(t)`
pub(crate) fn forward(cx: Context, x: &mut [f32], tables: &[(&[f32], &[u32])], h: usize) {
    share(cx.exec, x.chunks_mut(BLOCK * h).enumerate(), |(block, x)| {
        for (i, x) in x.chunks_mut(h).enumerate() {
            x.fill(0.0);
            for (table, index) in tables {
                let row = index[block * BLOCK + i] as usize * h;
                for (x, w) in x.iter_mut().zip(&table[row..row + h]) {
                    *x += w;
                }
            }
        }
    });
}

/// `d_table[index] += d_x`, in the order of the tokens for each row of the table; `skip` is a row without gradient.
/// d_table `(rows, h)`, d_x `(t, h)`, index `(t)`
pub(crate) fn backward(cx: Context, d_table: &mut [f32], d_x: &[f32], index: &[u32], skip: Option<u32>, h: usize) {
    // Tokens sorted by the row they read: each row's additions are one run, whoever adds them.
    let mut order = cx.buffers.take::<u32>("tokens by table row", index.len()); // (t)
    for (token, place) in order.iter_mut().enumerate() {
        *place = token as u32;
    }
    order.sort_unstable_by_key(|&token| (index[token as usize], token));
    let order = &order[..];
    // Rows of a table are cheap or free, so a thread takes many.
    const ROWS: usize = 256;
    share(cx.exec, d_table.chunks_mut(ROWS * h).enumerate(), |(chunk, d_table)| {
        let first = chunk * ROWS;
        let start = order.partition_point(|&token| (index[token as usize] as usize) < first);
        for &token in &order[start..] {
            let (token, row) = (token as usize, index[token as usize]);
            let Some(d_row) = d_table.get_mut((row as usize - first) * h..(row as usize - first + 1) * h) else {
                break;
            };
            if Some(row) != skip {
                for (d, x) in d_row.iter_mut().zip(&d_x[token * h..(token + 1) * h]) {
                    *d += x;
                }
            }
        }
    });
}
