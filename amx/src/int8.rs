//! Products of 8-bit integers with 32-bit sums: u8 x s8 and s8 x s8, exact on every instruction set.
//!
//! ```
//! use azulejo_amx::int8::{Dequantize, GemmInt8, PackedInt8, Per, ZeroPoints};
//! use azulejo_amx::{Epilogue, MatMut, MatRef, Out, Scratch, Serial};
//!
//! let gemm = GemmInt8::new()?;
//! let (m, n, k) = (2, 2, 3);
//! let weights = [1_i8, -2, 3, 4, 5, -6]; // (n, k), as linear layers store them
//! let packed = PackedInt8::from_i8(MatRef::row_major(&weights, n, k)?.t()); // once for many products
//! let a = [130_u8, 128, 131, 120, 128, 128]; // 128 stands for zero
//! let mut c = [0.0_f32; 4];
//! let dequantize = Dequantize {
//!     zero: ZeroPoints { a: Per::Tensor(128), ..ZeroPoints::default() },
//!     a_scale: Per::Tensor(0.5),
//!     b_scale: Per::Channel(&[0.25, 1.0]),
//!     bias: None,
//! };
//! let out = Out::f32(MatMut::row_major(&mut c, m, n)?);
//! let a = MatRef::row_major(&a, m, k)?;
//! gemm.f32(&Serial, out, a, packed.as_ref(), dequantize, Epilogue::default(), &mut Scratch::new())?;
//! // (2, 0, 3) and (-8, 0, 0) times the rows of the weights, scaled.
//! assert_eq!(c, [11.0 * 0.125, -10.0 * 0.5, -8.0 * 0.125, -32.0 * 0.5]);
//! # Ok::<(), azulejo_amx::Error>(())
//! ```
//!
//! # Overflow
//!
//! Sums are modulo 2^32 on every instruction set: no step saturates, and only the final value counts. It is the exact integer as long as
//! K is at most [`MAX_EXACT_K`] of the types, whatever the operands hold.
//!
//! # Which call
//!
//! | call | output |
//! |---|---|
//! | [`GemmInt8::i32`] | the sums, set or added |
//! | [`GemmInt8::f32`] | numbers (f32, bf16 or both), with bias, GELU, residual and the rest of [`Epilogue`] |
//! | [`GemmInt8::requantized`] | bytes for the next product |
//!
//! A has any strides, B is packed ahead ([`PackedInt8`], [`PackedInt8Ref`]): one format for every instruction set, which can be stored
//! and mapped. Where B changes with every call, [`PackedInt8Mut`] packs into memory of the caller's without allocating.

mod driver;
mod epilogue;
mod kernel;
mod pack;

#[cfg(target_arch = "x86_64")]
pub(crate) use kernel::amx::FULL_TILES;

use std::fmt;

pub use epilogue::{Byte, Dequantize, OutInt32, Per, Requantize, ZeroPoints};
pub use pack::{PackedInt8, PackedInt8Mut, PackedInt8Ref};

use crate::epilogue::{Epilogue, Finish, Out};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::isa::{Isa, Unavailable};
use crate::matrix::{MatMut, MatRef};
use crate::parallel::Shared;
use crate::scratch::Scratch;
use crate::simd::Level;
use driver::Product;
use epilogue::{Store, StoreBytes, StoreInt32, StoreNumbers, check_shape};
use kernel::ByteKernel;

/// The greatest K for which no sum can leave 32 bits.
#[derive(Debug)]
pub struct MaxExactK {
    /// u8 x s8 without zero points: 255 * 128 * K <= 2^31.
    pub u8_i8: usize,
    /// s8 x s8 without zero points: 128 * 128 * K < 2^31.
    pub i8_i8: usize,
    /// With any zero points: 255 * 255 * K < 2^31.
    pub with_zero_points: usize,
}

/// The greatest K for which no sum can leave 32 bits.
pub const MAX_EXACT_K: MaxExactK = MaxExactK {
    u8_i8: (1 << 31) / (255 * 128),
    i8_i8: ((1 << 31) - 1) / (128 * 128),
    with_zero_points: ((1 << 31) - 1) / (255 * 255),
};

/// A kernel for 8-bit products. The order is the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Int8Kernel {
    /// Plain Rust: oracle, fallback and explanation.
    Portable,
    /// VPMADDWD on 256-bit registers, operands widened to 16 bits.
    Avx2,
    /// VPDPBUSD on 256-bit registers (AVX-VNNI, VEX-encoded).
    AvxVnni,
    /// VPMADDWD on 512-bit registers, operands widened to 16 bits.
    Avx512,
    /// VPDPBUSD on 512-bit registers.
    Avx512Vnni,
    /// TDPBUSD and TDPBSSD.
    Amx,
}

impl Int8Kernel {
    /// Every kernel, in order of preference.
    pub const ALL: [Self; 6] = [
        Self::Portable,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Amx,
    ];

    /// The instruction set it belongs to: what `AZULEJO_ISA` names.
    pub fn isa(self) -> Isa {
        match self {
            Self::Portable => Isa::Portable,
            Self::Avx2 | Self::AvxVnni => Isa::Avx2,
            Self::Avx512 | Self::Avx512Vnni => Isa::Avx512,
            Self::Amx => Isa::Amx,
        }
    }

