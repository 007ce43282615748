//! The route of llama-server's `/infill`, and the answers that its `/completion` has too.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::Request as HttpRequest;
use serde_json::Value;

use crate::app::App;
use crate::routes::generation::{Parsed, parse};
use crate::sse::{event_stream, with_ignored};
use loquent_dialects::infill::events::InfillEvents;
use loquent_dialects::infill::object::{ShownRequest, whole};
use loquent_dialects::infill::parameters::NativeRequest;
use loquent_dialects::infill::request::lower;
use loquent_dialects::infill::settings::generation_settings;
use loquent_dialects::lowered::Lowered;
use loquent_serving::api::fields::Fields;
use loquent_serving::api::logprobs::LogprobsFormat;
use loquent_serving::error::ApiError;

/// The route, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/infill", post(infill))
}

async fn infill(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<Response, ApiError> {
    complete(&app, request, lower).await
}

/// Answers a completion in llama-server's own form, which `lower` translates.
///
/// # Errors
/// Those of [`parse`], of [`Parsed::start`] and of the answer; 400 for a stream of several
/// completions.
pub async fn complete(
    app: &Arc<App>,
    request: HttpRequest<Body>,
    lower: fn(Fields) -> Result<Lowered<NativeRequest>, ApiError>,
) -> Result<Response, ApiError> {
    app.models.check_room()?;
    let mut parsed = parse(app, request, lower).await?;
    let shown = adopt(app, &mut parsed)?;
    let mut generation = parsed.start(app).await?;
    generation.logprobs = Some(LogprobsFormat::LlamaServer);
    let ignored = generation.ignored.clone();
    let response = match generation.streams {
        true => {
            let events = InfillEvents::new(shown, app.clock, generation.arrived);
            event_stream(generation.stream(app, events))
        }
        false => {
            let vocab = generation.vocab();
            generation.full(app, move |answer, _| whole(answer, &*vocab, &shown)).await?
        }
    };
    Ok(with_ignored(response, &ignored))
}

/// Sets what a completion's fields have no place for; returns what the answer shows of its request.
fn adopt(app: &App, parsed: &mut Parsed<NativeRequest>) -> Result<ShownRequest, ApiError> {
    let (request, mut native) = (&mut parsed.request, std::mem::take(&mut parsed.kept));
    let max_tokens = request.max_tokens.unwrap_or(u32::MAX);
    if request.forward.is_some() {
        check_upstream(&native)?;
        return Ok(ShownRequest { native, settings: Value::Null, max_tokens });
    }
    if request.stream.is_some() && request.choices() > 1 {
        let message = "'stream' needs one prompt and one completion here; /v1/completions streams \
                       several.";
        return Err(ApiError::invalid_param("stream", message));
    }
    if native.only_prompt {
        // As a repeated prompt without a token behind it, which is not repeated here.
        (request.max_tokens, request.echo) = (Some(0), true);
    }
    // Keeping ids costs a little per token: whole answers do it only when asked.
    request.token_ids = native.return_tokens || request.stream.is_some();
    request.sampling.text_bias = std::mem::take(&mut native.text_bias);
    // Drawn here, so that the answer can name it.
    request.sampling.seed.get_or_insert_with(|| rand::random::<u32>().into());
    // Of a model that is still to be loaded, the end tokens are not known yet.
    let entry = app.models.find(request.model.as_deref())?;
    let defaults = entry.sampling_defaults().unwrap_or_default();
    let service = entry.service();
    let end_tokens = service.as_ref().map_or(&[][..], |service| &service.model().end_tokens);
    let settings = generation_settings(request, &native, &defaults, end_tokens);
    Ok(ShownRequest { native, settings, max_tokens: request.max_tokens.unwrap_or(u32::MAX) })
}

/// Checks that an upstream server's completions have what the request asks for.
fn check_upstream(native: &NativeRequest) -> Result<(), ApiError> {
    let missing = [
        ("n_probs", native.probabilities > 0),
        ("return_tokens", native.return_tokens),
        ("logit_bias", !native.text_bias.is_empty()),
        ("n_predict", native.only_prompt),
    ];
    match missing.iter().find(|(_, is_asked)| *is_asked) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!(
                "'{name}': an upstream server answers, whose tokens are unknown here. Use \
                 /v1/completions."
            );
            Err(ApiError::invalid_param(*name, message))
        }
    }
}
