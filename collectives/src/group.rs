//! Which ranks take part in an operation, and how operations are numbered.
//!
//! The ranks of a communicator number their operations in call order, and so do two ranks that send and receive, apart
//! for each direction. The upper bits of a number say which of these it belongs to: two ranks that share an operation
//! are both in the group of that number, so number and sender together name it.

/// Bits of a number that count; those above name the stream.
const COUNT_BITS: u32 = 40;
/// Numbers of messages between two ranks.
const MESSAGE: u64 = 1 << 63;
/// The lower rank of the two sends.
const UPWARD: u64 = 1 << 62;
/// Groups that a job can make: the bits between.
pub(crate) const GROUPS_LIMIT: u64 = 1 << 20;

/// One order of operations, as a rank counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    /// The upper bits of its numbers.
    tag: u64,
    /// The other rank of messages.
    partner: Option<usize>,
}

impl Stream {
    /// The stream that a number belongs to which came from rank `from`.
    pub(crate) fn of(number: u64, from: usize) -> Self {
        let tag = number >> COUNT_BITS << COUNT_BITS;
        Self {
            tag,
            partner: (tag & MESSAGE != 0).then_some(from),
        }
    }

    /// The number of its operation `count`.
    pub(crate) fn number(self, count: u64) -> u64 {
        self.tag | count
    }
}

/// The place of a number in its stream.
pub(crate) fn count_of(number: u64) -> u64 {
    number & ((1 << COUNT_BITS) - 1)
}

/// Ranks that make calls together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) stream: Stream,
    /// World ranks, by place in the group.
    pub(crate) members: Vec<usize>,
    /// Places in the group, by world rank.
    places: Vec<Option<usize>>,
}

impl Group {
    fn with(stream: Stream, members: Vec<usize>) -> Self {
        let mut places = vec![None; members.iter().max().map_or(0, |most| most + 1)];
        for (place, &rank) in members.iter().enumerate() {
            places[rank] = Some(place);
        }
        Self {
            stream,
            members,
            places,
        }
    }

    /// Group `id` of a job; 0 is the world.
    pub(crate) fn new(id: u64, members: Vec<usize>) -> Self {
        let stream = Stream {
            tag: id << COUNT_BITS,
            partner: None,
        };
        Self::with(stream, members)
    }

    /// A sender and a receiver, in this order, as rank `own` sees them.
    pub(crate) fn message(sender: usize, receiver: usize, own: usize) -> Self {
        let stream = Stream {
            tag: MESSAGE | if sender < receiver { UPWARD } else { 0 },
            partner: Some(if own == sender { receiver } else { sender }),
        };
        Self::with(stream, vec![sender, receiver])
    }

    /// The place of a rank of the world.
    pub(crate) fn place(&self, rank: usize) -> Option<usize> {
        self.places.get(rank).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_message_give_it_the_same_number_and_each_direction_its_own() {
        let (sends, receives) = (Group::message(2, 5, 2), Group::message(2, 5, 5));
        assert_eq!(sends.stream.number(7), receives.stream.number(7));
        assert_ne!(sends.stream.number(7), Group::message(5, 2, 2).stream.number(7));
        assert_eq!(Stream::of(sends.stream.number(7), 2), receives.stream);
        assert_eq!(Stream::of(receives.stream.number(7), 5), sends.stream);
        assert_eq!(
            (sends.place(2), sends.place(5), sends.place(3)),
            (Some(0), Some(1), None)
        );
    }

    #[test]
    fn numbers_of_groups_do_not_meet() {
        let last = Group::new(GROUPS_LIMIT - 1, vec![0, 1]).stream;
        assert_eq!(Stream::of(last.number(9), 1), last);
        assert_eq!(count_of(last.number(9)), 9);
        assert_ne!(last.number(9), Group::new(0, vec![0, 1]).stream.number(9));
        assert!(Stream::of(last.number(9), 1) < Group::message(0, 1, 0).stream);
    }
}
