//! Interface shared by the readers of calls.

use super::config::CallConfig;
use crate::pending_deltas::PendingDeltas;

/// Result of reading a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The call is incomplete; the text that was not taken is needed again.
    More,
    /// The call is complete.
    Complete,
    /// The call is complete; the reader continues, because another may follow.
    Next,
    /// No further call follows.
    End,
    /// The text is not a call, or a broken one; this part of it was not passed on.
    NoCall(String),
}

/// Reads calls of one family.
pub(super) trait CallReader: Send {
    /// Reads the part of `text` that belongs to the call; returns its length in bytes.
    fn push(&mut self, text: &str, out: &mut PendingDeltas) -> (usize, CallOutcome);

    /// Ends the text with `rest`, which no push has taken; returns the text that was not passed on.
    fn finish(&mut self, rest: &str, out: &mut PendingDeltas) -> String;

    /// Returns true if at least part of the call has been passed on.
    fn is_open(&self) -> bool;

    /// Bytes of text that were taken but not passed on.
    fn held_bytes(&self) -> usize;
}

/// The beginning of a call.
pub(super) struct CallStart {
    /// Index of the call in the answer.
    pub(super) index: u32,
    /// The tag that begins the call, with the white space before it.
    pub(super) opening: String,
    /// The tools, and the settings for call ids.
    pub(super) config: CallConfig,
}

impl CallStart {
    /// Passes on the beginning of a call of `name`.
    pub(super) fn open(&self, name: &str, out: &mut PendingDeltas) {
        out.open_call(self.index, self.config.call_id(self.index), name.to_owned());
    }
}
