//! Ollama's descriptions of models.

use loquent_proto::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::models::{ModelEntry, ModelStats, ServedModels};
use crate::service::{Service, embedding};
use loquent_serving::clock::{rfc3339, unix_time_s};
use loquent_serving::model::ModelFacts;

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
        let mut tag = entry(model, &model.figures());
        tag["modified_at"] = rfc3339(model.created_s()).into();
        tag
    };
    json!({"models": models.entries().map(tag).collect::<Vec<_>>()})
}

/// Returns the response to `GET /api/ps`.
pub fn running(models: &ServedModels) -> Value {
    let process = |model: &ModelEntry| {
        let (figures, service) = (model.figures(), model.service()?);
        let stays_s = figures.expires_in.map_or(LOADED_FOR_S, |left| left.as_secs());
        let mut process = entry(model, &figures);
        process["expires_at"] = rfc3339(unix_time_s() + stays_s).into();
        if figures.bytes > 0 {
            process["size"] = figures.bytes.into();
        }
        process["size_vram"] = 0.into();
        process["context_length"] = service.model().context_tokens.into();
        Some(process)
    };
    json!({"models": models.entries().filter_map(process).collect::<Vec<_>>()})
}

/// Returns the response to `POST /api/show`.
pub fn show(entry: &ModelEntry) -> Value {
    let facts = facts_of(entry);
    let mut shown = json!({
        "modelfile": format!("FROM {}\n", entry.name()),
        "parameters": "",
        "template": "",
        "details": details(&facts),
        "model_info": {"general.architecture": family(&facts), "general.basename": entry.name()},
        // What clients look for; more is known once it is loaded, which a question is not worth.
        "capabilities": ["completion", "tools"],
        "modified_at": rfc3339(entry.created_s()),
    });
    if let Some(service) = entry.service() {
        let model = service.model();
        shown["parameters"] = format!("num_ctx {}", model.context_tokens).into();
        let (family, info) = (family(&facts), &mut shown["model_info"]);
        info[format!("{family}.context_length")] = model.context_tokens.into();
        info[format!("{family}.vocab_size")] = model.vocab.size().into();
        if facts.parameters > 0 {
            info["general.parameter_count"] = facts.parameters.into();
        }
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

/// Family of a model whose architecture is unknown.
const FAMILY: &str = "loquent";

fn entry(entry: &ModelEntry, model: &ModelStats) -> Value {
    // Clients take the digest for the model's identity.
    let digest = hex::encode(&Sha256::digest(model.name.as_bytes()));
    let facts = facts_of(entry);
    let bytes = if model.file_bytes > 0 { model.file_bytes } else { facts.bytes };
    json!({
        "name": model.name, "model": model.name, "size": bytes, "digest": digest,
        "details": details(&facts),
    })
}

/// Returns what is known of a model: nothing while it is not loaded.
fn facts_of(entry: &ModelEntry) -> ModelFacts {
    entry.service().map(|service| service.model().facts.clone()).unwrap_or_default()
}

fn family(facts: &ModelFacts) -> &str {
    if facts.architecture.is_empty() { FAMILY } else { &facts.architecture }
}

fn details(facts: &ModelFacts) -> Value {
    let family = family(facts);
    json!({
        "parent_model": "", "format": "gguf", "family": family, "families": [family],
        "parameter_size": parameter_size(facts.parameters),
        "quantization_level": facts.quantization,
    })
}

/// Returns a number of parameters as Ollama writes it; empty for 0.
fn parameter_size(parameters: u64) -> String {
    let count = parameters as f64;
    match parameters {
        0 => String::new(),
        1..1_000_000 => format!("{:.2}K", count / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", count / 1e6),
        _ => format!("{:.1}B", count / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_ollama_writes_them() {
        let sizes = [0, 12_000, 134_515_008, 8_030_261_248].map(parameter_size);
        assert_eq!(sizes, ["", "12.00K", "134.52M", "8.0B"]);
    }
}
