//! Random bits as a pure function of a counter, and dropout masks made of them.
//!
//! [`philox`] is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011):
//! four words of counter and two of key give four random words, with no state between calls. A dropout mask is
//! therefore the same whichever thread, process or node computes it, and backward makes it again instead of keeping it.
//!
//! A mask is addressed by (seed, step, layer, site), which become the key, and (sample, row, column), which become the
//! counter. A row is whatever the caller numbers within a sample: a token for hidden states, a pair of head and query for
//! attention. Each block of 128 bits decides eight elements by its eight 16-bit fields; a field below the threshold
//! drops its element. So the probability of dropping is `round(p * 65536) / 65536` (0.1 becomes 0.100006), while kept
//! elements are scaled by exactly `1 / (1 - p)` of the nominal p.
//!
//! Column c of a row belongs to lane `c % 16` and field `c / 16 % 8` of block `c / 128 * 16 + c % 16`: sixteen blocks side by
//! side in a vector give 128 columns with nothing moved between lanes.

use crate::simd::Lanes;

/// The multipliers of the two halves of the counter.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// What is added to the two words of the key after each round: the golden ratio, and sqrt(3) - 1.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
/// Ten rounds is what its authors recommend.
const ROUNDS: usize = 10;

/// Philox4x32-10: four random words for a key and a counter.
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        let [low0, high0] = words(p0);
        let [low1, high1] = words(p1);
        [c0, c1, c2, c3] = [high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0];
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// The low and the high word.
#[expect(clippy::cast_possible_truncation, reason = "the cut is the purpose")]
const fn words(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// [`philox`] for the sixteen counters `[first + lane, c1, c2, c3]`.
///
/// The counter words live in the even words of 64-bit pairs, where the 32-bit multiplication reads and writes; so a round
/// is two products, two shifts and four exclusive ors, with nothing moved between lanes. Odd words hold rubbish.
#[inline(always)]
fn philox_lanes<S: Lanes>(s: S, key: [u32; 2], first: u32, [c1, c2, c3]: [u32; 3]) -> [S::I; 4] {
    let [even, odd] = [0, 1].map(|parity| {
        let mut lanes = [0; 16];
        for (i, lane) in lanes.iter_mut().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "i is below 16")]
            let i = i as u32;
            *lane = first.wrapping_add((i & !1) + parity);
        }
        lanes
    });
    let mut a = [s.load_u32(&even), s.splat_u32(c1), s.splat_u32(c2), s.splat_u32(c3)];
    let mut b = [s.load_u32(&odd), a[1], a[2], a[3]];
    let [m0, m1] = [s.splat_u32(MULTIPLIERS[0]), s.splat_u32(MULTIPLIERS[1])];
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let keys = [s.splat_u32(k0), s.splat_u32(k1)];
        a = round(s, a, [m0, m1], keys);
        b = round(s, b, [m0, m1], keys);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [
        s.interleave_even(a[0], b[0]),
        s.interleave_even(a[1], b[1]),
        s.interleave_even(a[2], b[2]),
        s.interleave_even(a[3], b[3]),
    ]
}

/// One round on eight counters in the even words.
#[inline(always)]
fn round<S: Lanes>(s: S, [c0, c1, c2, c3]: [S::I; 4], [m0, m1]: [S::I; 2], [k0, k1]: [S::I; 2]) -> [S::I; 4] {
    let p0 = s.mul_even(c0, m0);
    let p1 = s.mul_even(c2, m1);
    [
        s.xor(s.xor(s.odd_to_even(p1), c1), k0),
        p1,
        s.xor(s.xor(s.odd_to_even(p0), c3), k1),
        p0,
    ]
}

/// A row of activations, by the sample it belongs to: what addresses its dropout mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RowId {
    /// The sample's index in the whole data order, the same whatever process computes it.
    pub sample: u64,
    /// The row within the sample.
    pub row: u32,
}

/// A dropout layer in one step: everything a mask depends on but row and column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    key: [u32; 2],
    /// Fields below it drop their element; at most 65535.
    threshold: u32,
    scale: f32,
}

