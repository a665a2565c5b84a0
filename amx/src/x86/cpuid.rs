//! Feature bits, XCR0 and the tile palette.
#![expect(unsafe_code, reason = "XGETBV is an unsafe intrinsic")]

use std::arch::x86_64::{__cpuid_count, CpuidResult};
use std::fmt::Write;

use raw_cpuid::{CpuId, CpuIdReader, CpuIdResult};

use crate::isa::Unavailable;

/// XCR0: SSE and AVX registers.
const YMM: u64 = 0b110;
/// XCR0: YMM, opmask and ZMM registers.
const ZMM: u64 = YMM | 0b1110_0000;
/// XCR0: tile configuration and tile data.
const TILES: u64 = 0b11 << 17;

/// Whoever answers: the processor and the operating system, or a table in tests.
pub(crate) trait Machine {
    /// CPUID.
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidResult;
    /// XCR0. Only asked for where CPUID says that it can be read.
    fn read_xcr0(&self) -> u64;
    /// Asks the operating system for the use of tile data.
    fn request_tiles(&self) -> Result<(), Unavailable>;
}

/// The machine that this program runs on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here;

impl Machine for Here {
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidResult {
        __cpuid_count(leaf, subleaf)
    }

    fn read_xcr0(&self) -> u64 {
        // SAFETY: CPUID was seen to report OSXSAVE, so that XGETBV exists; register 0 always exists then.
        unsafe { read_xcr0() }
    }

    fn request_tiles(&self) -> Result<(), Unavailable> {
        super::permission::request()
    }
}

/// # Safety
/// The processor reports OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn read_xcr0() -> u64 {
    // SAFETY: the caller promises XGETBV, and extended control register 0 exists wherever it does.
    unsafe { std::arch::x86_64::_xgetbv(0) }
}

/// The decoder of a machine's answers.
fn decoder(machine: &dyn Machine) -> CpuId<impl CpuIdReader> {
    CpuId::with_cpuid_fn(move |leaf, subleaf| {
        let CpuidResult { eax, ebx, ecx, edx } = machine.cpuid(leaf, subleaf);
        CpuIdResult { eax, ebx, ecx, edx }
    })
}

/// XCR0, or zero when it cannot be read.
fn xcr0(machine: &dyn Machine) -> u64 {
    if decoder(machine).get_feature_info().is_some_and(|f| f.has_oxsave()) {
        machine.read_xcr0()
    } else {
        0
    }
}

fn enabled(machine: &dyn Machine, needed: u64) -> Result<(), Unavailable> {
    let xcr0 = xcr0(machine);
    if xcr0 & needed == needed {
        Ok(())
    } else {
        Err(Unavailable::NotEnabledByOs { needed, xcr0 })
    }
}

/// The features that kernels ask for, by the names that Linux gives them.
const FEATURES: [&str; 12] = [
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
];

/// Whether CPUID reports a feature of [`FEATURES`].
fn has(machine: &dyn Machine, name: &str) -> bool {
    let id = decoder(machine);
    if name == "fma" {
        return id.get_feature_info().is_some_and(|f| f.has_fma());
    }
    id.get_extended_feature_info().is_some_and(|f| match name {
        "avx2" => f.has_avx2(),
        "avx_vnni" => f.has_avx_vnni(),
        "avx512f" => f.has_avx512f(),
        "avx512bw" => f.has_avx512bw(),
        "avx512dq" => f.has_avx512dq(),
        "avx512vl" => f.has_avx512vl(),
        "avx512_vnni" => f.has_avx512vnni(),
        "avx512_bf16" => f.has_avx512_bf16(),
        "amx_tile" => f.has_amx_tile(),
        "amx_bf16" => f.has_amx_bf16(),
        "amx_int8" => f.has_amx_int8(),
        _ => false,
    })
}

