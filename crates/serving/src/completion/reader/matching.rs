//! Finds tags in text that is still arriving.

/// Result of looking for a tag at the beginning of a text, after white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TagMatch {
    /// The tag is there, and ends at this byte.
    Is(usize),
    /// The text is too short to decide.
    MayBe,
    /// The text begins with something else.
    Not,
}

/// Looks for `tag` at the beginning of `text`.
pub(super) fn front(text: &str, tag: &str) -> TagMatch {
    let trimmed = text.trim_start();
    if trimmed.starts_with(tag) {
        TagMatch::Is(text.len() - trimmed.len() + tag.len())
    } else if tag.starts_with(trimmed) {
        // Holds for an empty text too, which may become any tag.
        TagMatch::MayBe
    } else {
        TagMatch::Not
    }
}

/// Returns which of `tags` begins `text`: its index, and where it ends.
pub(super) fn front_of(text: &str, tags: &[&str]) -> Result<(usize, usize), TagMatch> {
    let mut may_be = TagMatch::Not;
    for (number, tag) in tags.iter().enumerate() {
        match front(text, tag) {
            TagMatch::Is(end) => return Ok((number, end)),
            TagMatch::MayBe => may_be = TagMatch::MayBe,
            TagMatch::Not => {}
        }
    }
    Err(may_be)
}

/// Returns the position and text of the first of `tags` in `text`.
pub(super) fn find_any<'a>(text: &str, tags: &[&'a str]) -> Option<(usize, &'a str)> {
    let found = tags.iter().filter_map(|&tag| Some((text.find(tag)?, tag)));
    found.min_by_key(|(at, _)| *at)
}

/// Number of bytes at the end of `text` that may begin `tag`.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    // A cut inside a character of the tag never fits: `text` ends with a whole one.
    let ends = |n: &usize| text.as_bytes().ends_with(&tag.as_bytes()[..*n]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

/// Number of bytes at the end of `text` that may begin any of `tags`.
pub(super) fn overlap_any(text: &str, tags: &[&str]) -> usize {
    tags.iter().map(|tag| overlap(text, tag)).max().unwrap_or(0)
}

/// Maximum length of a tool name in bytes (OpenAI's limit).
const MAX_NAME_BYTES: usize = 64;

/// Returns true if `text` is a valid tool name.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && text.chars().all(allowed)
}
