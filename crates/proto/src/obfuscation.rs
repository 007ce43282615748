//! Padding of chunks: OpenAI's `obfuscation` member, whose random letters bring an event to one of
//! a few lengths. Encryption hides the text of an event but not its length, and the lengths of
//! successive tokens reveal much of the text ("What Was Your Prompt? A Remote Keylogging Attack on
//! AI Assistants", USENIX Security 2024).

use alloc::vec::Vec;

/// Text before the letters, after a chunk's other members.
const OPEN: &[u8] = b",\"obfuscation\":\"";
/// Text after the letters.
const CLOSE: &[u8] = b"\"";
/// Length step for the part around a text: its kind, its event id, the index of its choice. Text,
/// reasoning and finish fit one step, so that they look the same.
const FRAME_STEP_BYTES: usize = 128;
/// Minimum length of a text as JSON with its padding. Fewer than one in a thousand tokens of common
/// vocabularies are longer.
const TEXT_MIN_BYTES: usize = 64;
/// Texts up to this length are padded to a power of two, longer ones to a multiple of it.
const TEXT_STEP_BYTES: usize = 1024;
/// Number of random letters appended at a time.
const WORD_BYTES: usize = 8;
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Pads the events of one event stream, unless the request of its answer decided otherwise.
///
/// The letters need not be secret, as encryption hides them. They are random so that a proxy that
/// compresses before it encrypts cannot remove them.
#[derive(Debug, Clone)]
pub struct Obfuscation {
    /// State of SplitMix64.
    state: u64,
    by_default: bool,
}

impl Obfuscation {
    /// Creates padding with letters from `seed`. Padding applies if the answer's request asks for
    /// it (S-6.6), or if it says nothing and `by_default` is set.
    pub const fn new(seed: u64, by_default: bool) -> Self {
        Self { state: seed, by_default }
    }

    /// Returns true if events are padded, given what the request asked for (`None`: nothing).
    pub fn applies(&self, asked: Option<bool>) -> bool {
        asked.unwrap_or(self.by_default)
    }

    /// Appends the member to an event with `frame_bytes` around a text of `text_bytes`.
    pub fn put(&mut self, frame_bytes: usize, text_bytes: usize, out: &mut Vec<u8>) {
        let frame = frame_bytes + OPEN.len() + CLOSE.len();
        let padding = frame.next_multiple_of(FRAME_STEP_BYTES) - frame + text_padding(text_bytes);
        out.extend_from_slice(OPEN);
        self.put_letters(padding, out);
        out.extend_from_slice(CLOSE);
    }

    fn put_letters(&mut self, mut left: usize, out: &mut Vec<u8>) {
        while left > 0 {
            let word = self.word().to_le_bytes().map(|byte| LETTERS[usize::from(byte % 64)]);
            let len = left.min(WORD_BYTES);
            out.extend_from_slice(&word[..len]);
            left -= len;
        }
    }

    fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

fn text_padding(len: usize) -> usize {
    let padded = match len {
        ..=TEXT_STEP_BYTES => len.next_power_of_two().max(TEXT_MIN_BYTES),
        _ => len.next_multiple_of(TEXT_STEP_BYTES),
    };
    padded - len
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec;

    use super::*;

    #[test]
    fn lengths_fall_into_few_steps() {
        let mut obfuscation = Obfuscation::new(7, true);
        let mut length = |frame: usize, text: usize| {
            let mut out = vec![0; frame + text];
            obfuscation.put(frame, text, &mut out);
            out.len()
        };
        assert!((0..=64).all(|text| length(80, text) == 128 + 64));
        assert!((65..=128).all(|text| length(80, text) == 128 + 128));
        assert!((1025..=2048).all(|text| length(80, text) == 128 + 2048));
        assert_eq!((length(111, 3), length(112, 3)), (128 + 64, 256 + 64));
    }

    #[test]
    fn letters_are_json_and_differ_from_event_to_event() {
        let mut obfuscation = Obfuscation::new(7, true);
        let mut letters = || {
            let mut out = Vec::new();
            obfuscation.put(50, 3, &mut out);
            String::from_utf8(out).unwrap()
        };
        let (one, other) = (letters(), letters());
        assert_ne!(one, other);
        let inner = one.strip_prefix(",\"obfuscation\":\"").unwrap().strip_suffix('"').unwrap();
        assert!(inner.bytes().all(|letter| LETTERS.contains(&letter)));
    }

    #[test]
    fn the_request_decides_before_the_default() {
        for by_default in [true, false] {
            let obfuscation = Obfuscation::new(1, by_default);
            assert_eq!(obfuscation.applies(None), by_default);
            assert!(obfuscation.applies(Some(true)) && !obfuscation.applies(Some(false)));
        }
    }
}
