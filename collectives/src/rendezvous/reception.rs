//! The accepting side of the handshake: who comes in.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::channel::{Channel, Introduction};
use super::{HANDSHAKE, MAGIC, PROTOCOL};
use crate::auth::{PROOF, Secret, random};
use crate::error::{Error, Result};

/// Longest introduction: all that is read from a stranger before its proof is checked.
const INTRODUCTION_LIMIT: usize = 512;

/// What a handshake thread needs to know.
pub(super) struct Reception {
    pub(super) secret: Secret,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// Ranks that have not come.
    pub(super) absent: Mutex<Vec<usize>>,
    /// Connections that did not prove the secret.
    pub(super) strangers: AtomicUsize,
    pub(super) pending: AtomicUsize,
}

impl Reception {
    /// The accepting side of the handshake. `None`: a stranger.
    pub(super) fn receive(&self, stream: TcpStream, address: SocketAddr) -> Result<Option<(Channel, Introduction)>> {
        let end = Instant::now() + HANDSHAKE;
        let Ok(challenge) = random() else { return Ok(None) };
        let mut channel = Channel {
            stream,
            challenges: [[0; PROOF], challenge],
        };
        let mut greeting = [0; MAGIC.len() + PROOF];
        if channel.read(&mut greeting, end).is_err() || greeting[..MAGIC.len()] != MAGIC {
            return Ok(None);
        }
        channel.challenges[0].copy_from_slice(&greeting[MAGIC.len()..]);
        if channel.write(&[&MAGIC[..], &challenge].concat(), end).is_err() {
            return Ok(None);
        }
        let Ok(body) = channel.receive_until(&self.secret, "introduction", INTRODUCTION_LIMIT, end) else {
            let _ = channel.write(&[0], end);
            return Ok(None);
        };
        let Some(introduction) = Introduction::decode(&body) else {
            return Ok(None);
        };
        let verdict = self.judge(&introduction, address);
        let text = verdict.as_ref().err().cloned().unwrap_or_default();
        let message = [
            &[1],
            channel.sealed(&self.secret, "verdict", text.as_bytes()).as_slice(),
        ]
        .concat();
        let told = channel.write(&message, end);
        match (verdict, told) {
            (Ok(()), Ok(())) => Ok(Some((channel, introduction))),
            (Ok(()), Err(_)) => {
                // It went away in the last moment; it may come again.
                self.absent
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(introduction.rank as usize);
                Ok(None)
            }
            (Err(reason), _) => Err(Error::Refused { reason }),
        }
    }

    fn judge(&self, who: &Introduction, address: SocketAddr) -> Result<(), String> {
        let (rank, world) = (self.rank, self.world_size);
        if who.protocol != PROTOCOL {
            return Err(format!(
                "rank {rank} speaks protocol {PROTOCOL}, {address} protocol {}",
                who.protocol
            ));
        }
        if who.world_size as usize != world {
            return Err(format!(
                "rank {rank} has a world of {world}, rank {} at {address} one of {}",
                who.rank, who.world_size
            ));
        }
        if who.target as usize != rank {
            return Err(format!("{address} looks for rank {} and found rank {rank}", who.target));
        }
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        match absent.iter().position(|&absent| absent == who.rank as usize) {
            Some(i) => {
                absent.remove(i);
                Ok(())
            }
            None => Err(format!(
                "rank {rank} expects no other rank {}, but {address} says it is that one",
                who.rank
            )),
        }
    }
}
