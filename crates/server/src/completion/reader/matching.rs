//! Finding tags in text that is still being written.

/// What a text begins with, blanks apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TagMatch {
    /// The tag, which ends here.
    Is(usize),
    /// Too short to say.
    MayBe,
    /// Something else.
    Not,
}

/// Whether `text` begins with `tag`.
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

/// Which of `tags` begins `text`: its number, and where it ends.
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

/// Where the first of `tags` begins in `text`, and which it is.
pub(super) fn find_any<'a>(text: &str, tags: &[&'a str]) -> Option<(usize, &'a str)> {
    let found = tags.iter().filter_map(|&tag| Some((text.find(tag)?, tag)));
    found.min_by_key(|(at, _)| *at)
}

/// Bytes at the end of `text` that begin `tag`.
pub(super) fn overlap(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len() - 1);
    // A cut inside a character of the tag never fits: `text` ends with a whole one.
    let ends = |n: &usize| text.as_bytes().ends_with(&tag.as_bytes()[..*n]);
    (1..=longest).rev().find(ends).unwrap_or(0)
}

/// Bytes at the end of `text` that begin any of `tags`.
pub(super) fn overlap_any(text: &str, tags: &[&str]) -> usize {
    tags.iter().map(|tag| overlap(text, tag)).max().unwrap_or(0)
}

/// Longest name of a tool in bytes, as OpenAI has it.
const MAX_NAME_BYTES: usize = 64;

/// Whether a tool can have this name.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && text.chars().all(allowed)
}
