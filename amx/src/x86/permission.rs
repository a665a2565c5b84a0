//! The request for tile data. It holds for the whole process and for threads made later.
#![cfg_attr(
    target_os = "linux",
    expect(unsafe_code, clippy::disallowed_methods, reason = "raw system calls")
)]

use crate::isa::Unavailable;

/// Asks Linux for the use of tile data (`ARCH_REQ_XCOMP_PERM`, feature 18). Without it the first tile instruction would
/// end the process.
#[cfg(target_os = "linux")]
pub(crate) fn request() -> Result<(), Unavailable> {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILE_DATA: libc::c_ulong = 18;
    // SAFETY: this request takes two integers, touches no memory of the process and only widens what the process may do.
    let status = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA) };
    if status == 0 {
        Ok(())
    } else {
        Err(Unavailable::Permission {
            errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        })
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn request() -> Result<(), Unavailable> {
    Err(Unavailable::OperatingSystem)
}

/// A line for a report: the alternate signal stack of this thread, and the least that the kernel asks for. With permission for tile
/// data no thread may have a smaller one.
#[cfg(target_os = "linux")]
pub(crate) fn describe_signal_stack() -> String {
    let mut stack = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: a query, which writes to the structure only.
    let status = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    // SAFETY: reads a number that the kernel gave the process when it began, zero where it gave none.
    let needed = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    if status != 0 || stack.ss_flags & libc::SS_DISABLE != 0 {
        format!("signal stack: none in this thread; the kernel asks for {needed} bytes")
    } else {
        let size = stack.ss_size;
        format!("signal stack: {size} bytes in this thread; the kernel asks for {needed} bytes")
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn describe_signal_stack() -> String {
    "signal stack: not asked for on this operating system".to_owned()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::x86::cpuid::{self, tests::Table};

    const CHILD: &str = "AZULEJO_TEST_REFUSE";

    /// From here on the kernel answers `arch_prctl` with this error number in this thread and its children.
    fn refuse_arch_prctl(errno: u32) {
        let statement = |code: u32, k: u32| libc::sock_filter {
            code: u16::try_from(code).expect("a code of the filter language"),
            jt: 0,
            jf: 0,
            k,
        };
        let mut program = [
            // The number of the system call is the first word.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            libc::sock_filter {
                jf: 1,
                ..statement(
                    libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                    u32::try_from(libc::SYS_arch_prctl).expect("a small number"),
                )
            },
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog {
            len: 4,
            filter: program.as_mut_ptr(),
        };
        let (no, yes, mode): (libc::c_ulong, libc::c_ulong, _) = (0, 1, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER));
        // SAFETY: a promise not to gain privileges, without pointers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) }, 0);
        // SAFETY: the filter and its program live until the call returns.
        let status = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    }

    /// An alternate signal stack as small as the kernel takes before tiles come into play.
    fn small_signal_stack() {
        let memory = Box::leak(vec![0u8; libc::MINSIGSTKSZ + 2048].into_boxed_slice());
        let stack = libc::stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: memory.len(),
        };
        // SAFETY: the memory is never freed.
        let status = unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
        assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    }

    /// In child processes, because a filter cannot be taken back: a processor with everything (a table) under a kernel that refuses.
    #[test]
    #[expect(clippy::print_stdout, reason = "the child tells its parent")]
    fn refusals_are_typed() {
        if let Ok(errno) = std::env::var(CHILD) {
            let errno: u32 = errno.parse().expect("a number");
            if errno == libc::ENOSPC.cast_unsigned() {
                small_signal_stack();
            }
            refuse_arch_prctl(errno);
            let reason = Unavailable::Permission {
                errno: errno.cast_signed(),
            };
            assert_eq!(request(), Err(reason));
            assert_eq!(cpuid::amx(&Table::with_real_request()), Err(reason));
            assert_eq!(cpuid::avx512(&Table::with_real_request()), Ok(()));
            println!("{reason} | {}", describe_signal_stack());
            return;
        }
        let cases = [
            (libc::EPERM, "EPERM, a seccomp filter"),
            (libc::EINVAL, "EINVAL, no support in the kernel"),
            (libc::EOPNOTSUPP, "EOPNOTSUPP, no support in the kernel"),
            (libc::ENOSPC, "ENOSPC, a signal stack is too small for tile data"),
            (libc::ENOMEM, "unexpected"),
        ];
        for (errno, meaning) in cases {
            let output = std::process::Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "x86::permission::tests::refusals_are_typed", "--nocapture"])
                .env(CHILD, errno.to_string())
                .output()
                .expect("a child process");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{errno}: {text}{}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(text.contains(meaning), "{errno}: {text}");
            if errno == libc::ENOSPC {
                let size = libc::MINSIGSTKSZ + 2048;
                assert!(
                    text.contains(&format!("signal stack: {size} bytes in this thread")),
                    "{text}"
                );
            }
        }
    }
}
