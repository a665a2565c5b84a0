//! Asynchronous operations: wait and poll.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// What an operation returns before its type is known again.
pub(crate) type Output = Box<dyn Any + Send>;

/// The place where the worker leaves an operation's result.
#[derive(Default)]
pub(crate) struct Completion {
    result: Mutex<Option<Result<Output>>>,
    arrived: Condvar,
}

impl Completion {
    fn lock(&self) -> MutexGuard<'_, Option<Result<Output>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first result stays.
    pub(crate) fn complete(&self, result: Result<Output>) {
        self.lock().get_or_insert(result);
        self.arrived.notify_all();
    }
}

/// An operation under way.
///
/// Dropping the handle lets the operation go on: the other ranks count on it.
#[must_use = "an operation's result and its failure are seen by waiting for it"]
pub struct Handle<T> {
    completion: Arc<Completion>,
    output: PhantomData<fn() -> T>,
}

impl<T: 'static> Handle<T> {
    pub(crate) fn new(completion: Arc<Completion>) -> Self {
        Self {
            completion,
            output: PhantomData,
        }
    }

    /// Waits until the operation is done on this rank and returns its result.
    ///
    /// It never waits for ever: the operation's deadline, a rank's failure and the end of the worker all end it.
    pub fn wait(self) -> Result<T> {
        let mut result = self.completion.lock();
        loop {
            if let Some(result) = result.take() {
                let output = result?;
                return match output.downcast::<T>() {
                    Ok(output) => Ok(*output),
                    Err(_) => Err(Error::Worker {
                        reason: "an operation returned another type than it promised".into(),
                    }),
                };
            }
            // The worker completes every operation, also when it panics, so there is no time limit here.
            result = self
                .completion
                .arrived
                .wait(result)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether [`Handle::wait`] would return at once.
    pub fn is_done(&self) -> bool {
        self.completion.lock().is_some()
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.completion.lock().is_some();
        f.debug_struct("Handle").field("done", &done).finish()
    }
}
