//! Systems other than Linux: nothing can be pinned, and waiting yields.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cpuset::CpuSet;

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

pub(crate) fn affinity() -> io::Result<CpuSet> {
    unsupported()
}

pub(crate) fn set_affinity(_cpus: &CpuSet) -> io::Result<()> {
    unsupported()
}

pub(crate) fn wait_while_equal(word: &AtomicU32, expected: u32) {
    if word.load(Ordering::Acquire) == expected {
        // There is no portable wait on a word; a short bounded nap keeps an idle team cheap.
        std::thread::park_timeout(std::time::Duration::from_micros(200));
    }
}

pub(crate) fn wake_all(_word: &AtomicU32) {}

/// Where memory comes from; nothing here can say so to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Default,
    Bind,
    Prefer,
}

pub(crate) fn page_size() -> usize {
    4096
}

pub(crate) fn set_thread_memory(_policy: Policy, _nodes: &CpuSet) -> io::Result<()> {
    unsupported()
}

pub(crate) fn thread_memory() -> io::Result<(i32, CpuSet)> {
    unsupported()
}

pub(crate) fn memory_policy(_memory: &[u8]) -> io::Result<(i32, CpuSet)> {
    unsupported()
}

pub(crate) fn bind_memory(_memory: &mut [u8], _nodes: &CpuSet, _move_all: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn migrate(_from: &CpuSet, _to: &CpuSet) -> io::Result<usize> {
    unsupported()
}

pub(crate) fn nodes_of<'a>(_bytes: impl Iterator<Item = &'a u8>) -> io::Result<Vec<Option<usize>>> {
    unsupported()
}
