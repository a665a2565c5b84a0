//! The generator's own random numbers, so that its data never change under a dependency's feet.

/// SplitMix64: one 64-bit word of state, the same sequence on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, which must not be zero. The bias is under `n / 2^64`.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next_u64()) * n as u128;
        (wide >> 64) as usize
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `items`, which must not be empty.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// `count` different numbers below `n`, in random order.
    pub fn distinct(&mut self, n: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in 0..count {
            let j = i + self.below(n - i);
            all.swap(i, j);
        }
        all.truncate(count);
        all
    }

    /// Nearly a standard normal number: twelve uniform ones, added. No logarithm and no cosine, so the same bits
    /// everywhere.
    pub fn normal(&mut self) -> f64 {
        let uniform = |word: u64| (word >> 11) as f64 / (1u64 << 53) as f64;
        (0..12).map(|_| uniform(self.next_u64())).sum::<f64>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_seed_zero_is_the_published_one() {
        let mut random = Random::new(0);
        assert_eq!(random.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn distinct_numbers_are_distinct_and_in_range() {
        let mut random = Random::new(7);
        for _ in 0..100 {
            let mut chosen = random.distinct(9, 5);
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), 5);
            assert!(chosen.iter().all(|&c| c < 9));
        }
    }
}
