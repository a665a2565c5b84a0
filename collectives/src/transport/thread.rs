//! Ranks as threads of one process: for tests, examples and the trainer's own checks.
//!
//! Frames go through a mailbox per rank. Bodies are copied once into the mailbox and once out of it; what can lie in
//! one is bounded by the operations that its rank has called, because data are sent only to ranks that have called.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Driver, Transport, Wake, Wired};
use crate::frame::Head;

#[derive(Default)]
struct Inbox {
    frames: VecDeque<(usize, Head, Vec<u8>)>,
    /// Ranks whose transport is gone; told once.
    gone: Vec<usize>,
    woken: bool,
}

#[derive(Default)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    event: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Mailbox {
    fn wake(&self) {
        self.lock().woken = true;
        self.event.notify_one();
    }
}

struct Threads {
    rank: usize,
    mailboxes: Arc<[Arc<Mailbox>]>,
}

/// One transport for each of `ranks` ranks.
pub(crate) fn wire(ranks: usize) -> Vec<Wired> {
    let mailboxes: Arc<[Arc<Mailbox>]> = (0..ranks).map(|_| Arc::default()).collect();
    (0..ranks)
        .map(|rank| {
            let transport = Threads {
                rank,
                mailboxes: mailboxes.clone(),
            };
            Wired::new(move || Ok(Box::new(transport)), mailboxes[rank].clone())
        })
        .collect()
}

impl Threads {
    fn send(&self, driver: &mut dyn Driver) {
        for to in (0..self.mailboxes.len()).filter(|&to| to != self.rank) {
            while let Some(head) = driver.begin(to) {
                let body = driver.body(to).to_vec();
                let mailbox = &self.mailboxes[to];
                mailbox.lock().frames.push_back((self.rank, head, body));
                mailbox.event.notify_one();
                driver.sent(to);
            }
        }
    }
}

impl Transport for Threads {
    fn progress(&mut self, driver: &mut dyn Driver, timeout: Duration) {
        self.send(driver);
        let mailbox = &self.mailboxes[self.rank];
        let idle = |inbox: &mut Inbox| !inbox.woken && inbox.frames.is_empty() && inbox.gone.is_empty();
        let (mut inbox, _) = mailbox
            .event
            .wait_timeout_while(mailbox.lock(), timeout, idle)
            .unwrap_or_else(PoisonError::into_inner);
        inbox.woken = false;
        let frames = std::mem::take(&mut inbox.frames);
        let gone = std::mem::take(&mut inbox.gone);
        drop(inbox);
        for (from, head, body) in frames {
            driver.heard(from);
            let result = driver.accept(from, head).and_then(|()| {
                driver.place(from).copy_from_slice(&body);
                driver.arrived(from)
            });
            if let Err(reason) = result {
                driver.lost(from, reason);
            }
        }
        for from in gone {
            driver.lost(from, "ended without a word".into());
        }
        self.send(driver);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for (to, mailbox) in self.mailboxes.iter().enumerate() {
            if to != self.rank {
                mailbox.lock().gone.push(self.rank);
                mailbox.event.notify_one();
            }
        }
    }
}
