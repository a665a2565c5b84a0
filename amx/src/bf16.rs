//! Conversion between f32 and bf16 over slices: round to nearest even, NaN made quiet, infinities and denormals kept.
//! The same integer operations on every instruction set, so that the compiler may use any vector width.

use half::bf16;

/// Bits of the bf16 nearest to `x`, ties to even; NaN keeps its sign and upper payload and becomes quiet.
#[inline(always)]
pub fn round(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    bf16::from_bits(if nan { quiet } else { rounded } as u16)
}

/// The f32 that equals `x`.
#[inline(always)]
pub fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds `from` into `to`.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub fn round_slice(to: &mut [bf16], from: &[f32]) {
    assert_eq!(to.len(), from.len(), "both slices must have one length");
    for (t, &f) in to.iter_mut().zip(from) {
        *t = round(f);
    }
}

/// Widens `from` into `to`.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub fn widen_slice(to: &mut [f32], from: &[bf16]) {
    assert_eq!(to.len(), from.len(), "both slices must have one length");
    for (t, &f) in to.iter_mut().zip(from) {
        *t = widen(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_as_half_does() {
        let mut seed = 1u32;
        for i in 0..200_000u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(if i % 3 == 0 { seed & 0xffff_8000 } else { seed });
            let (ours, theirs) = (round(x), bf16::from_f32(x));
            assert!(
                ours.to_bits() == theirs.to_bits(),
                "{:#x}: {:#x} {:#x}",
                x.to_bits(),
                ours.to_bits(),
                theirs.to_bits()
            );
            if !x.is_nan() {
                assert_eq!(widen(ours), theirs.to_f32());
            }
        }
    }
}
