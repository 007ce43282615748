//! The text of a message whose content is a list of parts.

/// Text of a message's parts. Parts of text that follow each other are joined by a newline, as in
/// llama-server and vLLM; what stands for another part joins them without one.
#[derive(Debug, Default)]
pub struct PartText {
    text: String,
    /// True if a newline must precede a further part of text.
    needs_newline: bool,
}

impl PartText {
    /// Joins parts of text.
    pub fn joined<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> String {
        let mut text = Self::default();
        parts.into_iter().for_each(|part| text.push_part(part.as_ref()));
        text.into_string()
    }

    /// Appends a part of text.
    pub fn push_part(&mut self, part: &str) {
        if part.is_empty() {
            return;
        }
        if self.needs_newline {
            self.text.push('\n');
        }
        self.text.push_str(part);
        // A document ends with a blank line.
        self.needs_newline = !part.ends_with("\n\n");
    }

    /// Appends what stands for a part that is no text; empty if nothing does.
    pub fn push_other(&mut self, text: &str) {
        self.text.push_str(text);
        self.needs_newline = false;
    }

    /// Returns the text.
    pub fn into_string(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_texts_are_lines_and_others_are_not() {
        let mut text = PartText::default();
        for part in ["a", "", "b", "c\n\n", "d"] {
            text.push_part(part);
        }
        text.push_other("[image]");
        text.push_part("e");
        text.push_other("");
        text.push_part("f");
        assert_eq!(text.into_string(), "a\nb\nc\n\nd[image]ef");
    }
}
