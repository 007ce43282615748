//! What the readers of calls have in common.

use super::config::CallConfig;
use crate::held::HeldDeltas;

/// What reading a piece came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The call goes on; what was not taken is needed again.
    More,
    /// The call is complete.
    Complete,
    /// The call is complete, and the reader goes on, since there may be another.
    Next,
    /// There was no other call.
    End,
    /// It is no call, or a broken one: this text was not passed on.
    NoCall(String),
}

/// Reads calls of one family.
pub(super) trait CallReader: Send {
    /// Reads as much of `text` as belongs to the call; gives that many bytes.
    fn push(&mut self, text: &str, out: &mut HeldDeltas) -> (usize, CallOutcome);

    /// The text ends with `rest`, which no push has taken: gives what was not passed on.
    fn finish(&mut self, rest: &str, out: &mut HeldDeltas) -> String;

    /// Whether the call has been passed on, in part at least.
    fn is_open(&self) -> bool;

    /// Bytes of text that it has taken and not passed on.
    fn held_bytes(&self) -> usize;
}

/// A call that begins.
pub(super) struct CallStart {
    /// Its number in the answer.
    pub(super) index: u32,
    /// The tag that begins it, and the blanks before.
    pub(super) opening: String,
    /// The tools, and how calls are named.
    pub(super) config: CallConfig,
}

impl CallStart {
    /// Passes on that `name` is called.
    pub(super) fn open(&self, name: &str, out: &mut HeldDeltas) {
        out.open_call(self.index, self.config.call_id(self.index), name.to_owned());
    }
}
