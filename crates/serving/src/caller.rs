//! The sender of a request, and what its identity and headers change of the request.

use http::HeaderValue;
use http::request::Parts;

use crate::api::fields::Fields;
use crate::api::request::{Endpoint, Request};
use crate::error::ApiError;
use crate::identity::Identity;
use crate::request_log::RequestId;
use crate::serving_config::ServingConfig;
use crate::trace_context::TraceParent;
use loquent_openai::headers::authorization;

/// Sender of a request, with the relevant headers.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Identity of the sender; by default this process itself.
    pub identity: Identity,
    /// The `Authorization` header, for an upstream server.
    pub authorization: Option<HeaderValue>,
    /// The caller's trace context.
    pub trace_parent: Option<TraceParent>,
    /// Id of the request in the log.
    pub request_id: Option<RequestId>,
}

impl Caller {
    /// Extracts the caller from the head of an authorized request.
    pub fn of(head: &Parts) -> Self {
        Self {
            identity: head.extensions.get().cloned().unwrap_or_default(),
            authorization: authorization(&head.headers),
            trace_parent: TraceParent::from_headers(&head.headers),
            request_id: head.extensions.get().cloned(),
        }
    }
}

/// Parses a request's JSON for an engine, whose model may still have to be loaded.
///
/// # Errors
/// 400 with the name of the first invalid parameter.
pub fn read_for_engine(
    endpoint: Endpoint,
    fields: Fields,
    caller: Caller,
    config: &ServingConfig,
) -> Result<Request, ApiError> {
    let mut request = Request::read(endpoint, fields)?;
    request.sampling.seed = request.sampling.seed.or(config.seed);
    Ok(of_caller(request, caller, config))
}

/// Applies the rights and headers of `caller` to `request`.
pub fn of_caller(mut request: Request, caller: Caller, config: &ServingConfig) -> Request {
    let Caller { identity, trace_parent, request_id: id, .. } = caller;
    if let Some(stream) = request.stream.as_mut().filter(|_| config.force_usage) {
        stream.include_usage = true;
    }
    if !identity.may_set_priority() {
        request.ignore_priority(identity.key.is_some());
    }
    Request { trace_parent, id, identity, ..request }
}
