//! A plain HTTP response, over HTTP itself or through the tunnel of a QUIC connection
//! (`spec/session.md`, section 3).

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use loquent_openai::headers::end_to_end;
use loquent_openai::http::{HttpResponse, refusal_of};

use crate::ClientError;
use crate::known_servers::Transport;
use crate::message::{MessageKind, ResponseHead};
use crate::quic_connection::{MessageStream, Tunnel};

/// A response whose head has arrived.
pub struct Reply {
    /// HTTP status code.
    pub status: u16,
    /// Headers of the response, without connection-specific ones (RFC 9110 §7.6.1).
    pub headers: HeaderMap,
    body: Body,
}

enum Body {
    Http(Box<HttpResponse>),
    Quic(Box<MessageStream>, Tunnel),
}

impl Reply {
    pub(crate) fn by_http(response: HttpResponse) -> Reply {
        let headers = end_to_end(response.headers());
        Reply { status: response.status().as_u16(), headers, body: Body::Http(Box::new(response)) }
    }

    pub(crate) fn by_quic(head: &ResponseHead, stream: MessageStream, tunnel: Tunnel) -> Reply {
        let headers = end_to_end(&header_map(&head.headers));
        Reply { status: head.status, headers, body: Body::Quic(Box::new(stream), tunnel) }
    }

    /// Returns the transport that the response came over.
    pub fn transport(&self) -> Transport {
        match self.body {
            Body::Http(_) => Transport::Http,
            Body::Quic(..) => Transport::Quic,
        }
    }

    /// Returns the underlying response, if it came over HTTP.
    pub fn into_http(self) -> Option<HttpResponse> {
        match self.body {
            Body::Http(response) => Some(*response),
            Body::Quic(..) => None,
        }
    }

    /// Returns the next piece of the body, or `None` at its end.
    ///
    /// # Errors
    /// A body that breaks off (S-3.2).
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        let stream = match &mut self.body {
            Body::Http(response) => return Ok(response.body_mut().piece().await?),
            Body::Quic(stream, _tunnel) => stream,
        };
        match stream.incoming.next().await? {
            None => Ok(None),
            Some(message) if message.kind == MessageKind::Body => Ok(Some(message.payload)),
            Some(message) => {
                stream.refuse();
                Err(ClientError::Malformed(format!("{:?} within a response", message.kind)))
            }
        }
    }

    /// Returns the rest of the body, up to `limit_bytes`.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`], or a body that breaks off.
    pub async fn read_all(&mut self, limit_bytes: usize) -> Result<Bytes, ClientError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > limit_bytes {
                return Err(ClientError::TooLarge { what: "an answer", limit_bytes });
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// Converts a response with a status other than 200 to the error that it stands for.
    pub async fn into_refusal(mut self) -> ClientError {
        let body = self.read_all(64 * 1024).await.unwrap_or_default();
        refusal_of(self.status, &self.headers, &body).into()
    }
}

/// Builds headers from an object of strings; skips members that are not valid headers.
pub(crate) fn header_map(object: &std::collections::BTreeMap<String, String>) -> HeaderMap {
    let parse = |(name, value): (&String, &String)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    };
    object.iter().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_header_is_left_out() {
        let object = [("a b", "1"), ("ok", "x\ny"), ("fine", "z")];
        let object = object.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(header_map(&object.into()).len(), 1);
    }
}
