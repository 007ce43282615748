//! API keys: clients send one of them as `Authorization: Bearer KEY`.

use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;

/// The keys that clients may use; without any, the API is open.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({} keys)", self.0.len())
    }
}

impl ApiKeys {
    /// Keys without the white space around them; blank ones are dropped.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(
            keys.into_iter()
                .map(|key| key.trim().to_owned())
                .filter(|key| !key.is_empty())
                .collect(),
        )
    }

    /// Whether the API is open to clients without a key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares an `Authorization` header with the keys, in a time that does not depend on how
    /// much of a key matches.
    ///
    /// # Errors
    /// 401 when there are keys and the header has none of them.
    pub fn check(&self, authorization: Option<&[u8]>) -> Result<(), ApiError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let Some(given) = authorization.and_then(|value| value.strip_prefix(b"Bearer ")) else {
            let message =
                "This server requires an API key. Send it as 'Authorization: Bearer KEY'.";
            return Err(ApiError::unauthorized(message));
        };
        // All keys are compared, so that the time does not show which one is close.
        let matches = |found: Choice, key: &String| found | key.as_bytes().ct_eq(given);
        if self.0.iter().fold(Choice::from(0), matches).into() {
            return Ok(());
        }
        Err(ApiError::unauthorized(
            "The API key is not valid. Check the key that your client sends.",
        ))
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
