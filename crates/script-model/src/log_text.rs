//! A log of the model: a few letters.

/// Maximum bytes of the answer.
const MOST_BYTES: usize = 4;

/// A log, or a part of one. Each byte is the letter of the owner that generated it; the last byte
/// of an answer is a capital.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LogText {
    bytes: [u8; MOST_BYTES + 2],
    len: u8,
}

impl LogText {
    /// Returns the log with `text`.
    pub fn of(text: &str) -> Self {
        let mut log = Self::default();
        text.bytes().for_each(|byte| log.push(byte));
        log
    }

    /// Adds a byte, unless the log is too long already: no answer is.
    pub fn push(&mut self, byte: u8) {
        if let Some(next) = self.bytes.get_mut(usize::from(self.len)) {
            *next = byte;
            self.len += 1;
        }
    }

    /// Returns the log as text.
    pub fn text(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.len)];
        std::str::from_utf8(bytes).expect("letters")
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// True if the last byte ends the answer.
    pub fn is_whole(&self) -> bool {
        self.text().ends_with(|last: char| last.is_ascii_uppercase())
    }
}
