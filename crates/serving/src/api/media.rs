//! Images and other media in conversations. A model that reads text cannot see them. In a question,
//! that is an error; in a tool's result or an earlier turn, where the client sends the same parts
//! again with each request, a line of text takes their place.

use super::fields::Fields;
use crate::error::{ApiError, quoted};

/// Treatment of media in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaUse {
    /// Refused with 400.
    Refused,
    /// Replaced by a line of text, and named among the ignored parameters.
    Replaced,
    /// Passed on to an upstream server, whose model may see images.
    PassedOn,
}

impl MediaUse {
    /// Returns the treatment in a message of `fields`: `is_past` is true for a tool's result, and
    /// for a message before the assistant's last one.
    pub fn of(fields: &Fields, is_past: bool) -> Self {
        match (fields.keeps_images(), is_past) {
            (true, _) => Self::PassedOn,
            (false, true) => Self::Replaced,
            (false, false) => Self::Refused,
        }
    }
}

/// Returns the line that takes the place of a part of type `kind`; `None` if that is no medium.
fn line(kind: &str) -> Option<&'static str> {
    match kind {
        "image" | "image_url" | "input_image" => Some("[image: this model reads text only]"),
        "document" | "file" | "input_file" => Some("[file: this model reads text only]"),
        "audio" | "input_audio" => Some("[audio: this model reads text only]"),
        _ => None,
    }
}

/// Returns the text in place of `part`, of type `kind`, and adds its place to `ignored`.
///
/// # Errors
/// 400 if the part is not a medium, or is not to be replaced.
pub fn replaced(
    part: &Fields,
    kind: &str,
    media: MediaUse,
    ignored: &mut Vec<String>,
) -> Result<&'static str, ApiError> {
    match line(kind).filter(|_| media != MediaUse::Refused) {
        Some(line) => {
            ignored.push(format!("{} ({})", part.place(), quoted(kind)));
            Ok(line)
        }
        None => {
            let wrong = quoted(kind);
            let wrong = format!("'{wrong}' is not supported here: this server accepts text only.");
            Err(part.error("type", wrong))
        }
    }
}
