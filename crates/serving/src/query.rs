//! Query strings of URLs. The values used here, ids, hex digits and numbers, need no escapes.

use http::Uri;

use crate::error::{ApiError, quoted};

/// A URL's query.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a>(&'a str);

/// Returns the value of the first field `name` of the query of `uri`, with its escapes decoded.
pub fn decoded_text(uri: &Uri, name: &str) -> Option<String> {
    let mut fields = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    fields.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

impl<'a> Query<'a> {
    /// Returns the query of `uri`.
    pub fn of(uri: &'a Uri) -> Self {
        Self(uri.query().unwrap_or_default())
    }

    /// Returns the value of the first field `name`, unescaped.
    pub fn text(self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.split('&').filter_map(|field| field.split_once('='));
        fields.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Parses the field `name` as a boolean; `None` if it is absent.
    ///
    /// # Errors
    /// 400 if it is neither true nor false.
    pub fn switch(self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.text(name) {
            None => Ok(None),
            Some("true" | "True" | "1") => Ok(Some(true)),
            Some("false" | "False" | "0") => Ok(Some(false)),
            Some(other) => Err(wrong(name, "must be true or false", other)),
        }
    }

    /// Parses the field `name` as a number; `None` if it is absent.
    ///
    /// # Errors
    /// 400 if it is not a number.
    pub fn number(self, name: &str) -> Result<Option<u64>, ApiError> {
        let parse = |text: &str| text.parse().map_err(|_| wrong(name, "must be a number", text));
        self.text(name).map(parse).transpose()
    }
}

/// Returns a 400: the field `name` has an invalid value, `found`.
pub fn wrong(name: &str, must: &str, found: &str) -> ApiError {
    ApiError::invalid_param(name, format!("'{name}' {must}, not '{}'.", quoted(found)))
}
