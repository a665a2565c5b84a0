//! Communicators over a part of the ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Communicator, Position};
use crate::error::{Error, Result};
use crate::group::{GROUPS_LIMIT, Group};

impl Communicator {
    /// A communicator for the ranks that name the same color; `None` for those that name none. Ranks in it are counted
    /// by key, and by their rank here where keys are equal. All ranks of this communicator call it.
    ///
    /// The parts share this communicator's connections and thread: operations of several of them advance at the same
    /// time, and a failure ends all. A rank makes one split at a time.
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Self>> {
        let own = [
            u64::from(color.is_some()),
            color.unwrap_or(0),
            key as u64,
            self.worker.next_group.load(Ordering::Acquire),
        ];
        let all = self.all_gather(&own)?;
        let said: Vec<&[u64]> = all.chunks_exact(own.len()).collect();
        // No rank here has a group with this number or a higher one.
        let id = said.iter().map(|said| said[3]).max().unwrap_or(1);
        if id >= GROUPS_LIMIT {
            return Err(Error::TooLarge {
                bytes: id,
                limit: GROUPS_LIMIT,
            });
        }
        self.worker.next_group.store(id + 1, Ordering::Release);
        let Some(color) = color else { return Ok(None) };
        let mut ranks: Vec<usize> = (0..said.len()).filter(|&rank| said[rank][..2] == [1, color]).collect();
        ranks.sort_by_key(|&rank| (said[rank][2] as i64, rank));
        let rank = ranks.iter().position(|&rank| rank == self.position.rank).unwrap_or(0);
        let members: Vec<usize> = ranks.iter().map(|&rank| self.group.members[rank]).collect();
        let here = |member: &&usize| self.nodes[**member] == self.nodes[members[rank]];
        let position = Position {
            rank,
            world_size: members.len(),
            local_rank: members[..rank].iter().filter(here).count(),
            local_size: members.iter().filter(here).count(),
        };
        Ok(Some(Self {
            position,
            segment_bytes: self.segment_bytes,
            transport: self.transport,
            group: Arc::new(Group::new(id, members)),
            nodes: self.nodes.clone(),
            worker: self.worker.clone(),
        }))
    }
}
