//! Stored objects in a shared store. Each change is one script, so that concurrent replicas keep
//! the bounds together.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use redis::{Script, ScriptInvocation, Value};

use super::connection::SharedConnection;
use super::reply::{StoreReply, Unexpected};
use crate::index::{self, List, OBJECT_BYTES, ObjectKey};
use crate::ledger::{MAX_USAGE_ROWS, USAGE_DAYS, UsageQuery, UsageRow};
use crate::object::{
    AnswerFence, ListPage, MAX_ID_BYTES, Progress, StoreError, StoreLimits, StoredObject, WriteMode,
};
use loquent_proto::hex;
use loquent_serving::budget::DAY_S;
use loquent_serving::identity::Owner;
use loquent_serving::usage::UsageCounts;

/// Maximum bytes of a list read at once, unless a single object has more.
const PART_BYTES: usize = 1 << 20;
/// Time that a fence is remembered. A replica suspended for up to this time stores nothing of an
/// answer taken over meanwhile.
pub const FENCE_KEPT: Duration = Duration::from_secs(6 * 60 * 60);
/// Hex digits of an object's place before its kind and id: time and number.
const PLACE_DIGITS: usize = 32;
/// Maximum rows of the ledger that one call writes.
const USAGE_ROWS_AT_ONCE: usize = 256;
/// Maximum bytes of an owner's name in the ledger.
const MAX_NAME_BYTES: usize = 256;
/// Values of a row of the ledger in the reply of a call.
const USAGE_VALUES: usize = 6;
/// Hex digits of a time.
const TIME_DIGITS: usize = 16;

static PUT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/put.lua")));
static GET: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/get.lua")));
static LIST: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/list.lua")));
static FENCE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/fence.lua")));
static CLAIM: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/claim.lua")));
static DISOWN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/disown.lua")));
static USAGE_RECORD: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/usage_record.lua")));
static USAGE_READ: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/usage_read.lua")));
static REMOVE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/remove.lua")));

/// The objects of a shared store; clones share its connection.
#[derive(Debug, Clone)]
pub struct SharedBackend {
    /// Connection to the store.
    pub connection: SharedConnection,
    limits: StoreLimits,
}

/// An object's position in its owner's list, as encoded by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPosition(String);

impl SharedBackend {
    /// Returns the objects behind `connection`, within `limits`.
    pub const fn new(connection: SharedConnection, limits: StoreLimits) -> Self {
        Self { connection, limits }
    }

    /// Stores an object and evicts others to make room; returns whether it was stored.
    ///
    /// # Errors
    /// When it is too large, or the store cannot be used.
    pub async fn write(
        &self,
        key: ObjectKey,
        object: StoredObject,
        mode: WriteMode,
    ) -> Result<bool, StoreError> {
        index::check_size(&self.limits, object.json.len())?;
        let mut call = keyed(&PUT, &key);
        call.arg(time_digits(object.created_s)).arg(self.limits.age.as_secs());
        let (mode, AnswerFence(fence)) = match mode {
            WriteMode::Put => ("put", AnswerFence::FIRST),
            WriteMode::Replace => ("replace", AnswerFence::FIRST),
            WriteMode::Complete(fence) => ("complete", fence),
            WriteMode::Checkpoint(fence) => ("checkpoint", fence),
        };
        call.arg(mode);
        call.arg(if object.progress == Progress::Ended { "ended" } else { "running" });
        call.arg(self.connection.replica()).arg(&object.json[..]);
        call.arg(object.json.len() + OBJECT_BYTES);
        call.arg(self.limits.bytes_per_owner).arg(self.limits.bytes).arg(fence);
        self.ask(&call, |reply| reply.flag()).await
    }

