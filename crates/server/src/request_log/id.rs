//! The id of a request: in its response's headers, in the log, and in a proxy's log before this
//! server where that proxy gave it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that names a request, in both directions, as most proxies and OpenAI have it.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that is taken from a client, in bytes.
const MAX_BYTES: usize = 128;

/// A request's id, and whether the request has an answer, which then writes its line.
#[derive(Debug, Clone)]
pub struct RequestId(Arc<NamedRequest>);

#[derive(Debug)]
struct NamedRequest {
    id: Box<str>,
    has_answer: AtomicBool,
}

impl RequestId {
    /// The id that the request's `headers` name, or a random one.
    pub fn of(headers: &HeaderMap) -> Self {
        let theirs = headers.get(REQUEST_ID_HEADER).and_then(|value| value.to_str().ok());
        let id = match theirs.filter(|id| is_acceptable(id)) {
            Some(theirs) => theirs.into(),
            None => format!("req_{:016x}", rand::random::<u64>()).into(),
        };
        Self(Arc::new(NamedRequest { id, has_answer: AtomicBool::new(false) }))
    }

    /// The id itself: ASCII without spaces, quotes or control characters.
    pub fn as_str(&self) -> &str {
        &self.0.id
    }

    /// The id as a header's value.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(self.as_str()).expect("visible ASCII is a header value")
    }

    /// An answer to the request has begun, and is logged when it ends.
    pub fn note_answer(&self) {
        self.0.has_answer.store(true, Ordering::Relaxed);
    }

    /// Whether an answer to the request has begun.
    pub fn has_answer(&self) -> bool {
        self.0.has_answer.load(Ordering::Relaxed)
    }
}

/// Whether a client's id can stand in a log as it is, whatever reads that log.
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
