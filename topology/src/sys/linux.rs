//! Linux system calls behind safe signatures.
#![expect(unsafe_code, reason = "system calls: affinity masks, futex, memory policy")]
#![expect(clippy::disallowed_methods, reason = "the door to raw system calls")]

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

/// Where memory comes from, in the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Policy {
    /// `MPOL_DEFAULT`: from the node of the thread that touches it first.
    Default = 0,
    /// `MPOL_BIND`: from the named nodes only.
    Bind = 2,
    /// `MPOL_PREFERRED_MANY` (Linux 5.15): from the named nodes first, then from the nearest others.
    Prefer = 5,
}

/// `MPOL_F_ADDR`: ask for the policy of an address instead of the thread's.
const OF_ADDRESS: libc::c_ulong = 2;
/// `MPOL_MF_STRICT | MPOL_MF_MOVE`: move the pages that are elsewhere, and fail where one cannot be moved.
const MOVE_ALL: libc::c_uint = 1 | 2;
/// Nodes in the masks offered to the kernel, which wants room for every node it could have: 1,024 in any configuration.
const NODE_WORDS: usize = 16;

fn outcome(result: libc::c_long) -> io::Result<libc::c_long> {
    if result >= 0 {
        Ok(result)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The words of a node set, at least one, as the memory policy calls want them, and the number of their bits. The calls
/// read one bit less than they are told, hence the one more.
fn node_mask(nodes: &CpuSet) -> (Vec<u64>, usize) {
    let mut words = nodes.words().to_vec();
    words.resize(words.len().max(1), 0);
    let bits = words.len() * 64 + 1;
    (words, bits)
}

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Makes the calling thread take new memory from `nodes`.
pub(crate) fn set_thread_memory(policy: Policy, nodes: &CpuSet) -> io::Result<()> {
    let (words, bits) = node_mask(nodes);
    // SAFETY: the pointer leads to as many words as the number of bits needs, and the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy as libc::c_int, words.as_ptr(), bits) };
    outcome(result).map(drop)
}

/// The calling thread's policy in the kernel's number, and its nodes.
pub(crate) fn thread_memory() -> io::Result<(i32, CpuSet)> {
    policy(std::ptr::null(), 0)
}

/// The policy of the page that holds the first byte, in the kernel's number, and its nodes.
pub(crate) fn memory_policy(memory: &[u8]) -> io::Result<(i32, CpuSet)> {
    policy(memory.as_ptr(), OF_ADDRESS)
}

fn policy(address: *const u8, flags: libc::c_ulong) -> io::Result<(i32, CpuSet)> {
    let mut mode: libc::c_int = 0;
    let mut words = vec![0u64; NODE_WORDS];
    // SAFETY: the kernel writes one integer and as many words as the vector has. The address is not dereferenced but
    // looked up, and is null when no flag asks for it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            words.as_mut_ptr(),
            words.len() * 64,
            address,
            flags,
        )
    };
    outcome(result).map(|_| (mode, CpuSet::from_words(&words)))
}

/// Binds the pages of a range to `nodes`: those that are not there yet, or with `move_all` also those that are.
/// The range begins on a page.
pub(crate) fn bind_memory(memory: &mut [u8], nodes: &CpuSet, move_all: bool) -> io::Result<()> {
    let (words, bits) = node_mask(nodes);
    let flags = if move_all { MOVE_ALL } else { 0 };
    // SAFETY: the range is a live slice, whose contents the call does not change; the mask is as long as is said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.as_mut_ptr(),
            memory.len(),
            Policy::Bind as libc::c_int,
            words.as_ptr(),
            bits,
            flags,
        )
    };
    outcome(result).map(drop)
}

/// Moves this process's pages from some nodes to others; the number of pages that could not be moved.
pub(crate) fn migrate(from: &CpuSet, to: &CpuSet) -> io::Result<usize> {
    let words = from.words().len().max(to.words().len()).max(1);
    let padded = |set: &CpuSet| {
        let mut mask = set.words().to_vec();
        mask.resize(words, 0);
        mask
    };
    let (from, to) = (padded(from), padded(to));
    // SAFETY: both masks have as many words as the number of bits needs, and the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_migrate_pages, 0, words * 64 + 1, from.as_ptr(), to.as_ptr()) };
    outcome(result).map(|left| usize::try_from(left).unwrap_or(0))
}

/// The node of each page that holds one of the bytes; `None` for a page that is not there.
pub(crate) fn nodes_of<'a>(bytes: impl Iterator<Item = &'a u8>) -> io::Result<Vec<Option<usize>>> {
    let pages: Vec<*const libc::c_void> = bytes.map(|byte| std::ptr::from_ref(byte).cast()).collect();
    let mut status = vec![-1 as libc::c_int; pages.len()];
    // SAFETY: both arrays have as many entries as is said, and with null nodes nothing is moved.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    outcome(result).map(|_| status.into_iter().map(|node| usize::try_from(node).ok()).collect())
}
