//! The packed form of an operand B, one for every instruction set, so that weights can be packed once and stored.
//!
//! B (K x N) is cut into blocks of 32 rows and 16 columns. Each block is one tile of 1 KiB: 16 rows of 16 column pairs,
//! where pair (p, c) holds B[2p][c] and B[2p + 1][c]. Tiles of one column group follow each other down K, and column groups
//! follow each other: element (k, n) is at
//! `((n / 16 * k_blocks + k / 32) * 16 + k % 32 / 2) * 32 + n % 16 * 2 + k % 2`. Past the edges of B there are zeros.

use half::bf16;

use crate::bf16::round;
use crate::error::{Error, Result};
use crate::isa::Isa;
use crate::matrix::MatRef;
use crate::simd::{Kernel, Lanes};
use crate::storage::Storage;

/// Depth of a block: what one tile product reduces.
pub(crate) const K_BLOCK: usize = 32;
/// Columns of a block.
pub(crate) const TILE_COLS: usize = 16;
/// Elements of a block.
pub(crate) const TILE_LEN: usize = K_BLOCK * TILE_COLS;

/// A packed operand that owns its storage.
#[derive(Debug)]
pub struct Packed {
    // Invariant: at least `2 * Packed::len(k, n)` bytes.
    storage: Storage,
    k: usize,
    n: usize,
}

impl Clone for Packed {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.k, self.n);
        copy.as_mut().data.copy_from_slice(self.as_ref().data);
        copy
    }
}

/// A packed operand in storage of the caller, to read. Storage in huge pages, aligned to 64 bytes, is fastest; any works.
#[derive(Debug, Clone, Copy)]
pub struct PackedRef<'a> {
    // Invariant: `data.len() == Packed::len(k, n)`.
    data: &'a [bf16],
    k: usize,
    n: usize,
}

/// A packed operand in storage of the caller, to write.
#[derive(Debug)]
pub struct PackedMut<'a> {
    // Invariant: `data.len() == Packed::len(k, n)`.
    data: &'a mut [bf16],
    k: usize,
    n: usize,
}

impl Packed {
    /// Elements of the packed form of a K x N operand; `usize::MAX` where that does not fit.
    pub fn len(k: usize, n: usize) -> usize {
        k.div_ceil(K_BLOCK)
            .saturating_mul(n.div_ceil(TILE_COLS))
            .saturating_mul(TILE_LEN)
    }

    /// A packed K x N operand of zeros.
    ///
    /// # Panics
    /// When the storage does not fit in the address space, as a vector does.
    pub fn new(k: usize, n: usize) -> Self {
        Self {
            storage: Storage::zeroed(Self::len(k, n).saturating_mul(2)),
            k,
            n,
        }
    }

    /// A packed copy of `b`.
    pub fn from_bf16(b: MatRef<'_, bf16>) -> Self {
        let mut packed = Self::new(b.rows(), b.cols());
        packed.as_mut().fill_from(b);
        packed
    }

    /// A packed copy of `b`, rounded to nearest even.
    pub fn from_f32(b: MatRef<'_, f32>) -> Self {
        let mut packed = Self::new(b.rows(), b.cols());
        packed.as_mut().fill_from(b);
        packed
    }

    /// To read.
    pub fn as_ref(&self) -> PackedRef<'_> {
        PackedRef {
            data: self.storage.slice(Self::len(self.k, self.n)),
            k: self.k,
            n: self.n,
        }
    }

    /// To write.
    pub fn as_mut(&mut self) -> PackedMut<'_> {
        PackedMut {
            data: self.storage.slice_mut(Self::len(self.k, self.n)),
            k: self.k,
            n: self.n,
        }
    }

    /// Replaces the contents by `b`, which must have this shape.
    pub fn pack_bf16(&mut self, b: MatRef<'_, bf16>) -> Result<()> {
        self.as_mut().pack_bf16(b)
    }

    /// Replaces the contents by `b` rounded to nearest even; `b` must have this shape.
    pub fn pack_f32(&mut self, b: MatRef<'_, f32>) -> Result<()> {
        self.as_mut().pack_f32(b)
    }
}

