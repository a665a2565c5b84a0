//! Raw memory for panels and packed operands.
#![expect(unsafe_code, reason = "memory is advised and cleared before it is used")]

/// A cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A huge page, so that streaming a packed operand does not wait for address translation (with pages of 4 KiB the tile kernel was
/// measured 20 % slower).
#[derive(Debug)]
#[repr(C, align(0x20_0000))]
struct Page([u8; PAGE]);

const PAGE: usize = 0x20_0000;

/// Below this size rounding up to huge pages would waste more than it gains.
const LARGE: usize = PAGE / 32;

/// Memory that was cleared once: by lines if small, by huge pages if large.
#[derive(Debug)]
enum Memory {
    // Invariant of both: the capacity has been written, the length stays zero.
    Lines(Vec<Line>),
    Pages(Vec<Page>),
}

/// A block of initialised bytes, aligned to a cache line at least.
#[derive(Debug)]
pub(crate) struct Storage {
    memory: Memory,
    bytes: usize,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            memory: Memory::Lines(Vec::new()),
            bytes: 0,
        }
    }
}

impl Storage {
    /// At least `bytes` zeros.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let mut storage = if bytes < LARGE {
            let lines = bytes.div_ceil(size_of::<Line>());
            Self {
                memory: Memory::Lines(Vec::with_capacity(lines)),
                bytes: lines * size_of::<Line>(),
            }
        } else {
            let pages = bytes.div_ceil(PAGE);
            Self {
                memory: Memory::Pages(Vec::with_capacity(pages)),
                bytes: pages * PAGE,
            }
        };
        let (base, held) = (storage.base(), storage.bytes);
        if let Memory::Pages(_) = storage.memory {
            advise_huge_pages(base, held);
        }
        // SAFETY: the vector owns a capacity of `held` bytes.
        unsafe { base.write_bytes(0, held) };
        storage
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte.
    pub(crate) fn base(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Lines(lines) => lines.as_mut_ptr().cast(),
            Memory::Pages(pages) => pages.as_mut_ptr().cast(),
        }
    }

    /// The first `len` elements. T is plain data, for which any bits are valid.
    pub(crate) fn slice<T: bytemuck::AnyBitPattern>(&self, len: usize) -> &[T] {
        let base: *const u8 = match &self.memory {
            Memory::Lines(lines) => lines.as_ptr().cast(),
            Memory::Pages(pages) => pages.as_ptr().cast(),
        };
        assert!(
            len * size_of::<T>() <= self.bytes && align_of::<T>() <= 64,
            "{len} elements in {} bytes",
            self.bytes
        );
        // SAFETY: all bytes are initialised and valid for T, the length was checked, the base is aligned to a cache line.
        unsafe { std::slice::from_raw_parts(base.cast(), len) }
    }

    /// The first `len` elements, to write.
    pub(crate) fn slice_mut<T: bytemuck::Pod>(&mut self, len: usize) -> &mut [T] {
        assert!(
            len * size_of::<T>() <= self.bytes && align_of::<T>() <= 64,
            "{len} elements in {} bytes",
            self.bytes
        );
        // SAFETY: as in `slice`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base().cast(), len) }
    }
}

/// Asks for huge pages. A refusal only costs speed.
#[cfg(target_os = "linux")]
fn advise_huge_pages(base: *mut u8, bytes: usize) {
    // SAFETY: the advice changes neither contents nor validity of the memory, which the caller owns.
    let _ = unsafe { libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: *mut u8, _: usize) {}
