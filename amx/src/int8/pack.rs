//! The packed form of a signed 8-bit operand B, one for every instruction set, so that weights can be packed once, stored and mapped.
//!
//! B (K x N) is cut into blocks of 64 rows and 16 columns. Each block is one tile of 1 KiB: 16 rows of 16 column quads, where quad
//! (q, c) holds B[4q][c] to B[4q + 3][c]. Tiles of one column group follow each other down K, and column groups follow each other:
//! element (k, n) is byte `((n / 16 * k_blocks + k / 64) * 16 + k % 64 / 4) * 64 + n % 16 * 4 + k % 4`. Past the edges of B there are
//! zeros. Behind the tiles come the sums of the columns, which zero points need: N rounded up to 16 of them, 32-bit, little endian.

use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::matrix::MatRef;
use crate::simd::{Kernel, Lanes};
use crate::storage::Storage;

/// Depth of a block: what one tile product reduces.
pub(crate) const K_BLOCK: usize = 64;
/// Columns of a block.
pub(crate) const TILE_COLS: usize = 16;
/// Bytes of a block.
pub(crate) const TILE_BYTES: usize = K_BLOCK * TILE_COLS;
/// Elements that one 32-bit lane multiplies and adds.
const QUAD: usize = 4;
/// Bytes of the sums of a group's columns.
const SUM_BYTES: usize = 4 * TILE_COLS;

/// A packed operand of signed bytes that owns its storage.
#[derive(Debug)]
pub struct PackedInt8 {
    // Invariant: at least `PackedInt8::len(k, n)` bytes.
    storage: Storage,
    k: usize,
    n: usize,
}

impl Clone for PackedInt8 {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.k, self.n);
        copy.as_mut().data.copy_from_slice(self.as_ref().data);
        copy
    }
}

/// A packed operand in storage of the caller (a mapped file, say), to read. Storage in huge pages, aligned to 64 bytes, is fastest; any
/// works.
#[derive(Debug, Clone, Copy)]
pub struct PackedInt8Ref<'a> {
    // Invariant: `data.len() == PackedInt8::len(k, n)`.
    data: &'a [u8],
    k: usize,
    n: usize,
}

/// A packed operand in storage of the caller, to write.
#[derive(Debug)]
pub struct PackedInt8Mut<'a> {
    // Invariant: `data.len() == PackedInt8::len(k, n)`.
    data: &'a mut [u8],
    k: usize,
    n: usize,
}

impl PackedInt8 {
    /// Bytes of the packed form of a K x N operand; `usize::MAX` where that does not fit.
    pub fn len(k: usize, n: usize) -> usize {
        let groups = n.div_ceil(TILE_COLS);
        tiles_len(k, n).saturating_add(groups.saturating_mul(SUM_BYTES))
    }

    /// A packed K x N operand of zeros.
    ///
    /// # Panics
    /// When the storage does not fit in the address space, as a vector does.
    pub fn new(k: usize, n: usize) -> Self {
        Self {
            storage: Storage::zeroed(Self::len(k, n)),
            k,
            n,
        }
    }

    /// A packed copy of `b` (K x N, any strides: weights kept as (N, K) are `.t()` of their view).
    pub fn from_i8(b: MatRef<'_, i8>) -> Self {
        let mut packed = Self::new(b.rows(), b.cols());
        packed.as_mut().fill_from(b);
        packed
    }

    /// To read.
    pub fn as_ref(&self) -> PackedInt8Ref<'_> {
        PackedInt8Ref {
            data: self.storage.slice(Self::len(self.k, self.n)),
            k: self.k,
            n: self.n,
        }
    }

    /// To write.
    pub fn as_mut(&mut self) -> PackedInt8Mut<'_> {
        PackedInt8Mut {
            data: self.storage.slice_mut(Self::len(self.k, self.n)),
            k: self.k,
            n: self.n,
        }
    }

    /// Replaces the contents by `b`, which must have this shape.
    pub fn pack(&mut self, b: MatRef<'_, i8>) -> Result<()> {
        self.as_mut().pack(b)
    }
}

/// Bytes of all tiles.
fn tiles_len(k: usize, n: usize) -> usize {
    k.div_ceil(K_BLOCK)
        .saturating_mul(n.div_ceil(TILE_COLS))
        .saturating_mul(TILE_BYTES)
}

impl<'a> PackedInt8Ref<'a> {
    /// Takes storage of exactly [`PackedInt8::len`] bytes that holds a packed K x N operand.
    pub fn new(data: &'a [u8], k: usize, n: usize) -> Result<Self> {
        check_len(data.len(), k, n)?;
        Ok(Self { data, k, n })
    }

