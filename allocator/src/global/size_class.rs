//! Size <-> class: pure.
//!
//! Classes are multiples of 16 up to 128 bytes, then eight to a doubling up to 256 KiB, so that above 128 bytes less
//! than 12.5 % of a block is unused. A block is aligned to the largest power of two that divides its class's size.

use crate::align::{natural_alignment, round_up};

/// Blocks of every class are aligned to this at least.
pub(crate) const GRANULE: usize = 16;
/// The largest size that has a class.
pub(crate) const MAX_SMALL: usize = 256 * 1024;
/// How many classes exist.
pub(crate) const CLASSES: usize = 8 + 11 * 8;
/// Bytes in a page of the system.
pub(crate) const PAGE: usize = 4096;
/// Bytes in a region: the unit in which memory moves between the heap and the system.
pub(crate) const REGION: usize = 2 * 1024 * 1024;
/// Bytes in a span of small blocks.
pub(crate) const SMALL_SPAN: usize = 64 * 1024;
/// Up to this size blocks live in small spans; above it a span is a whole region.
const MAX_IN_SMALL_SPAN: usize = 8 * 1024;

/// The tightest class for `size` bytes, at most [`MAX_SMALL`].
pub(crate) const fn class_of(size: usize) -> usize {
    if size <= 128 {
        return if size == 0 { 0 } else { (size - 1) / GRANULE };
    }
    let last = size - 1;
    // 128..=255 is octave 0; its eight classes end at 144, 160, ... 256.
    let octave = last.ilog2() as usize - 7;
    let step = (last >> (octave + 4)) & 7;
    8 + octave * 8 + step
}

/// Bytes of a block of `class`.
pub(crate) const fn size_of_class(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * GRANULE;
    }
    let (octave, step) = ((class - 8) / 8, (class - 8) % 8);
    (8 + step + 1) << (octave + 4)
}

/// Bytes (and alignment) of the spans of `class`.
pub(crate) const fn span_size(class: usize) -> usize {
    if size_of_class(class) <= MAX_IN_SMALL_SPAN {
        SMALL_SPAN
    } else {
        REGION
    }
}

/// How many blocks move between a thread's cache and the central lists at a time.
pub(crate) const fn batch(class: usize) -> u32 {
    let fit = 16 * 1024 / size_of_class(class);
    if fit > 64 {
        64
    } else if fit < 1 {
        1
    } else {
        fit as u32
    }
}

/// Where a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// From the lists of a class.
    Class(usize),
    /// From a run of pages of its own: bytes and alignment.
    Run(usize, usize),
    /// Nowhere: too large for the address space.
    Nowhere,
}

/// The one mapping from a request to its place; freeing uses the same one, so blocks need no headers.
pub(crate) const fn place(size: usize, align: usize) -> Place {
    if align <= GRANULE && size <= MAX_SMALL {
        return Place::Class(class_of(size));
    }
    if align <= MAX_SMALL
        && let Some(need) = round_up(if size == 0 { 1 } else { size }, align)
        && need <= MAX_SMALL
    {
        let mut class = class_of(need);
        // Ends at a power of two at the latest, and MAX_SMALL is one.
        while natural_alignment(size_of_class(class)) < align {
            class += 1;
        }
        return Place::Class(class);
    }
    run(size, align)
}

/// Runs are rounded like classes: eight sizes to a doubling, whole pages.
const fn run(size: usize, align: usize) -> Place {
    let size = if size < PAGE { PAGE } else { size };
    let eighth = 1_usize << (size.ilog2() - 3);
    let unit = if eighth < PAGE { PAGE } else { eighth };
    let Some(bytes) = round_up(size, unit) else {
        return Place::Nowhere;
    };
    if bytes > isize::MAX as usize {
        return Place::Nowhere;
    }
    let floor = if bytes >= REGION { REGION } else { PAGE };
    Place::Run(bytes, if align > floor { align } else { floor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_tightest_class() {
        assert_eq!(size_of_class(CLASSES - 1), MAX_SMALL);
        for size in 1..=MAX_SMALL {
            let class = class_of(size);
            let bytes = size_of_class(class);
            assert!(bytes >= size, "{size} in {bytes}");
            assert!(class == 0 || size_of_class(class - 1) < size, "{size} in {bytes}");
            assert!(size <= 128 || (bytes - size) * 8 < bytes, "{size} in {bytes}");
        }
    }

    #[test]
    fn places_keep_alignment_and_bound_waste() {
        for shift in 0..=22 {
            let align = 1_usize << shift;
            for size in (1..3000).chain((3000..9_000_000).step_by(7919)) {
                match place(size, align) {
                    Place::Class(class) => {
                        let bytes = size_of_class(class);
                        assert!(
                            bytes >= size && natural_alignment(bytes) >= align.min(bytes),
                            "{size} {align}"
                        );
                        assert_eq!(bytes % align, 0);
                    }
                    Place::Run(bytes, at) => {
                        assert!(bytes >= size && at >= align && at >= PAGE && bytes % PAGE == 0);
                        assert!(size < MAX_SMALL || (bytes - size) * 8 <= bytes, "{size} in {bytes}");
                    }
                    Place::Nowhere => panic!("{size} {align} has no place"),
                }
            }
        }
        assert_eq!(place(isize::MAX as usize, 1), Place::Nowhere);
    }
}
