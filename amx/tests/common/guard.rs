//! Slices between pages that cannot be touched: a read or write outside ends the test.
#![allow(
    unsafe_code,
    clippy::disallowed_methods,
    clippy::multiple_unsafe_ops_per_block,
    clippy::cast_ptr_alignment,
    reason = "pages are mapped, aligned to themselves, and protected"
)]

use std::marker::PhantomData;

/// A copy of a slice, directly before or behind a guard page.
pub(crate) struct Guarded<T> {
    base: *mut u8,
    bytes: usize,
    start: *mut T,
    len: usize,
    owned: PhantomData<T>,
}

const PAGE: usize = 4096;

impl<T: Copy + 'static> Guarded<T> {
    /// With `at_end`, the slice ends where the guard begins; otherwise it begins where the guard ends.
    pub(crate) fn new(values: &[T], at_end: bool) -> Self {
        let data = size_of_val(values).next_multiple_of(PAGE).max(PAGE);
        let bytes = data + 2 * PAGE;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "mapping {bytes} bytes");
        let base: *mut u8 = base.cast();
        let offset = PAGE + if at_end { data - size_of_val(values) } else { 0 };
        // SAFETY: inside of the mapping; the guards are its first and last page.
        unsafe {
            let start: *mut T = base.add(offset).cast();
            start.copy_from_nonoverlapping(values.as_ptr(), values.len());
            assert_eq!(libc::mprotect(base.cast(), PAGE, libc::PROT_NONE), 0);
            assert_eq!(libc::mprotect(base.add(PAGE + data).cast(), PAGE, libc::PROT_NONE), 0);
            Self {
                base,
                bytes,
                start,
                len: values.len(),
                owned: PhantomData,
            }
        }
    }

    pub(crate) fn slice(&self) -> &[T] {
        // SAFETY: `new` copied `len` elements here.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no slice outlives it.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
