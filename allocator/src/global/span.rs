//! Spans: aligned pieces of memory cut into blocks of one class, and the shared lists of those with room.
//!
//! A block's span is found by rounding its address down, so any thread may give a block back. Empty spans go to the page
//! heap. Order of locks: a class before the page heap.
#![expect(unsafe_code, reason = "lists threaded through raw memory")]

use super::large::Runs;
use super::lock::Locked;
use super::size_class::{CLASSES, REGION, SMALL_SPAN, size_of_class, span_size};
use crate::align::{natural_alignment, round_up};
use std::ptr;

/// A free block: it holds the address of the next one.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) next: *mut Node,
}

/// Header at the start of a span, guarded by its class's lock.
#[derive(Debug)]
struct Span {
    /// Blocks given back; each lies in this span.
    free: *mut Node,
    /// Offset where uncut memory begins.
    cut: usize,
    /// Blocks given out.
    live: usize,
    /// In the class's list exactly while it has room.
    linked: bool,
    next: *mut Span,
    prev: *mut Span,
}

/// The spans of one class that have room.
#[derive(Debug)]
pub(crate) struct Central {
    first: *mut Span,
    pub(crate) spans: usize,
}

// SAFETY: the pointers lead to spans that belong to this list, wherever it is used from.
unsafe impl Send for Central {}

/// Header at the start of a region that is cut into small spans; its bitmap has a bit for each free one (never bit 0).
#[derive(Debug)]
struct Region {
    free: u32,
    next: *mut Region,
    prev: *mut Region,
}

const ALL_FREE: u32 = !1;

/// Where spans come from: the page heap and the regions with free small spans.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) runs: Runs,
    regions: *mut Region,
}

// SAFETY: as for `Central`: the pointers lead to regions that belong to this value.
unsafe impl Send for Pages {}

/// Everything that threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) classes: [Locked<Central>; CLASSES],
    pub(crate) pages: Locked<Pages>,
}

pub(crate) static SHARED: Shared = Shared {
    classes: [const {
        Locked::new(Central {
            first: ptr::null_mut(),
            spans: 0,
        })
    }; CLASSES],
    pages: Locked::new(Pages {
        runs: Runs::new(),
        regions: ptr::null_mut(),
    }),
};

impl Shared {
    /// Up to `want` blocks of `class` as a list, and how many; none when the system has no memory.
    pub(crate) fn fill(&self, class: usize, want: u32) -> (*mut Node, u32) {
        self.classes[class].with(|central| {
            let (mut list, mut got) = (ptr::null_mut(), 0);
            while got < want {
                if central.first.is_null() && !self.add_span(central, class) {
                    break;
                }
                // SAFETY: a linked span has room and belongs to this class, whose lock is held.
                let node = unsafe { central.take_block(class) };
                // SAFETY: the block is free, so its first bytes are the heap's to write.
                unsafe { node.write(Node { next: list }) };
                list = node;
                got += 1;
            }
            (list, got)
        })
    }

    /// Takes back a list of blocks of `class`.
    ///
    /// # Safety
    /// Each node was given out by `fill(class, _)` and nobody uses it any more.
    pub(crate) unsafe fn drain(&self, class: usize, mut list: *mut Node) {
        self.classes[class].with(|central| {
            while !list.is_null() {
                // SAFETY: nodes of the list are free blocks, by the caller's promise.
                let next = unsafe { (*list).next };
                // SAFETY: the same, and the class's lock is held.
                if let Some(empty) = unsafe { central.give_block(class, list) } {
                    self.pages.with(|pages| pages.give_span(empty, span_size(class)));
                }
                list = next;
            }
        });
    }

    fn add_span(&self, central: &mut Central, class: usize) -> bool {
        let Some(at) = self.pages.with(|pages| pages.take_span(span_size(class))) else {
            return false;
        };
        let span: *mut Span = ptr::with_exposed_provenance_mut(at);
        let block = size_of_class(class);
        let first = round_up(size_of::<Span>(), natural_alignment(block)).unwrap_or(block);
        // SAFETY: `at` starts an unused span, aligned and longer than its header.
        unsafe {
            span.write(Span {
                free: ptr::null_mut(),
                cut: first,
                live: 0,
                linked: false,
                next: ptr::null_mut(),
                prev: ptr::null_mut(),
            });
        }
        // SAFETY: a new span is in no list.
        unsafe { central.link(span) };
        central.spans += 1;
        true
    }
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each body follows pointers that one invariant covers: every span in the list is live and locked"
)]
impl Central {
    /// # Safety
    /// `first` is not null and `class` is this list's.
    unsafe fn take_block(&mut self, class: usize) -> *mut Node {
        let (block, end) = (size_of_class(class), span_size(class));
        // SAFETY: linked spans are live and only reached under this class's lock; `cut` stays inside the span.
        unsafe {
            let span = &mut *self.first;
            span.live += 1;
            let node = if span.free.is_null() {
                let at = self.first.expose_provenance() + span.cut;
                span.cut += block;
                ptr::with_exposed_provenance_mut(at)
            } else {
                let node = span.free;
                span.free = (*node).next;
                node
            };
            if span.free.is_null() && span.cut + block > end {
                self.unlink(self.first);
            }
            node
        }
    }