impl Dropout {
    /// Keeps everything.
    pub(crate) const NONE: Dropout = Dropout {
        key: [0; 2],
        threshold: 0,
        scale: 1.0,
    };

    /// Dropout with the given probability of dropping; `None` unless `0 <= probability < 1`.
    ///
    /// `site` tells the dropouts of one layer apart.
    pub fn new(probability: f32, seed: u64, step: u64, layer: u32, site: u32) -> Option<Self> {
        if !(0.0..1.0).contains(&probability) {
            return None;
        }
        // The key is a random function of all four, by one block under the seed. Two of these can only share a key by the
        // chance of 2^-64.
        let [step_low, step_high] = words(step);
        let [k0, k1, ..] = philox(words(seed), [step_low, step_high, layer, site]);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 65535 by the bounds"
        )]
        let threshold = (f64::from(probability) * 65536.0).round().min(65535.0) as u32;
        Some(Dropout {
            key: [k0, k1],
            threshold,
            scale: 1.0 / (1.0 - probability),
        })
    }

    /// What kept elements are multiplied by: `1 / (1 - p)`.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The probability of dropping as the 16-bit threshold realises it.
    pub fn realised_probability(&self) -> f64 {
        f64::from(self.threshold) / 65536.0
    }

    /// Whether no element is ever dropped.
    pub fn is_identity(&self) -> bool {
        self.threshold == 0 && self.scale == 1.0
    }

    /// Whether the element in this row and column is kept.
    pub fn keeps(&self, row: RowId, column: u32) -> bool {
        let [low, high] = words(row.sample);
        let block = philox(self.key, [column / 128 * 16 + column % 16, row.row, low, high]);
        self.keeps_field(block, column / 16 % 8)
    }

    /// Whether this field of a block keeps its element.
    fn keeps_field(&self, block: [u32; 4], field: u32) -> bool {
        let word = block[field as usize / 2];
        let value = if field.is_multiple_of(2) {
            word & 0xffff
        } else {
            word >> 16
        };
        value >= self.threshold
    }

    /// What the elements of columns `128 chunk ..` are multiplied by (0 or the scale), as eight vectors of sixteen.
    #[inline(always)]
    pub(crate) fn factors<S: Lanes>(&self, s: S, row: RowId, chunk: usize) -> [S::F; 8] {
        #[expect(clippy::cast_possible_truncation, reason = "columns are counted in 32 bits")]
        let first = (chunk as u32).wrapping_mul(16);
        self.block_factors(s, first, row.row, row.sample)
    }

    /// Whether the element of a group of eight rows is kept, for masks that are addressed by groups: the eight fields of
    /// the block of a column belong to the group's eight rows. `row` is the row within the group.
    ///
    /// Attention uses this form, because it works on eight rows at a time and its rows are often much shorter than 128.
    pub fn keeps_in_group(&self, group: RowId, row: u32, column: u32) -> bool {
        let [low, high] = words(group.sample);
        self.keeps_field(philox(self.key, [column, group.row, low, high]), row % 8)
    }

    /// What the elements of columns `16 chunk ..` of a group of eight rows are multiplied by, a vector for each row.
    #[inline(always)]
    pub(crate) fn group_factors<S: Lanes>(&self, s: S, group: RowId, chunk: usize) -> [S::F; 8] {
        #[expect(clippy::cast_possible_truncation, reason = "columns are counted in 32 bits")]
        let first = (chunk as u32).wrapping_mul(16);
        self.block_factors(s, first, group.row, group.sample)
    }

    /// The factors of the eight fields of sixteen blocks.
    #[inline(always)]
    fn block_factors<S: Lanes>(&self, s: S, first: u32, row: u32, sample: u64) -> [S::F; 8] {
        let [low, high] = words(sample);
        let words = philox_lanes(s, self.key, first, [row, low, high]);
        let threshold = s.splat_u32(self.threshold);
        let (zero, scale) = (s.splat(0.0), s.splat(self.scale));
        let mask = s.splat_u32(0xffff);
        let mut factors = [zero; 8];
        for i in 0..4 {
            let fields = [s.and(words[i], mask), s.shr::<16>(words[i])];
            factors[2 * i] = s.select(s.lt_i32(fields[0], threshold), zero, scale);
            factors[2 * i + 1] = s.select(s.lt_i32(fields[1], threshold), zero, scale);
        }
        factors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Level};

    /// The known answers that the authors published with their implementation.
    #[test]
    fn published_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, want) in cases {
            assert_eq!(philox(key, counter), want, "counter {counter:x?}, key {key:x?}");
        }
    }

    /// 128 factors of one chunk.
    struct Factors(Dropout, RowId, usize);

    impl Kernel for Factors {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Lanes>(self, s: S) -> Vec<f32> {
            let mut out = vec![0.0; 128];
            for (out, factor) in out.as_chunks_mut().0.iter_mut().zip(self.0.factors(s, self.1, self.2)) {
                s.store(factor, out);
            }
            out
        }
    }

    #[test]
    fn every_level_makes_the_mask_of_the_definition() {
        let dropout = Dropout::new(0.3, 7, 1 << 33, 2, 1).expect("a probability");
        for level in Level::all() {
            for (sample, row, chunk) in [(0, 0, 0), (5, 383, 5), (1 << 40, u32::MAX, 1)] {
                let id = RowId { sample, row };
                let got = level.run(Factors(dropout, id, chunk));
                for (i, &factor) in got.iter().enumerate() {
                    let keeps = dropout.keeps(id, u32::try_from(chunk * 128 + i).expect("a column"));
                    assert_eq!(
                        factor,
                        if keeps { dropout.scale() } else { 0.0 },
                        "{level:?} {id:?} {chunk} {i}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_part_of_the_address_changes_the_mask() {
        let bits = |seed, step, layer, site, sample, row| -> Vec<bool> {
            let dropout = Dropout::new(0.5, seed, step, layer, site).expect("a probability");
            (0..256)
                .map(|column| dropout.keeps(RowId { sample, row }, column))
                .collect()
        };
        let base = bits(1, 2, 3, 4, 5, 6);
        let others = [
            bits(0, 2, 3, 4, 5, 6),
            bits(1, 0, 3, 4, 5, 6),
            bits(1, 2, 0, 4, 5, 6),
            bits(1, 2, 3, 0, 5, 6),
            bits(1, 2, 3, 4, 0, 6),
            bits(1, 2, 3, 4, 5, 0),
            bits(1, 2, 3, 4, 5 + (1 << 32), 6),
            bits(1, 2 + (1 << 32), 3, 4, 5, 6),
        ];
        for (i, other) in others.iter().enumerate() {
            // 256 fair coins: fewer than 80 differing is seven standard deviations away.
            let differing = base.iter().zip(other).filter(|(a, b)| a != b).count();
            assert!(differing > 80, "address part {i}: {differing} of 256 differ");
        }
    }

    #[test]
    fn the_share_dropped_is_the_realised_probability() {
        for p in [0.0_f32, 0.1, 0.5, 0.9] {
            let dropout = Dropout::new(p, 42, 0, 0, 0).expect("a probability");
            let n = 400_000_u32;
            let dropped = (0..n)
                .filter(|i| {
                    !dropout.keeps(
                        RowId {
                            sample: u64::from(i / 1000),
                            row: 3,
                        },
                        i % 1000,
                    )
                })
                .count();
            let share = f64::from(u32::try_from(dropped).expect("a count")) / f64::from(n);
            let expected = dropout.realised_probability();
            // Five standard deviations of a binomial share.
            let bound = 5.0 * (expected * (1.0 - expected) / f64::from(n)).sqrt();
            assert!(
                (share - expected).abs() <= bound,
                "p {p}: {share} against {expected} within {bound}"
            );
            assert!((expected - f64::from(p)).abs() <= 0.5 / 65536.0);
        }
        assert!(Dropout::new(1.0, 0, 0, 0, 0).is_none() && Dropout::new(f32::NAN, 0, 0, 0, 0).is_none());
        assert!(Dropout::new(0.0, 0, 0, 0, 0).is_some_and(|d| d.is_identity()));
    }
}
