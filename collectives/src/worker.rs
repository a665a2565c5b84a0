//! The callers' side of a rank's communication thread: hands operations over and ends the thread.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use crate::algorithm::Algorithm;
use crate::algorithm::direct::Pool;
use crate::call::Call;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::handle::Completion;
use crate::options::Options;
use crate::transport::{Wake, Wired};

/// An operation on its way from a caller to the worker.
pub(crate) struct Submission {
    pub(crate) group: Arc<Group>,
    pub(crate) call: Call,
    pub(crate) priority: i32,
    pub(crate) algorithm: Box<dyn Algorithm>,
    pub(crate) promise: Promise,
}

/// A completion that is kept whatever happens: dropped without a result, it tells of the worker's end.
pub(crate) struct Promise(pub(crate) Arc<Completion>);

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.complete(Err(Error::Worker {
            reason: "it ended before the operation did".into(),
        }));
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) submissions: VecDeque<Submission>,
    pub(crate) failure: Option<Error>,
    /// No more operations will come. `Some(true)`: because the caller panicked.
    pub(crate) closing: Option<bool>,
}

/// The side of the worker that callers hold.
pub(crate) struct Worker {
    queue: Arc<Mutex<Queue>>,
    waker: Arc<dyn Wake>,
    thread: Option<JoinHandle<()>>,
    pub(crate) pool: Pool,
    /// The lowest number that no group of this rank has.
    pub(crate) next_group: AtomicU64,
}

pub(crate) fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub(crate) fn start(wired: Wired, rank: usize, ranks: usize, options: &Options) -> Result<Self> {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let hook = options.start_hook.clone();
        let engine = Engine::new(rank, ranks, options, queue.clone());
        let shared = queue.clone();
        let Wired { make, waker } = wired;
        let (tell, made) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("collectives {rank}"))
            .spawn(move || {
                let run = AssertUnwindSafe(|| {
                    if let Some(hook) = hook {
                        hook();
                    }
                    // The other end waits for this; it cannot be gone.
                    match make() {
                        Ok(transport) => {
                            let _ = tell.send(Ok(()));
                            engine.run(transport);
                        }
                        Err(error) => drop(tell.send(Err(error))),
                    }
                });
                let ended = catch_unwind(run).map_err(|panic| panic_text(panic.as_ref()));
                let reason = ended.err().unwrap_or_else(|| "the communicator is closed".into());
                let mut queue = lock(&shared);
                queue.failure.get_or_insert(Error::Worker { reason });
                queue.submissions.clear();
            })
            .map_err(|e| Error::process("start the communication thread", e))?;
        made.recv().map_err(|_| Error::Worker {
            reason: "it ended before it had a transport".into(),
        })??;
        Ok(Self {
            queue,
            waker,
            thread: Some(thread),
            pool: Pool::default(),
            next_group: AtomicU64::new(1),
        })
    }

    /// Hands an operation to the worker. After a failure the completion holds it at once.
    pub(crate) fn submit(
        &self,
        group: Arc<Group>,
        call: Call,
        priority: i32,
        algorithm: Box<dyn Algorithm>,
    ) -> Arc<Completion> {
        let completion = Arc::new(Completion::default());
        let mut queue = lock(&self.queue);
        match &queue.failure {
            Some(failure) => completion.complete(Err(failure.clone())),
            None => {
                let promise = Promise(completion.clone());
                queue.submissions.push_back(Submission {
                    group,
                    call,
                    priority,
                    algorithm,
                    promise,
                });
                drop(queue);
                self.waker.wake();
            }
        }
        completion
    }

    /// The failure that ended the communicator, if one did.
    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.queue).failure.clone()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        lock(&self.queue).closing = Some(std::thread::panicking());
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("no message"))
}