    /// The address of the block's span when it has become empty and left this list.
    ///
    /// # Safety
    /// `node` is an unused block of this class.
    unsafe fn give_block(&mut self, class: usize, node: *mut Node) -> Option<usize> {
        let at = node.expose_provenance() & !(span_size(class) - 1);
        let span: *mut Span = ptr::with_exposed_provenance_mut(at);
        // SAFETY: spans are aligned to their size, so `at` is the header of the block's span, which is live.
        unsafe {
            (*node).next = (*span).free;
            (*span).free = node;
            (*span).live -= 1;
            if !(*span).linked {
                self.link(span);
            }
            // One span with room stays, so that a class in use does not bounce.
            let alone = (*span).next.is_null() && (*span).prev.is_null();
            if (*span).live > 0 || alone {
                return None;
            }
            self.unlink(span);
        }
        self.spans -= 1;
        Some(at)
    }

    /// # Safety
    /// `span` is a live span of this class that is in no list.
    unsafe fn link(&mut self, span: *mut Span) {
        // SAFETY: by the contract, and the old first span is live like every linked one.
        unsafe {
            (*span).prev = ptr::null_mut();
            (*span).next = self.first;
            if !self.first.is_null() {
                (*self.first).prev = span;
            }
            (*span).linked = true;
        }
        self.first = span;
    }

    /// # Safety
    /// `span` is in this list.
    unsafe fn unlink(&mut self, span: *mut Span) {
        // SAFETY: its neighbours are in the list too, hence live.
        unsafe {
            let (next, prev) = ((*span).next, (*span).prev);
            if !next.is_null() {
                (*next).prev = prev;
            }
            if prev.is_null() {
                self.first = next;
            } else {
                (*prev).next = next;
            }
            (*span).next = ptr::null_mut();
            (*span).prev = ptr::null_mut();
            (*span).linked = false;
        }
    }
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each body follows pointers that one invariant covers: every region in the list is live and locked"
)]
impl Pages {
    fn take_span(&mut self, bytes: usize) -> Option<usize> {
        if bytes == REGION {
            return self.runs.take(REGION, REGION).map(|(at, _)| at);
        }
        if self.regions.is_null() {
            let (at, _) = self.runs.take(REGION, REGION)?;
            let region: *mut Region = ptr::with_exposed_provenance_mut(at);
            // SAFETY: the region is unused, aligned and longer than its header.
            unsafe {
                region.write(Region {
                    free: ALL_FREE,
                    next: ptr::null_mut(),
                    prev: ptr::null_mut(),
                });
            }
            self.regions = region;
        }
        let at = self.regions.expose_provenance();
        // SAFETY: regions in the list are live, reached under the pages' lock, and have a free span.
        unsafe {
            let region = &mut *self.regions;
            let index = region.free.trailing_zeros();
            region.free &= region.free - 1;
            if region.free == 0 {
                self.regions = region.next;
                region.next = ptr::null_mut();
                if !self.regions.is_null() {
                    (*self.regions).prev = ptr::null_mut();
                }
            }
            Some(at + index as usize * SMALL_SPAN)
        }
    }

    fn give_span(&mut self, at: usize, bytes: usize) {
        if bytes == REGION {
            self.runs.give(at, REGION);
            return;
        }
        let base = at & !(REGION - 1);
        let region: *mut Region = ptr::with_exposed_provenance_mut(base);
        // SAFETY: small spans lie in regions that start at multiples of their size; this one is live, the lock is held.
        unsafe {
            if (*region).free == 0 {
                (*region).prev = ptr::null_mut();
                (*region).next = self.regions;
                if !self.regions.is_null() {
                    (*self.regions).prev = region;
                }
                self.regions = region;
            }
            (*region).free |= 1 << ((at - base) / SMALL_SPAN);
            if (*region).free != ALL_FREE {
                return;
            }
            let (next, prev) = ((*region).next, (*region).prev);
            if !next.is_null() {
                (*next).prev = prev;
            }
            if prev.is_null() {
                self.regions = next;
            } else {
                (*prev).next = next;
            }
        }
        self.runs.give(base, REGION);
    }
}