/// The first of the features that is missing.
fn features(machine: &dyn Machine, names: &[&'static str]) -> Result<(), Unavailable> {
    match names.iter().find(|name| !has(machine, name)) {
        None => Ok(()),
        Some(&name) => Err(Unavailable::Cpuid(name)),
    }
}

/// AVX2, FMA and the registers they use.
pub(crate) fn avx2(machine: &dyn Machine) -> Result<(), Unavailable> {
    features(machine, &["fma", "avx2"])?;
    enabled(machine, YMM)
}

/// AVX-512 F, BW, DQ, VL (and AVX2) and the registers they use.
pub(crate) fn avx512(machine: &dyn Machine) -> Result<(), Unavailable> {
    avx2(machine)?;
    features(machine, &["avx512f", "avx512bw", "avx512dq", "avx512vl"])?;
    enabled(machine, ZMM)
}

/// VPDPBUSD on 256-bit registers with the older encoding, which processors without AVX-512 have.
pub(crate) fn avx_vnni(machine: &dyn Machine) -> Result<(), Unavailable> {
    avx2(machine)?;
    features(machine, &["avx_vnni"])
}

/// VPDPBUSD on 512-bit registers.
pub(crate) fn avx512_vnni(machine: &dyn Machine) -> Result<(), Unavailable> {
    avx512(machine)?;
    features(machine, &["avx512_vnni"])
}

/// Tiles with BF16 and INT8 products, and AVX-512 around them: feature bits, XCR0, palette, permission.
pub(crate) fn amx(machine: &dyn Machine) -> Result<(), Unavailable> {
    avx512(machine)?;
    features(machine, &["amx_tile", "amx_bf16", "amx_int8"])?;
    enabled(machine, TILES)?;
    let palette = Palette::read(machine);
    if palette != Palette::KNOWN {
        let Palette {
            max_palette,
            tile_bytes: _,
            tiles,
            row_bytes,
            rows,
        } = palette;
        return Err(Unavailable::Palette {
            max_palette,
            tiles,
            row_bytes,
            rows,
        });
    }
    machine.request_tiles()
}

/// Leaf 0x1D, which raw-cpuid does not decode.
#[derive(Debug, Clone, Copy, Default)]
struct Palette {
    max_palette: u32,
    tile_bytes: u32,
    tiles: u32,
    row_bytes: u32,
    rows: u32,
}

impl PartialEq for Palette {
    /// Further palettes change nothing about the first.
    fn eq(&self, other: &Self) -> bool {
        (self.tile_bytes, self.tiles, self.row_bytes, self.rows)
            == (other.tile_bytes, other.tiles, other.row_bytes, other.rows)
    }
}

impl Palette {
    /// Palette 1 as it was first published: what the kernels are written for.
    const KNOWN: Self = Self {
        max_palette: 1,
        tile_bytes: 1024,
        tiles: 8,
        row_bytes: 64,
        rows: 16,
    };

    /// Palette 1, or zeros where there is none.
    fn read(machine: &dyn Machine) -> Self {
        const LEAF: u32 = 0x1d;
        if machine.cpuid(0, 0).eax < LEAF {
            return Self::default();
        }
        let max_palette = machine.cpuid(LEAF, 0).eax;
        if max_palette == 0 {
            return Self::default();
        }
        let one = machine.cpuid(LEAF, 1);
        Self {
            max_palette,
            tile_bytes: one.eax >> 16,
            tiles: one.ebx >> 16,
            row_bytes: one.ebx & 0xffff,
            rows: one.ecx & 0xffff,
        }
    }
}

/// Lines for a report: what was read, whatever it is worth.
pub(crate) fn describe(machine: &dyn Machine) -> String {
    let id = decoder(machine);
    let mut text = String::new();
    let vendor = id.get_vendor_info();
    let vendor = vendor.as_ref().map_or("unknown vendor", |v| v.as_str());
    let brand = id.get_processor_brand_string();
    let brand = brand.as_ref().map_or("", |b| b.as_str().trim());
    let version = id.get_feature_info();
    let version = version.as_ref();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        text,
        "processor: {brand} ({vendor}, family {}, model {}, stepping {})",
        version.map_or(0, |v| v.family_id()),
        version.map_or(0, |v| v.model_id()),
        version.map_or(0, |v| v.stepping_id())
    );
    let hypervisor = version.is_some_and(|v| v.has_hypervisor());
    let _ = writeln!(text, "hypervisor: {}", if hypervisor { "yes" } else { "not reported" });
    let _ = write!(text, "cpuid:");
    for name in FEATURES {
        let _ = write!(text, " {}{name}", if has(machine, name) { "+" } else { "-" });
    }
    let xcr0 = xcr0(machine);
    let _ = write!(text, "\nxcr0: {xcr0:#x}, enabled:");
    for (bits, name) in [(YMM, "ymm"), (ZMM, "zmm"), (TILES, "tiles")] {
        let _ = write!(text, " {}{name}", if xcr0 & bits == bits { "+" } else { "-" });
    }
    let Palette {
        max_palette,
        tile_bytes,
        tiles,
        row_bytes,
        rows,
    } = Palette::read(machine);
    let _ = writeln!(
        text,
        "\npalette: max {max_palette}, {tiles} tiles of {tile_bytes} bytes, {rows} rows of {row_bytes} bytes"
    );
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Answers from a table.
    #[derive(Clone)]
    pub(crate) struct Table {
        /// By leaf and subleaf: eax, ebx, ecx, edx.
        leaves: HashMap<(u32, u32), [u32; 4]>,
        xcr0: u64,
        tiles: Result<(), Unavailable>,
        /// Asks this system instead of the field above.
        real_request: bool,
    }

    impl Machine for Table {
        fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidResult {
            let [eax, ebx, ecx, edx] = self.leaves.get(&(leaf, subleaf)).copied().unwrap_or_default();
            CpuidResult { eax, ebx, ecx, edx }
        }

        fn read_xcr0(&self) -> u64 {
            self.xcr0
        }

        fn request_tiles(&self) -> Result<(), Unavailable> {
            if self.real_request {
                Here.request_tiles()
            } else {
                self.tiles
            }
        }
    }

    impl Table {
        /// A Sapphire Rapids server with everything enabled.
        pub(crate) fn sapphire_rapids() -> Self {
            let bits = |list: &[u32]| list.iter().fold(0, |all, bit| all | 1 << bit);
            let leaves = [
                // "GenuineIntel".
                ((0, 0), [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
                // Family 6, model 143; FMA, XSAVE, OSXSAVE, AVX.
                ((1, 0), [0x0008_06f8, 0, bits(&[12, 26, 27, 28]), 0]),
                // AVX2, AVX-512 F, DQ, BW, VL; VNNI; AMX BF16, TILE, INT8.
                (
                    (7, 0),
                    [1, bits(&[5, 16, 17, 30, 31]), bits(&[11]), bits(&[22, 24, 25])],
                ),
                // AVX-VNNI, AVX-512 BF16.
                ((7, 1), [bits(&[4, 5]), 0, 0, 0]),
                ((0x1d, 0), [1, 0, 0, 0]),
                ((0x1d, 1), [1024 << 16 | 8192, 8 << 16 | 64, 16, 0]),
            ];
            Self {
                leaves: leaves.into(),
                xcr0: YMM | ZMM | TILES | 1,
                tiles: Ok(()),
                real_request: false,
            }
        }

        /// The same, with the permission asked of this system.
        pub(crate) fn with_real_request() -> Self {
            Self {
                real_request: true,
                ..Self::sapphire_rapids()
            }
        }

        /// Without one bit of a leaf's register (0 for eax).
        fn without(mut self, leaf: (u32, u32), register: usize, bit: u32) -> Self {
            self.leaves.get_mut(&leaf).expect("the leaf is in the table")[register] &= !(1 << bit);
            self
        }

        fn with(mut self, leaf: (u32, u32), values: [u32; 4]) -> Self {
            self.leaves.insert(leaf, values);
            self
        }

        fn xcr0(mut self, xcr0: u64) -> Self {
            self.xcr0 = xcr0;
            self
        }

        fn refusing(mut self, errno: i32) -> Self {
            self.tiles = Err(Unavailable::Permission { errno });
            self
        }
    }

    type Ladder = fn(&dyn Machine) -> Result<(), Unavailable>;
    const ALL: [Ladder; 5] = [avx2, avx_vnni, avx512, avx512_vnni, amx];

    #[test]
    fn everything_is_there() {
        for ladder in ALL {
            assert_eq!(ladder(&Table::sapphire_rapids()), Ok(()));
        }
        let text = describe(&Table::sapphire_rapids());
        for part in [
            "GenuineIntel, family 6, model 143, stepping 8",
            "+amx_tile +amx_bf16 +amx_int8",
            "xcr0: 0x600e7, enabled: +ymm +zmm +tiles",
            "palette: max 1, 8 tiles of 1024 bytes, 16 rows of 64 bytes",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }

    /// Each feature alone: who needs it misses it by name, the others do not notice.
    #[test]
    fn each_missing_feature_is_named() {
        // Leaf, register, bit, name, how many ladders stand without it.
        let cases = [
            ((1, 0), 2, 12, "fma", 0),
            ((7, 0), 1, 5, "avx2", 0),
            ((7, 1), 0, 4, "avx_vnni", 4),
            ((7, 0), 1, 16, "avx512f", 2),
            ((7, 0), 1, 30, "avx512bw", 2),
            ((7, 0), 1, 17, "avx512dq", 2),
            ((7, 0), 1, 31, "avx512vl", 2),
            ((7, 0), 2, 11, "avx512_vnni", 4),
            ((7, 0), 3, 24, "amx_tile", 4),
            ((7, 0), 3, 22, "amx_bf16", 4),
            ((7, 0), 3, 25, "amx_int8", 4),
        ];
        for (leaf, register, bit, name, standing) in cases {
            let table = Table::sapphire_rapids().without(leaf, register, bit);
            let results = ALL.map(|ladder| ladder(&table));
            assert_eq!(results.iter().filter(|r| r.is_ok()).count(), standing, "{name}");
            for result in results.into_iter().filter(Result::is_err) {
                assert_eq!(result, Err(Unavailable::Cpuid(name)));
            }
            assert!(describe(&table).contains(&format!("-{name}")));
        }
    }

    #[test]
    fn registers_that_nobody_saves() {
        let table = Table::sapphire_rapids();
        let refused = |needed, xcr0| Err(Unavailable::NotEnabledByOs { needed, xcr0 });
        // A system that saves no tiles, one without AVX-512 state, one without AVX state.
        assert_eq!(amx(&table.clone().xcr0(0xe7)), refused(TILES, 0xe7));
        assert_eq!(avx512_vnni(&table.clone().xcr0(0xe7)), Ok(()));
        // Only half of the tile state.
        assert_eq!(amx(&table.clone().xcr0(0x200e7)), refused(TILES, 0x200e7));
        assert_eq!(amx(&table.clone().xcr0(0x60007)), refused(ZMM, 0x60007));
        assert_eq!(avx_vnni(&table.clone().xcr0(7)), Ok(()));
        assert_eq!(avx2(&table.clone().xcr0(1)), refused(YMM, 1));
        // XCR0 must not be read where the system has not enabled that: it would end the process.
        let closed = table.without((1, 0), 2, 27);
        for ladder in ALL {
            assert_eq!(ladder(&closed), refused(YMM, 0));
        }
    }

    /// Virtual machines that report tiles and have none.
    #[test]
    fn palettes() {
        let table = Table::sapphire_rapids();
        let refused = |max_palette, tiles, row_bytes, rows| {
            Err(Unavailable::Palette {
                max_palette,
                tiles,
                row_bytes,
                rows,
            })
        };
        // The leaf is past the last one, the leaf is zero, palette 1 is empty.
        let short = table
            .clone()
            .with((0, 0), [0x1c, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]);
        assert_eq!(amx(&short), refused(0, 0, 0, 0));
        assert_eq!(amx(&table.clone().with((0x1d, 0), [0; 4])), refused(0, 0, 0, 0));
        assert_eq!(amx(&table.clone().with((0x1d, 1), [0; 4])), refused(1, 0, 0, 0));
        // Other shapes of tiles.
        let fewer = table.clone().with((0x1d, 1), [1024 << 16 | 4096, 4 << 16 | 64, 16, 0]);
        assert_eq!(amx(&fewer), refused(1, 4, 64, 16));
        let wider = table
            .clone()
            .with((0x1d, 1), [2048 << 16 | 16384, 8 << 16 | 128, 16, 0]);
        assert_eq!(amx(&wider), refused(1, 8, 128, 16));
        // A later processor may have more palettes.
        assert_eq!(amx(&table.clone().with((0x1d, 0), [2, 0, 0, 0])), Ok(()));
        for (machine, avx) in [(short, Ok(())), (fewer, Ok(()))] {
            assert_eq!(avx512_vnni(&machine), avx, "the palette is no matter of AVX-512");
        }
    }

    #[test]
    fn permission_is_the_last_step() {
        let table = Table::sapphire_rapids();
        for errno in [1, 22, 28, 95] {
            let refusing = table.clone().refusing(errno);
            assert_eq!(amx(&refusing), Err(Unavailable::Permission { errno }));
            assert_eq!(avx512(&refusing), Ok(()));
            // Whatever fails before it is what is reported, and permission is not asked for.
            let blind = refusing.clone().xcr0(0xe7);
            assert!(matches!(amx(&blind), Err(Unavailable::NotEnabledByOs { .. })));
            let empty = refusing.with((0x1d, 0), [0; 4]);
            assert!(matches!(amx(&empty), Err(Unavailable::Palette { .. })));
        }
    }
}
