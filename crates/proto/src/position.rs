//! Positions: the log byte that an offset refers to (`spec/delivery.md`, D-6.8).
//!
//! When another server takes over an answer, it continues after the offset where it took over.
//! Bytes that the first owner sent beyond that offset are in another log, where the same offset
//! refers to another byte. A position distinguishes them.

/// Number of bits of a position used for the offset.
pub const OFFSET_BITS: u32 = 36;
/// Highest epoch: a position is at most [`MAX_INT`](crate::wire::MAX_INT).
pub const MAX_EPOCH: u64 = crate::wire::MAX_INT >> OFFSET_BITS;

/// Epoch of a log, and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Position {
    /// Owner of the log: 0 for the first; each later owner has a higher number.
    pub epoch: u64,
    /// Log offset.
    pub offset: u64,
}

impl Position {
    /// Decodes the position `number`.
    pub const fn of(number: u64) -> Self {
        Self { epoch: number >> OFFSET_BITS, offset: number & ((1 << OFFSET_BITS) - 1) }
    }

    /// Encodes the position as `epoch` · 2^36 + `offset`, the form used in RESUME and in event ids.
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