    /// Takes over the object with `key` if its answer is incomplete and its replica has ended;
    /// returns the new fence.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn claim(&self, key: &ObjectKey) -> Result<Option<AnswerFence>, StoreError> {
        let mut call = keyed(&CLAIM, key);
        call.arg(self.connection.replica()).arg(FENCE_KEPT.as_millis() as u64);
        self.ask(&call, |reply| reply.optional(|reply| Ok(AnswerFence(reply.number()?)))).await
    }

    /// Releases the object with `key`, whose answer is incomplete, to other replicas.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn disown(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let mut call = keyed(&DISOWN, key);
        call.arg(self.connection.replica());
        self.ask(&call, |reply| reply.flag()).await.map(drop)
    }

    /// Refuses to store the answer of the object with `key` with any lower fence from now on.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn raise_fence(
        &self,
        key: &ObjectKey,
        AnswerFence(fence): AnswerFence,
    ) -> Result<(), StoreError> {
        let mut call = keyed(&FENCE, key);
        call.arg(fence).arg(FENCE_KEPT.as_millis() as u64);
        self.ask(&call, |reply| reply.flag()).await.map(drop)
    }

    /// Returns the object with `key`.
    ///
    /// # Errors
    /// When the store cannot be used, or holds something unexpected there.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<StoredObject>, StoreError> {
        let mut call = keyed(&GET, key);
        call.arg(self.limits.age.as_secs()).arg(self.most_json_bytes());
        call.arg(self.connection.replica());
        let knows_the_dead = self.connection.knows_the_dead();
        let found = self.ask(&call, |reply| {
            reply.optional(|reply| object_of(&mut reply.list(4)?.into_iter(), knows_the_dead))
        });
        Ok(found.await?.map(|(_, object)| object))
    }

    /// Replaces this replica's rows of the same days and owners in the ledger.
    ///
    /// # Errors
    /// When the store cannot be used; some of the rows may have been written.
    pub async fn record_usage(&self, rows: &[UsageRow]) -> Result<(), StoreError> {
        // A script stops all others: a few rows at a time.
        for rows in rows.chunks(USAGE_ROWS_AT_ONCE) {
            let mut call = SharedConnection::invocation(&USAGE_RECORD);
            call.arg(self.connection.replica()).arg(u64::from(USAGE_DAYS) * DAY_S);
            for UsageRow { day, owner, name, counts } in rows {
                call.arg(*day).arg(owner_digits(owner.0)).arg(name.as_deref().unwrap_or_default());
                call.arg(counts.requests).arg(counts.prompt_tokens);
                call.arg(counts.cached_tokens).arg(counts.completion_tokens);
            }
            self.ask(&call, StoreReply::flag).await?;
        }
        Ok(())
    }

    /// Returns the first rows of `query`, one more than [`MAX_USAGE_ROWS`] if there are more.
    ///
    /// # Errors
    /// When the store cannot be used, or holds something unexpected there.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, StoreError> {
        let owner = query.owner.map(|owner| owner_digits(owner.0)).unwrap_or_default();
        let mut rows = Vec::new();
        for day in query.days.clone() {
            // One more than the limit says that there are more.
            let room = MAX_USAGE_ROWS + 1 - rows.len();
            if room == 0 {
                break;
            }
            let mut call = SharedConnection::invocation(&USAGE_READ);
            call.arg(day).arg(&owner).arg(room);
            rows.extend(self.ask(&call, |reply| usage_of(day, reply, room)).await?);
        }
        Ok(rows)
    }

    /// Deletes an object; returns true if it existed and had not expired. The replica that
    /// generates its answer can no longer store it.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn delete(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        let mut call = SharedConnection::invocation(&REMOVE);
        call.arg(self.limits.age.as_secs());
        call.arg(owner_digits(key.owner.0)).arg(key.kind as u8).arg(&*key.id);
        call.arg(FENCE_KEPT.as_millis() as u64);
        self.ask(&call, |reply| reply.flag()).await
    }

    /// Removes expired objects.
    ///
    /// # Errors
    /// When the store cannot be used.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        let mut call = SharedConnection::invocation(&REMOVE);
        call.arg(self.limits.age.as_secs());
        self.ask(&call, |reply| reply.flag()).await.map(drop)
    }

    /// Returns the position after which a page begins; `None` for the first page.
    ///
    /// # Errors
    /// When the page is to follow an object that does not exist, or the store cannot be used.
    pub async fn start(
        &self,
        list: List,
        page: &ListPage,
    ) -> Result<Option<SharedPosition>, StoreError> {
        let Some(after) = &page.after else { return Ok(None) };
        let key =
            ObjectKey::new(list.kind, list.owner, after).map_err(|_| StoreError::UnknownAfter)?;
        let mut call = keyed(&GET, &key);
        // The place alone is wanted, and comes without the JSON.
        call.arg(self.limits.age.as_secs()).arg(0).arg(self.connection.replica());
        let found = self.ask(&call, |reply| {
            reply.optional(|reply| {
                reply.list(4)?.into_iter().next().map_or(Err(Unexpected), place_of)
            })
        });
        found.await?.map(Some).ok_or(StoreError::UnknownAfter)
    }

    /// Returns the next objects of a list after `from`, and the position where the part ends;
    /// `None` at the end of the list.
    ///
    /// # Errors
    /// When the store cannot be used, or holds something unexpected there.
    pub async fn part(
        &self,
        list: List,
        from: Option<SharedPosition>,
    ) -> Result<Option<(SharedPosition, Vec<StoredObject>)>, StoreError> {
        let oldest = "oldest".to_owned();
        let behind = from.map(|place| format!("({}", place.0));
        let (first, last) = match list.newest_first {
            false => (behind.unwrap_or(oldest), "+".to_owned()),
            true => (behind.unwrap_or_else(|| "+".to_owned()), oldest),
        };
        let mut call = SharedConnection::invocation(&LIST);
        call.arg(owner_digits(list.owner.0)).arg(list.kind as u8);
        call.arg(first).arg(last).arg(u8::from(list.newest_first));
        call.arg(self.most_json_bytes()).arg(PART_BYTES).arg(self.limits.age.as_secs());
        self.ask(&call, part_of).await
    }

    fn most_json_bytes(&self) -> usize {
        index::most_json_bytes(&self.limits)
    }

    async fn ask<T>(
        &self,
        call: &ScriptInvocation<'_>,
        read: impl FnOnce(StoreReply) -> Result<T, Unexpected>,
    ) -> Result<T, StoreError> {
        let value = self.connection.run(call).await?;
        read(StoreReply(value)).map_err(StoreError::from)
    }
}

