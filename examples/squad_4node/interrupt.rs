//! Ctrl-C: where there is work to save it asks the run to stop; elsewhere, and the second time, it ends the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGINT;
use signal_hook::flag::{register, register_conditional_shutdown};

/// The status of a program that Ctrl-C has ended.
pub(crate) const INTERRUPTED: i32 = 130;

/// What Ctrl-C means at the moment, and whether it has come.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// From here on Ctrl-C ends the process at once, with status 130.
    pub(crate) fn listen() -> io::Result<Interrupt> {
        let interrupt = Interrupt {
            asked: Arc::new(AtomicBool::new(false)),
            at_once: Arc::new(AtomicBool::new(true)),
        };
        // Handlers run in this order: the first one sees what an earlier signal has left.
        register_conditional_shutdown(SIGINT, INTERRUPTED, interrupt.at_once.clone())?;
        register(SIGINT, interrupt.at_once.clone())?;
        register(SIGINT, interrupt.asked.clone())?;
        Ok(interrupt)
    }

    /// From here on the first Ctrl-C only asks.
    pub(crate) fn hold(&self) {
        self.at_once.store(false, Ordering::SeqCst);
    }

    /// From here on Ctrl-C ends the process at once again; whether one has come in between.
    pub(crate) fn release(&self) -> bool {
        self.at_once.store(true, Ordering::SeqCst);
        self.asked()
    }

    /// Whether Ctrl-C has come.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
