//! The API key file: one key per line, or in TOML one table `[[key]]` per owner.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, anyhow, bail, ensure};
use loquent_infer::admission::TenantLimits;
use serde::Deserialize;
use time::{Date, Duration, Month, OffsetDateTime, PrimitiveDateTime, Time};
use toml::value::{Datetime, Offset};

use super::subjects::SubjectTerms;
use crate::budget::TokenBudgets;
use crate::identity::{ApiKey, KeyDigest, digest_of};

/// Maximum size of the file in bytes: it is read every second.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum length of an owner's name in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Maximum weight: a larger one would leave the other owners next to nothing.
const MAX_WEIGHT: u32 = 1000;

/// A key file that may change while the server runs.
pub struct KeyFile {
    path: PathBuf,
    last: Mutex<LastRead>,
}

/// Result of the last read, for detecting changes.
#[derive(PartialEq, Eq)]
enum LastRead {
    Unreadable,
    Text(KeyDigest),
}

impl KeyFile {
    /// Returns the file at `path`, not read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::new(LastRead::Unreadable) }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// If the file cannot be read, is too long or is not UTF-8.
    pub fn read(&self) -> anyhow::Result<String> {
        let text = self.text()?;
        self.differs(LastRead::Text(digest_of(text.as_bytes())));
        self.warn_if_open();
        Ok(text)
    }

    /// Reads the file and returns its text, or the error of [`Self::read`], if it has changed since
    /// the last read. Compares contents, because two versions may have the same time and length.
    pub fn read_if_changed(&self) -> Option<anyhow::Result<String>> {
        let read = self.text();
        let now = match &read {
            Ok(text) => LastRead::Text(digest_of(text.as_bytes())),
            Err(_) => LastRead::Unreadable,
        };
        let changed = self.differs(now);
        if changed && read.is_ok() {
            self.warn_if_open();
        }
        changed.then_some(read)
    }

    fn differs(&self, now: LastRead) -> bool {
        let mut last = self.last.lock().expect("nothing panics under this lock");
        std::mem::replace(&mut *last, now) != *last
    }

    fn text(&self) -> anyhow::Result<String> {
        let named = || format!("cannot read the API keys in {}", self.path.display());
        let file = File::open(&self.path).with_context(named)?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).with_context(named)?;
        let fits = text.len() as u64 <= MAX_FILE_BYTES;
        ensure!(fits, "{}: it is larger than {MAX_FILE_BYTES} bytes", named());
        Ok(text)
    }

    /// Warns if other users can read the file: a key that can be read can be used.
    fn warn_if_open(&self) {
        if is_open_to_others(&self.path) {
            let path = self.path.display();
            tracing::warn!(
                "all users of this machine can read {path}; run chmod 600 {path}, or chmod 640 \
                 {path} if a service reads it as a member of its group"
            );
        }
    }
}

#[cfg(unix)]
fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o007 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &Path) -> bool {
    false
}

/// Contents of a key file.
pub(crate) struct KeyFileContents {
    /// The owners of keys.
    pub owners: Vec<ApiKey>,
    /// Weight, limits and rights of an identity provider's clients, if the file sets them.
    pub subjects: Option<SubjectTerms>,
}

/// Tables of a TOML key file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTables {
    #[serde(default)]
    key: Vec<KeyTable>,
    jwt: Option<SubjectTable>,
}

/// The `[jwt]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectTable {
    weight: Option<u32>,
    max_inflight: Option<usize>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    tokens_per_day: Option<u64>,
    tokens_per_month: Option<u64>,
    priority: Option<bool>,
    #[serde(default)]
    admins: BTreeSet<String>,
}

/// One `[[key]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    name: String,
    key: Option<OneOrMany>,
    key_sha256: Option<OneOrMany>,
    weight: Option<u32>,
    max_inflight: Option<usize>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    tokens_per_day: Option<u64>,
    tokens_per_month: Option<u64>,
    priority: Option<bool>,
    admin: Option<bool>,
    expires: Option<Datetime>,
}

