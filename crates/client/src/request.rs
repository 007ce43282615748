//! One request, independent of the transport.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use loquent_proto::headers::REPEAT_HEADER;

/// One request, independent of the transport.
#[derive(Debug, Clone)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Path and query, starting with `/`.
    pub path: String,
    /// Headers, without connection-specific ones (see [`loquent_openai::headers::end_to_end`]).
    pub headers: HeaderMap,
    /// Key to use instead of the client's own.
    pub key: Option<String>,
    /// Body of the request.
    pub body: Bytes,
}

impl Request {
    /// Creates a request with a JSON body, or none.
    pub fn new(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        let (body, mut headers) = (body.into(), HeaderMap::new());
        if !body.is_empty() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        Request { method, path: path.into(), headers, key: None, body }
    }

    /// Returns the request with a random repeat key, unless the caller set one.
    pub(crate) fn repeatable(&self) -> Request {
        let mut request = self.clone();
        let random: u128 = rand::random();
        request.headers.entry(REPEAT_HEADER).or_insert_with(|| {
            HeaderValue::try_from(format!("{random:032x}")).expect("hex digits")
        });
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_question_gets_a_key_unless_it_has_one() {
        let question = Request::new(Method::POST, "/", "{}");
        let (one, two) = (question.repeatable(), question.repeatable());
        assert_ne!(one.headers[REPEAT_HEADER], two.headers[REPEAT_HEADER]);
        assert_eq!(one.headers[REPEAT_HEADER].len(), 32);
        assert_eq!(one.repeatable().headers, one.headers);
    }
}
