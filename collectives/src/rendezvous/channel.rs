//! What two ranks say to each other before they trust each other: sealed messages, each in the time it has.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::auth::{PROOF, Secret};
use crate::frame::{Reader, Writer};

/// Longest message of the meeting: the list of a world of about 20,000 ranks.
pub(super) const MESSAGE_LIMIT: usize = 1 << 20;

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) protocol: u32,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// The rank that it wants to reach.
    pub(super) target: u32,
    /// Where it listens; rank 0 needs it for the list.
    pub(super) listens: Option<SocketAddr>,
}

impl Introduction {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let listens = self.listens.map(|address| address.to_string()).unwrap_or_default();
        w.word(self.protocol)
            .word(self.rank)
            .word(self.world_size)
            .word(self.target)
            .text(&listens);
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        let (protocol, rank, world_size, target) = (r.word()?, r.word()?, r.word()?, r.word()?);
        let listens = r.text()?;
        let listens = if listens.is_empty() {
            None
        } else {
            Some(listens.parse().ok()?)
        };
        Some(Self {
            protocol,
            rank,
            world_size,
            target,
            listens,
        })
    }
}

/// One side's conversation: both challenges, in the order connecting, accepting.
pub(super) struct Channel {
    pub(super) stream: TcpStream,
    pub(super) challenges: [[u8; PROOF]; 2],
}

impl Channel {
    /// Length, body and proof.
    pub(super) fn sealed(&self, secret: &Secret, label: &str, body: &[u8]) -> Vec<u8> {
        let proof = secret.prove(label, &[&self.challenges[0], &self.challenges[1], body]);
        [&(body.len() as u32).to_le_bytes(), body, &proof].concat()
    }

    pub(super) fn send(&mut self, secret: &Secret, label: &str, body: &[u8], time: Duration) -> Result<(), String> {
        let message = self.sealed(secret, label, body);
        self.write(&message, Instant::now() + time)
    }

    pub(super) fn receive(&mut self, secret: &Secret, label: &str, time: Duration) -> Result<Vec<u8>, String> {
        self.receive_until(secret, label, MESSAGE_LIMIT, Instant::now() + time)
    }

    pub(super) fn receive_until(
        &mut self,
        secret: &Secret,
        label: &str,
        limit: usize,
        end: Instant,
    ) -> Result<Vec<u8>, String> {
        let mut length = [0; 4];
        self.read(&mut length, end)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > limit {
            return Err(format!("a message of {length} bytes, limit {limit}"));
        }
        let mut body = vec![0; length];
        self.read(&mut body, end)?;
        let mut proof = [0; PROOF];
        self.read(&mut proof, end)?;
        let said: [&[u8]; 3] = [&self.challenges[0], &self.challenges[1], &body];
        if secret.accepts(&proof, label, &said) {
            Ok(body)
        } else {
            Err("a wrong proof".into())
        }
    }

    /// Fills `bytes` before `end`, however slowly they come.
    pub(super) fn read(&mut self, mut bytes: &mut [u8], end: Instant) -> Result<(), String> {
        while !bytes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("no answer in time".into());
            }
            self.stream.set_read_timeout(Some(left)).map_err(|e| e.to_string())?;
            match self.stream.read(bytes) {
                Ok(0) => return Err("the connection was closed".into()),
                Ok(n) => bytes = &mut bytes[n..],
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, mut bytes: &[u8], end: Instant) -> Result<(), String> {
        while !bytes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("nothing could be sent in time".into());
            }
            self.stream.set_write_timeout(Some(left)).map_err(|e| e.to_string())?;
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }
}
