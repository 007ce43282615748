//! Bounded decoding of the store's replies about answers.

use redis::Value;

use super::epochs::{EPOCHS_BYTES, Epochs};
use super::state::LogState;
use loquent_store::shared::reply::{StoreReply, Unexpected};

/// Maximum bytes of a name in a reply.
const NAME_BYTES: usize = 16;
/// Hex digits of a token's hash.
const HASH_DIGITS: usize = 64;

/// Outcome of appending to a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The bytes are stored.
    Stored,
    /// The store does not have the bytes before them.
    Lost,
    /// Another replica owns the answer now.
    Taken,
    /// A client has stopped the answer at another replica.
    Stopped,
}

/// The reply for one log that was appended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Outcome of the append.
    pub outcome: AppendOutcome,
    /// Length of the log.
    pub head: u64,
    /// True if another replica reads the log.
    pub is_read: bool,
}

/// The reply for one log that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadLog {
    /// State of the answer; `None` if the store does not know the answer.
    pub state: Option<LogState>,
    /// State of the answer's owner.
    pub owner: OwnerState,
    /// Length of the log.
    pub head: u64,
    /// Bytes of the log from the requested offset on.
    pub bytes: Vec<u8>,
    /// Owners that the log has had.
    pub epochs: Epochs,
}

/// State of the replica that generates an answer, as known to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner has renewed its lease in time.
    Lives,
    /// The owner's lease has expired: it is dead, or its announcements did not get through.
    Silent,
    /// The answer has no owner: it has ended, or has given the answer back.
    None,
}

/// An answer known to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAnswer {
    /// The hash of the answer's token, in hex digits.
    pub token_hash: String,
    /// State of the answer.
    pub state: LogState,
}

/// Result of an attempt to take over an answer, or of a look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// This replica owns the answer, or could take it over if it only looked.
    Ours {
        /// Fence with which this replica writes.
        fence: u64,
        /// Length of the log.
        head: u64,
        /// The request, as stored.
        request: Vec<u8>,
        /// Owners that the log has had, including this replica once it has taken the answer over.
        epochs: Epochs,
        /// True if the answer must end with an error should this replica have another one too.
        is_last: bool,
    },
    /// This replica has another answer to the request, and leaves it to the others for a while.
    Tried,
    /// Another replica owns the answer, or the answer has ended.
    Others,
    /// No replica can take it over: the store does not have its request, or has lost a part of its
    /// log.
    Never,
}

/// Decodes the result of an attempt to take over an answer; its request has at most `most_bytes`.
///
/// # Errors
/// When the reply has an unexpected form.
pub fn taken(reply: StoreReply, most_bytes: usize) -> Result<Taken, Unexpected> {
    let values = exactly(reply, 6)?;
    let values = in_groups(values).next().ok_or(Unexpected)?;
    let [whose, fence, head, request, epochs, is_last] = values.map(StoreReply);
    match whose.text(NAME_BYTES)?.as_str() {
        "others" => Ok(Taken::Others),
        "never" => Ok(Taken::Never),
        "tried" => Ok(Taken::Tried),
        "ours" => {
            let request = request.bytes()?;
            let fits = request.len() <= most_bytes;
            let taken = Taken::Ours {
                fence: fence.number()?,
                head: head.number()?,
                request,
                epochs: epochs_of(epochs)?,
                is_last: is_last.flag()?,
            };
            if fits { Ok(taken) } else { Err(Unexpected) }
        }
        _ => Err(Unexpected),
    }
}

/// Decodes the replies for `count` logs that were appended to.
///
/// # Errors
/// When the reply has an unexpected form.
pub fn appended(reply: StoreReply, count: usize) -> Result<Vec<Appended>, Unexpected> {
    let values = exactly(reply, 3 * count)?;
    let one = |values: [Value; 3]| {
        let [outcome, head, is_read] = values.map(StoreReply);
        let outcome = match outcome.text(NAME_BYTES)?.as_str() {
            "stored" => AppendOutcome::Stored,
            "lost" => AppendOutcome::Lost,
            "taken" => AppendOutcome::Taken,
            "stopped" => AppendOutcome::Stopped,
            _ => return Err(Unexpected),
        };
        Ok(Appended { outcome, head: head.number()?, is_read: is_read.flag()? })
    };
    in_groups(values).map(one).collect()
}

