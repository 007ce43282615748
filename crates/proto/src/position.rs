//! Which byte of which log an offset names (`spec/delivery.md`, D-6.8).
//!
//! An answer that another server has taken over goes on behind the offset where that one took it.
//! What its first owner sent beyond that offset lies in another log: the same offset names another
//! byte there. A position tells them apart.

/// Bits of a position that are the offset.
pub const OFFSET_BITS: u32 = 36;
/// The highest epoch: a position is at most [`MAX_INT`](crate::wire::MAX_INT).
pub const MAX_EPOCH: u64 = crate::wire::MAX_INT >> OFFSET_BITS;

/// An epoch of a log, and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Position {
    /// Whose log it is: 0 for the first owner's; each later owner has a higher one.
    pub epoch: u64,
    /// The log offset.
    pub offset: u64,
}

impl Position {
    /// What `number` names.
    pub const fn of(number: u64) -> Self {
        Self { epoch: number >> OFFSET_BITS, offset: number & ((1 << OFFSET_BITS) - 1) }
    }

    /// Its number: `epoch` · 2^36 + `offset`, as it stands in RESUME and in the ids of events.
    pub const fn number(self) -> u64 {
        (self.epoch << OFFSET_BITS) + self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_an_epoch_and_an_offset() {
        for (epoch, offset) in [(0, 0), (0, 4711), (1, 0), (MAX_EPOCH, (1 << OFFSET_BITS) - 1)] {
            let position = Position { epoch, offset };
            assert_eq!(Position::of(position.number()), position);
            assert!(position.number() <= crate::wire::MAX_INT);
        }
        assert_eq!(Position::of(4711).number(), 4711, "the first owner's are plain offsets");
    }
}
