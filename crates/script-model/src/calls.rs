//! The calls that replicas make: a script, its arguments, and its decoded reply.
//!
//! The arguments and the decoding follow `crates/resumable/src/shared`: `writer.rs`,
//! `follower.rs`, `lookup.rs` and `takeover.rs`.

use crate::keyspace::RedisReply;
use crate::scripts::ScriptName;

/// Prefix of all keys.
pub const PREFIX: &str = "l:";
/// Id of the only answer.
pub const ID: &str = "1";
/// A step of the model's time.
pub const TICK_MS: u64 = 1000;
/// Ticks of a replica's lease.
pub const LEASE_TICKS: u8 = 2;
/// Ticks for which an answer that has ended is kept.
const ENDED_TICKS: u64 = 3;
/// Ticks for which the store remembers that a log was read.
const READING_TICKS: u64 = 1;
/// Ticks for which a replica with another answer leaves this one to the others.
const RETRY_TICKS: u64 = 2;
/// Time for which running answers and fences are kept: longer than any run of the model.
const RUNNING_MS: u64 = 6 * 3_600_000;

/// Number of an epoch, and the offset where it begins.
pub type Epoch = (u16, u8);

/// State of an answer, as its owner writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WrittenState {
    /// It is generated.
    Running,
    /// It is whole.
    Ended,
    /// A client has stopped it.
    Stopped,
}

/// A call of a script. Replicas are named by a letter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StoreCall {
    /// `replica` lives.
    Announce { replica: char },
    /// `replica` ends.
    Retire { replica: char },
    /// Appends `bytes` at `offset`.
    Append {
        replica: char,
        fence: u64,
        offset: usize,
        state: WrittenState,
        bytes: String,
        epochs: Vec<Epoch>,
    },
    /// Looks for the answer.
    Find,
    /// Reads from `offset` on.
    Read { replica: char, offset: usize },
    /// Takes the answer over, whose log ends at `head` and has had the owners of `epochs`. The
    /// number of the new epoch is higher by `step` than the last one.
    Take { replica: char, head: usize, epochs: Vec<Epoch>, step: u16 },
    /// Gives the answer back.
    Release { replica: char, fence: u64, differs: bool },
    /// Stops the answer.
    Stop,
}

impl StoreCall {
    /// Returns the script that the call runs.
    pub const fn script(&self) -> ScriptName {
        match self {
            Self::Announce { .. } | Self::Retire { .. } => ScriptName::Announce,
            Self::Append { .. } => ScriptName::Append,
            Self::Find => ScriptName::Find,
            Self::Read { .. } => ScriptName::Read,
            Self::Take { .. } => ScriptName::Take,
            Self::Release { .. } => ScriptName::Release,
            Self::Stop => ScriptName::Stop,
        }
    }

    /// Returns the script's arguments.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        let lease_ms = u64::from(LEASE_TICKS) * TICK_MS;
        let ended_ms = ENDED_TICKS * TICK_MS;
        let words = match self {
            Self::Announce { replica } => format!("{replica} {lease_ms} 0"),
            Self::Retire { replica } => format!("{replica} 0 {RUNNING_MS}"),
            Self::Append { replica, fence, offset, state, bytes, epochs } => {
                let is_first = *offset == 0 && *state == WrittenState::Running;
                let request = if is_first { "request" } else { "" };
                let (state, epochs) = (state_name(*state), epochs_text(epochs));
                format!(
                    "{replica} {RUNNING_MS} {ended_ms} {lease_ms} {ID} {fence} {offset} {state} \
                     token {bytes} {request} {epochs}"
                )
            }
            Self::Find => ID.to_owned(),
            Self::Read { replica, offset } => {
                let reading_ms = READING_TICKS * TICK_MS;
                format!("{replica} {reading_ms} 1000 {lease_ms} {ID} {offset}")
            }
            Self::Take { replica, head, epochs, step } => {
                let epochs = epochs_text(epochs);
                format!(
                    "{ID} {replica} take 1000 {RUNNING_MS} {head} {step} 1000000 {RETRY_TICKS} \
                     {epochs}"
                )
            }
            Self::Release { replica, fence, differs } => {
                let why = if *differs { "differs" } else { "unused" };
                format!("{ID} {replica} {fence} {why}")
            }
            Self::Stop => format!("{ID} {ended_ms} {RUNNING_MS}"),
        };
        // Empty arguments are empty words: exactly one space is between two.
        format!("{PREFIX} {words}").split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }
}

const fn state_name(state: WrittenState) -> &'static str {
    match state {
        WrittenState::Running => "running",
        WrittenState::Ended => "ended",
        WrittenState::Stopped => "stopped",
    }
}

/// Returns `epochs` in the store's format.
pub fn epochs_text(epochs: &[Epoch]) -> String {
    let parts = epochs.iter().map(|(number, start)| format!("{number}:{start}"));
    parts.collect::<Vec<_>>().join(",")
}

/// Parses the store's format.
///
/// # Panics
/// When the text has another form.
pub fn parse_epochs(text: &str) -> Vec<Epoch> {
    let part = |part: &str| {
        let (number, start) = part.split_once(':').expect("NUMBER:START");
        (number.parse().expect("a number"), start.parse().expect("an offset"))
    };
    text.split(',').filter(|part| !part.is_empty()).map(part).collect()
}

/// A list in a reply, read from its beginning to its end.
pub struct ReplyFields<'a>(std::slice::Iter<'a, RedisReply>);

impl<'a> ReplyFields<'a> {
    /// Reads `reply`, which is a list.
    ///
    /// # Panics
    /// When it is none.
    pub fn of(reply: &'a RedisReply) -> Self {
        let RedisReply::List(fields) = reply else { panic!("no list: {reply:?}") };
        Self(fields.iter())
    }

    /// Returns the next field as text.
    ///
    /// # Panics
    /// When it is no text.
    pub fn text(&mut self) -> String {
        match self.0.next() {
            Some(RedisReply::Bulk(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("no text: {other:?}"),
        }
    }

    /// Returns the next field as a number.
    ///
    /// # Panics
    /// When it is none.
    pub fn number(&mut self) -> u64 {
        match self.0.next() {
            Some(RedisReply::Int(number)) => *number as u64,
            other => panic!("no number: {other:?}"),
        }
    }
}
