//! The frame: what travels between two ranks, whatever the transport. `docs/protocol.md` describes it.

use crate::error::Error;

/// Bytes of a frame's head.
pub(crate) const HEAD: usize = 32;
/// Longest body of a frame that is not data: a description with an eager payload, or the text of a failure.
pub(crate) const CONTROL_LIMIT: usize = 16 << 10;
/// Longest body of a data frame. A receiver takes no longer one, whatever its own segment size.
pub(crate) const DATA_LIMIT: usize = 4 << 20;
/// First byte of each head, so that a stream that lost its step is noticed at once.
const MARK: u8 = 0xA7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A rank has called an operation: its description, and the whole payload when it is small.
    Ready,
    /// A piece of an operation's payload.
    Data,
    /// Nothing: the sender lives.
    Heartbeat,
    /// The sender has finished everything and leaves.
    Goodbye,
    /// The job has failed: the cause.
    Abort,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    /// The operation's number in call order.
    pub(crate) number: u64,
    /// Data only: which of the operation's buffers.
    pub(crate) slot: u32,
    /// Data only: where in it, in bytes.
    pub(crate) offset: u64,
    /// Bytes that follow the head.
    pub(crate) length: u32,
}

impl Head {
    pub(crate) fn control(kind: Kind, number: u64, length: usize) -> Self {
        debug_assert!(
            length <= CONTROL_LIMIT,
            "a control body of {length} bytes, limit {CONTROL_LIMIT}"
        );
        Self {
            kind,
            number,
            slot: 0,
            offset: 0,
            length: length as u32,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[0] = MARK;
        bytes[1] = match self.kind {
            Kind::Ready => 1,
            Kind::Data => 2,
            Kind::Heartbeat => 3,
            Kind::Goodbye => 4,
            Kind::Abort => 5,
        };
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        let check = check(&bytes[..28]);
        bytes[28..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The head in `bytes`, or what is wrong with them. Lengths are checked here, before anything is made of them.
    pub(crate) fn decode(bytes: &[u8; HEAD]) -> Result<Self, String> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[0] != MARK || check(&bytes[..28]) != word(28) {
            return Err("sent a frame whose head is damaged".into());
        }
        let kind = match bytes[1] {
            1 => Kind::Ready,
            2 => Kind::Data,
            3 => Kind::Heartbeat,
            4 => Kind::Goodbye,
            5 => Kind::Abort,
            other => return Err(format!("sent a frame of the unknown kind {other}")),
        };
        let head = Self {
            kind,
            slot: word(4),
            number: long(8),
            offset: long(16),
            length: word(24),
        };
        let limit = if kind == Kind::Data { DATA_LIMIT } else { CONTROL_LIMIT };
        if head.length as usize > limit {
            return Err(format!("sent a frame of {} bytes, limit {limit}", head.length));
        }
        Ok(head)
    }
}

/// FNV-1a folded to 32 bits: tells a damaged or misplaced head from a good one. It guards against accidents only.
fn check(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) as u32
}

/// Writes numbers and texts of control bodies.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn word(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A text, cut at 1000 bytes.
    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        let end = (0..=value.len().min(1000))
            .rev()
            .find(|&i| value.is_char_boundary(i))
            .unwrap_or(0);
        self.word(end as u32);
        self.0.extend(&value.as_bytes()[..end]);
        self
    }
}