/// Prepares a call of `script` for the object with `key`.
fn keyed<'a>(script: &'a Script, key: &ObjectKey) -> ScriptInvocation<'a> {
    let mut call = SharedConnection::invocation(script);
    call.arg(owner_digits(key.owner.0)).arg(key.kind as u8).arg(&*key.id);
    call
}

/// Decodes the ledger's rows of `day`, at most `most`.
fn usage_of(day: u32, reply: StoreReply, most: usize) -> Result<Vec<UsageRow>, Unexpected> {
    let values = reply.list(most * USAGE_VALUES)?;
    let mut values = values.into_iter().map(StoreReply);
    let mut rows = Vec::new();
    while let Some(owner) = values.next() {
        let mut text = |most| values.next().ok_or(Unexpected)?.text(most);
        let name = text(MAX_NAME_BYTES)?;
        let mut number = || text(20)?.parse().map_err(|_| Unexpected);
        let counts = UsageCounts {
            requests: number()?,
            prompt_tokens: number()?,
            cached_tokens: number()?,
            completion_tokens: number()?,
        };
        let owner = hex::decode(&owner.text(32)?).ok_or(Unexpected)?;
        let name = (!name.is_empty()).then_some(name);
        rows.push(UsageRow { day, owner: Owner(owner), name, counts });
    }
    Ok(rows)
}

fn owner_digits(owner: [u8; 16]) -> String {
    loquent_proto::hex::encode(&owner)
}

fn time_digits(time_s: u64) -> String {
    format!("{time_s:016x}")
}

