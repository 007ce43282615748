//! Channels that a connection has used (S-4.1): none may be reused, because datagrams of the
//! earlier answer may still be in flight.

/// Number of channels below the highest one that are tracked individually. A client counts upwards,
/// so only QUIC streams that overtake each other arrive out of order.
const WINDOW: u64 = 1024;
const WORD_BITS: u64 = u64::BITS as u64;
/// Words of the bitmap, one more than the window needs: the highest channel may be at any position
/// in its own word.
const WORDS: u64 = WINDOW / WORD_BITS + 1;

/// Channels that a connection has used.
#[derive(Debug, Default)]
pub struct UsedChannels {
    highest: Option<u64>,
    /// Ring of bits: channel `n` has bit `n % 64` of word `n / 64 % 17`.
    bits: [u64; WORDS as usize],
}

impl UsedChannels {
    /// Claims `channel`. Returns false if it was used before or is too far below the highest to
    /// tell.
    pub fn claim(&mut self, channel: u64) -> bool {
        let highest = self.highest.unwrap_or(channel);
        if channel.saturating_add(WINDOW) <= highest {
            return false;
        }
        if channel > highest {
            // The words between hold channels that have just fallen out of the window.
            let skipped = (highest / WORD_BITS + 1)..=(channel / WORD_BITS);
            skipped.take(WORDS as usize).for_each(|word| self.bits[slot(word)] = 0);
        }
        self.highest = Some(highest.max(channel));
        let (word, bit) = (slot(channel / WORD_BITS), 1 << (channel % WORD_BITS));
        // A bit that is set is this channel's: those of channels below the window were cleared.
        let is_new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        is_new
    }
}

fn slot(word: u64) -> usize {
    (word % WORDS) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_channel_is_used_once_and_an_old_one_never() {
        let mut used = UsedChannels::default();
        for (channel, is_free) in [
            (5, true),
            (5, false),
            (0, true),
            (1028, true),
            (4, false), // 1024 below the highest: too old to tell
            (5, false),
            (6, true),
            (1027, true),
            (1028, false),
            (1 << 52, true), // far ahead: everything before is too old
            (1029, false),
            ((1 << 52) - 1, true),
            ((1 << 53) - 1, true),
        ] {
            assert_eq!(used.claim(channel), is_free, "{channel}");
        }
    }

    proptest! {
        /// The bitmap behaves like a set of all channels.
        #[test]
        fn it_remembers_as_a_set_does(steps in proptest::collection::vec((0u64..3000, 0u64..200), 1..300)) {
            let (mut used, mut known, mut highest) = (UsedChannels::default(), BTreeSet::new(), 0);
            for (back, ahead) in steps {
                let channel = (highest + ahead).saturating_sub(back);
                let is_old = channel + WINDOW <= highest;
                let expected = !is_old && known.insert(channel);
                prop_assert_eq!(used.claim(channel), expected, "{} with {}", channel, highest);
                if expected {
                    highest = highest.max(channel);
                }
            }
        }
    }
}
