//! The instruction sets this crate has kernels for: one ordered table, and the ladder of checks behind each entry.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::simd::Level;

/// An instruction set with kernels of its own. The order is the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust: oracle, fallback and explanation.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AMX tiles (BF16 and INT8), with AVX-512 around them.
    Amx,
}

/// Why an instruction set cannot be used: the first step of the ladder that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unavailable {
    /// This processor's architecture has no such instructions.
    Architecture,
    /// CPUID does not report the named feature.
    Cpuid(&'static str),
    /// CPUID reports the feature, but the operating system or the hypervisor does not save its registers (XCR0).
    NotEnabledByOs {
        /// XCR0 bits that are needed.
        needed: u64,
        /// XCR0 as read.
        xcr0: u64,
    },
    /// CPUID and XCR0 promise tiles, but the palette leaf does not describe 8 tiles of 16 rows of 64 bytes. Some virtual
    /// machines do this; executing a tile instruction there would end the process.
    Palette {
        /// The highest palette reported.
        max_palette: u32,
        /// Number of tile registers of palette 1.
        tiles: u32,
        /// Bytes per row of palette 1.
        row_bytes: u32,
        /// Rows of palette 1.
        rows: u32,
    },
    /// The kernel refused the use of tile data. `errno` 28 (ENOSPC) means that a signal stack is too small, 1 (EPERM) a
    /// seccomp filter, 22 (EINVAL) or 95 (EOPNOTSUPP) a kernel without support.
    Permission {
        /// The error number of `arch_prctl`.
        errno: i32,
    },
    /// Tiles cannot be requested on this operating system.
    OperatingSystem,
    /// The known product came out wrong.
    WrongResults,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Architecture => write!(f, "not an x86-64 processor"),
            Self::Cpuid(feature) => write!(f, "the processor does not report {feature}"),
            Self::NotEnabledByOs { needed, xcr0 } => write!(
                f,
                "not enabled by the operating system or hypervisor (needs XCR0 bits {needed:#x}, XCR0 is {xcr0:#x})"
            ),
            Self::Palette {
                max_palette,
                tiles,
                row_bytes,
                rows,
            } => write!(
                f,
                "the tile palette is missing or unexpected (max palette {max_palette}, {tiles} tiles of {rows} rows of \
                 {row_bytes} bytes; expected 8 tiles of 16 rows of 64 bytes)"
            ),
            Self::Permission { errno } => {
                let meaning = match errno {
                    1 => "EPERM, a seccomp filter",
                    22 => "EINVAL, no support in the kernel",
                    28 => "ENOSPC, a signal stack is too small for tile data",
                    95 => "EOPNOTSUPP, no support in the kernel",
                    _ => "unexpected",
                };
                write!(f, "the kernel refused tile data: error {errno} ({meaning})")
            }
            Self::OperatingSystem => write!(f, "tiles cannot be requested on this operating system"),
            Self::WrongResults => write!(f, "a known tile product came out wrong"),
        }
    }
}

impl Isa {
    /// Every instruction set of the crate, in order of preference.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx];

    /// The name used in `AZULEJO_ISA` and in kernel names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// Climbs the ladder for this instruction set; the result is remembered for the process.
    pub fn check(self) -> std::result::Result<(), Unavailable> {
        static CHECKS: [OnceLock<std::result::Result<(), Unavailable>>; 4] = [const { OnceLock::new() }; 4];
        *CHECKS[self as usize].get_or_init(|| self.climb())
    }

    #[cfg(target_arch = "x86_64")]
    fn climb(self) -> std::result::Result<(), Unavailable> {
        match self {
            Self::Portable => Ok(()),
            Self::Avx2 => crate::x86::cpuid::avx2(),
            Self::Avx512 => crate::x86::cpuid::avx512(),
            Self::Amx => {
                Self::Avx512.check()?;
                crate::x86::cpuid::amx()?;
                crate::x86::permission::request()
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn climb(self) -> std::result::Result<(), Unavailable> {
        if self == Self::Portable {
            Ok(())
        } else {
            Err(Unavailable::Architecture)
        }
    }

    /// The instruction sets that can be used here, in order of preference.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.check().is_ok()).collect()
    }

    /// The best instruction set that can be used here, or the one that `AZULEJO_ISA` names. A name that is unknown or
    /// cannot be used is an error, never a silent fallback.
    pub fn best() -> Result<Self> {
        match std::env::var("AZULEJO_ISA") {
            Ok(name) if !name.is_empty() => name.parse::<Self>()?.usable(),
            Err(std::env::VarError::NotUnicode(name)) => Err(Error::UnknownIsa {
                name: name.to_string_lossy().into_owned(),
            }),
            _ => Ok(Self::ALL
                .into_iter()
                .rev()
                .find(|isa| isa.check().is_ok())
                .unwrap_or(Self::Portable)),
        }
    }

    /// The widest vectors that go with this instruction set.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn level(self) -> Level {
        use crate::simd::{Avx2, Avx512};
        let wide = || Avx512::new().filter(|_| self >= Self::Avx512).map(Level::Avx512);
        let middle = || Avx2::new().filter(|_| self >= Self::Avx2).map(Level::Avx2);
        wide().or_else(middle).unwrap_or(Level::Portable)
    }

    /// The widest vectors that go with this instruction set.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn level(self) -> Level {
        Level::Portable
    }

    /// Itself, or the reason why it cannot be used here.
    pub fn usable(self) -> Result<Self> {
        match self.check() {
            Ok(()) => Ok(self),
            Err(reason) => Err(Error::IsaUnavailable { isa: self, reason }),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let lower = name.trim().to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == lower)
            .ok_or_else(|| Error::UnknownIsa { name: name.to_owned() })
    }
}

/// Lines for a bug report: each instruction set with "available" or the reason why not, and the choice.
pub fn report() -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for isa in Isa::ALL {
        // Writing to a String cannot fail.
        let _ = match isa.check() {
            Ok(()) => writeln!(text, "{isa}: available"),
            Err(reason) => writeln!(text, "{isa}: {reason}"),
        };
    }
    let _ = match Isa::best() {
        Ok(isa) => writeln!(text, "chosen: {isa}"),
        Err(error) => writeln!(text, "chosen: none, {error}"),
    };
    text
}
