//! Views of matrices: shape and strides over a slice, checked once when the view is made.

use std::ops::Range;

use crate::error::{Error, Result};

/// Elements a strided view needs: one past the last element, or zero for an empty view.
fn extent(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Result<usize> {
    if rows == 0 || cols == 0 {
        return Ok(0);
    }
    let last = (rows - 1)
        .checked_mul(row_stride)
        .and_then(|r| (cols - 1).checked_mul(col_stride).and_then(|c| r.checked_add(c)))
        .and_then(|l| l.checked_add(1));
    match last {
        Some(needed) if needed <= isize::MAX as usize => Ok(needed),
        _ => Err(Error::Overflow { rows, cols }),
    }
}

/// A matrix to read, with any strides (in elements), so that a transpose is a view.
#[derive(Debug, Clone, Copy)]
pub struct MatRef<'a, T> {
    // Invariant: `extent(rows, cols, row_stride, col_stride) <= data.len()`.
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> MatRef<'a, T> {
    /// A dense matrix, rows one after the other.
    pub fn row_major(data: &'a [T], rows: usize, cols: usize) -> Result<Self> {
        Self::strided(data, rows, cols, cols, 1)
    }

    /// Element (i, j) is `data[i * row_stride + j * col_stride]`.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Result<Self> {
        let needed = extent(rows, cols, row_stride, col_stride)?;
        if needed > data.len() {
            return Err(Error::Extent {
                needed,
                available: data.len(),
            });
        }
        Ok(Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride,
        })
    }

    /// The transposed view.
    #[must_use]
    pub fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// A part of the view.
    pub fn sub(self, rows: Range<usize>, cols: Range<usize>) -> Result<Self> {
        check_range(&rows, &cols, self.rows, self.cols)?;
        let start = if rows.is_empty() || cols.is_empty() {
            0
        } else {
            rows.start * self.row_stride + cols.start * self.col_stride
        };
        Ok(Self {
            data: &self.data[start..],
            rows: rows.len(),
            cols: cols.len(),
            ..self
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.col_stride
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// The slice from element (0, 0) on.
    pub fn data(&self) -> &'a [T] {
        self.data
    }
}

impl<T: Copy> MatRef<'_, T> {
    /// Element (row, col).
    ///
    /// # Panics
    /// Outside of the shape.
    pub fn at(&self, row: usize, col: usize) -> T {
        assert!(
            row < self.rows && col < self.cols,
            "({row}, {col}) is outside of {} x {}",
            self.rows,
            self.cols
        );
        self.data[row * self.row_stride + col * self.col_stride]
    }
}

/// A matrix to write: rows are contiguous and do not overlap.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    // Invariant: `extent(rows, cols, row_stride, 1) <= data.len()` and `row_stride >= cols` when there are several rows.
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a, T> MatMut<'a, T> {
    /// A dense matrix, rows one after the other.
    pub fn row_major(data: &'a mut [T], rows: usize, cols: usize) -> Result<Self> {
        Self::strided(data, rows, cols, cols)
    }

    /// Element (i, j) is `data[i * row_stride + j]`.
    pub fn strided(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Result<Self> {
        if rows > 1 && row_stride < cols {
            return Err(Error::RowStride { cols, row_stride });
        }
        let needed = extent(rows, cols, row_stride, 1)?;
        if needed > data.len() {
            return Err(Error::Extent {
                needed,
                available: data.len(),
            });
        }
        Ok(Self {
            data,
            rows,
            cols,
            row_stride,
        })
    }

    /// A shorter borrow of the same view.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut {
            data: self.data,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
        }
    }

    /// The same matrix to read.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        MatRef {
            data: self.data,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
            col_stride: 1,
        }
    }

    /// A part of the view.
    pub fn sub(self, rows: Range<usize>, cols: Range<usize>) -> Result<Self> {
        check_range(&rows, &cols, self.rows, self.cols)?;
        let start = if rows.is_empty() || cols.is_empty() {
            0
        } else {
            rows.start * self.row_stride + cols.start
        };
        Ok(Self {
            data: &mut self.data[start..],
            rows: rows.len(),
            cols: cols.len(),
            row_stride: self.row_stride,
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// The columns of one row.
    ///
    /// # Panics
    /// Outside of the shape.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} is outside of {} x {}", self.rows, self.cols);
        let start = if self.cols == 0 { 0 } else { row * self.row_stride };
        &mut self.data[start..start + self.cols]
    }

    /// The slice from element (0, 0) on.
    pub(crate) fn data_mut(&mut self) -> &mut [T] {
        self.data
    }
}

fn check_range(rows: &Range<usize>, cols: &Range<usize>, all_rows: usize, all_cols: usize) -> Result<()> {
    if rows.start > rows.end || cols.start > cols.end || rows.end > all_rows || cols.end > all_cols {
        return Err(Error::Shape {
            what: "sub-matrix",
            expected: (all_rows, all_cols),
            got: (rows.end, cols.end),
        });
    }
    Ok(())
}
