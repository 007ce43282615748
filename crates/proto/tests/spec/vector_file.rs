//! Files of test vectors: how a test writes one and holds it to what it computes, and how deltas
//! look in them.

use std::path::PathBuf;

use loquent_proto::{Delta, Progress};
use serde_json::{Value, json};

/// A file below `spec/`.
pub fn spec(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec").join(name)
}

/// Whether the files are to be written anew.
pub fn is_update() -> bool {
    std::env::var_os("UPDATE_VECTORS").is_some()
}

/// Asserts that the file `name` of `spec/vectors` has these cases.
pub fn check(name: &str, about: &str, spec_version: &str, cases: &[Value]) {
    let path = spec("vectors").join(name);
    let expected = json!({ "about": about, "spec": spec_version, "cases": cases });
    if is_update() {
        let text = serde_json::to_string_pretty(&expected).expect("plain values");
        std::fs::write(&path, text + "\n").expect("the folder is writable");
    }
    let text = std::fs::read_to_string(&path).expect("the file exists");
    let found: Value = serde_json::from_str(&text).expect("the file is JSON");
    assert!(found == expected, "{name} differs: see this test's header");
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A delta as the vectors name it.
pub fn delta_json(delta: &Delta) -> Value {
    match delta {
        Delta::Open { meta } => json!({ "kind": "open", "meta": meta }),
        Delta::Text { choice, tokens, text } => {
            json!({ "kind": "text", "choice": choice, "tokens": tokens, "text": text })
        }
        Delta::Reasoning { choice, tokens, text } => {
            json!({ "kind": "reasoning", "choice": choice, "tokens": tokens, "text": text })
        }
        Delta::ToolCall { choice, index, tokens, id, name, arguments } => json!({
            "kind": "tool_call", "choice": choice, "index": index, "tokens": tokens,
            "id": id, "name": name, "arguments": arguments,
        }),
        Delta::Logprobs { choice, json } => {
            json!({ "kind": "logprobs", "choice": choice, "json": json })
        }
        Delta::Finish { choice, reason } => {
            json!({ "kind": "finish", "choice": choice, "reason": reason })
        }
        Delta::Usage { prompt, completion, cached, reasoning } => json!({
            "kind": "usage", "prompt": prompt, "completion": completion,
            "cached": cached, "reasoning": reasoning,
        }),
        Delta::Error { code, message } => {
            json!({ "kind": "error", "code": code, "message": message })
        }
        Delta::Other { choice, json } => json!({ "kind": "other", "choice": choice, "json": json }),
        Delta::Progress(Progress { queued, eta_ms, total, cached, processed, elapsed_ms }) => {
            json!({
                "kind": "progress", "queued": queued, "eta_ms": eta_ms, "total": total,
                "cached": cached, "processed": processed, "elapsed_ms": elapsed_ms,
            })
        }
        Delta::Pause { why } => json!({ "kind": "pause", "why": why }),
        Delta::Done => json!({ "kind": "done" }),
    }
}
