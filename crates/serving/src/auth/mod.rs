//! API keys: clients send `Authorization: Bearer` with a key, with a token made with one, or with a
//! token of an identity provider.

mod failures;
pub(crate) mod jwt;
pub(crate) mod key_file;
mod subjects;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use anyhow::ensure;
use loquent_openai::headers::bearer;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::error::{ApiError, LimitedRate};
use crate::identity::token::{BrowserToken, Id, NewToken, TokenMint, TokenWish};
use crate::identity::{ApiKey, Identity, KeyDigest, digest_of};
use crate::peer::network;
use failures::FailedAttempts;
pub use jwt::{FetchText, JwtConfig, KeySetSource, MAX_KEY_SET_BYTES};
use jwt::{JwtRefusal, JwtVerification, is_jwt};
use key_file::{KeyFile, KeyFileContents, parse};

/// Interval at which the key file is checked for changes.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of keys: each key that a client sends is compared with all of them.
const MAX_KEYS: usize = 10_000;

/// The keys that clients may use; without any, the API is open. Clones share their keys.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<SharedKeys>);

#[derive(Default)]
struct SharedKeys {
    /// Keys from flags, which never change.
    fixed: Vec<Arc<ApiKey>>,
    file: Option<KeyFile>,
    /// Tokens of an identity provider, if they are accepted.
    jwt: Option<Arc<JwtVerification>>,
    table: RwLock<Arc<KeyTable>>,
    failures: Mutex<FailedAttempts>,
    mint: TokenMint,
}

/// The client of a request, identified before routing: over QUIC, the head of a request is checked
/// before its body arrives. Stored in the request's extensions so that one wrong key does not count
/// twice.
#[derive(Debug, Clone)]
pub struct EarlyIdentity(pub Result<Identity, ApiError>);

/// The current keys.
#[derive(Default)]
struct KeyTable {
    owners: Vec<Arc<ApiKey>>,
    /// Each key's digest, with the index of its owner.
    digests: Vec<(KeyDigest, u32)>,
    /// The same by the key ids used in tokens.
    ids: HashMap<Id, u32>,
}

impl KeyTable {
    /// # Errors
    /// If two owners have the same key or name, or there are too many keys.
    fn new(owners: Vec<Arc<ApiKey>>, mint: &TokenMint) -> anyhow::Result<Self> {
        let mut digests = HashMap::new();
        let mut names = HashMap::new();
        for (index, owner) in owners.iter().enumerate() {
            if let Some(name) = &owner.name {
                ensure!(names.insert(name, index).is_none(), "two keys have the name '{name}'");
            }
            for digest in &owner.digests {
                let name = owner.name.as_deref().unwrap_or("a key without a name");
                let before = digests.insert(*digest, index as u32);
                ensure!(before.is_none(), "'{name}' has a key that is in use already");
            }
        }
        ensure!(digests.len() <= MAX_KEYS, "there are more than {MAX_KEYS} keys");
        let ids = digests.iter().map(|(digest, &owner)| (mint.key_id(digest), owner)).collect();
        Ok(Self { digests: digests.into_iter().collect(), ids, owners })
    }

    /// Returns the owner of the key that made `token`.
    fn maker(&self, token: &BrowserToken) -> Option<&Arc<ApiKey>> {
        self.ids.get(&token.key).map(|&at| &self.owners[at as usize])
    }

    /// Returns the owner of the key with `digest`, in a time that depends on neither.
    fn find(&self, digest: &KeyDigest) -> Option<&Arc<ApiKey>> {
        let (mut found, mut at) = (Choice::from(0), 0);
        for (known, owner) in &self.digests {
            let same = known.ct_eq(digest);
            at.conditional_assign(owner, same);
            found |= same;
        }
        bool::from(found).then(|| &self.owners[at as usize])
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({} keys)", self.table().digests.len())
    }
}

impl ApiKeys {
    /// Loads the keys `given`, with surrounding white space removed, and those of the file at
    /// `path`, if any. Also accepts the tokens of an identity provider, if `tokens` are configured.
    ///
    /// # Errors
    /// If a given key is empty; if the file cannot be read, has an error, a key twice, or no key
    /// where there are no tokens, since a server meant to have keys must not start open to
    /// everybody; if the provider's keys cannot be read, or no audience is given.
    pub fn load(
        given: &[String],
        path: Option<PathBuf>,
        tokens: Option<JwtConfig>,
    ) -> anyhow::Result<Self> {
        let mut fixed = Vec::with_capacity(given.len());
        for key in given.iter().map(|key| key.trim()) {
            let hint = "an API key is empty; set one, or leave the flag and its variable out to \
                        serve without keys";
            ensure!(!key.is_empty(), hint);
            let key = ApiKey::unnamed(key);
            if !fixed.iter().any(|other: &Arc<ApiKey>| other.digests == key.digests) {
                fixed.push(Arc::new(key));
            }
        }
        let file = path.map(KeyFile::new);
        let text = file.as_ref().map(KeyFile::read).transpose()?;
        let jwt = tokens.map(JwtVerification::load).transpose()?.map(Arc::new);
        let shared = SharedKeys { fixed, file, jwt, ..SharedKeys::default() };
        if let Some(text) = text {
            shared.adopt(&text)?;
        } else {
            *shared.table.write().expect(UNPOISONED) =
                Arc::new(KeyTable::new(shared.fixed.clone(), &shared.mint)?);
        }
        Ok(Self(Arc::new(shared)))
    }