/// One key or several: both an old and a new key are valid while clients switch.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Parses a file's text.
///
/// # Errors
/// If the text has an error, or neither a key nor a `[jwt]` table. Errors never quote a key.
pub(crate) fn parse(text: &str) -> anyhow::Result<KeyFileContents> {
    let lines = || text.lines().map(str::trim);
    let is_toml = lines().any(|line| line.starts_with("[[key]]") || line.starts_with("[jwt]"));
    let contents = match is_toml {
        true => parse_tables(text)?,
        false => KeyFileContents { owners: parse_lines(lines())?, subjects: None },
    };
    let is_empty = contents.owners.is_empty() && contents.subjects.is_none();
    ensure!(!is_empty, "it has no key; a server without keys is open to everybody");
    Ok(contents)
}

/// Parses one key per line; skips empty lines and those that begin with `#`.
fn parse_lines<'a>(lines: impl Iterator<Item = &'a str>) -> anyhow::Result<Vec<ApiKey>> {
    let mut owners = Vec::new();
    for (index, line) in lines.enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // A table's line would otherwise become a key that is easily guessed.
        let is_key = line.bytes().all(|byte| byte.is_ascii_graphic()) && !line.starts_with('[');
        ensure!(
            is_key,
            "line {} is no key: a key is one word; tables begin with [[key]]",
            index + 1
        );
        owners.push(ApiKey::unnamed(line));
    }
    Ok(owners)
}

fn parse_tables(text: &str) -> anyhow::Result<KeyFileContents> {
    let parsed: Result<KeyTables, _> = toml::from_str(text);
    let tables = parsed.map_err(|error| {
        // Not the error's own text, which shows the line with its key.
        let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or_default();
        anyhow!("line {}: {}", before.matches('\n').count() + 1, error.message())
    })?;
    Ok(KeyFileContents {
        owners: tables.key.into_iter().map(owner).collect::<anyhow::Result<_>>()?,
        subjects: tables.jwt.map(|table| subject_terms(table).context("[jwt]")).transpose()?,
    })
}

fn subject_terms(table: SubjectTable) -> anyhow::Result<SubjectTerms> {
    Ok(SubjectTerms {
        weight: checked_weight(table.weight)?,
        limits: checked_limits(TenantLimits {
            max_inflight: table.max_inflight,
            requests_per_minute: table.requests_per_minute,
            tokens_per_minute: table.tokens_per_minute,
        })?,
        budgets: checked_budgets(TokenBudgets {
            per_day: table.tokens_per_day,
            per_month: table.tokens_per_month,
        })?,
        may_set_priority: table.priority.unwrap_or(false),
        admins: table.admins,
    })
}

fn owner(table: KeyTable) -> anyhow::Result<ApiKey> {
    let name = table.name.clone();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    ensure!(
        (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed),
        "a key's name has 1 to {MAX_NAME_BYTES} letters, digits and . _ @ -; {name:?} is none"
    );
    checked_owner(table).with_context(|| format!("the key '{name}'"))
}

fn checked_owner(table: KeyTable) -> anyhow::Result<ApiKey> {
    Ok(ApiKey {
        name: Some(table.name),
        digests: digests(table.key, table.key_sha256)?,
        weight: checked_weight(table.weight)?,
        limits: checked_limits(TenantLimits {
            max_inflight: table.max_inflight,
            requests_per_minute: table.requests_per_minute,
            tokens_per_minute: table.tokens_per_minute,
        })?,
        budgets: checked_budgets(TokenBudgets {
            per_day: table.tokens_per_day,
            per_month: table.tokens_per_month,
        })?,
        may_set_priority: table.priority.unwrap_or(false),
        is_admin: table.admin.unwrap_or(false),
        expires_s: table.expires.map(unix_s).transpose()?,
        usage: Arc::default(),
    })
}

fn checked_weight(weight: Option<u32>) -> anyhow::Result<u32> {
    let weight = weight.unwrap_or(1);
    ensure!((1..=MAX_WEIGHT).contains(&weight), "weight must be between 1 and {MAX_WEIGHT}");
    Ok(weight)
}