/// Reads what [`Writer`] wrote; `None` where the bytes end early.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    pub(crate) fn word(&mut self) -> Option<u32> {
        self.take(4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<u64> {
        self.take(8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = self.word()? as usize;
        self.take(length).map(|b| String::from_utf8_lossy(b).into_owned())
    }
}

/// The failure as an abort frame carries it.
pub(crate) fn encode_failure(error: &Error) -> Vec<u8> {
    let mut w = Writer::default();
    match error {
        Error::Deadline {
            missing, call, waited, ..
        } => {
            w.byte(2)
                .long(waited.as_millis() as u64)
                .text(call)
                .word(missing.len().min(1000) as u32);
            for rank in missing.iter().take(1000) {
                w.word(*rank as u32);
            }
        }
        Error::Mismatch { number, one, other } => {
            w.byte(3)
                .long(*number)
                .word(one.0 as u32)
                .text(&one.1)
                .word(other.0 as u32)
                .text(&other.1);
        }
        Error::PeerLost { rank, reason, .. } => {
            w.byte(1).word(*rank as u32).text(reason);
        }
        other => {
            w.byte(4).text(&other.to_string());
        }
    }
    w.0
}

/// The failure that `from` reports.
pub(crate) fn decode_failure(from: usize, body: &[u8]) -> Option<Error> {
    let mut r = Reader(body);
    let error = match r.byte()? {
        1 => {
            let (rank, reason) = (r.word()? as usize, r.text()?);
            Error::PeerLost {
                rank,
                reason,
                reported_by: (rank != from).then_some(from),
            }
        }
        2 => {
            let waited = std::time::Duration::from_millis(r.long()?);
            let call = r.text()?;
            let count = r.word()?.min(1000);
            let missing = (0..count)
                .map(|_| r.word().map(|rank| rank as usize))
                .collect::<Option<_>>()?;
            Error::Deadline {
                missing,
                call,
                waited,
                reported_by: Some(from),
            }
        }
        3 => {
            let number = r.long()?;
            let one = (r.word()? as usize, r.text()?);
            let other = (r.word()? as usize, r.text()?);
            Error::Mismatch { number, one, other }
        }
        4 => Error::PeerLost {
            rank: from,
            reason: format!("failed: {}", r.text()?),
            reported_by: None,
        },
        _ => return None,
    };
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_survives_the_wire() {
        let head = Head {
            kind: Kind::Data,
            number: 1 << 40,
            slot: 7,
            offset: 1 << 33,
            length: 4096,
        };
        assert_eq!(Head::decode(&head.encode()), Ok(head));
    }

    #[test]
    fn every_damaged_bit_of_a_head_is_noticed() {
        let good = Head {
            kind: Kind::Data,
            number: 3,
            slot: 7,
            offset: 64,
            length: 4096,
        }
        .encode();
        for bit in 0..HEAD * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            // Bytes 2 and 3 are unused, but they are covered by the check as well.
            assert!(Head::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn lengths_beyond_the_limit_are_refused() {
        for (kind, limit) in [(Kind::Data, DATA_LIMIT), (Kind::Ready, CONTROL_LIMIT)] {
            let head = |length| Head {
                kind,
                number: 0,
                slot: 0,
                offset: 0,
                length,
            };
            assert!(Head::decode(&head(limit as u32).encode()).is_ok());
            assert!(
                Head::decode(&head(limit as u32 + 1).encode())
                    .unwrap_err()
                    .contains("limit")
            );
            assert!(Head::decode(&head(u32::MAX).encode()).unwrap_err().contains("limit"));
        }
    }

    #[test]
    fn failures_survive_the_wire() {
        let failures = [
            Error::PeerLost {
                rank: 3,
                reason: "closed".into(),
                reported_by: None,
            },
            Error::Deadline {
                missing: vec![1, 2],
                call: "barrier".into(),
                waited: std::time::Duration::from_secs(4),
                reported_by: None,
            },
            Error::Mismatch {
                number: 9,
                one: (0, "a".into()),
                other: (1, "b".into()),
            },
        ];
        for failure in failures {
            let text = decode_failure(5, &encode_failure(&failure)).unwrap().to_string();
            assert!(text.starts_with(&failure.to_string()), "{text} for {failure}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_failure(1, &bytes);
            let mut head = [0; HEAD];
            for (to, from) in head.iter_mut().zip(&bytes) {
                *to = *from;
            }
            let _ = Head::decode(&head);
        }
    }
}
