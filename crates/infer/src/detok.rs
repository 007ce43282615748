//! Converts tokens to text, whole characters at a time.
//!
//! A token may end inside a UTF-8 character. [`Detokenizer`] keeps those bytes until the next token
//! completes them, and replaces bytes that can never become a character by U+FFFD. Every piece of
//! text it yields is therefore valid on its own.

/// Maximum bytes of an unfinished UTF-8 character.
const MAX_HELD_BYTES: usize = 3;

/// Incremental UTF-8 decoding of one completion.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    held: Vec<u8>,
}

impl Detokenizer {
    /// Appends to `text` all whole characters that `piece` completes.
    pub fn push(&mut self, piece: &[u8], text: &mut String) {
        // Nearly every token ends at a character's border, so the common case copies nothing but
        // the text itself.
        if self.held.is_empty() {
            self.held = decode(piece, text).to_vec();
        } else {
            self.held.extend_from_slice(piece);
            let bytes = std::mem::take(&mut self.held);
            self.held = decode(&bytes, text).to_vec();
        }
        debug_assert!(self.held.len() <= MAX_HELD_BYTES);
    }

    /// Ends the completion: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !self.held.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}

/// Decodes `bytes` into `text`; returns the unfinished character at their end.
fn decode<'a>(mut bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(valid) => {
                text.push_str(valid);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).expect("checked by from_utf8"));
                // Without a length the bytes are not wrong but incomplete: the next token may
                // finish the character.
                let Some(invalid) = error.error_len() else {
                    return rest;
                };
                text.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[invalid..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_split_of_any_bytes_decodes_as_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..20)
        ) {
            let mut detok = Detokenizer::default();
            let mut text = String::new();
            for piece in &pieces {
                detok.push(piece, &mut text);
            }
            detok.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }
    }

    #[test]
    fn holds_half_a_character() {
        let mut detok = Detokenizer::default();
        let mut text = String::new();
        detok.push(&"é🚆".as_bytes()[..4], &mut text);
        assert_eq!(text, "é");
        detok.push(&"é🚆".as_bytes()[4..], &mut text);
        assert_eq!(text, "é🚆");
    }
}
