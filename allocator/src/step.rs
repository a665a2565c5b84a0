//! The step arena: buffers of a repeated step get fixed places in one block.
//!
//! The first step is recorded: each buffer is a block of its own, and its name, size and lifetime are kept. When the step
//! ends, offsets for all of them are planned in one block, which is mapped and touched. From then on the same sequence of
//! takes gets the same addresses, without a system call, a page fault or an allocation.
//!
//! A plan is never trusted blindly. A take gets its planned place only if it has the planned name, fits the planned
//! capacity, and no living lease overlaps that place; otherwise the rest of the step is served with blocks of their own, and
//! the end of the step makes a new plan. Capacities have headroom and only grow while the names stay the same, so steps of
//! varying length settle on one plan. A step whose first take is larger than planned is taken to be a larger step of the
//! same kind: the whole plan grows in proportion before the take is served, so that it need not be recorded again.
#![expect(unsafe_code, reason = "leases are typed views of one block; the proof is at `Lease`")]
#![expect(clippy::disallowed_methods, reason = "the block is a mapping")]

mod plan;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

use crate::error::Error;
use plan::{Buffer, Layout};

/// Alignment of every lease: a cache line, and the width of the widest vector register.
pub const ALIGNMENT: usize = 64;
/// Size of a huge page on x86-64 and, with 4 KiB pages, on AArch64.
const HUGE: usize = 2 << 20;

/// One cache line of memory that is always initialised.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// The one block of a plan.
struct Block {
    map: memmap2::MmapMut,
    /// Offset of the first huge-page boundary in the map.
    start: usize,
    len: usize,
    /// First byte; taken from the map once, so that leases do not go through a reference to the whole.
    first: NonNull<u8>,
}

// SAFETY: the block is plain memory; who may touch which part of it is decided by the leases.
unsafe impl Send for Block {}
// SAFETY: nothing of the block but its fixed fields is read through a shared reference.
unsafe impl Sync for Block {}

impl Block {
    /// Maps `len` bytes, asks for huge pages and touches every page.
    fn map(len: usize) -> Result<Arc<Block>, Error> {
        let failed = |source| Error::Map { asked: len, source };
        let mut map = memmap2::MmapOptions::new().len(len + HUGE).map_anon().map_err(failed)?;
        let start = map.as_ptr().align_offset(HUGE).min(HUGE);
        #[cfg(target_os = "linux")]
        {
            // Both are wishes: without huge pages the block works, and without populating it faults in the next step.
            let _ = map.advise_range(memmap2::Advice::HugePage, start, len);
            let _ = map.advise_range(memmap2::Advice::PopulateWrite, start, len);
        }
        let first = NonNull::from(&mut map[start..start + len]).cast::<u8>();
        Ok(Arc::new(Block { map, start, len, first }))
    }
}

/// A plan in use.
struct Plan {
    /// Tells the plan's leases from those of earlier plans.
    id: u64,
    names: Vec<&'static str>,
    buffers: Vec<Buffer>,
    layout: Layout,
    overlaps: Vec<Vec<usize>>,
    /// Which planned buffers are leased now. Invariant: those whose flag is set have disjoint ranges.
    alive: Vec<bool>,
    block: Arc<Block>,
}

/// A take of the step that is going on.
struct Event {
    name: &'static str,
    bytes: usize,
    dies: Option<usize>,
}

#[derive(Default)]
struct Usage {
    now: usize,
    peak: usize,
    takes: u64,
}

#[derive(Default)]
struct State {
    step: u64,
    events: Vec<Event>,
    living: usize,
    in_use: usize,
    peak: usize,
    plan: Option<Plan>,
    /// Whether a take of this step could not be served as planned.
    diverged: bool,
    usage: BTreeMap<&'static str, Usage>,
    plans: u64,
    planned_takes: u64,
    own_takes: u64,
}

struct Shared {
    limit: usize,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held but for a failed assertion of this file; the state is then still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An arena for the buffers of a step that is done over and over. Cheap to clone; clones share the arena.
#[derive(Clone)]
pub struct StepArena {
    shared: Arc<Shared>,
}

/// What an arena has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepStats {
    /// Steps that have ended.
    pub steps: u64,
    /// Plans that have been made.
    pub plans: u64,
    /// Takes that were served at a planned place.
    pub planned_takes: u64,
    /// Takes that were served by blocks of their own.
    pub own_takes: u64,
    /// Bytes of the present plan's block; 0 without a plan.
    pub block: usize,
    /// Most bytes of living leases at one time.
    pub peak: usize,
}