    /// Its name in reports and benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable-int8",
            Self::Avx2 => "avx2-int8-maddwd",
            Self::AvxVnni => "avx2-int8-vnni",
            Self::Avx512 => "avx512-int8-maddwd",
            Self::Avx512Vnni => "avx512-int8-vnni",
            Self::Amx => "amx-int8-2x2",
        }
    }

    /// Whether it can be used here, or the step of the detection that failed.
    pub fn check(self) -> std::result::Result<(), Unavailable> {
        self.isa().check()?;
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::AvxVnni => crate::x86::cpuid::avx_vnni(&crate::x86::cpuid::Here),
            Self::Avx512Vnni => crate::x86::cpuid::avx512_vnni(&crate::x86::cpuid::Here),
            _ => Ok(()),
        }
        #[cfg(not(target_arch = "x86_64"))]
        Ok(())
    }

    /// The kernels that can be used here, in order of preference.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|kernel| kernel.check().is_ok()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn code(self) -> &'static ByteKernel {
        match self {
            Self::Portable => &kernel::portable::INT8,
            Self::Avx2 => &kernel::avx2::WORDS,
            Self::AvxVnni => &kernel::avx2::VNNI,
            Self::Avx512 => &kernel::avx512::WORDS,
            Self::Avx512Vnni => &kernel::avx512::VNNI,
            Self::Amx => &kernel::amx::INT8,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn code(self) -> &'static ByteKernel {
        &kernel::portable::INT8
    }
}

impl fmt::Display for Int8Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The handle of the 8-bit products: a kernel that can be used here.
#[derive(Debug, Clone, Copy)]
pub struct GemmInt8 {
    kind: Int8Kernel,
    level: Level,
    kernel: &'static ByteKernel,
}

impl GemmInt8 {
    /// The best kernel of the best instruction set here, or of the one that `AZULEJO_ISA` names.
    pub fn new() -> Result<Self> {
        Self::with_isa(Isa::best()?)
    }

    /// The best kernel of the given instruction set, or the reason why it cannot be used here.
    pub fn with_isa(isa: Isa) -> Result<Self> {
        let isa = isa.usable()?;
        let of_isa = |kind: &Int8Kernel| kind.isa() == isa && kind.check().is_ok();
        // Each usable instruction set has a kernel that needs no more than it.
        Self::with_kernel(
            Int8Kernel::ALL
                .into_iter()
                .rev()
                .find(of_isa)
                .unwrap_or(Int8Kernel::Portable),
        )
    }

    /// The given kernel, or the reason why it cannot be used here.
    pub fn with_kernel(kind: Int8Kernel) -> Result<Self> {
        let isa = kind.isa();
        kind.check().map_err(|reason| Error::IsaUnavailable { isa, reason })?;
        Ok(Self {
            kind,
            level: isa.level(),
            kernel: kind.code(),
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.kind.isa()
    }

    /// The kernel in use.
    pub fn kernel(&self) -> Int8Kernel {
        self.kind
    }

    /// `out = (a - zero.a) * (b - zero.b)`, or added to it, in 32-bit sums modulo 2^32, for a (M x K, u8 or i8) and packed b (K x N).
    pub fn i32<A: Byte>(
        &self,
        exec: &dyn Executor,
        out: OutInt32<'_>,
        a: MatRef<'_, A>,
        b: PackedInt8Ref<'_>,
        zero: ZeroPoints<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let shape = check_operands(&a, &b)?;
        zero.check::<A>(shape.0, shape.1)?;
        let (out, add) = match out {
            OutInt32::Set(out) => (out, false),
            OutInt32::Add(out) => (out, true),
        };
        check_shape("i32 output", out.shape(), shape)?;
        let out = Shared::new(out);
        self.run(exec, &StoreInt32 { out, add }, a, b, zero, scratch)
    }

    /// `out = epilogue(x)`, x the sums scaled to numbers as [`Dequantize`] tells, for a (M x K, u8 or i8) and packed b (K x N).
    pub fn f32<A: Byte>(
        &self,
        exec: &dyn Executor,
        out: Out<'_>,
        a: MatRef<'_, A>,
        b: PackedInt8Ref<'_>,
        dequantize: Dequantize<'_>,
        epilogue: Epilogue<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let shape = check_operands(&a, &b)?;
        dequantize.check::<A>(shape.0, shape.1)?;
        let finish = Finish::new(out, epilogue, shape.0, shape.1)?;
        let store = StoreNumbers { dequantize, finish };
        self.run(exec, &store, a, b, dequantize.zero, scratch)
    }

    /// `out` = the sums scaled, rounded and clamped to u8 or i8 as [`Requantize`] tells, for a (M x K, u8 or i8) and packed b (K x N).
    pub fn requantized<A: Byte, O: Byte>(
        &self,
        exec: &dyn Executor,
        out: MatMut<'_, O>,
        a: MatRef<'_, A>,
        b: PackedInt8Ref<'_>,
        requantize: Requantize<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let shape = check_operands(&a, &b)?;
        requantize.check::<A, O>(shape.0, shape.1)?;
        check_shape("8-bit output", out.shape(), shape)?;
        let out = Shared::new(out);
        let store = StoreBytes { requantize, out };
        self.run(exec, &store, a, b, requantize.dequantize.zero, scratch)
    }

    fn run<A: Byte, T: Store>(
        &self,
        exec: &dyn Executor,
        store: &T,
        a: MatRef<'_, A>,
        b: PackedInt8Ref<'_>,
        zero: ZeroPoints<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (level, kernel) = (self.level, self.kernel);
        Product {
            level,
            kernel,
            a,
            b,
            zero,
        }
        .run(exec, store, scratch)
    }
}

/// The shape of the output.
fn check_operands<A>(a: &MatRef<'_, A>, b: &PackedInt8Ref<'_>) -> Result<(usize, usize)> {
    check_shape("operand b", (b.k(), b.n()), (a.cols(), b.n()))?;
    Ok((a.rows(), b.n()))
}
