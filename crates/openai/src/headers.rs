//! Headers that a proxy passes on, those not specific to a single connection; and those with keys.

use http::{HeaderMap, HeaderValue, header};
use loquent_proto::headers::HOP_BY_HOP;

/// Headers that carry API keys or billing accounts, besides `Authorization`.
pub const CREDENTIALS: [&str; 5] =
    ["api-key", "openai-organization", "openai-project", "x-api-key", "x-goog-api-key"];

/// Returns the headers that are not specific to a single connection (RFC 9110, section 7.6.1):
/// drops the known hop-by-hop headers and those that `Connection` names.
pub fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    // As bytes: one that is no text must not hide the names beside it.
    let named = headers.get_all("connection").iter();
    let named: Vec<String> = named
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|name| String::from_utf8_lossy(name).trim().to_lowercase())
        .collect();
    let kept = headers.iter().filter(|(name, _)| {
        !HOP_BY_HOP.contains(&name.as_str()) && !named.iter().any(|other| other == name.as_str())
    });
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns a request's credential in the form that OpenAI's clients use. Anthropic's clients send
/// the key in `x-api-key`.
pub fn authorization(headers: &HeaderMap) -> Option<HeaderValue> {
    let own = headers.get(header::AUTHORIZATION).cloned();
    own.or_else(|| {
        let bearer = [b"Bearer ", headers.get("x-api-key")?.as_bytes()].concat();
        let mut bearer = HeaderValue::from_bytes(&bearer).ok()?;
        bearer.set_sensitive(true);
        Some(bearer)
    })
}

/// Returns the credential of the `Bearer` scheme, whose name is case-insensitive (RFC 9110, section
/// 11.1).
pub fn bearer(header: &[u8]) -> Option<&[u8]> {
    let at = header.iter().position(|&byte| byte == b' ')?;
    let (scheme, key) = header.split_at(at);
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_stay_with_it() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("x-mine", "1"), ("transfer-encoding", "chunked"), ("retry-after", "3")]
        {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let no_text = HeaderValue::from_bytes(b"close, X-Mine, \xff").unwrap();
        headers.insert("connection", no_text);
        let kept = end_to_end(&headers);
        assert_eq!((kept.len(), &kept["retry-after"]), (1, &HeaderValue::from_static("3")));
    }
}
