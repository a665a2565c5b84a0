//! Work cut into tiles, each claimed once through an atomic cursor, on the caller's executor.
//!
//! Nothing here trusts the executor: a worker takes a seat from a counter before it may use the working memory of that
//! seat, and tiles are counted at the end. So an executor that runs a task twice, or not at all, costs an error at most.
#![expect(unsafe_code, reason = "raw memory is handed out by seat and by tile")]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::matrix::MatMut;

/// Calls `work(seat, tile)` once for every tile below `total`, on at most `seats` workers at a time. A seat belongs to one
/// worker for the whole call.
pub(crate) fn for_each_tile(
    exec: &dyn Executor,
    seats: usize,
    total: usize,
    work: &(dyn Fn(usize, usize) + Sync),
) -> Result<()> {
    if total <= 1 || seats <= 1 {
        for tile in 0..total {
            work(0, tile);
        }
        return Ok(());
    }
    let (next_seat, next_tile, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    exec.run(&|_| {
        let seat = next_seat.fetch_add(1, Ordering::Relaxed);
        if seat >= seats {
            return;
        }
        loop {
            let tile = next_tile.fetch_add(1, Ordering::Relaxed);
            if tile >= total {
                return;
            }
            work(seat, tile);
            // Pairs with the load below: whoever sees the count sees the tile.
            done.fetch_add(1, Ordering::Release);
        }
    });
    let done = done.load(Ordering::Acquire);
    if done == total {
        Ok(())
    } else {
        Err(Error::Executor { done, total })
    }
}

/// Memory in equal parts, one a seat.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seats {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is only turned into memory by `seat`, whose caller promises that a seat is used by one thread.
unsafe impl Send for Seats {}
// SAFETY: as above.
unsafe impl Sync for Seats {}

impl Seats {
    /// `base` points to `seats * bytes` bytes.
    pub(crate) fn new(base: *mut u8, bytes: usize) -> Self {
        Self { base, bytes }
    }

    /// The part of a seat.
    ///
    /// # Safety
    /// `seat` is below the number of seats that the memory was made for.
    pub(crate) unsafe fn seat(&self, seat: usize) -> *mut u8 {
        // SAFETY: within the allocation by the caller's promise.
        unsafe { self.base.add(seat * self.bytes) }
    }
}

/// A mutable matrix that several threads write, each in tiles of its own.
#[derive(Debug)]
pub(crate) struct Shared<'a, T> {
    // Invariant: the extents of the `MatMut` it was made of.
    data: *mut T,
    rows: usize,
    cols: usize,
    row_stride: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: rows are only handed out by `row`, whose caller promises that no two threads overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(crate) fn new(mut matrix: MatMut<'a, T>) -> Self {
        let (rows, cols, row_stride) = (matrix.rows(), matrix.cols(), matrix.row_stride());
        Self {
            data: matrix.data_mut().as_mut_ptr(),
            rows,
            cols,
            row_stride,
            borrow: PhantomData,
        }
    }

    /// The address of an element, as a hint: not to be dereferenced.
    pub(crate) fn address(&self, row: usize, col: usize) -> *const T {
        self.data.wrapping_add(row * self.row_stride + col)
    }

    /// Elements from one row to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// `len` elements of a row from column `col` on.
    ///
    /// # Safety
    /// `row < rows`, `col + len <= cols`, and no other reference to these elements is alive.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the tile")]
    #[inline(always)]
    pub(crate) unsafe fn row(&self, row: usize, col: usize, len: usize) -> &mut [T] {
        debug_assert!(
            row < self.rows && col + len <= self.cols,
            "row {row}, columns {col} + {len}"
        );
        // SAFETY: inside of the matrix by the caller's promise, and the matrix inside of its slice by its invariant.
        let start = unsafe { self.data.add(row * self.row_stride + col) };
        // SAFETY: as above, and the caller promises that no other reference is alive.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