const NO_ZERO: &str = "a limit must be at least 1; remove the table to lock the owner out";

fn checked_limits(limits: TenantLimits) -> anyhow::Result<TenantLimits> {
    let no_zero = limits.max_inflight != Some(0)
        && limits.requests_per_minute != Some(0)
        && limits.tokens_per_minute != Some(0);
    ensure!(no_zero, NO_ZERO);
    Ok(limits)
}

fn checked_budgets(budgets: TokenBudgets) -> anyhow::Result<TokenBudgets> {
    ensure!(budgets.per_day != Some(0) && budgets.per_month != Some(0), NO_ZERO);
    Ok(budgets)
}

fn digests(keys: Option<OneOrMany>, hashed: Option<OneOrMany>) -> anyhow::Result<Vec<KeyDigest>> {
    let mut digests = Vec::new();
    for key in keys.into_iter().flat_map(OneOrMany::into_vec) {
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(is_key, "key must be one word of visible ASCII characters");
        digests.push(digest_of(key.as_bytes()));
    }
    for digits in hashed.into_iter().flat_map(OneOrMany::into_vec) {
        let digest = sha256_from_hex(&digits);
        digests.push(digest.context("key_sha256 must have 64 hexadecimal digits")?);
    }
    ensure!(!digests.is_empty(), "it needs key or key_sha256");
    Ok(digests)
}

fn sha256_from_hex(digits: &str) -> Option<KeyDigest> {
    let digits = digits.as_bytes();
    let digit = |at: usize| char::from(digits[at]).to_digit(16);
    if digits.len() != 64 {
        return None;
    }
    let mut digest = KeyDigest::default();
    for (index, byte) in digest.iter_mut().enumerate() {
        *byte = (digit(2 * index)? << 4 | digit(2 * index + 1)?) as u8;
    }
    Some(digest)
}

/// Converts an RFC 3339 time, or the beginning of a date in UTC, to Unix time in seconds.
fn unix_s(at: Datetime) -> anyhow::Result<u64> {
    let wrong = "expires must be a date (2027-01-31) or a time with its offset \
                 (2027-01-31T12:00:00Z)";
    let date = at.date.context(wrong)?;
    let month = Month::try_from(date.month).context(wrong)?;
    let date = Date::from_calendar_date(date.year.into(), month, date.day).context(wrong)?;
    let (time, offset_minutes) = match (at.time, at.offset) {
        (None, None) => (Time::MIDNIGHT, 0),
        (Some(time), Some(Offset::Z)) => (time_of_day(time).context(wrong)?, 0),
        (Some(time), Some(Offset::Custom { minutes })) => {
            (time_of_day(time).context(wrong)?, minutes)
        }
        _ => bail!(wrong),
    };
    let local: OffsetDateTime = PrimitiveDateTime::new(date, time).assume_utc();
    let utc = local.checked_sub(Duration::minutes(offset_minutes.into())).context(wrong)?;
    u64::try_from(utc.unix_timestamp()).context("expires is before 1970")
}

fn time_of_day(time: toml::value::Time) -> Result<Time, time::error::ComponentRange> {
    // A leap second is the last one of its minute here.
    Time::from_hms(time.hour, time.minute, time.second.unwrap_or(0).min(59))
}

#[cfg(test)]
mod tests {
    //! Both forms of the file, and errors in them.
    use super::*;

    const EXAMPLE: &str = r#"
        # keys of the teams
        [[key]]
        name = "alice"
        key_sha256 = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
        weight = 4
        priority = true
        expires = 2027-01-31T12:00:00+01:00

        [[key]]
        name = "batch"
        key = ["sk-old", "sk-new"]
        max_inflight = 8
        admin = true
        requests_per_minute = 60
        tokens_per_minute = 100_000
        tokens_per_day = 1_000_000
        tokens_per_month = 20_000_000
        expires = 2027-01-31
    "#;

