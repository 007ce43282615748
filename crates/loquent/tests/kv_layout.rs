//! `loquent serve --kv-layout split`: every sequence has the context that the server names.
#![cfg(feature = "llama")]

use crate::process::{Process, ask, bundled, get};
use serde_json::{Value, json};

#[test]
fn a_split_cache_serves_prompts_up_to_the_context_it_names() {
    let Some(model) = bundled() else { return };
    let server =
        Process::serve(&["--model", model.to_str().unwrap(), "--kv-layout", "split", "--no-quic"]);
    let (_, models) = get(&server.address, "/v1/models");
    let models: Value =
        serde_json::from_str(&models[models.find('{').unwrap()..=models.rfind('}').unwrap()])
            .unwrap();
    let context = models["data"][0]["max_model_len"].as_u64().unwrap();
    assert!(context >= 1024, "the context of the model: {context}");
    // As long as the context allows, and several at once.
    let prompt: Vec<u64> = (0..context - 4).map(|i| 10 + i % 50).collect();
    for _ in 0..2 {
        let body = json!({"prompt": prompt, "max_tokens": 3, "ignore_eos": true, "n": 2});
        let answer = ask(&server.address, "/v1/completions", &body);
        assert_eq!(answer["usage"]["completion_tokens"], 6, "{answer}");
    }
    assert_eq!(get(&server.address, "/ready").0, 200);
}
