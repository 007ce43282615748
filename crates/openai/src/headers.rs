//! Headers that a proxy passes on: those not specific to a single connection.

use http::HeaderMap;
use loquent_proto::headers::HOP_BY_HOP;

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

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
