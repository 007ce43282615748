//! `GET /props`, from llama-server: properties of a model and what holds for requests that leave
//! sampling open.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::Uri;
use serde_json::json;

use crate::app::App;
use crate::json_response::json_response;
use crate::routes::passthrough::other_method;
use loquent_serving::error::ApiError;
use loquent_serving::query::decoded_text;

/// Returns the route, for clients with a key if the server has keys.
pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/props", get(props).fallback(other_method))
}

/// Answers `GET /props`, for the model that `?model=` names or the first one. Never loads a model:
/// clients ask often.
///
/// # Errors
/// 404 for an unknown model and for one that an upstream server answers, 503 while the first model
/// loads.
async fn props(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    let asked = decoded_text(&uri, "model");
    let entry = app.models.find(asked.as_deref())?;
    let Some(defaults) = entry.sampling_defaults() else {
        return Err(ApiError::not_offered(format!(
            "An upstream server answers for '{}' and has defaults of its own.",
            entry.name()
        )));
    };
    let shown = defaults.to_json();
    let mut props = json!({
        "default_generation_settings": {
            "params": {
                "temperature": shown["temperature"],
                "top_k": shown["top_k"],
                "top_p": shown["top_p"],
                "min_p": shown["min_p"],
                "repeat_penalty": shown["repetition_penalty"],
            },
        },
        "sampling_defaults": &shown,
        "model_alias": entry.name(),
        // Where the file lies is nobody's business.
        "model_path": entry.name(),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("loquent-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    });
    if let Some(service) = entry.service() {
        let model = service.model();
        props["default_generation_settings"]["n_ctx"] = model.context_tokens.into();
        props["total_slots"] = service.slots().into();
        props["chat_template"] = model.chat.template.source().into();
        props["bos_token"] = model.chat.bos.as_str().into();
        props["eos_token"] = model.chat.eos.as_str().into();
    }
    Ok(json_response(&props))
}
