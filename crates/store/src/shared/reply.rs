//! Bounded decoding of a shared store's replies: another version, or anybody who can reach the
//! store, may have written the data.

use redis::Value;

use crate::object::StoreError;

/// Error: a value of an unexpected form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unexpected;

impl From<Unexpected> for StoreError {
    fn from(_: Unexpected) -> Self {
        Self::Failed("it has something else than Loquent stores there".into())
    }
}

/// A value to decode.
#[derive(Debug)]
pub struct StoreReply(pub Value);

impl StoreReply {
    /// Decodes 0 or 1.
    ///
    /// # Errors
    /// [`Unexpected`] for any other value.
    pub fn flag(self) -> Result<bool, Unexpected> {
        match self.0 {
            Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            _ => Err(Unexpected),
        }
    }

    /// Decodes a non-negative number.
    ///
    /// # Errors
    /// [`Unexpected`] for any other value.
    pub fn number(self) -> Result<u64, Unexpected> {
        match self.0 {
            Value::Int(number) => u64::try_from(number).map_err(|_| Unexpected),
            _ => Err(Unexpected),
        }
    }

    /// Decodes bytes; the script bounds their number.
    ///
    /// # Errors
    /// [`Unexpected`] for any other value.
    pub fn bytes(self) -> Result<Vec<u8>, Unexpected> {
        match self.0 {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(Unexpected),
        }
    }

    /// Decodes text of at most `most` bytes.
    ///
    /// # Errors
    /// [`Unexpected`] for any other value.
    pub fn text(self, most: usize) -> Result<String, Unexpected> {
        let bytes = self.bytes()?;
        if bytes.len() > most {
            return Err(Unexpected);
        }
        String::from_utf8(bytes).map_err(|_| Unexpected)
    }

    /// Decodes a list of at most `most` values.
    ///
    /// # Errors
    /// [`Unexpected`] for any other value.
    pub fn list(self, most: usize) -> Result<Vec<Value>, Unexpected> {
        match self.0 {
            Value::Array(values) if values.len() <= most => Ok(values),
            _ => Err(Unexpected),
        }
    }

    /// Decodes a missing value as `None`, any other with `read`.
    ///
    /// # Errors
    /// [`Unexpected`] for any other value.
    pub fn optional<T>(
        self,
        read: impl FnOnce(Self) -> Result<T, Unexpected>,
    ) -> Result<Option<T>, Unexpected> {
        match self.0 {
            Value::Nil => Ok(None),
            value => read(Self(value)).map(Some),
        }
    }
}
