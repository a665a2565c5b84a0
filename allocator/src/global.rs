//! Face 1: the global allocator. The layout that Rust hands back on free says where a block lives, so blocks have no
//! headers and freeing looks nothing up.
#![expect(unsafe_code, reason = "implements GlobalAlloc")]

mod large;
mod lock;
mod size_class;
mod span;
mod thread_cache;

use size_class::{PAGE, Place, REGION, place};
use span::SHARED;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// The allocator: one heap a process, however many values of this type exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global(());

/// What the heap holds; exact when no other thread is at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes mapped from the system.
    pub mapped: usize,
    /// Of these, bytes in free runs that wait for their next user.
    pub cached: usize,
    /// Spans of small blocks.
    pub spans: usize,
    /// Runs mapped so far.
    pub maps: u64,
    /// Runs given back to the system so far.
    pub unmaps: u64,
    /// Blocks grown or shrunk by moving their pages.
    pub remaps: u64,
    /// Runs served from the cache.
    pub reuses: u64,
}

impl Global {
    /// A handle to the heap; needs no memory.
    pub const fn new() -> Global {
        Global(())
    }

    /// Counters of the heap.
    pub fn stats(&self) -> Stats {
        let counters = SHARED.pages.with(|pages| pages.runs.counters);
        let spans = SHARED.classes.iter().map(|c| c.with(|central| central.spans)).sum();
        Stats {
            mapped: counters.mapped,
            cached: counters.cached,
            spans,
            maps: counters.maps,
            unmaps: counters.unmaps,
            remaps: counters.remaps,
            reuses: counters.reuses,
        }
    }

    /// Gives the calling thread's free blocks to the shared lists and every free run to the system; how many bytes.
    pub fn release(&self) -> usize {
        thread_cache::flush();
        SHARED.pages.with(|pages| pages.runs.release(u64::MAX))
    }
}

/// A run of its own; also whether it is known to be zero.
#[cold]
fn take_run(bytes: usize, align: usize) -> (*mut u8, bool) {
    match SHARED.pages.with(|pages| pages.runs.take(bytes, align)) {
        Some((at, fresh)) => (ptr::with_exposed_provenance_mut(at), fresh),
        None => (ptr::null_mut(), false),
    }
}

// SAFETY: blocks of one place never overlap (spans and runs are disjoint, a free block is in one list), are as large and
// as aligned as `place` says, which is at least the layout's; nothing here unwinds: sums cannot overflow because `place`
// bounds them, and indices are classes.
unsafe impl GlobalAlloc for Global {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match place(layout.size(), layout.align()) {
            Place::Class(class) => thread_cache::take(class),
            Place::Run(bytes, align) => take_run(bytes, align).0,
            Place::Nowhere => ptr::null_mut(),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match place(layout.size(), layout.align()) {
            // SAFETY: the caller hands back a block of this layout, so it came from this class.
            Place::Class(class) => unsafe { thread_cache::give(class, block) },
            Place::Run(bytes, _) => SHARED
                .pages
                .with(|pages| pages.runs.give(block.expose_provenance(), bytes)),
            Place::Nowhere => {}
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Place::Run(bytes, align) = place(layout.size(), layout.align()) {
            let (block, zero) = take_run(bytes, align);
            if !block.is_null() && !zero {
                // SAFETY: the run is `bytes >= layout.size()` long and belongs to nobody else.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            return block;
        }
        // SAFETY: the layout is the caller's.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block is as long as its layout.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (old, new) = (place(layout.size(), layout.align()), place(size, layout.align()));
        if old == new {
            return block;
        }
        if let (Place::Run(old, _), Place::Run(new, align)) = (old, new)
            && old >= REGION
            && new > old
            && align <= REGION
            && layout.align() <= PAGE
        {
            // The pages move; their bytes are never copied.
            let moved = SHARED
                .pages
                .with(|pages| pages.runs.remap(block.expose_provenance(), old, new));
            if let Some(at) = moved {
                return ptr::with_exposed_provenance_mut(at);
            }
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        // SAFETY: the caller promises a size that is not 0.
        let copy = unsafe { self.alloc(wanted) };
        if !copy.is_null() {
            // SAFETY: both blocks are at least that long, and distinct.
            unsafe { ptr::copy_nonoverlapping(block, copy, layout.size().min(size)) };
            // SAFETY: the caller hands the old block over.
            unsafe { self.dealloc(block, layout) };
        }
        copy
    }
}
