//! Parsing of a body to a valid request: the same for HTTP and QUIC.

use http::HeaderValue;
use serde_json::Value;

use crate::app::App;
use crate::models::ModelEntry;
use loquent_resumable::idempotency::IdempotentRequest;
use loquent_resumable::shared::kept_request::{
    ReplayAsker, ReplayInputs, ReplayMetadata, ReplayableBody,
};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::api::stored_chat::ChatToStore;
use loquent_serving::body::ReceivedBody;
use loquent_serving::caller::Caller;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;

/// Data from a request's head that is needed to parse its body.
pub struct Intake {
    /// Endpoint of the request.
    pub endpoint: Endpoint,
    /// Sender of the request.
    pub caller: Caller,
    /// Authorization of the request.
    pub key: Option<HeaderValue>,
    /// True for an answer by datagram, which is always a stream.
    pub is_ask: bool,
}

/// A parsed request.
pub struct ParsedRequest {
    /// The request itself.
    pub request: Request,
    /// Idempotency key, if any, or the error if it is invalid.
    pub idempotent: Result<Option<IdempotentRequest>, ApiError>,
}

impl Intake {
    /// Parses `body`, whose request has the idempotency key `again`.
    ///
    /// # Errors
    /// 400 with the name of the first invalid parameter; 503 while the model loads, or when there
    /// is no memory for the body.
    pub async fn parse(
        self,
        app: &App,
        body: ReceivedBody,
        again: Option<&HeaderValue>,
    ) -> Result<ParsedRequest, ApiError> {
        let Self { endpoint, caller, key, is_ask } = self;
        let (models, keys) = (app.models.clone(), app.resumable.idempotency.clone());
        let (again, shares) = (again.cloned(), app.resumable.is_shared());
        let read = move |mut fields: Fields| {
            if is_ask {
                fields.set_streaming();
            }
            let asker = asker_of(&caller.identity, key.as_ref());
            let idempotent = keys.idempotent(Some(&asker), again.as_ref(), endpoint, fields.map());
            let store = match endpoint {
                Endpoint::Chat => ChatToStore::take(&mut fields)?,
                Endpoint::Text => None,
            };
            let served = models.find_for(&mut fields)?;
            let is_resumable = is_ask || fields.map().get("resumable") == Some(&Value::Bool(true));
            // An upstream has no seed.
            let is_ours = served.constant().is_none_or(|service| service.upstream().is_none());
            let keeps = shares && is_resumable && is_ours;
            let asked = keeps.then(|| ReplayableBody::of(endpoint, fields.map())).flatten();
            let mut request = served.parse(endpoint, fields, caller)?;
            request.store = store;
            if let Some(asked) = asked {
                request.kept = asked.encode(&marks(&mut request, served));
            }
            Ok(ParsedRequest { request, idempotent })
        };
        body.parse(read).await
    }
}

/// Returns the owner of idempotency keys of `identity`: its tenant, and the reader of a browser
/// token or, on a server without keys, what the client sends as its `key`. An owner's next key or
/// token is another text and the same owner.
fn asker_of(identity: &Identity, key: Option<&HeaderValue>) -> Vec<u8> {
    let tenant = identity.tenant.0.to_le_bytes();
    let of_tenant: &[u8] = match identity.token_salt() {
        Some(reader) => reader.as_bytes(),
        None if identity.key.is_some() => &[],
        None => key.map_or(&[][..], HeaderValue::as_bytes),
    };
    [&tenant[..], of_tenant].concat()
}

/// Returns all that determines the answer to `request`. Sets its seed and call ids at random if the
/// request leaves them open.
pub fn marks(request: &mut Request, served: &ModelEntry) -> ReplayInputs {
    let owner = request.identity.owner();
    let asker = ReplayAsker {
        owner,
        tenant: request.identity.tenant.0,
        token_salt: request.identity.token_salt().map(str::to_owned),
    };
    let asked_at_s = unix_time_s();
    request.date_prompts(asked_at_s);
    // Another replica may have other flags, and this model may be loaded with others.
    let sampling = request.sampling.resolve(&served.sampling_defaults().unwrap_or_default());
    request.sampling.stated = sampling.into();
    let metadata = request.store.as_ref().map(|chat| chat.metadata().clone());
    ReplayInputs {
        model: served.name().to_owned(),
        sampling,
        seed: *request.sampling.seed.get_or_insert_with(rand::random),
        call_ids: *request.call_ids.get_or_insert_with(rand::random),
        asked_at_s,
        trace_parent: request.trace_parent.clone(),
        stored: metadata.map(|metadata| ReplayMetadata { owner, metadata }),
        asker,
        answered_by: served.answers_by(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loquent_serving::identity::ApiKey;
    use loquent_serving::identity::token::TokenScope;

    #[test]
    fn idempotency_keys_belong_to_a_client() {
        let address = |text: &str| asker_of(&Identity::of_address(text.parse().unwrap()), None);
        assert_eq!(address("10.0.0.1"), address("10.0.0.1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"), "whoever repeats another's question");
        let bearer = HeaderValue::from_static("Bearer k");
        let key = |text| asker_of(&Identity::of_key(ApiKey::unnamed(text).into()), Some(&bearer));
        assert_ne!(key("a"), key("b"));
        let subject = |name: &str, text: &'static str| {
            let owner = ApiKey { name: Some(name.into()), ..ApiKey::unnamed("") };
            asker_of(&Identity::of_key(owner.into()), Some(&HeaderValue::from_static(text)))
        };
        let ann = subject("jwt:ann", "Bearer eyJ1");
        assert_eq!(
            ann,
            subject("jwt:ann", "Bearer eyJ2"),
            "a refreshed token of an identity provider"
        );
        assert_ne!(ann, subject("jwt:bob", "Bearer eyJ1"));
        let token = |reader: &str, text: &'static str| {
            let scope = TokenScope { cache_salt: reader.into() };
            let identity = Identity::of_token(&ApiKey::unnamed("a"), scope);
            asker_of(&identity, Some(&HeaderValue::from_static(text)))
        };
        assert_eq!(token("ann", "Bearer lqt_1"), token("ann", "Bearer lqt_2"));
        assert_ne!(token("ann", "Bearer lqt_1"), token("bob", "Bearer lqt_1"));
    }
}
