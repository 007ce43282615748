//! Makes text from a server, a model or a file safe for a terminal.

use alloc::borrow::Cow;

/// Returns `text` without control characters, with which its author could rewrite the screen, set
/// the clipboard or answer queries in the user's name. Line ends and tabs are kept.
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(harmful) {
        Cow::Owned(text.chars().filter(|c| !harmful(*c)).collect())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sequence_of_a_terminal_is_left() {
        for (text, shown) in [
            ("plain\ttext\nof two lines", "plain\ttext\nof two lines"),
            ("a\x1b]52;c;x\x07b\u{9b}1m\r\x08\x7f\0", "a]52;c;xb1m"),
            ("\u{1b}[2J\u{90}q\u{9c}é…日", "[2Jqé…日"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
