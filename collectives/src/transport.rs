//! What a transport is: it carries frames between ranks, in order per pair, and never waits beyond a time limit.
//!
//! The worker drives it: [`Transport::progress`] writes what the [`Driver`] has for each rank, reads what comes into
//! the places that the driver names, and returns when something happened or the time is up.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::frame::Head;

mod link;
pub(crate) mod mesh;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod shared;
mod tcp;
pub(crate) mod thread;

/// The transport's view of the worker. For each rank at most one frame is being sent and one being received.
pub(crate) trait Driver {
    /// Starts the next frame for `to`, if there is one.
    fn begin(&mut self, to: usize) -> Option<Head>;
    /// The body of the frame that was begun.
    fn body(&self, to: usize) -> &[u8];
    /// The frame that was begun is sent.
    fn sent(&mut self, to: usize);

    /// A head came from `from`; an error is the end of that link.
    fn accept(&mut self, from: usize, head: Head) -> Result<(), String>;
    /// The place for the body of the frame that was accepted.
    fn place(&mut self, from: usize) -> &mut [u8];
    /// The body is complete; an error is the end of that link.
    fn arrived(&mut self, from: usize) -> Result<(), String>;

    /// Whether operations are under way, so that something will come soon.
    fn expects(&self) -> bool;

    /// Bytes came from `from`, which therefore lives.
    fn heard(&mut self, from: usize);
    /// Nothing more will come from `from`.
    fn lost(&mut self, from: usize, reason: String);
}

pub(crate) trait Transport {
    /// Sends and receives until nothing more can be done at once, waiting for the first event at most `timeout`.
    fn progress(&mut self, driver: &mut dyn Driver, timeout: Duration);

    /// Whether a rank that leaves must receive until all others leave too.
    fn stays_for_goodbyes(&self) -> bool {
        false
    }

    /// Nothing more will be sent. Whether the driver is told of each other rank that does the same.
    fn shut(&mut self) -> bool {
        false
    }

    /// All have left in peace; called at most once, and nothing after it.
    fn end(&mut self) {}
}

/// Ends the wait inside [`Transport::progress`] from another thread.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);
}

type Make = Box<dyn FnOnce() -> Result<Box<dyn Transport>> + Send>;

/// A transport that is made on the worker's thread, and the handle that wakes it.
pub(crate) struct Wired {
    pub(crate) make: Make,
    pub(crate) waker: Arc<dyn Wake>,
}

impl Wired {
    pub(crate) fn new(
        make: impl FnOnce() -> Result<Box<dyn Transport>> + Send + 'static,
        waker: Arc<dyn Wake>,
    ) -> Self {
        Self {
            make: Box::new(make),
            waker,
        }
    }
}