    /// Returns the keys `given`, for tests and for embedding.
    ///
    /// # Panics
    /// If one is empty.
    pub fn new(given: impl IntoIterator<Item = String>) -> Self {
        let given: Vec<_> = given.into_iter().collect();
        Self::load(&given, None, None).expect("no key is empty")
    }

    /// Returns true if the API is open to clients without a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_open(&self.table())
    }

    /// Identifies the client of a request with the header `authorization` from `address`, at `now`
    /// on the server's clock and `unix_s` on the calendar.
    ///
    /// # Errors
    /// 401 if the server has keys and the header holds none of them or an expired one; 429 if the
    /// address has sent many wrong keys. A valid key is accepted even then, since clients may share
    /// an address; a token of an identity provider only if it has been accepted before, since
    /// signatures cost too much to check them for everybody who asks.
    pub fn identify(
        &self,
        authorization: Option<&[u8]>,
        address: IpAddr,
        now: Duration,
        unix_s: u64,
    ) -> Result<Identity, ApiError> {
        let table = self.table();
        if self.0.is_open(&table) {
            return Ok(Identity::of_address(address));
        }
        let Some(given) = authorization.and_then(bearer) else {
            let message =
                "This server requires an API key. Send it as 'Authorization: Bearer KEY'.";
            return Err(ApiError::unauthorized(message));
        };
        let digest = digest_of(given);
        if let Some(key) = table.find(&digest) {
            check_current(key, unix_s)?;
            return Ok(Identity::of_key(key.clone()));
        }
        if let Some(jwt) = self.0.jwt.as_ref().filter(|_| is_jwt(given)) {
            if !jwt.has_accepted(&digest)
                && let Some(wait) = self.failures().wait_of(network(address), now)
            {
                return Err(too_many_wrong_keys(wait));
            }
            return match jwt.verify(given) {
                Ok(key) => {
                    jwt.note_accepted(digest);
                    Ok(Identity::of_key(key))
                }
                // It is the client's own: nobody guesses.
                Err(JwtRefusal::Invalid(why)) => {
                    Err(ApiError::unauthorized(format!("The token is not valid: {why}.")))
                }
                Err(JwtRefusal::Unsigned) => Err(self.refuse(address, now)),
            };
        }
        let Some((token, key)) = self.token(&table, given) else {
            return Err(self.refuse(address, now));
        };
        check_current(key, unix_s)?;
        self.0.mint.count(&token, unix_s)?;
        Ok(Identity::of_token(key, (&token).into()))
    }

    /// Reads the token `given`; returns it with the owner of the key that made it.
    fn token<'a>(
        &self,
        table: &'a KeyTable,
        given: &[u8],
    ) -> Option<(BrowserToken, &'a Arc<ApiKey>)> {
        let token = self.0.mint.read(given)?;
        Some((token, table.maker(&token)?))
    }

    /// Makes a token with the key in the header `authorization`.
    ///
    /// # Errors
    /// 403 on a server without keys, which needs no tokens; 401 if the header holds no valid key.
    pub fn mint(
        &self,
        authorization: Option<&[u8]>,
        wish: &TokenWish,
        unix_s: u64,
    ) -> Result<NewToken, ApiError> {
        let table = self.table();
        if self.0.is_open(&table) {
            return Err(ApiError::tokens_need_keys());
        }
        let digest = authorization.and_then(bearer).map(digest_of);
        let Some(digest) = digest.filter(|digest| table.find(digest).is_some()) else {
            return Err(ApiError::unauthorized("Tokens are made with an API key."));
        };
        Ok(self.0.mint.mint(&digest, wish, unix_s))
    }

    /// Counts a wrong key from `address` and returns the error for it.
    fn refuse(&self, address: IpAddr, now: Duration) -> ApiError {
        match self.failures().on_wrong_key(network(address), now) {
            None => ApiError::unauthorized(
                "The API key is not valid. Check the key that your client sends.",
            ),
            Some(wait) => too_many_wrong_keys(wait),
        }
    }

    /// Returns `key` with the rights and limits that its owner has now, for work that goes on after
    /// its request.
    ///
    /// # Errors
    /// 401 if the owner has no key any more, or one that has expired at `unix_s`.
    pub fn current(&self, key: &Arc<ApiKey>, unix_s: u64) -> Result<Arc<ApiKey>, ApiError> {
        if let Some(jwt) = self.0.jwt.as_ref().filter(|_| key.digests.is_empty()) {
            // One that is forgotten here may still be known to the provider.
            return Ok(jwt.subjects().current(key).unwrap_or_else(|| key.clone()));
        }
        let table = self.table();
        let owner = table.owners.iter().find(|one| one.is_of_owner(key));
        let owner = owner.ok_or_else(|| ApiError::unauthorized("The API key was removed."))?;
        check_current(owner, unix_s)?;
        Ok(owner.clone())
    }

    /// Returns the owners of all keys, and those whom tokens of an identity provider have named.
    pub fn owners(&self) -> Vec<Arc<ApiKey>> {
        let mut owners = self.table().owners.clone();
        owners.extend(self.0.jwt.iter().flat_map(|jwt| jwt.subjects().all()));
        owners
    }

    /// Returns the owners of named keys.
    pub fn named(&self) -> Vec<Arc<ApiKey>> {
        let table = self.table();
        table.owners.iter().filter(|key| key.name.is_some()).cloned().collect()
    }

    /// Reloads the key file whenever it changes, and the keys of an identity provider, forever.
    /// What has an error changes nothing.
    pub async fn keep_current(self) {
        let jwt = self.0.jwt.clone();
        let keep_jwt = async {
            match jwt {
                Some(jwt) => jwt.keep_current().await,
                None => std::future::pending().await,
            }
        };
        tokio::join!(keep_jwt, self.keep_file_current());
    }

    async fn keep_file_current(self) {
        if self.0.file.is_none() {
            return std::future::pending().await;
        }
        let mut tick = tokio::time::interval(CHECK_EVERY);
        loop {
            tick.tick().await;
            let keys = self.clone();
            // A file system may take its time. A panic there would be this task's as well.
            let _ = tokio::task::spawn_blocking(move || keys.refresh()).await;
        }
    }

    /// Adopts the key file if it has changed.
    fn refresh(&self) {
        let Some(file) = &self.0.file else { return };
        let Some(read) = file.read_if_changed() else { return };
        let path = file.path().display();
        match read.and_then(|text| self.0.adopt(&text)) {
            Ok(keys) => tracing::info!(keys, "read the API keys in {path} again"),
            Err(error) => tracing::error!("the API keys stay as they were: {error:#}"),
        }
    }

    fn table(&self) -> Arc<KeyTable> {
        self.0.table.read().expect(UNPOISONED).clone()
    }

    fn failures(&self) -> MutexGuard<'_, FailedAttempts> {
        self.0.failures.lock().expect(UNPOISONED)
    }
}

