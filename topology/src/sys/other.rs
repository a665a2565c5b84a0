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

pub(crate) fn bind_thread_memory(_nodes: &CpuSet) -> io::Result<()> {
    unsupported()
}

pub(crate) fn thread_memory() -> io::Result<CpuSet> {
    unsupported()
}

pub(crate) fn bind_memory(_memory: &mut [u8], _nodes: &CpuSet) -> io::Result<()> {
    unsupported()
}

pub(crate) fn node_of(_byte: &u8) -> Option<usize> {
    None
}
