//! The owners that an answer's log has had, and where each later one began.
//!
//! An owner may have given its readers more than the store had when the next owner took over, which
//! continues after the stored part with other bytes. A [`Position`] therefore names the owner
//! besides the offset, by an epoch. It is served only as far as the logs of that owner and of its
//! successors are the same.

use loquent_proto::Position;

/// Maximum bytes of an answer's epochs in the store.
pub const EPOCHS_BYTES: usize = 8 * 1024;

/// The epochs of one log after the first, which is 0 and begins at 0. Ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Epochs(Vec<Epoch>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Epoch {
    number: u64,
    start: u64,
}

impl Epochs {
    /// Parses the store's format: `NUMBER:START`, separated by commas.
    pub fn parse(text: &str) -> Option<Self> {
        let mut all = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (number, start) = part.split_once(':')?;
            let epoch = Epoch { number: number.parse().ok()?, start: start.parse().ok()? };
            let before = all.last().map_or(0, |last: &Epoch| last.number);
            if epoch.number <= before {
                return None;
            }
            all.push(epoch);
        }
        Some(Self(all))
    }

    /// Returns the epochs in the store's format.
    pub fn to_text(&self) -> String {
        let parts = self.0.iter().map(|Epoch { number, start }| format!("{number}:{start}"));
        parts.collect::<Vec<_>>().join(",")
    }

    /// Returns the number of times that another replica has taken the answer over.
    pub fn takeovers(&self) -> usize {
        self.0.len()
    }

    /// Returns the epoch of the bytes appended now.
    pub fn current(&self) -> u64 {
        self.0.last().map_or(0, |last| last.number)
    }

    /// Returns the offset up to which the log of epoch `number` equals this one; `None` if it never
    /// did.
    pub fn end_of(&self, number: u64) -> Option<u64> {
        let is_known = number == 0 || self.0.iter().any(|epoch| epoch.number == number);
        let later = self.0.iter().filter(|epoch| epoch.number > number);
        is_known.then(|| later.map(|epoch| epoch.start).min().unwrap_or(u64::MAX))
    }

    /// Returns the offset in this log that `position` names; `None` if it names a byte of another
    /// log.
    pub fn offset_of(&self, position: Position) -> Option<u64> {
        // Everything begins at 0, whoever has it.
        let end = if position.offset == 0 { Some(0) } else { self.end_of(position.epoch) };
        end.filter(|end| position.offset <= *end).map(|_| position.offset)
    }

    /// Returns true if a reader that has the log of `before` up to `offset` may continue in this
    /// one.
    pub fn go_on_from(&self, before: &Self, offset: u64) -> bool {
        offset == 0 || self.end_of(before.current()).is_some_and(|end| offset <= end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(epoch: u64, offset: u64) -> Position {
        Position { epoch, offset }
    }

    #[test]
    fn a_position_is_served_as_far_as_both_logs_are_the_same() {
        let epochs = Epochs::parse("7:100,9:80").unwrap();
        assert_eq!(epochs.current(), 9);
        for (position, found) in [
            (at(0, 80), true),
            (at(0, 81), false),
            (at(7, 80), true),
            (at(7, 90), false),
            (at(9, 1_000), true),
            (at(8, 10), false),
            (at(8, 0), true),
        ] {
            let expected = found.then_some(position.offset);
            assert_eq!(epochs.offset_of(position), expected, "{position:?}");
        }
        assert_eq!(Epochs::default().offset_of(at(0, 5)), Some(5));
        assert_eq!(Epochs::default().offset_of(at(3, 5)), None, "of a log that the store has lost");
    }

    #[test]
    fn whoever_has_more_than_the_new_owner_does_not_go_on() {
        let (none, first) = (Epochs::default(), Epochs::parse("7:100").unwrap());
        assert!(first.go_on_from(&none, 100) && !first.go_on_from(&none, 101));
        assert!(first.go_on_from(&first, 500));
        let other = Epochs::parse("6:100").unwrap();
        assert!(!other.go_on_from(&first, 50), "another line of owners");
    }

    proptest! {
        #[test]
        fn any_text_is_epochs_or_none(text in "[0-9:,-]{0,30}") {
            if let Some(epochs) = Epochs::parse(&text) {
                prop_assert_eq!(Epochs::parse(&epochs.to_text()), Some(epochs));
            }
        }
    }
}
