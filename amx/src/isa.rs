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
    /// The canary's known product came out wrong.
    WrongResults,
    /// The canary's child process could not be made (`status` is the error number) or was ended by a signal (4 is SIGILL).
    Canary {
        /// The error number, or zero.
        status: i32,
        /// The signal, or zero.
        signal: i32,
    },
    /// The environment variable `AZULEJO_ISA` forbids it, or an instruction set that it stands on.
    Forbidden,
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
            Self::Canary { status, signal: 0 } => write!(f, "the canary process could not be run: error {status}"),
            Self::Canary { signal, .. } => write!(f, "the canary process was ended by signal {signal}"),
            Self::Forbidden => write!(f, "forbidden by AZULEJO_ISA"),
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
    ///
    /// For tiles the steps are CPUID, XCR0, the palette, the permission of the operating system and, where the environment variable
    /// `AZULEJO_CANARY` is set to anything but 0, [`Isa::canary`].
    pub fn check(self) -> std::result::Result<(), Unavailable> {
        static CHECKS: [OnceLock<std::result::Result<(), Unavailable>>; 4] = [const { OnceLock::new() }; 4];
        *CHECKS[self as usize].get_or_init(|| {
            // A setting that cannot be read forbids nothing; whoever chooses by it gets the error.
            let choice = Choice::from_env().unwrap_or_default();
            if choice.forbids(self) {
                return Err(Unavailable::Forbidden);
            }
            self.climb()?;
            let wanted = std::env::var_os("AZULEJO_CANARY").is_some_and(|value| value != "0" && !value.is_empty());
            if wanted { self.canary() } else { Ok(()) }
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn climb(self) -> std::result::Result<(), Unavailable> {
        use crate::x86::cpuid::{self, Here};
        match self {
            Self::Portable => Ok(()),
            Self::Avx2 => cpuid::avx2(&Here),
            Self::Avx512 => cpuid::avx512(&Here),
            Self::Amx => cpuid::amx(&Here),
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

    /// For tiles: multiplies known numbers in a child process, which survives neither an illegal instruction nor a wrong result, and
    /// tells. For the others there is nothing to doubt.
    ///
    /// The child is a bare copy of the process that only computes and exits. Where a sandbox ends a process that makes children, do not
    /// ask for it.
    pub fn canary(self) -> std::result::Result<(), Unavailable> {
        if self != Self::Amx {
            return self.climb();
        }
        self.climb()?;
        #[cfg(target_arch = "x86_64")]
        crate::x86::canary::run()?;
        Ok(())
    }

    /// The instruction sets that can be used here, in order of preference.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.check().is_ok()).collect()
    }

    /// The best instruction set that can be used here, or the one that `AZULEJO_ISA` names.
    ///
    /// A name forces that instruction set (`AZULEJO_ISA=avx2`): if it cannot be used, that is an error, never a silent fallback. A name
    /// behind a minus sign forbids one, and all that stand on it (`AZULEJO_ISA=-amx`, or a list: `-amx,-avx512`); this holds for
    /// [`Isa::check`] too. An unknown name is an error.
    pub fn best() -> Result<Self> {
        Choice::from_env()?.best(Self::check)
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

    /// The widest vectors that may be used for packing, whatever the instruction set of a product.
    pub(crate) fn packing_level() -> Level {
        Self::best().unwrap_or(Self::Portable).level()
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

/// What `AZULEJO_ISA` asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Choice {
    forced: Option<Isa>,
    /// The lowest instruction set that is forbidden: those above stand on it.
    forbidden: Option<Isa>,
}

impl Choice {
    fn from_env() -> Result<Self> {
        match std::env::var("AZULEJO_ISA") {
            Ok(text) => text.parse(),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(std::env::VarError::NotUnicode(name)) => Err(Error::UnknownIsa {
                name: name.to_string_lossy().into_owned(),
            }),
        }
    }

    fn forbids(&self, isa: Isa) -> bool {
        self.forbidden.is_some_and(|lowest| isa >= lowest)
    }

    fn best(&self, check: impl Fn(Isa) -> std::result::Result<(), Unavailable>) -> Result<Isa> {
        let usable = |isa: Isa| {
            let reason = if self.forbids(isa) {
                Err(Unavailable::Forbidden)
            } else {
                check(isa)
            };
            reason.map_err(|reason| Error::IsaUnavailable { isa, reason })
        };
        match self.forced {
            Some(isa) => usable(isa).map(|()| isa),
            None => match Isa::ALL.into_iter().rev().find(|&isa| usable(isa).is_ok()) {
                Some(isa) => Ok(isa),
                // Everything is forbidden.
                None => usable(Isa::Portable).map(|()| Isa::Portable),
            },
        }
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut choice = Self::default();
        let mut forced = 0;
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry.strip_prefix('-') {
                Some(name) => {
                    let isa = name.parse()?;
                    choice.forbidden = Some(choice.forbidden.map_or(isa, |lowest| isa.min(lowest)));
                }
                None => {
                    choice.forced = Some(entry.parse()?);
                    forced += 1;
                }
            }
        }
        if forced > 1 || (forced == 1 && choice.forbidden.is_some()) {
            return Err(Error::Conflict {
                what: "a forced instruction set and other entries of AZULEJO_ISA",
            });
        }
        Ok(choice)
    }
}

/// Lines for a bug report: what the processor and the operating system say, each instruction set and 8-bit kernel with "available" or
/// the reason why not, and the choice.
pub fn report() -> String {
    use std::fmt::Write;
    // Writing to a String cannot fail, here and below.
    let mut text = format!(
        "azulejo-amx {} on {} {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    #[cfg(target_arch = "x86_64")]
    {
        text += &crate::x86::cpuid::describe(&crate::x86::cpuid::Here);
        let _ = writeln!(text, "{}", crate::x86::permission::describe_signal_stack());
    }
    for name in ["AZULEJO_ISA", "AZULEJO_CANARY"] {
        let _ = match std::env::var_os(name) {
            Some(value) => writeln!(text, "{name}: {value:?}"),
            None => writeln!(text, "{name}: not set"),
        };
    }
    for isa in Isa::ALL {
        let _ = match isa.check() {
            Ok(()) => writeln!(text, "{isa}: available"),
            Err(reason) => writeln!(text, "{isa}: {reason}"),
        };
    }
    for kernel in crate::int8::Int8Kernel::ALL {
        let _ = match kernel.check() {
            Ok(()) => writeln!(text, "{kernel}: available"),
            Err(reason) => writeln!(text, "{kernel}: {reason}"),
        };
    }
    let chosen = Isa::best().and_then(|isa| {
        let (floats, bytes) = (crate::Gemm::with_isa(isa)?, crate::int8::GemmInt8::with_isa(isa)?);
        Ok((isa, floats, bytes))
    });
    let _ = match chosen {
        Ok((isa, floats, bytes)) => writeln!(
            text,
            "chosen: {isa} ({}, {}, {})",
            floats.kernel_name(),
            floats.f32_kernel_name(),
            bytes.kernel()
        ),
        Err(error) => writeln!(text, "chosen: none, {error}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(text: &str, available: &[Isa]) -> Result<Isa> {
        let check = |isa: Isa| {
            if available.contains(&isa) {
                Ok(())
            } else {
                Err(Unavailable::Cpuid("amx_tile"))
            }
        };
        text.parse::<Choice>()?.best(check)
    }

    #[test]
    fn the_variable_forces_and_forbids() {
        let all = Isa::ALL;
        assert_eq!(choose("", &all), Ok(Isa::Amx));
        assert_eq!(choose("", &all[..3]), Ok(Isa::Avx512));
        assert_eq!(choose("avx2", &all), Ok(Isa::Avx2));
        assert_eq!(choose(" AVX512 ", &all), Ok(Isa::Avx512));
        assert_eq!(choose("-amx", &all), Ok(Isa::Avx512));
        assert_eq!(choose("-amx,-avx2", &all), Ok(Isa::Portable));
        assert_eq!(choose("-avx512", &all), Ok(Isa::Avx2), "tiles stand on AVX-512");
        // Forced and not there: an error, whatever else there is.
        assert_eq!(
            choose("amx", &all[..3]),
            Err(Error::IsaUnavailable {
                isa: Isa::Amx,
                reason: Unavailable::Cpuid("amx_tile")
            })
        );
        // Nothing is left.
        assert_eq!(
            choose("-portable", &all),
            Err(Error::IsaUnavailable {
                isa: Isa::Portable,
                reason: Unavailable::Forbidden
            })
        );
        for (text, name) in [
            ("sse9", "sse9"),
            ("-sse9", "sse9"),
            ("avx2,sse9", "sse9"),
            ("--amx", "-amx"),
        ] {
            assert_eq!(choose(text, &all), Err(Error::UnknownIsa { name: name.into() }));
        }
        for text in ["amx,avx2", "avx512,-amx", "avx2,avx2"] {
            assert!(matches!(choose(text, &all), Err(Error::Conflict { .. })), "{text}");
        }
    }
}