    /// Rows of B.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns of B.
    pub fn n(&self) -> usize {
        self.n
    }

    /// The packed bytes, to be stored.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Reads all of the storage and compares the sums of the columns with the elements: for storage from outside, whose contents
    /// nobody vouches for. A damaged operand gives wrong numbers, nothing worse, so a product does not ask.
    pub fn verify(&self) -> Result<()> {
        let group = self.group_bytes();
        for g in 0..self.n.div_ceil(TILE_COLS) {
            let mut sums = [0; TILE_COLS];
            add_columns(&mut sums, &self.tiles()[g * group..][..group]);
            let stored = self.sums(g);
            if let Some(c) = (0..TILE_COLS).find(|&c| sums[c] != stored[c]) {
                return Err(Error::PackedSum {
                    column: g * TILE_COLS + c,
                    expected: sums[c],
                    got: stored[c],
                });
            }
        }
        Ok(())
    }

    /// All tiles.
    pub(crate) fn tiles(&self) -> &'a [u8] {
        &self.data[..tiles_len(self.k, self.n)]
    }

    /// Bytes of the tiles of a group of columns.
    pub(crate) fn group_bytes(&self) -> usize {
        self.k.div_ceil(K_BLOCK) * TILE_BYTES
    }

    /// The sums of the columns of a group.
    ///
    /// # Panics
    /// When the group is past the last one.
    #[inline(always)]
    pub(crate) fn sums(&self, group: usize) -> [i32; TILE_COLS] {
        let all = &self.data[tiles_len(self.k, self.n)..];
        let bytes = &all[group * SUM_BYTES..][..SUM_BYTES];
        let mut sums = [0; TILE_COLS];
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *sum = i32::from_le_bytes(*bytes);
        }
        sums
    }
}

impl<'a> PackedInt8Mut<'a> {
    /// Takes storage of exactly [`PackedInt8::len`] bytes.
    pub fn new(data: &'a mut [u8], k: usize, n: usize) -> Result<Self> {
        check_len(data.len(), k, n)?;
        Ok(Self { data, k, n })
    }

    /// Replaces the contents by `b`, which must have this shape.
    pub fn pack(&mut self, b: MatRef<'_, i8>) -> Result<()> {
        if b.shape() != (self.k, self.n) {
            return Err(Error::Shape {
                what: "operand to pack",
                expected: (self.k, self.n),
                got: b.shape(),
            });
        }
        self.fill_from(b);
        Ok(())
    }

    /// To read.
    pub fn as_ref(&self) -> PackedInt8Ref<'_> {
        PackedInt8Ref {
            data: self.data,
            k: self.k,
            n: self.n,
        }
    }

    fn fill_from(&mut self, b: MatRef<'_, i8>) {
        let group = self.k.div_ceil(K_BLOCK) * TILE_BYTES;
        let (tiles, sums) = self.data.split_at_mut(tiles_len(self.k, self.n));
        let level = Isa::packing_level();
        for (g, sums) in sums.as_chunks_mut::<SUM_BYTES>().0.iter_mut().enumerate() {
            level.run(PackGroup {
                to: &mut tiles[g * group..][..group],
                sums,
                b,
                col: g * TILE_COLS,
            });
        }
    }
}

fn check_len(available: usize, k: usize, n: usize) -> Result<()> {
    let needed = PackedInt8::len(k, n);
    if available == needed {
        Ok(())
    } else {
        Err(Error::Extent { needed, available })
    }
}

/// Adds the elements of the tiles of a group to the sums of its columns.
#[inline(always)]
fn add_columns(sums: &mut [i32; TILE_COLS], tiles: &[u8]) {
    for row in tiles.as_chunks::<{ QUAD * TILE_COLS }>().0 {
        for (sum, quad) in sums.iter_mut().zip(row.as_chunks::<QUAD>().0) {
            for byte in quad {
                *sum = sum.wrapping_add(i32::from(byte.cast_signed()));
            }
        }
    }
}

/// Packs one group of 16 columns, all of K.
struct PackGroup<'t, 'a> {
    /// `k_blocks` tiles.
    to: &'t mut [u8],
    sums: &'t mut [u8; SUM_BYTES],
    b: MatRef<'a, i8>,
    /// First column.
    col: usize,
}