/// Decodes the replies for `count` logs that were read, with at most `most_bytes` in total.
///
/// # Errors
/// When the reply has an unexpected form.
pub fn read(
    reply: StoreReply,
    count: usize,
    most_bytes: usize,
) -> Result<Vec<ReadLog>, Unexpected> {
    let values = exactly(reply, 5 * count)?;
    let mut room = most_bytes;
    let one = |values: [Value; 5]| {
        let [state, owner, head, bytes, epochs] = values.map(StoreReply);
        let state = match state.text(NAME_BYTES)?.as_str() {
            "unknown" => None,
            name => Some(state_of(name)?),
        };
        let bytes = bytes.bytes()?;
        room = room.checked_sub(bytes.len()).ok_or(Unexpected)?;
        let owner = match owner.text(NAME_BYTES)?.as_str() {
            "lives" => OwnerState::Lives,
            "silent" => OwnerState::Silent,
            "none" => OwnerState::None,
            _ => return Err(Unexpected),
        };
        let (head, epochs) = (head.number()?, epochs_of(epochs)?);
        Ok(ReadLog { state, owner, head, bytes, epochs })
    };
    in_groups(values).map(one).collect()
}

/// Decodes the reply to a lookup of an answer; `None` if there is no such answer.
///
/// # Errors
/// When the reply has an unexpected form.
pub fn found(reply: StoreReply) -> Result<Option<FoundAnswer>, Unexpected> {
    reply.optional(|reply| {
        let values = exactly(reply, 2)?;
        let [hash, state] = in_groups(values).next().ok_or(Unexpected)?.map(StoreReply);
        let token_hash = hash.text(HASH_DIGITS)?;
        Ok(FoundAnswer { token_hash, state: state_of(&state.text(NAME_BYTES)?)? })
    })
}

fn epochs_of(reply: StoreReply) -> Result<Epochs, Unexpected> {
    Epochs::parse(&reply.text(EPOCHS_BYTES)?).ok_or(Unexpected)
}

fn state_of(name: &str) -> Result<LogState, Unexpected> {
    let all = [LogState::Running, LogState::Ended, LogState::Stopped, LogState::Lost];
    all.into_iter().find(|state| state.name() == name).ok_or(Unexpected)
}

fn exactly(reply: StoreReply, count: usize) -> Result<Vec<Value>, Unexpected> {
    let values = reply.list(count)?;
    if values.len() == count { Ok(values) } else { Err(Unexpected) }
}

fn in_groups<const N: usize>(values: Vec<Value>) -> impl Iterator<Item = [Value; N]> {
    let mut values = values.into_iter();
    std::iter::from_fn(move || {
        let group: Vec<Value> = values.by_ref().take(N).collect();
        group.try_into().ok()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = Value> {
        let words = prop_oneof![
            Just("stored"),
            Just("taken"),
            Just("running"),
            Just("ended"),
            Just("unknown"),
            Just("silent"),
            Just("7:1"),
        ];
        let leaf = prop_oneof![
            Just(Value::Nil),
            (-2_i64..3).prop_map(Value::Int),
            any::<i64>().prop_map(Value::Int),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
            words.prop_map(|word| Value::BulkString(word.into())),
        ];
        leaf.prop_recursive(2, 40, 8, |inner| {
            prop::collection::vec(inner, 0..9).prop_map(Value::Array)
        })
    }

    proptest! {
        #[test]
        fn a_hostile_reply_is_an_error_or_a_value_within_bounds(value in any_value()) {
            if let Ok(all) = appended(StoreReply(value.clone()), 2) {
                prop_assert_eq!(all.len(), 2);
            }
            if let Ok(all) = read(StoreReply(value.clone()), 2, 60) {
                prop_assert_eq!(all.len(), 2);
                prop_assert!(all.iter().map(|one| one.bytes.len()).sum::<usize>() <= 60);
            }
            let _ = taken(StoreReply(value.clone()), 30);
            if let Ok(Some(one)) = found(StoreReply(value)) {
                prop_assert!(one.token_hash.len() <= HASH_DIGITS);
            }
        }
    }

    #[test]
    fn replies_are_read_one_for_each_log() {
        let text = |text: &str| Value::BulkString(text.into());
        let one = vec![text("taken"), Value::Int(7), Value::Int(1)];
        let taken = Appended { outcome: AppendOutcome::Taken, head: 7, is_read: true };
        assert_eq!(appended(StoreReply(Value::Array(one.clone())), 1), Ok(vec![taken]));
        assert_eq!(appended(StoreReply(Value::Array(one)), 2), Err(Unexpected));
        let one = vec![text("running"), text("lives"), Value::Int(9), text("abc"), text("5:2")];
        let log = ReadLog {
            state: Some(LogState::Running),
            owner: OwnerState::Lives,
            head: 9,
            bytes: b"abc".to_vec(),
            epochs: Epochs::parse("5:2").unwrap(),
        };
        assert_eq!(read(StoreReply(Value::Array(one.clone())), 1, 3), Ok(vec![log]));
        assert_eq!(
            read(StoreReply(Value::Array(one)), 1, 2),
            Err(Unexpected),
            "more than was asked for"
        );
    }
}
