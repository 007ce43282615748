//! The parameters by which an answer was generated, under llama-server's names.

use serde_json::{Value, json};

use super::parameters::NativeRequest;
use loquent_infer::token::TokenId;
use loquent_serving::api::request::Request;
use loquent_serving::api::sampling::{SamplingDefaults, shortest};

/// Returns the `generation_settings` of an answer to `request` by a model that has these `defaults`
/// and `end_tokens`. Samplers of llama-server's that this server lacks are shown as turned off.
pub fn generation_settings(
    request: &Request,
    native: &NativeRequest,
    defaults: &SamplingDefaults,
    end_tokens: &[TokenId],
) -> Value {
    let (params, holds) = (&request.sampling, request.sampling.resolve(defaults).to_json());
    // JSON has no minus infinity, which is null there.
    let bias = |&(token, bias): &(TokenId, f32)| json!({"token": token, "bias": shortest(bias)});
    let forbidden = end_tokens.iter().filter(|_| params.ignore_eos);
    let forbidden = forbidden.map(|token| json!({"token": token, "bias": null}));
    let biases: Vec<Value> = params.logit_bias.iter().map(bias).chain(forbidden).collect();
    // The largest number stands for no bound, whose name is -1.
    let bound =
        |tokens: Option<u32>| tokens.filter(|tokens| *tokens < u32::MAX).map_or(-1, i64::from);
    let most = bound(request.max_tokens);
    json!({
        "n_predict": most,
        "max_tokens": most,
        "seed": params.seed,
        "temperature": holds["temperature"],
        "top_k": holds["top_k"],
        "top_p": holds["top_p"],
        "min_p": holds["min_p"],
        "repeat_penalty": holds["repetition_penalty"],
        "repeat_last_n": bound(Some(params.repeat_window())),
        "presence_penalty": shortest(params.presence_penalty),
        "frequency_penalty": shortest(params.frequency_penalty),
        "ignore_eos": params.ignore_eos,
        "logit_bias": biases,
        "stop": request.stop,
        "stream": request.stream.is_some(),
        "n_probs": native.probabilities,
        "post_sampling_probs": false,
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
        "dynatemp_range": 0.0,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
    })
}

#[cfg(test)]
mod tests {
    use loquent_serving::api::request::Endpoint;

    use super::*;

    fn settings(body: Value) -> Value {
        let request = Request::parse(Endpoint::Text, body.to_string().as_bytes()).unwrap();
        let native = NativeRequest { probabilities: 2, ..NativeRequest::default() };
        generation_settings(&request, &native, &SamplingDefaults::default(), &[7, 9])
    }

    #[test]
    fn the_settings_are_those_that_hold() {
        let shown = settings(json!({
            "prompt": "a", "max_tokens": 8, "temperature": 0.1, "seed": 5, "stop": ["x"],
            "logit_bias": {"3": -1.5},
        }));
        for (name, value) in [
            ("n_predict", json!(8)),
            ("temperature", json!(0.1)),
            ("top_k", json!(40)),
            ("repeat_penalty", json!(1.0)),
            ("repeat_last_n", json!(-1)),
            ("seed", json!(5)),
            ("stop", json!(["x"])),
            ("n_probs", json!(2)),
            ("logit_bias", json!([{"token": 3, "bias": -1.5}])),
        ] {
            assert_eq!(shown[name], value, "{name}");
        }
        let endless = settings(json!({
            "prompt": "a", "max_tokens": u32::MAX, "ignore_eos": true, "stream": true,
            "repeat_last_n": 64,
        }));
        let forbidden = json!([{"token": 7, "bias": null}, {"token": 9, "bias": null}]);
        assert_eq!((&endless["n_predict"], &endless["logit_bias"]), (&json!(-1), &forbidden));
        assert_eq!((&endless["stream"], &endless["repeat_last_n"]), (&json!(true), &json!(64)));
    }
}