/// The high-water mark of the buffers of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mark {
    /// The name.
    pub name: &'static str,
    /// Most bytes of living leases of this name at one time.
    pub peak: usize,
    /// Number of takes.
    pub takes: u64,
}

impl Default for StepArena {
    fn default() -> Self {
        StepArena::new()
    }
}

impl std::fmt::Debug for StepArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepArena")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl StepArena {
    /// An arena that takes what the system gives.
    pub fn new() -> Self {
        StepArena::with_limit(usize::MAX)
    }

    /// An arena whose living leases never exceed `limit` bytes together.
    pub fn with_limit(limit: usize) -> Self {
        StepArena {
            shared: Arc::new(Shared {
                limit,
                state: Mutex::default(),
            }),
        }
    }

    /// A buffer of `len` elements. Its contents are whatever was there before, never uninitialised.
    ///
    /// On an error the arena is as it was.
    pub fn take<T: Pod>(&self, name: &'static str, len: usize) -> Result<Lease<T>, Error> {
        self.take_reserving(name, len, len)
    }

    /// A buffer of `len` zeros.
    pub fn take_zeroed<T: Pod>(&self, name: &'static str, len: usize) -> Result<Lease<T>, Error> {
        let mut lease = self.take(name, len)?;
        lease.fill(T::zeroed());
        Ok(lease)
    }

    /// A buffer of `len` elements for which the plan keeps room for `capacity`, so that later steps may take that many.
    pub fn take_reserving<T: Pod>(&self, name: &'static str, len: usize, capacity: usize) -> Result<Lease<T>, Error> {
        let element = size_of::<T>();
        if align_of::<T>() > ALIGNMENT {
            return Err(Error::Alignment {
                name,
                asked: align_of::<T>(),
                given: ALIGNMENT,
            });
        }
        let rounded = |len: usize| {
            let bytes = len.checked_mul(element)?.checked_next_multiple_of(ALIGNMENT)?;
            (bytes <= isize::MAX as usize - 2 * HUGE).then_some(bytes)
        };
        let too_long = |len| Error::TooLong { name, len, element };
        let bytes = rounded(len).ok_or_else(|| too_long(len))?;
        let reserved = rounded(capacity.max(len)).ok_or_else(|| too_long(capacity))?;

        let mut state = self.shared.state();
        let in_use = state.in_use.saturating_add(bytes);
        if in_use > self.shared.limit {
            return Err(Error::Exhausted {
                name,
                asked: bytes,
                in_use: state.in_use,
                limit: self.shared.limit,
            });
        }
        let index = state.events.len();
        if index == 0 {
            state.grow(name, bytes);
        }
        let (keep, start) = match state.planned_place(index, name, bytes) {
            Some(place) => place,
            None => own_block(bytes)?,
        };
        let state = &mut *state;
        state.events.push(Event {
            name,
            bytes: reserved,
            dies: None,
        });
        state.living += 1;
        state.in_use = in_use;
        state.peak = state.peak.max(in_use);
        let usage = state.usage.entry(name).or_default();
        usage.now += bytes;
        usage.peak = usage.peak.max(usage.now);
        usage.takes += 1;
        match keep {
            Keep::Planned { .. } => state.planned_takes += 1,
            Keep::Own(_) => {
                state.own_takes += 1;
                state.diverged = true;
            }
        }
        Ok(Lease {
            first: start.cast(),
            len,
            bytes,
            name,
            index,
            keep,
            arena: Arc::clone(&self.shared),
            element: PhantomData,
        })
    }

    /// Ends a step: if it did not go as planned, or there is no plan, makes a plan from it.
    ///
    /// With living leases this is an error and the step goes on. When the system has no memory for the plan's block, the
    /// arena goes on without a plan.
    pub fn end_step(&self) -> Result<(), Error> {
        let mut state = self.shared.state();
        let state = &mut *state;
        if state.living > 0 {
            let name = state
                .events
                .iter()
                .find(|event| event.dies.is_none())
                .map_or("", |event| event.name);
            return Err(Error::Outlived {
                name,
                leases: state.living,
            });
        }
        state.step += 1;
        let outcome = if state.diverged { state.replan() } else { Ok(()) };
        state.diverged = false;
        state.events.clear();
        outcome
    }

    /// What the arena has done so far.
    pub fn stats(&self) -> StepStats {
        let state = self.shared.state();
        StepStats {
            steps: state.step,
            plans: state.plans,
            planned_takes: state.planned_takes,
            own_takes: state.own_takes,
            block: state.plan.as_ref().map_or(0, |plan| plan.block.len),
            peak: state.peak,
        }
    }

    /// High-water marks by name, in the order of the names.
    pub fn marks(&self) -> Vec<Mark> {
        let state = self.shared.state();
        state
            .usage
            .iter()
            .map(|(&name, usage)| Mark {
                name,
                peak: usage.peak,
                takes: usage.takes,
            })
            .collect()
    }

    /// Bytes of the plan's block that the system backs with huge pages now, read from its own account. `None` without a
    /// plan or where the system does not tell.
    pub fn huge_bytes(&self) -> Option<usize> {
        let block = Arc::clone(&self.shared.state().plan.as_ref()?.block);
        let from = block.map.as_ptr().addr() + block.start;
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let (mut inside, mut huge) = (false, 0);
        for line in smaps.lines() {
            let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((start, end)) = range.and_then(|(start, end)| number(start).zip(number(end))) {
                inside = start < from + block.len && from < end;
            } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
                huge += rest.split_whitespace().next()?.parse::<usize>().ok()? * 1024;
            }
        }
        // The kernel may have joined the map with a neighbour that has huge pages too.
        Some(huge.min(block.len))
    }
}

