//! Linux system calls behind safe signatures.
#![expect(unsafe_code, reason = "system calls: affinity masks, futex, memory policy")]

use std::io;
use std::sync::atomic::AtomicU32;

use crate::cpuset::CpuSet;

/// Words of the first mask offered to the kernel: 1,024 CPUs, the size libc uses.
const FIRST_MASK_WORDS: usize = 16;
/// Words of the largest mask offered: 65,536 CPUs, eight times the kernel's present limit.
const LAST_MASK_WORDS: usize = 1024;

/// The CPUs on which the calling thread may run.
pub(crate) fn affinity() -> io::Result<CpuSet> {
    let mut words = vec![0u64; FIRST_MASK_WORDS];
    loop {
        // SAFETY: the pointer and the length in bytes describe the vector, which the kernel fills at most to its end.
        let written = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                0,
                size_of_val(words.as_slice()),
                words.as_mut_ptr(),
            )
        };
        if written >= 0 {
            return Ok(CpuSet::from_words(&words));
        }
        let error = io::Error::last_os_error();
        // EINVAL says that the kernel's own mask is longer than this one.
        if error.raw_os_error() != Some(libc::EINVAL) || words.len() >= LAST_MASK_WORDS {
            return Err(error);
        }
        words = vec![0; words.len() * 2];
    }
}

/// Lets the calling thread run on `cpus` only.
pub(crate) fn set_affinity(cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the pointer and the length in bytes describe the slice, which the kernel only reads.
    let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(words), words.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sleeps until `word` is woken, unless it no longer holds `expected`; may return early without reason.
pub(crate) fn wait_while_equal(word: &AtomicU32, expected: u32) {
    // SAFETY: the address is that of a live, aligned 32-bit atomic; a null timeout means none. The result is not needed:
    // the caller looks at the word again whatever the reason for returning was.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes every thread that sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // SAFETY: the address is that of a live, aligned 32-bit atomic, and waking reads or writes nothing through it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX,
        );
    }
}
