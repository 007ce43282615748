//! Models in Anthropic's format, for its clients at `/v1/models`.

use serde_json::{Value, json};

use crate::models::{ModelEntry, ServedModels};
use loquent_serving::clock::rfc3339;

/// Returns the response to `GET /v1/models`.
pub fn models(served: &ServedModels) -> Value {
    let all: Vec<_> = served.entries().map(model).collect();
    let id = |one: Option<&Value>| one.map(|one| one["id"].clone());
    let (first, last) = (id(all.first()), id(all.last()));
    json!({"data": all, "has_more": false, "first_id": first, "last_id": last})
}

/// Returns the response to `GET /v1/models/{id}`.
pub fn model(entry: &ModelEntry) -> Value {
    let mut model = json!({
        "id": entry.name(), "type": "model", "display_name": entry.name(),
        "created_at": rfc3339(entry.created_s()),
    });
    if let Some(service) = entry.service() {
        model["max_input_tokens"] = service.model().context_tokens.into();
        model["max_tokens"] = service.model().context_tokens.into();
    }
    model
}
