//! Typed access to the fields of a JSON request, with errors that name the field.
//!
//! Fields are removed from the object as they are read. Any left at the end are reported as having
//! no effect, so that a misspelt parameter does not go unnoticed.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::json::{self, JsonError, MAX_VALUES};
use crate::error::ApiError;
use crate::memory::MemoryCharge;

/// Maximum number of nested field names to remember as ignored: a conversation may have thousands,
/// and the first ones are enough for the client.
const MAX_NESTED_NAMES: usize = 64;

/// The fields of one JSON object.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// Prefix of field names in errors: empty, or for example `stream_options.`.
    path: String,
    /// Names of ignored fields in nested objects.
    ignored: Vec<String>,
    /// Memory charged for the fields.
    charge: Option<Arc<MemoryCharge>>,
    /// True if images are kept, for an upstream server.
    keeps_images: bool,
}

impl Fields {
    /// Checks the number of values in a body, as counted by `json::count_values`.
    ///
    /// # Errors
    /// 400 if there are more than `MAX_VALUES`.
    pub fn check_values(values: usize) -> Result<(), ApiError> {
        match values <= MAX_VALUES {
            true => Ok(()),
            false => Err(not_json(&JsonError::TooManyValues(MAX_VALUES))),
        }
    }

    /// Parses a request body.
    ///
    /// # Errors
    /// 400 when `body` is not UTF-8, not JSON, not an object, or has more than `MAX_VALUES`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::invalid(format!("The request body is not valid UTF-8: {error}."))
        })?;
        match json::parse(text, MAX_VALUES).map_err(|error| not_json(&error))? {
            Value::Object(map) => Ok(Self::of(map, String::new())),
            other => Err(ApiError::invalid(format!(
                "The request body must be a JSON object, not {}.",
                kind_of(&other)
            ))),
        }
    }

    fn of(map: Map<String, Value>, path: String) -> Self {
        Self { map, path, ignored: Vec::new(), charge: None, keeps_images: false }
    }

    /// Attaches the memory charge for the fields.
    pub fn charged(self, charge: MemoryCharge) -> Self {
        Self { charge: Some(Arc::new(charge)), ..self }
    }

    /// Keeps images in this request's messages, because an upstream server answers.
    pub fn keep_images(&mut self) {
        self.keeps_images = true;
    }

    /// Returns true if images are kept.
    pub fn keeps_images(&self) -> bool {
        self.keeps_images
    }

    /// Returns the full name of this object, as in `messages[1].content[0]`.
    pub fn place(&self) -> &str {
        self.path.strip_suffix('.').unwrap_or(&self.path)
    }

    /// Adds `names` to the ignored ones.
    pub fn ignore(&mut self, names: impl IntoIterator<Item = String>) {
        let room = MAX_NESTED_NAMES.saturating_sub(self.ignored.len());
        self.ignored.extend(names.into_iter().take(room));
    }

    /// Overrides the client's `stream` and `resumable`: an answer by datagram always streams
    /// (S-4.1). The request then equals one over HTTP that asks for streaming (S-4.9).
    pub fn set_streaming(&mut self) {
        self.map.insert("stream".to_owned(), Value::Bool(true));
        self.map.remove("resumable");
    }

    /// Overrides the client's `model`, because another model answers.
    pub fn set_model(&mut self, name: &str) {
        self.map.insert("model".to_owned(), name.into());
    }

    /// Replaces all fields with `map`, a dialect's request translated to OpenAI's form; the memory
    /// charge stays.
    pub fn replaced(self, map: Map<String, Value>) -> Self {
        Self { map, path: String::new(), ..self }
    }

    /// Sets `field`, which is absent from a dialect's request or has another form there.
    pub fn put(&mut self, field: &str, value: Value) {
        self.map.insert(field.to_owned(), value);
    }

    /// Returns an empty set of fields that holds `charge`.
    pub fn empty(charge: Option<Arc<MemoryCharge>>) -> Self {
        Self { charge, ..Self::of(Map::new(), String::new()) }
    }

    /// Takes the memory charge so that the caller can increase it; [`Self::put_charge`] puts it
    /// back.
    pub fn take_charge(&mut self) -> MemoryCharge {
        self.charge.take().and_then(Arc::into_inner).unwrap_or_default()
    }

    /// Sets the memory charge, replacing the one that was taken.
    pub fn put_charge(&mut self, charge: MemoryCharge) {
        self.charge = Some(Arc::new(charge));
    }

    /// Returns the memory charge; hold it as long as any value taken from the fields.
    pub fn charge(&self) -> Option<Arc<MemoryCharge>> {
        self.charge.clone()
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Returns a 400 error whose message begins with the full name of `field`.
    pub fn error(&self, field: &str, message: impl AsRef<str>) -> ApiError {
        let name = self.name(field);
        let message = format!("'{name}' {}", message.as_ref());
        ApiError::invalid_param(name, message)
    }

    fn wrong_type(&self, field: &str, wanted: &str, found: &Value) -> ApiError {
        self.error(field, format!("must be {wanted}, not {}.", kind_of(found)))
    }

    /// Takes `field`; `null` counts as absent.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !value.is_null())
    }

    /// Takes a boolean.
    ///
    /// # Errors
    /// A 400 that names the field, if it is not a boolean.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(field, "true or false", &other)),
        }
    }

    /// Takes a number within `range`.
    ///
    /// # Errors
    /// A 400 that names the field, if it is not a number or is outside `range`.
    pub fn number(
        &mut self,
        field: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        self.ranged(field, "a number", range, Value::as_f64)
    }

    /// Takes an integer within `range`.
    ///
    /// # Errors
    /// A 400 that names the field, if it is not a whole number or is outside `range`.
    pub fn integer(
        &mut self,
        field: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        self.ranged(field, "a whole number", range, Value::as_i64)
    }

    fn ranged<T: PartialOrd + Display>(
        &mut self,
        field: &str,
        wanted: &str,
        range: RangeInclusive<T>,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let Some(number) = read(&value) else {
            return Err(self.wrong_type(field, wanted, &value));
        };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        let bounds = format!("must be between {} and {}", range.start(), range.end());
        Err(self.error(field, format!("{bounds}, not {number}.")))
    }

    /// Takes a string.
    ///
    /// # Errors
    /// A 400 that names the field, if it is not a string.
    pub fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(field, "a string", &other)),
        }
    }

    /// Takes an array.
    ///
    /// # Errors
    /// A 400 that names the field, if it is not an array.
    pub fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(field, "an array", &other)),
        }
    }

    /// Takes a nested object, whose errors name `field.inner`.
    ///
    /// # Errors
    /// A 400 that names the field, if it is not an object.
    pub fn object(&mut self, field: &str) -> Result<Option<Self>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => self.nested(field, value).map(Some),
        }
    }

    /// Reads the object `value`, whose errors name `field.inner`.
    ///
    /// # Errors
    /// A 400 that names the field, if `value` is not an object.
    pub fn nested(&self, field: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => {
                let keeps_images = self.keeps_images;
                Ok(Self { keeps_images, ..Self::of(map, format!("{}.", self.name(field))) })
            }
            other => Err(self.wrong_type(field, "an object", &other)),
        }
    }

    /// Returns the fields that were not taken.
    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// Returns the fields that have not been taken yet.
    pub fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// Adds the untaken fields of `inner`, a nested object, to the ignored ones. Empty values are
    /// skipped: clients send messages back with all the members that they received.
    pub fn ignore_rest(&mut self, inner: Self) {
        let Self { map, path, ignored, .. } = inner;
        let asks = |value: &Value| match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        };
        let left = map.into_iter().filter(|(_, value)| asks(value));
        let names = ignored.into_iter().chain(left.map(|(name, _)| format!("{path}{name}")));
        self.ignore(names);
    }

    /// Returns the full names of the fields that were not taken, here and in nested objects.
    pub fn rest(self) -> Vec<String> {
        let Self { map, path, ignored, .. } = self;
        map.into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, _)| format!("{path}{name}"))
            .chain(ignored)
            .collect()
    }
}

fn not_json(error: &JsonError) -> ApiError {
    ApiError::invalid(format!("The request body is not valid JSON: {error}."))
}

/// Returns the type of a JSON value in words, for error messages.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
