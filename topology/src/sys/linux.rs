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

/// `MPOL_BIND`: memory comes from the named nodes only.
const MPOL_BIND: libc::c_int = 2;
/// `MPOL_F_MEMS_ALLOWED` is not wanted here; no flags ask for the thread's own policy.
const NO_FLAGS: libc::c_ulong = 0;

/// The words of a node set, at least one, as the memory policy calls want them, and the number of their bits. The calls
/// read one bit less than they are told, hence the one more.
fn node_mask(nodes: &CpuSet) -> (Vec<u64>, usize) {
    let mut words = nodes.words().to_vec();
    words.resize(words.len().max(1), 0);
    let bits = words.len() * 64 + 1;
    (words, bits)
}

/// Makes the calling thread take new memory from `nodes`.
pub(crate) fn bind_thread_memory(nodes: &CpuSet) -> io::Result<()> {
    let (words, bits) = node_mask(nodes);
    // SAFETY: the pointer leads to as many words as the number of bits needs, and the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, words.as_ptr(), bits) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The nodes in the calling thread's policy.
pub(crate) fn thread_memory() -> io::Result<CpuSet> {
    let mut mode: libc::c_int = 0;
    // The kernel wants room for every node it could have, at most 1,024 in any configuration.
    let mut words = vec![0u64; 16];
    // SAFETY: the kernel writes one integer and as many words as the vector has; a null address goes with no flags.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            words.as_mut_ptr(),
            words.len() * 64,
            std::ptr::null::<libc::c_void>(),
            NO_FLAGS,
        )
    };
    if result == 0 {
        Ok(CpuSet::from_words(&words))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Binds the pages of a range that are not there yet to `nodes`.
pub(crate) fn bind_memory(memory: &mut [u8], nodes: &CpuSet) -> io::Result<()> {
    let (words, bits) = node_mask(nodes);
    // SAFETY: the range is a live slice, whose contents the call does not change; the mask is as long as is said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.as_mut_ptr(),
            memory.len(),
            MPOL_BIND,
            words.as_ptr(),
            bits,
            0u32,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The node of the page that holds `byte`.
pub(crate) fn node_of(byte: &u8) -> Option<usize> {
    let pages = [std::ptr::from_ref(byte).cast::<libc::c_void>()];
    let mut status = [-1 as libc::c_int];
    // SAFETY: one page is asked about, both arrays have one entry, and with null nodes nothing is moved.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1usize,
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if result == 0 {
        usize::try_from(status[0]).ok()
    } else {
        None
    }
}