    #[test]
    fn tables_say_what_a_key_may() {
        let owners = parse(EXAMPLE).unwrap().owners;
        let [alice, batch] = &owners[..] else { panic!("{owners:?}") };
        assert_eq!(alice.digests, [digest_of(b"password")]);
        assert_eq!((alice.weight, alice.may_set_priority, alice.is_admin), (4, true, false));
        assert_eq!(alice.expires_s, Some(1_801_393_200));
        assert_eq!(alice.limits, TenantLimits::default());
        assert_eq!(batch.digests, [digest_of(b"sk-old"), digest_of(b"sk-new")]);
        assert_eq!((batch.weight, batch.may_set_priority, batch.is_admin), (1, false, true));
        assert_eq!(batch.expires_s, Some(1_801_353_600));
        let limits = TenantLimits {
            max_inflight: Some(8),
            requests_per_minute: Some(60),
            tokens_per_minute: Some(100_000),
        };
        assert_eq!(batch.limits, limits);
        let budgets = TokenBudgets { per_day: Some(1_000_000), per_month: Some(20_000_000) };
        assert_eq!((alice.budgets, batch.budgets), (TokenBudgets::default(), budgets));
    }

    #[test]
    fn lines_are_keys() {
        let owners = parse("# ours\nsk-one\n\n  sk-two=  \n").unwrap().owners;
        let digests: Vec<_> = owners.iter().map(|owner| owner.digests[0]).collect();
        assert_eq!(digests, [digest_of(b"sk-one"), digest_of(b"sk-two=")]);
        assert!(owners.iter().all(|owner| owner.name.is_none()));
    }

    #[test]
    fn a_table_says_what_tokens_may() {
        let text = "[jwt]\nweight = 2\nmax_inflight = 4\ntokens_per_day = 1000\n\
                    admins = [\"ann\"]";
        let contents = parse(text).unwrap();
        assert!(contents.owners.is_empty());
        let terms = contents.subjects.unwrap();
        assert_eq!((terms.weight, terms.limits.max_inflight), (2, Some(4)));
        assert_eq!(terms.budgets.per_day, Some(1000));
        assert!(terms.admins.contains("ann") && !terms.may_set_priority);
        let both = parse(&format!("{EXAMPLE}\n[jwt]\npriority = true")).unwrap();
        assert!(both.owners.len() == 2 && both.subjects.unwrap().may_set_priority);
        assert!(parse(EXAMPLE).unwrap().subjects.is_none());
    }

    #[test]
    fn mistakes_are_named_and_keys_are_not() {
        let table = |more: &str| format!("[[key]]\nname = \"a\"\n{more}\n");
        for (text, told) in [
            (String::new(), "no key"),
            ("# only a comment".into(), "no key"),
            ("[keys]\nname = \"a\"\nkey = \"sk-secret\"".into(), "line 1"),
            ("sk-one\nname = sk-secret".into(), "line 2"),
            (table(""), "key or key_sha256"),
            (table("key = \"\""), "one word"),
            (table("key = \"sk-secret and more\""), "one word"),
            (table("key_sha256 = \"5e88\""), "64 hexadecimal"),
            (table("key = \"sk-secret"), "line 3"),
            (table("key = \"sk-secret\"\nwieght = 2"), "line 4"),
            (table("key = \"sk-secret\"\nweight = 0"), "weight"),
            (table("key = \"sk-secret\"\nrequests_per_minute = 0"), "at least 1"),
            (table("key = \"sk-secret\"\ntokens_per_month = 0"), "at least 1"),
            (table("key = \"sk-secret\"\nexpires = 2027-01-31T12:00:00"), "offset"),
            (table("key = \"sk-secret\"\nexpires = 12:00:00"), "expires"),
            ("[[key]]\nname = \"a b\"\nkey = \"sk-secret\"".into(), "name"),
            ("[jwt]\nwieght = 2".into(), "line 2"),
            ("[jwt]\nweight = 0".into(), "[jwt]: weight"),
            ("[jwt]\nmax_inflight = 0".into(), "[jwt]: a limit must be at least 1"),
        ] {
            let error = format!("{:#}", parse(&text).err().expect("a mistake"));
            assert!(error.contains(told), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