impl<'a> PackedRef<'a> {
    /// Takes storage of exactly [`Packed::len`] elements that holds a packed K x N operand.
    pub fn new(data: &'a [bf16], k: usize, n: usize) -> Result<Self> {
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

    /// The packed elements.
    pub fn data(&self) -> &'a [bf16] {
        self.data
    }
}

impl<'a> PackedMut<'a> {
    /// Takes storage of exactly [`Packed::len`] elements.
    pub fn new(data: &'a mut [bf16], k: usize, n: usize) -> Result<Self> {
        check_len(data.len(), k, n)?;
        Ok(Self { data, k, n })
    }

    /// Replaces the contents by `b`, which must have this shape.
    pub fn pack_bf16(&mut self, b: MatRef<'_, bf16>) -> Result<()> {
        self.check_shape(b.shape())?;
        self.fill_from(b);
        Ok(())
    }

    /// Replaces the contents by `b` rounded to nearest even; `b` must have this shape.
    pub fn pack_f32(&mut self, b: MatRef<'_, f32>) -> Result<()> {
        self.check_shape(b.shape())?;
        self.fill_from(b);
        Ok(())
    }

    /// To read.
    pub fn as_ref(&self) -> PackedRef<'_> {
        PackedRef {
            data: self.data,
            k: self.k,
            n: self.n,
        }
    }

    fn check_shape(&self, got: (usize, usize)) -> Result<()> {
        if got == (self.k, self.n) {
            Ok(())
        } else {
            Err(Error::Shape {
                what: "operand to pack",
                expected: (self.k, self.n),
                got,
            })
        }
    }

    fn fill_from<T: Element>(&mut self, b: MatRef<'_, T>) {
        let group = self.k.div_ceil(K_BLOCK) * TILE_LEN;
        if group == 0 {
            return;
        }
        let level = Isa::packing_level();
        for (j, columns) in self.data.chunks_exact_mut(group).enumerate() {
            level.run(PackGroup {
                to: columns,
                b,
                col: j * TILE_COLS,
            });
        }
    }
}

fn check_len(available: usize, k: usize, n: usize) -> Result<()> {
    let needed = Packed::len(k, n);
    if available == needed {
        Ok(())
    } else {
        Err(Error::Extent { needed, available })
    }
}

/// An element that packs into bf16.
pub(crate) trait Element: Copy + Send + Sync {
    fn to_bf16(self) -> bf16;

    /// Up to 32 elements as pairs of bf16, zeros behind them.
    #[inline(always)]
    fn load_pairs<S: Lanes>(s: S, x: &[Self]) -> S::I {
        let mut pairs = [bf16::ZERO; K_BLOCK];
        for (to, from) in pairs.iter_mut().zip(x) {
            *to = from.to_bf16();
        }
        s.load_pairs(&pairs)
    }

    /// Up to sixteen elements as bf16 in the upper halves of words, zeros behind them.
    fn load<S: Lanes>(s: S, x: &[Self]) -> S::I;
}

impl Element for bf16 {
    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        self
    }

    #[inline(always)]
    fn load_pairs<S: Lanes>(s: S, x: &[bf16]) -> S::I {
        match <&[bf16; K_BLOCK]>::try_from(x) {
            Ok(x) => s.load_pairs(x),
            Err(_) => {
                let mut pairs = [bf16::ZERO; K_BLOCK];
                pairs[..x.len()].copy_from_slice(x);
                s.load_pairs(&pairs)
            }
        }
    }

    #[inline(always)]
    fn load<S: Lanes>(s: S, x: &[bf16]) -> S::I {
        // Widening puts the bits in the upper half and changes none of them.
        match <&[bf16; TILE_COLS]>::try_from(x) {
            Ok(x) => s.bits(s.load_bf16(x)),
            Err(_) => s.bits(s.load_part_bf16(x, 0.0)),
        }
    }
}

