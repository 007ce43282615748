//! Parses a request for an upstream server: this server's own parameters are removed, and the rest
//! is left for the upstream to interpret.

use http::HeaderValue;
use serde_json::{Map, Value};

use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::{Endpoint, Forward, Request, StreamParams, parse_interval};
use loquent_serving::error::ApiError;

/// Maximum number of completions of one request; the upstream may have a lower limit.
const MAX_CHOICES: u64 = 128;

/// Removes this server's own parameters from a request and prepares the rest for the upstream.
///
/// # Errors
/// 400 when one of the server's own parameters is wrong.
pub fn read_request(
    endpoint: Endpoint,
    mut fields: Fields,
    authorization: Option<HeaderValue>,
) -> Result<Request, ApiError> {
    let interval = parse_interval(&mut fields)?;
    let resumable = fields.boolean("resumable")?.unwrap_or(false);
    // An upstream that can, such as vLLM, says it in any case; others might refuse the name.
    let include_stop_reason = fields.boolean("include_stop_reason")?.unwrap_or(false);
    let charge = fields.charge();
    let mut body = fields.into_map();
    check_stream_options(&body)?;
    let streams = body.get("stream") == Some(&Value::Bool(true));
    let stream = streams.then(|| take_stream_options(&mut body));
    let choices = count_choices(endpoint, &body);
    if choices == 0 || choices > MAX_CHOICES {
        let message = format!("'n' times the prompts must be between 1 and {MAX_CHOICES}.");
        return Err(ApiError::invalid_param("n", message));
    }
    Ok(Request {
        model: body.get("model").and_then(Value::as_str).map(str::to_owned),
        n: choices as u32,
        stream,
        resumable,
        interval,
        include_stop_reason,
        forward: Some(Forward { body, authorization }),
        charge,
        ..Request::empty(endpoint)
    })
}

fn check_stream_options(body: &Map<String, Value>) -> Result<(), ApiError> {
    match body.get("stream_options") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(_) => {
            let message = "'stream_options' must be an object.";
            Err(ApiError::invalid_param("stream_options", message))
        }
    }
}

/// Returns the options of the stream. Removes those that only this server knows from `body`.
fn take_stream_options(body: &mut Map<String, Value>) -> StreamParams {
    // It stays in the body: an upstream that knows it is asked too.
    let return_progress = body.get("return_progress") == Some(&Value::Bool(true));
    let Some(options) = body.get_mut("stream_options").filter(|options| options.is_object()) else {
        body.remove("stream_options");
        return StreamParams { return_progress, ..StreamParams::default() };
    };
    let asked = |name: &str| options.get(name) == Some(&Value::Bool(true));
    let params = StreamParams {
        include_usage: asked("include_usage"),
        continuous_usage: asked("continuous_usage_stats"),
        include_timings: asked("include_timings"),
        include_obfuscation: options.get("include_obfuscation").and_then(Value::as_bool),
        return_progress,
        // An upstream that knows `timings_per_token` is asked itself.
        timings: false,
    };
    options.as_object_mut().and_then(|options| options.remove("include_timings"));
    params
}

fn count_choices(endpoint: Endpoint, body: &Map<String, Value>) -> u64 {
    let n = body.get("n").and_then(Value::as_u64).unwrap_or(1);
    let prompts = match (endpoint, body.get("prompt")) {
        (Endpoint::Text, Some(Value::Array(all))) if !all.iter().any(Value::is_number) => all.len(),
        _ => 1,
    };
    n.saturating_mul(prompts as u64)
}
