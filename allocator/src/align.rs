//! Rounding arithmetic: pure.

/// `value` rounded up to a multiple of `unit` (a power of two), or `None` where that overflows.
pub(crate) const fn round_up(value: usize, unit: usize) -> Option<usize> {
    match value.checked_add(unit - 1) {
        Some(sum) => Some(sum & !(unit - 1)),
        None => None,
    }
}

/// The largest power of two that divides `value` (not 0).
pub(crate) const fn natural_alignment(value: usize) -> usize {
    value & value.wrapping_neg()
}