impl State {
    /// The planned place of take `index`, if the take is the one that was planned and nobody is there.
    fn planned_place(&mut self, index: usize, name: &'static str, bytes: usize) -> Option<(Keep, NonNull<u8>)> {
        let plan = self.plan.as_mut()?;
        let fits = !self.diverged && *plan.names.get(index)? == name && bytes <= plan.buffers[index].bytes;
        // The flag of the buffer itself can be set only by a lease that outlived its step, which `end_step` refuses.
        if !fits || plan.alive[index] || plan.overlaps[index].iter().any(|&other| plan.alive[other]) {
            return None;
        }
        plan.alive[index] = true;
        // SAFETY: the layout lies inside the block, so the offset does.
        let start = unsafe { plan.block.first.add(plan.layout.offsets[index]) };
        Some((
            Keep::Planned {
                plan: plan.id,
                _block: Arc::clone(&plan.block),
            },
            start,
        ))
    }

    /// Makes the whole plan larger if the first take of a step, which this is, is the planned one but does not fit.
    fn grow(&mut self, name: &'static str, bytes: usize) {
        let first = self.plan.as_ref().map(|plan| (plan.names[0], plan.buffers[0].bytes));
        let Some((_, from)) = first.filter(|&(planned, from)| planned == name && 0 < from && from < bytes) else {
            return;
        };
        let to = with_headroom(bytes);
        let larger = |bytes: usize| {
            let grown = (bytes as u128 * to as u128).div_ceil(from as u128);
            usize::try_from(grown).ok()?.checked_next_multiple_of(ALIGNMENT)
        };
        // No lease is alive at the first take, so the old block is unmapped here, before the new one is mapped.
        let Some(Plan { names, mut buffers, .. }) = self.plan.take() else {
            return;
        };
        for buffer in &mut buffers {
            let Some(bytes) = larger(buffer.bytes) else { return };
            buffer.bytes = bytes;
        }
        // Without a plan the step is served by blocks of their own, and its end says why no plan can be made.
        let _ = self.install(names, buffers);
    }

    /// Makes a plan from the step that has ended. While the names are those of the old plan, or one list begins with the
    /// other, capacities and lifetimes only grow.
    fn replan(&mut self) -> Result<(), Error> {
        let old = self.plan.take();
        let mut names: Vec<&'static str> = self.events.iter().map(|event| event.name).collect();
        let mut buffers: Vec<Buffer> = self
            .events
            .iter()
            .map(|event| Buffer {
                bytes: with_headroom(event.bytes),
                dies: event.dies.unwrap_or(names.len()),
            })
            .collect();
        if let Some(old) = old {
            let common = names.len().min(old.names.len());
            if names[..common] == old.names[..common] {
                for (new, old) in buffers.iter_mut().zip(&old.buffers) {
                    let kept = old.bytes >= new.bytes;
                    *new = Buffer {
                        bytes: if kept { old.bytes } else { new.bytes },
                        dies: new.dies.max(old.dies),
                    };
                }
                names.extend_from_slice(&old.names[common..]);
                buffers.extend_from_slice(&old.buffers[common..]);
            }
            // The old block is unmapped here, before the new one is mapped, so that they are not resident together.
        }
        self.install(names, buffers)
    }