const UNPOISONED: &str = "nothing panics under this lock";

impl SharedKeys {
    /// True if clients need no key.
    fn is_open(&self, table: &KeyTable) -> bool {
        table.digests.is_empty() && self.jwt.is_none()
    }

    /// Replaces the file's keys, and the limits of an identity provider's clients, with those in
    /// `text`; returns the new number of keys. Owners that remain keep their usage counts.
    ///
    /// # Errors
    /// If the text has an error, no key where there are no tokens, or limits of tokens there.
    fn adopt(&self, text: &str) -> anyhow::Result<usize> {
        let file = self.file.as_ref().map(KeyFile::path).unwrap_or_else(|| "".as_ref());
        let context = || format!("cannot use the API keys in {}", file.display());
        let before = self.table.read().expect(UNPOISONED).clone();
        let KeyFileContents { mut owners, subjects } =
            parse(text).map_err(|error| error.context(context()))?;
        let needs_tokens = "[jwt] is for the tokens of an identity provider: set --jwt-keys";
        ensure!(self.jwt.is_some() || subjects.is_none(), "{}: {needs_tokens}", context());
        for owner in &mut owners {
            let same = before.owners.iter().find(|one| one.tenant() == owner.tenant());
            owner.usage = same.map_or_else(Arc::default, |one| one.usage.clone());
        }
        let mut owners: Vec<_> = owners.into_iter().map(Arc::new).collect();
        // A table in the file says more of a key than a flag.
        let in_file = |key: &ApiKey| owners.iter().any(|one| one.digests.contains(&key.digests[0]));
        let fixed: Vec<_> = self.fixed.iter().filter(|key| !in_file(key)).cloned().collect();
        owners.extend(fixed);
        let table = KeyTable::new(owners, &self.mint).map_err(|error| error.context(context()))?;
        let keys = table.digests.len();
        *self.table.write().expect(UNPOISONED) = Arc::new(table);
        if let Some(jwt) = &self.jwt {
            jwt.subjects().adopt(subjects.unwrap_or_default());
        }
        Ok(keys)
    }
}

fn too_many_wrong_keys(wait: Duration) -> ApiError {
    let message = "Too many wrong API keys came from this address. Check the key that your client \
                   sends.";
    ApiError::rate_limited(message, LimitedRate::Requests, wait.as_secs() + 1)
}

/// # Errors
/// 401 if `key` has expired.
fn check_current(key: &ApiKey, unix_s: u64) -> Result<(), ApiError> {
    match key.expires_s.is_some_and(|at| unix_s >= at) {
        true => Err(ApiError::unauthorized("The API key has expired. Ask for a new one.")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
