//! Feature bits, XCR0 and the tile palette.
#![expect(unsafe_code, reason = "XGETBV is an unsafe intrinsic")]

use std::arch::x86_64::__cpuid_count;

use raw_cpuid::CpuId;

use crate::isa::Unavailable;

/// XCR0: SSE and AVX registers.
const YMM: u64 = 0b110;
/// XCR0: YMM, opmask and ZMM registers.
const ZMM: u64 = YMM | 0b1110_0000;
/// XCR0: tile configuration and tile data.
const TILES: u64 = 0b11 << 17;

/// XCR0, or zero when XGETBV is not enabled.
fn xcr0() -> u64 {
    if !CpuId::new().get_feature_info().is_some_and(|f| f.has_oxsave()) {
        return 0;
    }
    // SAFETY: OSXSAVE is set, so that XGETBV exists; register 0 always exists then.
    unsafe { read_xcr0() }
}

/// # Safety
/// The processor reports OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn read_xcr0() -> u64 {
    // SAFETY: the caller promises XGETBV, and extended control register 0 exists wherever it does.
    unsafe { std::arch::x86_64::_xgetbv(0) }
}

fn enabled(needed: u64) -> Result<(), Unavailable> {
    let xcr0 = xcr0();
    if xcr0 & needed == needed {
        Ok(())
    } else {
        Err(Unavailable::NotEnabledByOs { needed, xcr0 })
    }
}

fn feature(present: bool, name: &'static str) -> Result<(), Unavailable> {
    if present { Ok(()) } else { Err(Unavailable::Cpuid(name)) }
}

/// AVX2, FMA and the registers they use.
pub(crate) fn avx2() -> Result<(), Unavailable> {
    let id = CpuId::new();
    let extended = id.get_extended_feature_info();
    feature(id.get_feature_info().is_some_and(|f| f.has_fma()), "fma")?;
    feature(extended.as_ref().is_some_and(|f| f.has_avx2()), "avx2")?;
    enabled(YMM)
}

/// AVX-512 F, BW, DQ, VL (and AVX2) and the registers they use.
pub(crate) fn avx512() -> Result<(), Unavailable> {
    avx2()?;
    let id = CpuId::new();
    let extended = id.get_extended_feature_info();
    let extended = extended.as_ref();
    feature(extended.is_some_and(|f| f.has_avx512f()), "avx512f")?;
    feature(extended.is_some_and(|f| f.has_avx512bw()), "avx512bw")?;
    feature(extended.is_some_and(|f| f.has_avx512dq()), "avx512dq")?;
    feature(extended.is_some_and(|f| f.has_avx512vl()), "avx512vl")?;
    enabled(ZMM)
}

/// VPDPBUSD on 256-bit registers with the older encoding, which processors without AVX-512 have.
pub(crate) fn avx_vnni() -> Result<(), Unavailable> {
    avx2()?;
    let id = CpuId::new();
    let extended = id.get_extended_feature_info();
    feature(extended.is_some_and(|f| f.has_avx_vnni()), "avx_vnni")
}

/// VPDPBUSD on 512-bit registers.
pub(crate) fn avx512_vnni() -> Result<(), Unavailable> {
    avx512()?;
    let id = CpuId::new();
    let extended = id.get_extended_feature_info();
    feature(extended.is_some_and(|f| f.has_avx512vnni()), "avx512_vnni")
}

/// Tiles with BF16 and INT8 products: feature bits, XCR0, palette. Permission is a step of its own.
pub(crate) fn amx() -> Result<(), Unavailable> {
    let id = CpuId::new();
    let extended = id.get_extended_feature_info();
    let extended = extended.as_ref();
    feature(extended.is_some_and(|f| f.has_amx_tile()), "amx_tile")?;
    feature(extended.is_some_and(|f| f.has_amx_bf16()), "amx_bf16")?;
    feature(extended.is_some_and(|f| f.has_amx_int8()), "amx_int8")?;
    enabled(TILES)?;
    palette()
}

/// Leaf 0x1D, which raw-cpuid does not decode. Kernels are written for palette 1 as it was first published.
fn palette() -> Result<(), Unavailable> {
    const LEAF: u32 = 0x1d;
    let missing = Unavailable::Palette {
        max_palette: 0,
        tiles: 0,
        row_bytes: 0,
        rows: 0,
    };
    if __cpuid_count(0, 0).eax < LEAF {
        return Err(missing);
    }
    let max_palette = __cpuid_count(LEAF, 0).eax;
    if max_palette == 0 {
        return Err(missing);
    }
    let one = __cpuid_count(LEAF, 1);
    let (bytes_per_tile, row_bytes) = (one.eax >> 16, one.ebx & 0xffff);
    let (tiles, rows) = (one.ebx >> 16, one.ecx & 0xffff);
    if bytes_per_tile == 1024 && row_bytes == 64 && tiles == 8 && rows == 16 {
        Ok(())
    } else {
        Err(Unavailable::Palette {
            max_palette,
            tiles,
            row_bytes,
            rows,
        })
    }
}