    /// Plans these buffers and maps their block.
    fn install(&mut self, names: Vec<&'static str>, buffers: Vec<Buffer>) -> Result<(), Error> {
        let layout = plan::layout(&buffers);
        let overlaps = plan::overlaps(&buffers, &layout);
        let block = Block::map(layout.total.max(ALIGNMENT))?;
        self.plans += 1;
        self.plan = Some(Plan {
            id: self.plans,
            alive: vec![false; names.len()],
            names,
            buffers,
            layout,
            overlaps,
            block,
        });
        Ok(())
    }
}

/// Room for lengths that vary from step to step: an eighth more. It is the same share for all buffers, so that those whose
/// lengths follow one number are outgrown together, and by records only: the largest of many steps is rarely beyond it.
fn with_headroom(bytes: usize) -> usize {
    let more = bytes.checked_add(bytes / 8);
    more.and_then(|more| more.checked_next_multiple_of(ALIGNMENT))
        .unwrap_or(bytes)
}

/// A block for one lease.
fn own_block(bytes: usize) -> Result<(Keep, NonNull<u8>), Error> {
    let lines = bytes / ALIGNMENT;
    let mut own: Vec<Line> = Vec::new();
    own.try_reserve_exact(lines).map_err(|_| Error::Map {
        asked: bytes,
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    own.resize(lines, Line([0; ALIGNMENT]));
    let start = NonNull::from(own.as_mut_slice()).cast::<u8>();
    Ok((Keep::Own(own), start))
}

/// What keeps a lease's memory alive.
enum Keep {
    /// A place in a plan's block.
    Planned { plan: u64, _block: Arc<Block> },
    /// A block of its own.
    Own(#[expect(dead_code, reason = "held for its memory only")] Vec<Line>),
}

/// A buffer of a step; a slice. Dropping it ends the buffer's life in the step.
///
/// Invariants, set up by `StepArena::take_reserving` alone:
/// 1. `first` is aligned for `T` and leads to at least `len` elements, which `keep` keeps mapped.
/// 2. Every byte there has been initialised: by the kernel's zeros, or by `Line`; and `T: Pod` accepts any bytes and leaves
///    none uninitialised.
/// 3. No other living lease has a byte in common: a planned place is given only while no overlapping place is leased, and
///    is free again only after `drop`; other blocks belong to one lease.
pub struct Lease<T: Pod> {
    first: NonNull<T>,
    len: usize,
    bytes: usize,
    name: &'static str,
    index: usize,
    keep: Keep,
    arena: Arc<Shared>,
    element: PhantomData<T>,
}

// SAFETY: a lease owns its elements (invariant 3), so it may go where they may go; the rest is behind a lock.
unsafe impl<T: Pod + Send> Send for Lease<T> {}
// SAFETY: a shared lease gives shared elements only.
unsafe impl<T: Pod + Sync> Sync for Lease<T> {}

impl<T: Pod> Lease<T> {
    /// The name it was taken by.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it lies at a planned place.
    pub fn is_planned(&self) -> bool {
        matches!(self.keep, Keep::Planned { .. })
    }
}

impl<T: Pod> Deref for Lease<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: invariants 1 to 3.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: invariants 1 to 3, and this lease is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl<T: Pod + std::fmt::Debug> std::fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.name)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<T: Pod> Drop for Lease<T> {
    fn drop(&mut self) {
        let mut state = self.arena.state();
        let state = &mut *state;
        // A step does not end before its leases are gone, so the index is one of the present step.
        let takes = state.events.len();
        if let Some(event) = state.events.get_mut(self.index) {
            event.dies = Some(takes);
        }
        state.living -= 1;
        state.in_use -= self.bytes;
        if let Some(usage) = state.usage.get_mut(self.name) {
            usage.now -= self.bytes;
        }
        if let Keep::Planned { plan: id, .. } = self.keep
            && let Some(plan) = &mut state.plan
            && plan.id == id
        {
            plan.alive[self.index] = false;
        }
    }
}
