//! From a valid request to an answer under way, with what its response says beside it.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::HeaderValue;
use loquent_proto::headers::IGNORED_HEADER;

use crate::answering::Answering;
use crate::api::request::{Prompt, Request};
use crate::error::ApiError;
use crate::service::Service;

/// A request that was admitted.
pub struct Asked {
    /// Its answer.
    pub answering: Answering,
    /// The prompts, where they are to be repeated.
    pub echo: Vec<String>,
    /// Names of parameters that have no effect, where that is worth a warning.
    pub unknown: String,
}

/// Starts to answer `request`, which arrived at `arrived` on the server's clock.
///
/// # Errors
/// Those of [`Service::answer`].
pub async fn ask(
    service: &Arc<Service>,
    request: Request,
    arrived: Duration,
) -> Result<Asked, ApiError> {
    let unknown = request.unknown().collect::<Vec<_>>().join(", ");
    let echo = request.echo.then(|| request.prompts.clone());
    let answering = service.answer(request, arrived).await?;
    let echo = echo.map(|prompts| echo_texts(service, &prompts)).unwrap_or_default();
    Ok(Asked { answering, echo, unknown })
}

fn echo_texts(service: &Service, prompts: &[Prompt]) -> Vec<String> {
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => service.model.decode(tokens),
        Prompt::Chat(_) => String::new(),
    };
    prompts.iter().map(text).collect()
}

/// Names the parameters that had no effect.
pub fn with_unknown(mut response: Response, unknown: &str) -> Response {
    if let Ok(unknown) = HeaderValue::from_str(unknown)
        && !unknown.is_empty()
    {
        response.headers_mut().insert(IGNORED_HEADER, unknown);
    }
    response
}
