//! Per-thread lists of free blocks, and what happens when a thread ends or the process forks.
//!
//! The thread-local has no destructor of its own, so it can be used from any other destructor. A key of the C library
//! flushes it late in a thread's end; from then on the thread goes to the shared lists for every block.
#![expect(
    unsafe_code,
    reason = "lists threaded through raw memory, handlers for the C library"
)]

use super::size_class::{CLASSES, batch};
use super::span::{Node, SHARED};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[derive(Clone, Copy, Debug)]
struct List {
    first: *mut Node,
    count: u32,
}

/// Invariant 1: only its own thread reaches it, and never re-entrantly: nothing below it allocates.
struct Cache {
    lists: [List; CLASSES],
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// The end of the thread would not be noticed yet.
    New,
    Watched,
    Ended,
}

thread_local! {
    static CACHE: UnsafeCell<Cache> = const {
        UnsafeCell::new(Cache {
            lists: [List { first: ptr::null_mut(), count: 0 }; CLASSES],
            state: State::New,
        })
    };
}

/// A block of `class`, or null.
#[inline]
pub(crate) fn take(class: usize) -> *mut u8 {
    CACHE.with(|cache| {
        // SAFETY: invariant 1.
        let cache = unsafe { &mut *cache.get() };
        let list = &mut cache.lists[class];
        if list.first.is_null() {
            return take_slow(cache, class);
        }
        let node = list.first;
        // SAFETY: nodes in the lists are free blocks that belong to this thread.
        list.first = unsafe { (*node).next };
        list.count -= 1;
        node.cast()
    })
}

#[cold]
fn take_slow(cache: &mut Cache, class: usize) -> *mut u8 {
    watch(cache);
    let want = if cache.state == State::Ended { 1 } else { batch(class) };
    let (node, got) = SHARED.fill(class, want);
    if node.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: `fill` gives a list of free blocks.
    let first = unsafe { (*node).next };
    cache.lists[class] = List { first, count: got - 1 };
    node.cast()
}

/// Takes back a block of `class`.
///
/// # Safety
/// It came from `take(class)`, on any thread, and nobody uses it any more.
#[inline]
pub(crate) unsafe fn give(class: usize, block: *mut u8) {
    CACHE.with(|cache| {
        // SAFETY: invariant 1.
        let cache = unsafe { &mut *cache.get() };
        let node: *mut Node = ptr::with_exposed_provenance_mut(block.expose_provenance());
        let list = &mut cache.lists[class];
        // SAFETY: the block is free by the caller's promise, and blocks are aligned to 16 bytes.
        unsafe { node.write(Node { next: list.first }) };
        list.first = node;
        list.count += 1;
        if list.count >= 2 * batch(class) || cache.state != State::Watched {
            give_slow(cache, class);
        }
    });
}

#[cold]
fn give_slow(cache: &mut Cache, class: usize) {
    watch(cache);
    let list = &mut cache.lists[class];
    let keep = if cache.state == State::Ended { 0 } else { batch(class) };
    if list.count <= keep {
        return;
    }
    let surplus = if keep == 0 {
        std::mem::replace(&mut list.first, ptr::null_mut())
    } else {
        let mut last = list.first;
        for _ in 1..keep {
            // SAFETY: the list has more than `keep` nodes.
            last = unsafe { (*last).next };
        }
        // SAFETY: `last` is the node number `keep`, a free block of this thread.
        std::mem::replace(unsafe { &mut (*last).next }, ptr::null_mut())
    };
    list.count = keep;
    // SAFETY: all nodes are free blocks of this class that no list holds any more.
    unsafe { SHARED.drain(class, surplus) };
}

/// Gives the calling thread's blocks back to the shared lists.
pub(crate) fn flush() {
    CACHE.with(|cache| {
        // SAFETY: invariant 1.
        let cache = unsafe { &mut *cache.get() };
        for class in 0..CLASSES {
            let list = std::mem::replace(
                &mut cache.lists[class],
                List {
                    first: ptr::null_mut(),
                    count: 0,
                },
            );
            // SAFETY: as in `give_slow`.
            unsafe { SHARED.drain(class, list.first) };
        }
    });
}

const UNSET: u64 = u64::MAX;
/// 0: nobody has begun, 1: begun.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// The key whose destructor flushes a thread's lists.
static KEY: AtomicU64 = AtomicU64::new(UNSET);

/// Asks the C library to tell of this thread's end, and, once in a process, of forks.
fn watch(cache: &mut Cache) {
    if cache.state != State::New {
        return;
    }
    if BEGUN.swap(1, Ordering::Relaxed) == 0 {
        let mut key = 0;
        // SAFETY: the pointer is to a local; the destructor is a function of the right type.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 {
            KEY.store(u64::from(key), Ordering::Release);
        }
        // SAFETY: the handlers are functions of the right type. Without memory for them a fork is as unsafe as with
        // any allocator without handlers.
        let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    }
    let key = KEY.load(Ordering::Acquire);
    if key == UNSET {
        // Another thread is at it: the next slow path asks again.
        return;
    }
    // SAFETY: the key exists. Any value that is not null makes the C library call the destructor.
    let failed = unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, ptr::without_provenance(1)) };
    if failed == 0 {
        cache.state = State::Watched;
    }
}

extern "C" fn thread_ends(_: *mut c_void) {
    CACHE.with(|cache| {
        // SAFETY: invariant 1.
        unsafe { (*cache.get()).state = State::Ended };
    });
    flush();
}

/// No lock is held by another thread at the moment of the fork, so the child finds all of them usable.
extern "C" fn before_fork() {
    for class in &SHARED.classes {
        class.lock();
    }
    SHARED.pages.lock();
}

extern "C" fn after_fork() {
    SHARED.pages.unlock();
    for class in &SHARED.classes {
        class.unlock();
    }
}
