//! One request, for whichever transport.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use loquent_proto::headers::REPEAT_HEADER;

/// One request, for whichever transport.
#[derive(Debug, Clone)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// Path and query; begins with `/`.
    pub path: String,
    /// Headers, those of one connection left out (see [`loquent_openai::headers::end_to_end`]).
    pub headers: HeaderMap,
    /// Key instead of the client's own.
    pub key: Option<String>,
    /// Body.
    pub body: Bytes,
}

impl Request {
    /// A request with a JSON body, or none.
    pub fn new(method: Method, path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        let (body, mut headers) = (body.into(), HeaderMap::new());
        if !body.is_empty() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        Request { method, path: path.into(), headers, key: None, body }
    }

    /// The same with a key of its own, unless its owner gave it one.
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
