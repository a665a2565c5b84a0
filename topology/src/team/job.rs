//! The borrowed closure handed to the members, and the proof that no member uses it too long.
//!
//! The closure given to `fork_join` lives for the length of that call only, but the members are threads of their own.
//! The board holds a pointer to it with the lifetime erased. The proof that this is sound rests on four facts, all of
//! them in this file:
//!
//! 1. Only `fork_join` writes the pointer, and only while it holds the leader's lock.
//! 2. A member reads the pointer only after it has seen the round number change, and the leader changes the number
//!    after it has written the pointer. A member then calls the closure once and counts `pending` down once, after its
//!    last use of the pointer.
//! 3. There are exactly as many members as `pending` starts from: they are made together in `Board::new`, cannot be
//!    cloned, and each remembers the last round it has seen. So `pending` is zero only when every member is past its
//!    last use of this round's pointer.
//! 4. `fork_join` returns, normally or by panic, only after it has seen `pending` at zero; its own call of the closure
//!    is inside `catch_unwind`, and nothing between publication and the end of the wait can unwind.
#![expect(
    unsafe_code,
    reason = "a borrowed closure crosses to other threads; the proof is in the module's documentation"
)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::barrier::{Gate, Spinner};

type Task<'a> = dyn Fn(usize) + Sync + 'a;
type Payload = Box<dyn Any + Send>;

thread_local! {
    /// Whether this thread is inside a round of some team.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
}

/// What the leader and the members share.
pub(super) struct Board {
    /// This round's closure with its lifetime erased; see the facts above.
    task: UnsafeCell<Option<*const Task<'static>>>,
    /// The round's number. It wraps; a member compares for difference only, and cannot fall behind by a full turn
    /// because the leader waits for it in every round.
    round: Gate,
    /// Members that have not finished the round.
    pending: Gate,
    /// How many members there are besides the leader.
    members: u32,
    stopped: AtomicBool,
    /// Panic of the lowest member that panicked in this round.
    panic: Mutex<Option<(usize, Payload)>>,
    /// Held during a round; its content is how the leader spins.
    leader: Mutex<Spinner>,
}

// SAFETY: every field but `task` is `Sync` by itself. `task` is written only under the leader's lock while no member
// reads it (facts 1 and 3) and read by members only after the release of the round number (fact 2). The closure behind
// it is `Sync`, so calling it from several threads is allowed.
unsafe impl Sync for Board {}
// SAFETY: the pointer in `task` is used only during a round, in which the board is borrowed and so cannot move.
unsafe impl Send for Board {}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board")
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// The right and duty of one thread to take part in every round of a board.
#[derive(Debug)]
pub(super) struct Member {
    board: Arc<Board>,
    index: usize,
    seen: u32,
    spinner: Spinner,
}

impl Board {
    /// A board and its members, numbered from 1. Every member must be served by a thread before the first round.
    pub(super) fn new(members: usize, spin: Duration) -> (Arc<Board>, Vec<Member>) {
        let board = Arc::new(Board {
            task: UnsafeCell::new(None),
            round: Gate::new(0),
            pending: Gate::new(0),
            members: u32::try_from(members).expect("a process cannot have 4 billion threads"),
            stopped: AtomicBool::new(false),
            panic: Mutex::new(None),
            leader: Mutex::new(Spinner::new(spin)),
        });
        let members = (1..=members)
            .map(|index| Member {
                board: Arc::clone(&board),
                index,
                seen: 0,
                spinner: Spinner::new(spin),
            })
            .collect();
        (board, members)
    }

    /// Calls `task` once for the leader and once for each member; see `Team::run`.
    pub(super) fn fork_join(&self, task: &Task<'_>) {
        if IN_ROUND.get() {
            return self.serial(task);
        }
        // Poison only says that some earlier leader panicked, which it does after its round is over.
        let Some(mut spinner) = (match self.leader.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }) else {
            return self.serial(task);
        };

        if self.members > 0 {
            self.pending.reset(self.members);
            let task: *const Task<'_> = task;
            // SAFETY: only the lifetime changes; fact 4 keeps every use inside the real lifetime.
            let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
            // SAFETY: this thread holds the leader's lock, and no member reads between rounds (facts 1 to 3).
            unsafe { *self.task.get() = Some(erased) };
            self.round.advance();
        }
        IN_ROUND.set(true);
        let own = catch_unwind(AssertUnwindSafe(|| task(0)));
        IN_ROUND.set(false);
        if self.members > 0 {
            self.pending.wait(&mut spinner, |pending| pending == 0);
        }
        let others = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(spinner);
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if let Some((_, payload)) = others {
            resume_unwind(payload);
        }
    }

    /// The same calls one after the other on this thread; the first panic is passed on after all have been made.
    fn serial(&self, task: &Task<'_>) {
        let mut first = None;
        for index in 0..=self.members as usize {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(index))) {
                first.get_or_insert(payload);
            }
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
    }

    /// Tells the members to end. There must be no round afterwards.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.round.advance();
    }
}

impl Member {
    /// The member's number; the leader is 0.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Takes part in rounds until the board is stopped.
    pub(super) fn serve(&mut self) {
        let board = Arc::clone(&self.board);
        IN_ROUND.set(true);
        loop {
            let seen = self.seen;
            self.seen = board.round.wait(&mut self.spinner, |round| round != seen);
            if board.stopped.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: the round number has changed, so the leader has written the pointer and waits (facts 1 and 2).
            let task = unsafe { *board.task.get() };
            // SAFETY: until this member counts down, the leader keeps the closure alive (facts 3 and 4).
            let task = task.map(|task| unsafe { &*task });
            if let Some(task) = task
                && let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(self.index)))
            {
                let mut panic = board.panic.lock().unwrap_or_else(PoisonError::into_inner);
                if panic.as_ref().is_none_or(|(index, _)| self.index < *index) {
                    *panic = Some((self.index, payload));
                }
            }
            board.pending.count_down();
        }
    }
}
