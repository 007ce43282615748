//! Ollama's descriptions of models.

use loquent_proto::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::clock::{rfc3339, unix_time_s};
use crate::models::{ModelEntry, ModelStats, ServedModels};
use crate::service::{Service, embedding};

/// The version of Ollama's API that is implemented. Clients compare it with the version they need.
const VERSION: &str = "0.12.6";
/// Reported remaining time in memory for a model that is never unloaded, in seconds.
const LOADED_FOR_S: u64 = 100 * 365 * 86_400;

/// Returns the response to `GET /api/version`.
pub fn version() -> Value {
    json!({"version": VERSION})
}

/// Returns the response to `GET /api/tags`.
pub fn tags(models: &ServedModels) -> Value {
    let tag = |model: &ModelEntry| {
        let mut tag = entry(&model.figures());
        tag["modified_at"] = rfc3339(model.created_s()).into();
        tag
    };
    json!({"models": models.entries().iter().map(tag).collect::<Vec<_>>()})
}

/// Returns the response to `GET /api/ps`.
pub fn running(models: &ServedModels) -> Value {
    let process = |model: &ModelEntry| {
        let (figures, service) = (model.figures(), model.service()?);
        let stays_s = figures.expires_in.map_or(LOADED_FOR_S, |left| left.as_secs());
        let mut process = entry(&figures);
        process["expires_at"] = rfc3339(unix_time_s() + stays_s).into();
        process["size"] = figures.bytes.into();
        process["size_vram"] = 0.into();
        process["context_length"] = service.model().context_tokens.into();
        Some(process)
    };
    json!({"models": models.entries().iter().filter_map(process).collect::<Vec<_>>()})
}

/// Returns the response to `POST /api/show`.
pub fn show(entry: &ModelEntry) -> Value {
    let mut shown = json!({
        "modelfile": format!("FROM {}\n", entry.name()),
        "parameters": "",
        "template": "",
        "details": details(),
        "model_info": {"general.architecture": FAMILY, "general.basename": entry.name()},
        // What clients look for; more is known once it is loaded, which a question is not worth.
        "capabilities": ["completion", "tools"],
        "modified_at": rfc3339(entry.created_s()),
    });
    if let Some(service) = entry.service() {
        let model = service.model();
        shown["parameters"] = format!("num_ctx {}", model.context_tokens).into();
        let info = &mut shown["model_info"];
        info[format!("{FAMILY}.context_length")] = model.context_tokens.into();
        info[format!("{FAMILY}.vocab_size")] = model.vocab.size().into();
        shown["capabilities"] = capabilities(&service).into();
    }
    shown
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
    if embedding::capacity(service).is_ok() {
        capabilities.push("embedding");
    }
    capabilities
}

/// Placeholder for the model's architecture, which is not known in this module.
const FAMILY: &str = "loquent";

fn entry(model: &ModelStats) -> Value {
    // Clients take the digest for the model's identity.
    let digest = hex::encode(&Sha256::digest(model.name.as_bytes()));
    json!({
        "name": model.name, "model": model.name, "size": model.file_bytes, "digest": digest,
        "details": details(),
    })
}

fn details() -> Value {
    json!({
        "parent_model": "", "format": "gguf", "family": FAMILY, "families": [FAMILY],
        "parameter_size": "", "quantization_level": "",
    })
}
