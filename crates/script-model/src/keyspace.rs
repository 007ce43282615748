//! The keys of a small Redis: strings, hashes and sorted sets with an age instead of a clock.
//!
//! Time stands still here and the keys grow older: a key has the time that it has left, and a time
//! that a script wrote into the field [`TIME_FIELD`] moves into the past. Two key spaces that
//! differ only by when they were reached are therefore equal, which bounds their number.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The store's time, in seconds; it never changes.
pub const NOW_S: u64 = 1_000_000;
/// Field that holds a time in seconds (`release.lua`).
pub const TIME_FIELD: &str = "w";
/// Age in seconds from which a time in a field is as old as any.
const OLD_S: u64 = 60;
/// Time to live from which a key counts as kept for ever: the model's runs are shorter.
const FOREVER_MS: u64 = 3_600_000;

/// A reply of Redis to one command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RedisReply {
    /// No value.
    Nil,
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several replies.
    List(Vec<RedisReply>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum StoredValue {
    Text(Vec<u8>),
    Fields(BTreeMap<String, Vec<u8>>),
    /// Members of a sorted set, each with its score.
    Scores(BTreeMap<Vec<u8>, i64>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StoredKey {
    value: StoredValue,
    /// Time left in milliseconds; `None` for ever.
    left_ms: Option<u64>,
}

/// All keys of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Keyspace(BTreeMap<String, StoredKey>);

/// An error of a command: its name or its arguments are unknown here, or the key has another type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandError(pub String);

type Outcome = Result<RedisReply, CommandError>;

impl Keyspace {
    /// Runs a command; the first of `words` is its name.
    ///
    /// # Errors
    /// [`CommandError`], as Redis would refuse it, or if the command is not one of those that the
    /// scripts use.
    pub(crate) fn run(&mut self, words: &[Vec<u8>]) -> Outcome {
        let name = text(words.first().map_or(&[][..], |name| name));
        let key = text(words.get(1).map_or(&[][..], |key| key));
        let rest = words.get(2..).unwrap_or_default();
        match (&*name, rest) {
            ("TIME", _) => Ok(list([number(NOW_S), number(0)])),
            ("EXISTS", []) => Ok(RedisReply::Int(self.0.contains_key(&key).into())),
            ("DEL", []) => Ok(RedisReply::Int(self.0.remove(&key).is_some().into())),
            ("GET", []) => Ok(self.text_of(&key)?.map_or(RedisReply::Nil, RedisReply::Bulk)),
            ("STRLEN", []) => Ok(length(self.text_of(&key)?.unwrap_or_default().len())),
            ("SET", [value]) => Ok(self.set(key, value, None)),
            ("SET", [value, px, ms]) if px == b"PX" => Ok(self.set(key, value, Some(int(ms)?))),
            ("PEXPIRE", [ms]) => self.expire(&key, int(ms)?),
            ("APPEND", [more]) => self.append(key, more),
            ("GETRANGE", [from, to]) => self.range(&key, int(from)?, int(to)?),
            ("HGET", [field]) => Ok(self.field(&key, field)?),
            ("HMGET", fields) => {
                let values = fields.iter().map(|field| self.field(&key, field));
                Ok(RedisReply::List(values.collect::<Result<_, _>>()?))
            }
            ("HSTRLEN", [field]) => match self.field(&key, field)? {
                RedisReply::Bulk(value) => Ok(length(value.len())),
                _ => Ok(RedisReply::Int(0)),
            },
            ("HSET", pairs) if pairs.len() % 2 == 0 => self.set_fields(key, pairs),
            ("HINCRBY", [field, by]) => self.increase(key, field, int(by)?),
            ("INCR", []) => self.count(key, 1),
            ("INCRBY", [by]) => self.count(key, signed(by)?),
            ("ZADD", [score, member]) => self.set_score(key, member, signed(score)?),
            ("ZINCRBY", [by, member]) => self.add_score(key, member, signed(by)?),
            ("ZREM", [member]) => self.remove_member(&key, member),
            ("ZRANGE", [from, to]) => self.members(&key, int(from)?..=int(to)?, false),
            ("ZREVRANGE", [from, to]) => self.members(&key, int(from)?..=int(to)?, true),
            ("ZREVRANGE", [from, to, _]) => self.members_scored(&key, int(from)?..=int(to)?),
            _ => Err(CommandError(format!("the model has no command {name} of {rest:?}"))),
        }
    }

    /// Lets `ms` pass: keys expire, and stored times become older by its whole seconds.
    pub fn age(&mut self, ms: u64) {
        self.expire_after(ms);
        self.age_times(ms / 1000);
    }

    /// Lets keys expire that have no more than `ms` left.
    pub fn expire_after(&mut self, ms: u64) {
        self.0.retain(|_, key| match &mut key.left_ms {
            Some(left) => {
                *left = left.saturating_sub(ms);
                *left > 0
            }
            None => true,
        });
    }

    /// Makes stored times older.
    pub fn age_times(&mut self, seconds: u64) {
        self.change_times(|then| then - seconds);
    }

    /// Lets the clock go back by `ms`: keys live longer, and stored times move towards the future
    /// by its whole seconds.
    pub fn rewind(&mut self, ms: u64) {
        self.0.values_mut().filter_map(|key| key.left_ms.as_mut()).for_each(|left| *left += ms);
        self.change_times(|then| then + ms / 1000);
    }

    fn change_times(&mut self, change: impl Fn(u64) -> u64) {
        for key in self.0.values_mut() {
            let StoredValue::Fields(fields) = &mut key.value else { continue };
            let Some(time) = fields.get_mut(TIME_FIELD) else { continue };
            let then = text(time).parse::<u64>().unwrap_or(NOW_S).max(NOW_S - OLD_S);
            *time = change(then).to_string().into_bytes();
        }
    }

    /// Returns the bytes of the string at `key`, if there is one.
    pub fn bytes(&self, key: &str) -> Option<&[u8]> {
        match &self.0.get(key)?.value {
            StoredValue::Text(bytes) => Some(bytes),
            StoredValue::Fields(_) | StoredValue::Scores(_) => None,
        }
    }

    /// Returns a field of the hash at `key` as text, if there is one.
    pub fn hash_field(&self, key: &str, field: &str) -> Option<String> {
        match &self.0.get(key)?.value {
            StoredValue::Fields(fields) => fields.get(field).map(|value| text(value)),
            StoredValue::Text(_) | StoredValue::Scores(_) => None,
        }
    }

    /// Returns the names of all keys, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Evicts a key.
    pub fn evict(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// True if there is a key of this name.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn text_of(&self, key: &str) -> Result<Option<Vec<u8>>, CommandError> {
        match self.0.get(key).map(|key| &key.value) {
            Some(StoredValue::Text(bytes)) => Ok(Some(bytes.clone())),
            Some(_) => Err(wrong_type(key)),
            None => Ok(None),
        }
    }

    /// Sets a string, which lives for `ms`, or for ever.
    pub fn set(&mut self, key: String, value: &[u8], ms: Option<u64>) -> RedisReply {
        let value = StoredValue::Text(value.to_vec());
        self.0.insert(key, StoredKey { value, left_ms: ms.filter(|ms| *ms < FOREVER_MS) });
        RedisReply::Bulk(b"OK".to_vec())
    }

    fn expire(&mut self, key: &str, ms: u64) -> Outcome {
        let Some(found) = self.0.get_mut(key) else { return Ok(RedisReply::Int(0)) };
        found.left_ms = Some(ms).filter(|ms| *ms < FOREVER_MS);
        Ok(RedisReply::Int(1))
    }

    fn append(&mut self, key: String, more: &[u8]) -> Outcome {
        let mut bytes = self.text_of(&key)?.unwrap_or_default();
        bytes.extend_from_slice(more);
        let len = bytes.len();
        let left_ms = self.0.get(&key).and_then(|found| found.left_ms);
        self.0.insert(key, StoredKey { value: StoredValue::Text(bytes), left_ms });
        Ok(length(len))
    }

    fn range(&self, key: &str, from: u64, to: u64) -> Outcome {
        let bytes = self.text_of(key)?.unwrap_or_default();
        let (from, to) = (from as usize, (to as usize + 1).min(bytes.len()));
        Ok(RedisReply::Bulk(bytes.get(from..to).unwrap_or_default().to_vec()))
    }

    fn field(&self, key: &str, field: &[u8]) -> Outcome {
        match self.0.get(key).map(|key| &key.value) {
            Some(StoredValue::Fields(fields)) => {
                let value = fields.get(&text(field)).cloned();
                Ok(value.map_or(RedisReply::Nil, RedisReply::Bulk))
            }
            Some(_) => Err(wrong_type(key)),
            None => Ok(RedisReply::Nil),
        }
    }

    fn fields(&mut self, key: String) -> Result<&mut BTreeMap<String, Vec<u8>>, CommandError> {
        let error = wrong_type(&key);
        let empty = || StoredKey { value: StoredValue::Fields(BTreeMap::new()), left_ms: None };
        match &mut self.0.entry(key).or_insert_with(empty).value {
            StoredValue::Fields(fields) => Ok(fields),
            StoredValue::Text(_) | StoredValue::Scores(_) => Err(error),
        }
    }

    fn set_fields(&mut self, key: String, pairs: &[Vec<u8>]) -> Outcome {
        let fields = self.fields(key)?;
        let before = fields.len();
        for pair in pairs.chunks_exact(2) {
            fields.insert(text(&pair[0]), pair[1].clone());
        }
        Ok(length(fields.len() - before))
    }

    fn increase(&mut self, key: String, field: &[u8], by: u64) -> Outcome {
        let value = self.fields(key)?.entry(text(field)).or_insert_with(|| b"0".to_vec());
        let sum = int(value)? + by;
        *value = sum.to_string().into_bytes();
        Ok(RedisReply::Int(sum as i64))
    }
}

impl Keyspace {
    /// Adds to the number in a string.
    fn count(&mut self, key: String, by: i64) -> Outcome {
        let before = self.text_of(&key)?.map_or(Ok(0), |text| signed(&text))?;
        let left_ms = self.0.get(&key).and_then(|found| found.left_ms);
        let value = StoredValue::Text((before + by).to_string().into_bytes());
        self.0.insert(key, StoredKey { value, left_ms });
        Ok(RedisReply::Int(before + by))
    }

    fn scores(&mut self, key: String) -> Result<&mut BTreeMap<Vec<u8>, i64>, CommandError> {
        let error = wrong_type(&key);
        let empty = || StoredKey { value: StoredValue::Scores(BTreeMap::new()), left_ms: None };
        match &mut self.0.entry(key).or_insert_with(empty).value {
            StoredValue::Scores(scores) => Ok(scores),
            StoredValue::Text(_) | StoredValue::Fields(_) => Err(error),
        }
    }

    fn set_score(&mut self, key: String, member: &[u8], score: i64) -> Outcome {
        let before = self.scores(key)?.insert(member.to_vec(), score);
        Ok(RedisReply::Int(before.is_none().into()))
    }

    fn add_score(&mut self, key: String, member: &[u8], by: i64) -> Outcome {
        let score = self.scores(key)?.entry(member.to_vec()).or_insert(0);
        *score += by;
        Ok(RedisReply::Bulk(score.to_string().into_bytes()))
    }

    fn remove_member(&mut self, key: &str, member: &[u8]) -> Outcome {
        if !self.has(key) {
            return Ok(RedisReply::Int(0));
        }
        let scores = self.scores(key.to_owned())?;
        let was_there = scores.remove(member).is_some();
        if scores.is_empty() {
            // As in Redis, a set without members is no key.
            self.0.remove(key);
        }
        Ok(RedisReply::Int(was_there.into()))
    }

    /// Returns the members at these places and their scores, in the order of both.
    fn ranked(
        &self,
        key: &str,
        places: RangeInclusive<u64>,
        highest_first: bool,
    ) -> Result<Vec<(Vec<u8>, i64)>, CommandError> {
        let scores = match self.0.get(key).map(|key| &key.value) {
            Some(StoredValue::Scores(scores)) => scores,
            Some(_) => return Err(wrong_type(key)),
            None => return Ok(Vec::new()),
        };
        let mut all: Vec<_> = scores.iter().map(|(member, score)| (*score, member)).collect();
        all.sort();
        if highest_first {
            all.reverse();
        }
        let (first, last) = (*places.start() as usize, *places.end() as usize);
        let wanted = all.into_iter().take(last + 1).skip(first);
        Ok(wanted.map(|(score, member)| (member.clone(), score)).collect())
    }

    fn members(&self, key: &str, places: RangeInclusive<u64>, highest_first: bool) -> Outcome {
        let ranked = self.ranked(key, places, highest_first)?.into_iter();
        Ok(RedisReply::List(ranked.map(|(member, _)| RedisReply::Bulk(member)).collect()))
    }

    fn members_scored(&self, key: &str, places: RangeInclusive<u64>) -> Outcome {
        let pairs = self.ranked(key, places, true)?.into_iter().flat_map(|(member, score)| {
            [RedisReply::Bulk(member), RedisReply::Bulk(score.to_string().into_bytes())]
        });
        Ok(RedisReply::List(pairs.collect()))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn int(bytes: &[u8]) -> Result<u64, CommandError> {
    let text = text(bytes);
    text.parse().map_err(|_| CommandError(format!("{text:?} is no number from 0 on")))
}

fn signed(bytes: &[u8]) -> Result<i64, CommandError> {
    let text = text(bytes);
    text.parse().map_err(|_| CommandError(format!("{text:?} is no number")))
}

fn length(len: usize) -> RedisReply {
    RedisReply::Int(len as i64)
}

fn number(value: u64) -> RedisReply {
    RedisReply::Bulk(value.to_string().into_bytes())
}

fn list<const N: usize>(replies: [RedisReply; N]) -> RedisReply {
    RedisReply::List(replies.into())
}

fn wrong_type(key: &str) -> CommandError {
    CommandError(format!("{key} holds the wrong kind of value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(keys: &mut Keyspace, command: &str) -> RedisReply {
        let words: Vec<_> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        keys.run(&words).unwrap()
    }

    #[test]
    fn keys_expire_unless_they_are_kept_for_ever() {
        let mut keys = Keyspace::default();
        run(&mut keys, "SET short 1 PX 2000");
        run(&mut keys, "SET long 1 PX 21600000");
        assert_eq!(run(&mut keys, "PEXPIRE absent 5"), RedisReply::Int(0));
        keys.age(1000);
        assert!(keys.has("short"));
        keys.age(1000);
        assert!(!keys.has("short") && keys.has("long"));
    }

    #[test]
    fn appended_strings_keep_their_age_and_set_ones_do_not() {
        let mut keys = Keyspace::default();
        run(&mut keys, "SET log ab PX 2000");
        assert_eq!(run(&mut keys, "APPEND log cd"), RedisReply::Int(4));
        assert_eq!(run(&mut keys, "GETRANGE log 1 9"), RedisReply::Bulk(b"bcd".into()));
        keys.age(2000);
        assert_eq!(run(&mut keys, "STRLEN log"), RedisReply::Int(0));
    }

    #[test]
    fn a_time_in_a_hash_grows_older() {
        let mut keys = Keyspace::default();
        run(&mut keys, &format!("HSET answer f 1 w {NOW_S}"));
        assert_eq!(run(&mut keys, "HINCRBY answer f 1"), RedisReply::Int(2));
        keys.age(3000);
        assert_eq!(keys.hash_field("answer", "w"), Some((NOW_S - 3).to_string()));
        keys.age(1_000_000);
        keys.age(1_000_000);
        assert!(keys.has("answer"));
    }

    #[test]
    fn members_come_in_the_order_of_their_scores() {
        let mut keys = Keyspace::default();
        for command in ["ZADD set 2 b", "ZADD set 2 a", "ZINCRBY set 1 c", "ZINCRBY set -3 d"] {
            run(&mut keys, command);
        }
        let bulk = |text: &str| RedisReply::Bulk(text.into());
        let all = ["d", "c", "a", "b"].map(bulk).to_vec();
        assert_eq!(run(&mut keys, "ZRANGE set 0 9"), RedisReply::List(all));
        let last = ["b", "2"].map(bulk).to_vec();
        assert_eq!(run(&mut keys, "ZREVRANGE set 0 0 WITHSCORES"), RedisReply::List(last));
        for member in ["a", "b", "c", "d"] {
            assert_eq!(run(&mut keys, &format!("ZREM set {member}")), RedisReply::Int(1));
        }
        assert!(!keys.has("set"), "a set without members is no key");
        run(&mut keys, "INCRBY total 3");
        assert_eq!(run(&mut keys, "INCRBY total -5"), RedisReply::Int(-2));
    }

    #[test]
    fn a_clock_that_goes_back_lets_keys_live_longer() {
        let mut keys = Keyspace::default();
        run(&mut keys, "SET lease 1 PX 2000");
        run(&mut keys, &format!("HSET answer w {NOW_S}"));
        keys.rewind(3000);
        keys.age(4000);
        assert!(keys.has("lease"));
        assert_eq!(keys.hash_field("answer", "w"), Some((NOW_S - 1).to_string()));
        keys.age(1000);
        assert!(!keys.has("lease"));
    }

    #[test]
    fn a_command_that_no_script_uses_is_an_error() {
        let words = [b"FLUSHALL".to_vec()];
        assert!(Keyspace::default().run(&words).is_err());
    }
}
