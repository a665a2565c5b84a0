//! What the crate asks of an x86-64 processor and its operating system.

pub(crate) mod canary;
pub(crate) mod cpuid;
pub(crate) mod permission;
