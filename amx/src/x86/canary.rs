//! A known product on tiles, in a child process: the last doubt about a virtual machine that promises tiles.
//!
//! Whether a tile instruction works can only be known by executing one, which ends the process where it does not. So a copy of the process
//! executes it, without signals to the parent or a trace in its list of children, and its exit status is the answer.
#![cfg_attr(
    target_os = "linux",
    expect(
        unsafe_code,
        clippy::multiple_unsafe_ops_per_block,
        clippy::disallowed_methods,
        reason = "raw system calls and tile instructions"
    )
)]

use crate::isa::Unavailable;

/// Multiplies known numbers a few hundred times in a child process and compares all results.
#[cfg(target_os = "linux")]
pub(crate) fn run() -> Result<(), Unavailable> {
    let known = linux::Known::new();
    // SAFETY: the product allocates nothing, takes no lock and leaves no tile state; in the child that is all that is asked for.
    unsafe { linux::in_child(|| known.agrees()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run() -> Result<(), Unavailable> {
    Err(Unavailable::OperatingSystem)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::arch::asm;

    use half::bf16;

    use crate::int8::FULL_TILES;
    use crate::isa::Unavailable;

    /// Runs a check in a copy of this process.
    ///
    /// # Safety
    /// The check takes no lock and allocates nothing: in the child only the calling thread lives on.
    pub(super) unsafe fn in_child(check: impl Fn() -> bool) -> Result<(), Unavailable> {
        let none: libc::c_ulong = 0;
        // SAFETY: a copy of the process as fork makes it, but without a signal at its end; no pointers are given. The child returns from
        // the call on its copy of this stack.
        let child = unsafe { libc::syscall(libc::SYS_clone, none, none, none, none, none) };
        if child == 0 {
            // SAFETY: in the child. Handlers of the program's must not run there; all calls are safe after a fork.
            unsafe {
                for signal in [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::prctl(libc::PR_SET_DUMPABLE, none, none, none, none);
                libc::_exit(if check() { 0 } else { 1 });
            }
        }
        let failed = || Unavailable::Canary {
            status: std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
            signal: 0,
        };
        let Ok(child) = libc::pid_t::try_from(child) else {
            return Err(failed());
        };
        if child < 0 {
            return Err(failed());
        }
        let mut status = 0;
        loop {
            // SAFETY: waits for our own child and writes its status.
            if unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } == child {
                break;
            }
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(failed());
            }
        }
        if libc::WIFSIGNALED(status) {
            return Err(Unavailable::Canary {
                status: 0,
                signal: libc::WTERMSIG(status),
            });
        }
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            _ => Err(Unavailable::WrongResults),
        }
    }

    /// Operands and products that are small integers, so that no order of summation matters.
    #[derive(Debug)]
    #[repr(C, align(64))]
    pub(super) struct Known {
        bytes_a: [[u8; 64]; 16],
        bytes_b: [[i8; 64]; 16],
        sums: [[i32; 16]; 16],
        halves_a: [[bf16; 32]; 16],
        halves_b: [[bf16; 32]; 16],
        numbers: [[f32; 16]; 16],
    }

    impl Known {
        pub(super) fn new() -> Self {
            let mut known = Self {
                bytes_a: [[0; 64]; 16],
                bytes_b: [[0; 64]; 16],
                sums: [[0; 16]; 16],
                halves_a: [[bf16::ZERO; 32]; 16],
                halves_b: [[bf16::ZERO; 32]; 16],
                numbers: [[0.0; 16]; 16],
            };
            for i in 0..16 {
                for k in 0..64 {
                    // A multiplicative hash of the place.
                    let [.., low, high] = ((i * 64 + k + 1) as u32).wrapping_mul(2_654_435_761).to_le_bytes();
                    known.bytes_a[i][k] = high;
                    known.bytes_b[i][k] = low.cast_signed();
                    if k < 32 {
                        // At most 8 in magnitude: exact in bf16, and so are sums of 32 products in f32.
                        known.halves_a[i][k] = bf16::from(high.cast_signed() >> 4);
                        known.halves_b[i][k] = bf16::from(low.cast_signed() >> 4);
                    }
                }
            }
            for i in 0..16 {
                for j in 0..16 {
                    known.sums[i][j] = (0..64)
                        .map(|k| i32::from(known.bytes_a[i][k]) * i32::from(known.bytes_b[k / 4][4 * j + k % 4]))
                        .sum();
                    known.numbers[i][j] = (0..32)
                        .map(|k| known.halves_a[i][k].to_f32() * known.halves_b[k / 2][2 * j + k % 2].to_f32())
                        .sum();
                }
            }
            known
        }

        /// # Safety
        /// Whoever executes this may meet an illegal instruction.
        pub(super) unsafe fn agrees(&self) -> bool {
            (0..200).all(|_| {
                let mut sums = [[-1i32; 16]; 16];
                let mut numbers = [[-1f32; 16]; 16];
                // SAFETY: loads and stores are of 16 rows of 64 bytes; the configuration is a static of 64 bytes; all tiles are
                // declared and released. An instruction that does not exist ends the child, which is its purpose.
                unsafe {
                    asm!(
                        "ldtilecfg [{t}]",
                        "mov {t:e}, 64",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tileloadd tmm2, [{ba} + {t}]",
                        "tileloadd tmm3, [{bb} + {t}]",
                        "tileloadd tmm4, [{ha} + {t}]",
                        "tileloadd tmm5, [{hb} + {t}]",
                        "tdpbusd tmm0, tmm2, tmm3",
                        "tdpbf16ps tmm1, tmm4, tmm5",
                        "tilestored [{sums} + {t}], tmm0",
                        "tilestored [{numbers} + {t}], tmm1",
                        "tilerelease",
                        t = inout(reg) &raw const FULL_TILES => _,
                        ba = in(reg) &raw const self.bytes_a,
                        bb = in(reg) &raw const self.bytes_b,
                        ha = in(reg) &raw const self.halves_a,
                        hb = in(reg) &raw const self.halves_b,
                        sums = in(reg) &raw mut sums,
                        numbers = in(reg) &raw mut numbers,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                        options(nostack),
                    );
                }
                sums == self.sums && numbers == self.numbers
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_child_tells() {
            // SAFETY: the checks compute nothing that could allocate or lock.
            unsafe {
                assert_eq!(in_child(|| true), Ok(()));
                assert_eq!(in_child(|| false), Err(Unavailable::WrongResults));
                let signal = libc::SIGILL;
                assert_eq!(
                    in_child(|| {
                        asm!("ud2");
                        true
                    }),
                    Err(Unavailable::Canary { status: 0, signal })
                );
            }
        }

        #[test]
        fn the_known_numbers_are_worth_it() {
            let known = Known::new();
            let different = |all: Vec<i64>| all.iter().collect::<std::collections::HashSet<_>>().len();
            assert!(different(known.sums.iter().flatten().map(|&x| x.into()).collect()) > 200);
            #[expect(clippy::cast_possible_truncation, reason = "small integers")]
            let numbers = known.numbers.iter().flatten().map(|&x| x as i64).collect();
            assert!(different(numbers) > 100);
            // The known product on this processor, if it has tiles.
            if crate::isa::Isa::Amx.check().is_ok() {
                assert_eq!(super::super::run(), Ok(()));
            }
        }
    }
}
