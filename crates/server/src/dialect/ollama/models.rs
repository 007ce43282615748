//! What Ollama's API says of models: there is one, which is always loaded.

use loquent_proto::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::clock::{rfc3339, unix_time_s};
use crate::model::ServedModel;
use crate::service::Service;

/// The version of Ollama's API that this one follows. Clients compare it with what they need.
const VERSION: &str = "0.12.6";
/// How long the model is said to stay loaded, in seconds: it stays for ever.
const LOADED_FOR_S: u64 = 100 * 365 * 86_400;

/// The answer to `GET /api/version`.
pub fn version() -> Value {
    json!({"version": VERSION})
}

/// The answer to `GET /api/tags`.
pub fn tags(model: &ServedModel) -> Value {
    let mut entry = entry(model);
    entry["modified_at"] = rfc3339(model.created_s).into();
    json!({"models": [entry]})
}

/// The answer to `GET /api/ps`.
pub fn running(model: &ServedModel) -> Value {
    let mut entry = entry(model);
    entry["expires_at"] = rfc3339(unix_time_s() + LOADED_FOR_S).into();
    entry["size_vram"] = 0.into();
    entry["context_length"] = model.context_tokens.into();
    json!({"models": [entry]})
}

/// The answer to `POST /api/show`.
pub fn show(service: &Service) -> Value {
    let model = service.model();
    json!({
        "modelfile": format!("FROM {}\n", model.name),
        "parameters": format!("num_ctx {}", model.context_tokens),
        "template": "",
        "details": details(),
        "model_info": {
            "general.architecture": FAMILY,
            "general.basename": model.name,
            format!("{FAMILY}.context_length"): model.context_tokens,
            format!("{FAMILY}.vocab_size"): model.vocab.size(),
        },
        "capabilities": capabilities(service),
        "modified_at": rfc3339(model.created_s),
    })
}

fn capabilities(service: &Service) -> Vec<&'static str> {
    let mut capabilities = Vec::new();
    if service.generates() {
        // Tools are described in words to a model whose template knows none.
        capabilities.extend(["completion", "tools"]);
        if service.model().chat.template.abilities().thinks.is_some() {
            capabilities.push("thinking");
        }
    }
    if service.embedder().is_ok() {
        capabilities.push("embedding");
    }
    capabilities
}

/// Stands where the model's architecture is expected, which this part of the server does not know.
const FAMILY: &str = "loquent";

fn entry(model: &ServedModel) -> Value {
    // Clients take the digest for the model's identity.
    let digest = hex::encode(&Sha256::digest(model.name.as_bytes()));
    json!({
        "name": model.name, "model": model.name, "size": 0, "digest": digest,
        "details": details(),
    })
}

fn details() -> Value {
    json!({
        "parent_model": "", "format": "gguf", "family": FAMILY, "families": [FAMILY],
        "parameter_size": "", "quantization_level": "",
    })
}