/// Decodes an object and its place from the next four values. A replica whose lease has expired
/// counts as dead only if `knows_the_dead`.
fn object_of(
    values: &mut impl Iterator<Item = Value>,
    knows_the_dead: bool,
) -> Result<(SharedPosition, StoredObject), Unexpected> {
    let mut next = || values.next().map(StoreReply).ok_or(Unexpected);
    let place = place_of(next()?.0)?;
    let is_ended = match next()?.text(16)?.as_str() {
        "ended" => true,
        "running" => false,
        _ => return Err(Unexpected),
    };
    let lives = match next()?.text(16)?.as_str() {
        "lives" => true,
        "silent" => !knows_the_dead,
        "none" => false,
        _ => return Err(Unexpected),
    };
    let json = Bytes::from(next()?.bytes()?);
    let digits = place.0.get(..TIME_DIGITS).ok_or(Unexpected)?;
    let created_s = u64::from_str_radix(digits, 16).map_err(|_| Unexpected)?;
    let id = place.0.get(PLACE_DIGITS + 1..).ok_or(Unexpected)?.to_owned();
    let progress = match (is_ended, lives) {
        (true, _) => Progress::Ended,
        (false, true) => Progress::RunningElsewhere,
        (false, false) => Progress::Running,
    };
    Ok((place, StoredObject { id, created_s, progress, json }))
}

fn place_of(value: Value) -> Result<SharedPosition, Unexpected> {
    let text = StoreReply(value).text(PLACE_DIGITS + 1 + MAX_ID_BYTES)?;
    let is_place = text.len() > PLACE_DIGITS
        && text.bytes().take(PLACE_DIGITS).all(|byte| byte.is_ascii_hexdigit())
        && text.is_char_boundary(PLACE_DIGITS + 1);
    if is_place { Ok(SharedPosition(text)) } else { Err(Unexpected) }
}

fn part_of(reply: StoreReply) -> Result<Option<(SharedPosition, Vec<StoredObject>)>, Unexpected> {
    // At most 64 objects of four values each, behind the place where the part ends.
    let mut values = reply.list(1 + 4 * 64)?.into_iter().peekable();
    let end = values.next().ok_or(Unexpected)?;
    if matches!(&end, Value::BulkString(bytes) if bytes.is_empty()) {
        return Ok(None);
    }
    let end = place_of(end)?;
    let mut objects = Vec::new();
    while values.peek().is_some() {
        objects.push(object_of(&mut values, true)?.1);
    }
    Ok(Some((end, objects)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values that a foreign or hostile store could return.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<i64>().prop_map(Value::Int),
            prop::collection::vec(any::<u8>(), 0..80).prop_map(Value::BulkString),
            "[0-9a-f]{32}[12][a-zä]{0,9}".prop_map(|text| Value::BulkString(text.into_bytes())),
            prop_oneof![Just("ended"), Just("running"), Just("lives"), Just("silent")]
                .prop_map(|text| Value::BulkString(text.into())),
            Just(Value::Okay),
        ];
        leaf.prop_recursive(3, 64, 10, |inner| {
            prop::collection::vec(inner, 0..10).prop_map(Value::Array)
        })
    }

    proptest! {
        #[test]
        fn a_hostile_reply_is_an_error_or_a_value_within_bounds(value in any_value()) {
            if let Ok(Some((end, objects))) = part_of(StoreReply(value.clone())) {
                prop_assert!(end.0.len() > PLACE_DIGITS);
                prop_assert!(objects.iter().all(|object| object.id.len() <= MAX_ID_BYTES));
            }
            let _ = StoreReply(value.clone()).optional(|reply| {
                object_of(&mut reply.list(4)?.into_iter(), true)
            });
            let _ = place_of(value);
        }
    }

    #[test]
    fn an_object_is_read_with_its_place() {
        let text = |text: &str| Value::BulkString(text.into());
        let member = format!("{:016x}{:016x}1name", 7, 3);
        for (replica, knows_the_dead, progress) in [
            ("lives", true, Progress::RunningElsewhere),
            ("silent", false, Progress::RunningElsewhere),
            ("silent", true, Progress::Running),
            ("none", false, Progress::Running),
        ] {
            let mut values =
                vec![text(&member), text("running"), text(replica), text("{}")].into_iter();
            let (place, object) = object_of(&mut values, knows_the_dead).unwrap();
            let read = (place.0.as_str(), object.id.as_str(), object.created_s);
            assert_eq!(read, (member.as_str(), "name", 7));
            assert_eq!(object.progress, progress, "{replica}");
        }
        // A number where hex digits belong, and an id that begins within a character.
        for wrong in ["zz", &format!("{}ä", "0".repeat(31)), &"0".repeat(32)] {
            assert!(place_of(text(wrong)).is_err(), "{wrong}");
        }
    }
}
