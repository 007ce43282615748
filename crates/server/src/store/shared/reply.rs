//! What a shared store returns, read with bounds: it may have been written by another version, or
//! by anybody who can reach the store.

use redis::Value;

use crate::store::object::StoreError;

/// A value of another form than the one asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unexpected;

impl From<Unexpected> for StoreError {
    fn from(_: Unexpected) -> Self {
        Self::Failed("it has something else than Loquent stores there".into())
    }
}

/// A value to be read.
#[derive(Debug)]
pub struct StoreReply(pub Value);

impl StoreReply {
    /// 0 or 1.
    pub fn flag(self) -> Result<bool, Unexpected> {
        match self.0 {
            Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            _ => Err(Unexpected),
        }
    }

    /// A number that is not negative.
    pub fn number(self) -> Result<u64, Unexpected> {
        match self.0 {
            Value::Int(number) => u64::try_from(number).map_err(|_| Unexpected),
            _ => Err(Unexpected),
        }
    }

    /// Bytes, whose number the script bounds.
    pub fn bytes(self) -> Result<Vec<u8>, Unexpected> {
        match self.0 {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(Unexpected),
        }
    }

    /// Text of at most so many bytes.
    pub fn text(self, most: usize) -> Result<String, Unexpected> {
        let bytes = self.bytes()?;
        if bytes.len() > most {
            return Err(Unexpected);
        }
        String::from_utf8(bytes).map_err(|_| Unexpected)
    }

    /// A list of at most so many values.
    pub fn list(self, most: usize) -> Result<Vec<Value>, Unexpected> {
        match self.0 {
            Value::Array(values) if values.len() <= most => Ok(values),
            _ => Err(Unexpected),
        }
    }

    /// Nothing, or what `read` makes of it.
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