impl Kernel for PackGroup<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let Self { to, sums, b, col } = self;
        let (k, cols) = (b.rows(), TILE_COLS.min(b.cols() - col));
        let (rs, cs) = (b.row_stride(), b.col_stride());
        let data: &[u8] = bytemuck::cast_slice(b.data());
        for (block, tile) in to.as_chunks_mut::<TILE_BYTES>().0.iter_mut().enumerate() {
            let k0 = block * K_BLOCK;
            let depth = K_BLOCK.min(k - k0);
            let rows = tile.as_chunks_mut::<{ QUAD * TILE_COLS }>().0;
            if cs == 1 {
                // Four rows become one row of quads.
                for (q, row) in rows.iter_mut().enumerate() {
                    let mut four = [[0; TILE_COLS]; QUAD];
                    for (i, four) in four.iter_mut().enumerate() {
                        if QUAD * q + i < depth {
                            let from = &data[(k0 + QUAD * q + i) * rs + col..][..cols];
                            match from.as_array() {
                                Some(whole) => *four = *whole,
                                None => four[..cols].copy_from_slice(from),
                            }
                        }
                    }
                    for (c, quad) in row.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
                        *quad = [four[0][c], four[1][c], four[2][c], four[3][c]];
                    }
                }
            } else if rs == 1 {
                // B is a transpose: quads lie side by side in memory, and a tile is sixteen rows of quads turned.
                let mut words = [s.splat(0.0); TILE_COLS];
                for c in 0..cols {
                    let from = &data[(col + c) * cs + k0..][..depth];
                    let mut quads = [0; K_BLOCK];
                    match from.as_array() {
                        Some(whole) => quads = *whole,
                        None => quads[..depth].copy_from_slice(from),
                    }
                    words[c] = s.number(s.load_u32(&bytemuck::cast(quads)));
                }
                for (row, word) in rows.iter_mut().zip(s.transpose(words)) {
                    let mut quads = [0; TILE_COLS];
                    s.store_u32(s.bits(word), &mut quads);
                    *row = bytemuck::cast(quads);
                }
            } else {
                tile.fill(0);
                for d in 0..depth {
                    for c in 0..cols {
                        tile[d / QUAD * QUAD * TILE_COLS + QUAD * c + d % QUAD] = data[(k0 + d) * rs + (col + c) * cs];
                    }
                }
            }
        }
        let mut totals = [0; TILE_COLS];
        add_columns(&mut totals, to);
        for (bytes, total) in sums.as_chunks_mut::<4>().0.iter_mut().zip(totals) {
            *bytes = total.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_follows_the_formula() {
        for (k, n) in [(0, 3), (1, 1), (5, 17), (64, 16), (65, 33), (130, 48), (192, 64)] {
            #[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
            let source: Vec<i8> = (0..k * n).map(|i| (i * 37 % 251) as i8).collect();
            let straight = PackedInt8::from_i8(MatRef::row_major(&source, k, n).unwrap());
            let mut turned = vec![0; k * n];
            let mut spread = vec![0; 2 * k * n];
            for i in 0..k {
                for j in 0..n {
                    turned[j * k + i] = source[i * n + j];
                    spread[2 * (i * n + j)] = source[i * n + j];
                }
            }
            let transposed = PackedInt8::from_i8(MatRef::row_major(&turned, n, k).unwrap().t());
            let strided = PackedInt8::from_i8(MatRef::strided(&spread, k, n, 2 * n, 2).unwrap());
            let mut expected = vec![0u8; PackedInt8::len(k, n)];
            let tiles = k.div_ceil(64) * n.div_ceil(16) * 1024;
            for j in 0..n {
                let mut sum = 0i32;
                for i in 0..k {
                    let at = ((j / 16 * k.div_ceil(64) + i / 64) * 16 + i % 64 / 4) * 64 + j % 16 * 4 + i % 4;
                    expected[at] = source[i * n + j].cast_unsigned();
                    sum += i32::from(source[i * n + j]);
                }
                expected[tiles + 4 * j..tiles + 4 * j + 4].copy_from_slice(&sum.to_le_bytes());
            }
            assert_eq!(straight.as_ref().data(), expected, "{k} x {n}");
            assert_eq!(transposed.as_ref().data(), expected, "{k} x {n} transposed");
            assert_eq!(strided.as_ref().data(), expected, "{k} x {n} strided");
            straight.as_ref().verify().unwrap();
        }
    }

    #[test]
    fn damage_is_found() {
        let packed = PackedInt8::from_i8(MatRef::row_major(&[1i8; 70 * 20], 70, 20).unwrap());
        let mut data = packed.as_ref().data().to_vec();
        // Row 0 of column 17: group 1.
        data[2 * 1024 + 4] = 3;
        let damaged = PackedInt8Ref::new(&data, 70, 20).unwrap();
        assert_eq!(
            damaged.verify(),
            Err(Error::PackedSum {
                column: 17,
                expected: 72,
                got: 70
            })
        );
    }
}