impl Element for f32 {
    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        round(self)
    }

    #[inline(always)]
    fn load<S: Lanes>(s: S, x: &[f32]) -> S::I {
        let wide = match <&[f32; TILE_COLS]>::try_from(x) {
            Ok(x) => s.load(x),
            Err(_) => s.load_part(x, 0.0),
        };
        let mut rounded = [bf16::ZERO; TILE_COLS];
        s.store_bf16(wide, &mut rounded);
        s.bits(s.load_bf16(&rounded))
    }
}

/// Packs one group of 16 columns, all of K.
pub(crate) struct PackGroup<'t, 'a, T> {
    /// `k_blocks` tiles.
    pub(crate) to: &'t mut [bf16],
    pub(crate) b: MatRef<'a, T>,
    /// First column.
    pub(crate) col: usize,
}

impl<T: Element> Kernel for PackGroup<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let Self { to, b, col } = self;
        let (k, cols) = (b.rows(), TILE_COLS.min(b.cols() - col));
        let (rs, cs) = (b.row_stride(), b.col_stride());
        let data = b.data();
        for (block, tile) in to.as_chunks_mut::<TILE_LEN>().0.iter_mut().enumerate() {
            let k0 = block * K_BLOCK;
            let depth = K_BLOCK.min(k - k0);
            let (pairs, _) = tile.as_chunks_mut::<{ 2 * TILE_COLS }>();
            if cs == 1 {
                // Two rows become one row of pairs.
                for (p, pairs) in pairs.iter_mut().enumerate() {
                    let row = |d: usize| {
                        if d < depth {
                            &data[(k0 + d) * rs + col..][..cols]
                        } else {
                            &[]
                        }
                    };
                    let (even, odd) = (T::load(s, row(2 * p)), T::load(s, row(2 * p + 1)));
                    s.store_pairs(s.or(s.shr::<16>(even), odd), pairs);
                }
            } else if rs == 1 {
                // B is a transpose: pairs lie side by side in memory, and a tile is sixteen rows of pairs turned.
                let mut rows = [s.splat(0.0); TILE_COLS];
                for c in 0..TILE_COLS {
                    if c < cols {
                        rows[c] = s.number(T::load_pairs(s, &data[(col + c) * cs + k0..][..depth]));
                    }
                }
                let turned = s.transpose(rows);
                for p in 0..TILE_COLS {
                    s.store_pairs(s.bits(turned[p]), &mut pairs[p]);
                }
            } else {
                tile.fill(bf16::ZERO);
                for d in 0..depth {
                    for c in 0..cols {
                        tile[d / 2 * 2 * TILE_COLS + 2 * c + d % 2] = data[(k0 + d) * rs + (col + c) * cs].to_bf16();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_follows_the_formula() {
        for (k, n) in [(0, 3), (1, 1), (5, 17), (32, 16), (64, 33), (95, 48), (96, 64)] {
            let source: Vec<f32> = (0..k * n).map(|i| i as f32 * 0.37 - 11.0).collect();
            let straight = Packed::from_f32(MatRef::row_major(&source, k, n).unwrap());
            let mut turned = vec![0.0; k * n];
            for i in 0..k {
                for j in 0..n {
                    turned[j * k + i] = source[i * n + j];
                }
            }
            let transposed = Packed::from_f32(MatRef::row_major(&turned, n, k).unwrap().t());
            let halves: Vec<bf16> = source.iter().map(|&x| round(x)).collect();
            let from_halves = Packed::from_bf16(MatRef::row_major(&halves, k, n).unwrap());
            let mut expected = vec![bf16::ZERO; Packed::len(k, n)];
            for i in 0..k {
                for j in 0..n {
                    let at = ((j / 16 * k.div_ceil(32) + i / 32) * 16 + i % 32 / 2) * 32 + j % 16 * 2 + i % 2;
                    expected[at] = halves[i * n + j];
                }
            }
            assert_eq!(straight.as_ref().data(), expected, "{k} x {n}");
            assert_eq!(transposed.as_ref().data(), expected, "{k} x {n} transposed");
            assert_eq!(from_halves.as_ref().data(), expected, "{k} x {n} from bf16");
        }
    }
}
