//! API keys.

use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;

/// The keys that open the API; none means that it is open.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({} keys)", self.0.len())
    }
}

impl ApiKeys {
    /// The given keys; blank ones are dropped.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(
            keys.into_iter()
                .map(|key| key.trim().to_owned())
                .filter(|key| !key.is_empty())
                .collect(),
        )
    }

    /// Whether the API is open.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Holds an `Authorization` header against the keys, in a time that does not depend on
    /// how much of a key matches.
    ///
    /// # Errors
    /// 401 when there are keys and the header has none of them.
    pub fn check(&self, authorization: Option<&[u8]>) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let Some(given) = authorization.and_then(|value| value.strip_prefix(b"Bearer ")) else {
            let message = "This server needs an API key: 'Authorization: Bearer KEY'.";
            return Err(ApiError::unauthorized(message));
        };
        let matches = |found: Choice, key: &String| found | key.as_bytes().ct_eq(given);
        if self.0.iter().fold(Choice::from(0), matches).into() {
            return Ok(());
        }
        Err(ApiError::unauthorized("The API key is wrong."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_key_opens() {
        let keys = ApiKeys::new(["secret".into(), " ".into()]);
        assert!(keys.check(Some(b"Bearer secret")).is_ok());
        for wrong in [
            None,
            Some(&b"Bearer secre"[..]),
            Some(b"secret"),
            Some(b"Bearer "),
            Some(b"Basic secret"),
        ] {
            assert_eq!(keys.check(wrong).unwrap_err().status(), 401);
        }
        assert!(ApiKeys::default().check(None).is_ok());
    }
}
