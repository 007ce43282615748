//! The model in Anthropic's words, for clients that ask for it by `/v1/models`.

use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::model::ServedModel;

/// The answer to `GET /v1/models`.
pub fn models(served: &ServedModel) -> Value {
    let name = &served.name;
    json!({"data": [model(served)], "has_more": false, "first_id": name, "last_id": name})
}

/// The answer to `GET /v1/models/{id}`.
pub fn model(served: &ServedModel) -> Value {
    json!({
        "id": served.name, "type": "model", "display_name": served.name,
        "created_at": rfc3339(served.created_s), "max_input_tokens": served.context_tokens,
        "max_tokens": served.context_tokens,
    })
}
