//! The head of a request over QUIC: the JSON of a REQUEST message (S-2.2, S-2.3).

use axum::body::Body;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request as HttpRequest, Uri, header};
use loquent_proto::wire::MAX_INT;
use serde_json::{Map, Value};

use loquent_serving::api::json;
use loquent_serving::api::request::Endpoint;
use loquent_serving::body::{ReceivedBody, TunnelledBody};
use loquent_serving::error::ApiError;
use loquent_serving::request_log::RequestId;

/// Maximum number of values in a request's head, which allows as many headers as HTTP/1.1 requests
/// may have here.
const MAX_HEAD_VALUES: usize = 512;

/// JSON of a REQUEST message, as the head of an HTTP request.
#[derive(Debug)]
pub(crate) struct RequestHead {
    /// The HTTP method.
    pub method: Method,
    /// Path and query.
    pub path: PathAndQuery,
    /// Headers, including the member `key` as `authorization`.
    pub headers: HeaderMap,
    /// Channel for the answer's log; `None` for an HTTP request.
    pub channel: Option<u64>,
    /// Id of the request in the log.
    pub id: RequestId,
}

impl RequestHead {
    /// Parses the payload of a REQUEST message; `None` if it is invalid. Unknown members are
    /// ignored.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let json = std::str::from_utf8(json).ok()?;
        let Value::Object(mut head) = json::parse(json, MAX_HEAD_VALUES).ok()? else {
            return None;
        };
        let mut text = |name: &str| match head.remove(name) {
            None | Some(Value::Null) => Some(None),
            Some(Value::String(text)) => Some(Some(text)),
            Some(_) => None,
        };
        let (key, method, path) = (text("key")?, text("method")??, text("path")??);
        let mut headers = match head.remove("headers") {
            None | Some(Value::Null) => HeaderMap::new(),
            Some(Value::Object(headers)) => header_map(headers)?,
            Some(_) => return None,
        };
        let channel = match head.remove("channel") {
            None | Some(Value::Null) => None,
            Some(number) => Some(number.as_u64().filter(|number| *number <= MAX_INT)?),
        };
        if let Some(key) = key {
            // An invalid key becomes an empty one, which the check refuses.
            let bearer = HeaderValue::try_from(format!("Bearer {key}"));
            let bearer = bearer.unwrap_or(HeaderValue::from_static(""));
            headers.insert(header::AUTHORIZATION, bearer);
        }
        let path = path.starts_with('/').then(|| path.parse().ok())??;
        let id = RequestId::of(&headers);
        Some(Self { method: method.parse().ok()?, path, headers, channel, id })
    }

    /// Returns the effective credential: `key`, or without it the header.
    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.headers.get(header::AUTHORIZATION)
    }

    /// Returns the endpoint of a request for an answer by datagram.
    ///
    /// # Errors
    /// 404 for a path without such answers.
    pub(crate) fn endpoint(&self) -> Result<Endpoint, ApiError> {
        match (&self.method, self.path.path()) {
            (&Method::POST, "/v1/chat/completions") => Ok(Endpoint::Chat),
            (&Method::POST, "/v1/completions") => Ok(Endpoint::Text),
            (method, path) => {
                let known = "Answers by datagram are given by POST /v1/chat/completions and \
                             /v1/completions.";
                Err(ApiError::not_found(method, path, known))
            }
        }
    }

    /// Builds the HTTP request with this head.
    pub(crate) fn http(self, body: ReceivedBody) -> HttpRequest<Body> {
        let mut request = HttpRequest::new(Body::empty());
        request.extensions_mut().insert(TunnelledBody::new(body));
        request.extensions_mut().insert(self.id);
        *request.method_mut() = self.method;
        *request.uri_mut() = Uri::from(self.path);
        *request.headers_mut() = self.headers;
        request
    }
}

/// Converts an object of strings to headers; `None` if one of its members is not a valid header.
fn header_map(members: Map<String, Value>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(members.len());
    for (name, value) in members {
        let Value::String(value) = value else { return None };
        headers.append(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats a head as in `spec/vectors/messages.json`.
    fn shown(head: &RequestHead) -> Value {
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let headers = head.headers.iter().filter(|(name, _)| *name != header::AUTHORIZATION);
        let headers = headers.map(|(name, value)| (name.to_string(), text(value).into()));
        serde_json::json!({
            "authorization": head.authorization().map(text),
            "method": head.method.as_str(),
            "path": head.path.as_str(),
            "headers": headers.collect::<Map<String, Value>>(),
            "channel": head.channel,
        })
    }

    #[test]
    fn heads_are_read_as_the_vectors_say() {
        let file = include_str!("../../../../spec/vectors/messages.json");
        let file: Value = serde_json::from_str(file).unwrap();
        let cases = file["cases"].as_array().unwrap().iter();
        let mut replayed = 0;
        for case in cases.filter(|case| case["head"] == "REQUEST") {
            let head = RequestHead::parse(case["json"].as_str().unwrap().as_bytes());
            let expected = case.get("value").cloned();
            assert_eq!(head.as_ref().map(shown), expected, "{case}");
            assert_eq!(expected.is_none(), case["error"] == "Head", "{case}");
            replayed += 1;
        }
        assert!(replayed > 20, "{replayed} cases");
    }
}
