//! From a body to a valid request: the same for HTTP and QUIC.

use http::HeaderValue;

use crate::api::fields::Fields;
use crate::api::request::{Endpoint, Request};
use crate::app::App;
use crate::body::ReceivedBody;
use crate::dialect::stored_chats::request::ChatToStore;
use crate::error::ApiError;
use crate::resumable::idempotency::IdempotentRequest;
use crate::service::Caller;

/// What a request's head says of its body.
pub struct Intake {
    /// The endpoint that it was sent to.
    pub endpoint: Endpoint,
    /// Who sends it.
    pub caller: Caller,
    /// The authorization that came with it.
    pub key: Option<HeaderValue>,
    /// It asks for an answer by datagram, which is always a stream.
    pub is_ask: bool,
}

/// A request as parsed.
pub struct ParsedRequest {
    /// The request itself.
    pub request: Request,
    /// Its idempotency key, if it has one, or why that is invalid.
    pub idempotent: Result<Option<IdempotentRequest>, ApiError>,
}

impl Intake {
    /// Parses `body`, whose request came with the idempotency key `again`.
    ///
    /// # Errors
    /// 400 with the name of the first parameter that is wrong; 503 while the model loads, or when
    /// there is no memory for the body.
    pub async fn parse(
        self,
        app: &App,
        body: ReceivedBody,
        again: Option<&HeaderValue>,
    ) -> Result<ParsedRequest, ApiError> {
        let Self { endpoint, caller, key, is_ask } = self;
        let (service, keys) = (app.service()?.clone(), app.resumable.idempotency.clone());
        let again = again.cloned();
        let read = move |mut fields: Fields| {
            if is_ask {
                fields.set_streaming();
            }
            // A reader's next token is another text and the same reader.
            let reader = caller.identity.token_salt().map(str::as_bytes);
            let asker = reader.or(key.as_ref().map(HeaderValue::as_bytes));
            let idempotent = keys.idempotent(asker, again.as_ref(), endpoint, fields.map());
            let store = match endpoint {
                Endpoint::Chat => ChatToStore::take(&mut fields)?,
                Endpoint::Text => None,
            };
            let mut request = service.parse(endpoint, fields, caller)?;
            request.store = store;
            Ok(ParsedRequest { request, idempotent })
        };
        body.parse(read).await
    }
}
