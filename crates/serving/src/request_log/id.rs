//! Id of a request: in the headers of its response, in this log, and in the log of a proxy before
//! this server that assigned it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// Header with the id of a request or response, as used by most proxies and OpenAI.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Longest accepted id of a client, in bytes.
const MAX_BYTES: usize = 128;

/// A request's id, and a flag that is set once an answer exists and will write the log line.
#[derive(Debug, Clone)]
pub struct RequestId(Arc<NamedRequest>);

#[derive(Debug)]
struct NamedRequest {
    id: Box<str>,
    has_answer: AtomicBool,
}

impl RequestId {
    /// Returns the id in the request's `headers`, or a random one.
    pub fn of(headers: &HeaderMap) -> Self {
        let theirs = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok());
        let id = match theirs.filter(|id| is_acceptable(id)) {
            Some(theirs) => theirs.into(),
            None => format!("req_{:016x}", rand::random::<u64>()).into(),
        };
        Self(Arc::new(NamedRequest { id, has_answer: AtomicBool::new(false) }))
    }

    /// Returns the id: ASCII without spaces, quotes or control characters.
    pub fn as_str(&self) -> &str {
        &self.0.id
    }

    /// Returns the id as a header value.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(self.as_str()).expect("visible ASCII is a header value")
    }

    /// Records that an answer to the request has begun, which is logged when it ends.
    pub fn note_answer(&self) {
        self.0.has_answer.store(true, Ordering::Relaxed);
    }

    /// Returns true if an answer to the request has begun.
    pub fn has_answer(&self) -> bool {
        self.0.has_answer.load(Ordering::Relaxed)
    }
}

/// Returns true if a client's id can be logged verbatim, whatever reads that log.
fn is_acceptable(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    (1..=MAX_BYTES).contains(&id.len()) && id.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &'static str) -> String {
        let headers = HeaderMap::from_iter([(REQUEST_ID_HEADER, HeaderValue::from_static(value))]);
        RequestId::of(&headers).as_str().to_owned()
    }

    #[test]
    fn a_proxys_id_is_kept_and_others_are_random() {
        assert_eq!(of("7f3a-11_b.c:d/e+f=@"), "7f3a-11_b.c:d/e+f=@");
        let fresh = RequestId::of(&HeaderMap::new());
        assert!(fresh.as_str().starts_with("req_") && fresh.as_str().len() == 20);
        assert_ne!(fresh.as_str(), RequestId::of(&HeaderMap::new()).as_str());
        assert_eq!(fresh.header(), fresh.as_str());
    }

    #[test]
    fn an_id_cannot_forge_a_line() {
        for hostile in ["", "a b", "a\"b", "a\tb", "a;b", "end=stop,", "{}"] {
            assert!(of(hostile).starts_with("req_"), "{hostile:?}");
        }
        let long = "x".repeat(MAX_BYTES + 1);
        let headers =
            HeaderMap::from_iter([(REQUEST_ID_HEADER, HeaderValue::from_str(&long).unwrap())]);
        assert!(RequestId::of(&headers).as_str().starts_with("req_"));
    }
}
