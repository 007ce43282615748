//! Checks `docs/compatibility.md` against the code: its tables are the APIs' own, and each
//! parameter is sent to find out whether it behaves as its table says. `UPDATE_DOCS=1 cargo test -p
//! loquent-dialects compatibility` rewrites the page.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::chat_parameters as parameters;
use super::ollama::embed::{EMBED_PARAMETERS, EMBEDDINGS_PARAMETERS, read_embed, read_embeddings};
use super::ollama::request::{
    CHAT_PARAMETERS, GENERATE_PARAMETERS, OPTIONS, lower_chat, lower_generate,
};
use super::responses::request::{INCLUDES, PARAMETERS as RESPONSE, REASONING, ResponseRequest};
use super::{infill, messages, ui_stream};
use crate::batches::batch::{NewBatch, PARAMETERS as BATCH};
use crate::lowered::Lowered;
use crate::stored_chats::request::parse_list;
use loquent_serving::api::embeddings::{EmbeddingRequest, PARAMETERS as EMBEDDINGS};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::parameter_table::{Parameter, Support, ignored, refused, supported};
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::api::stored_chat::ChatToStore;
use loquent_serving::error::ApiError;

// Tables that no code goes by: what these endpoints do not read themselves is a completion's.

/// Support status of each query parameter of `GET /v1/chat/completions`.
const LIST: &[Parameter] = &[
    supported("after", ""),
    supported("limit", "1 to 100"),
    supported("metadata", "as `metadata[key]=value`; all must match"),
    supported("model", ""),
    supported("order", "`asc` or `desc`"),
];

/// Support status of the parameters that `/completion` and `/infill` share.
const NATIVE: &[Parameter] = &[
    supported("n_predict", "-1: as many tokens as fit; 0: the prompt is computed, for the cache"),
    supported("stream", "of one completion"),
    supported("temperature", "0 to 2; 0 is greedy"),
    supported("top_k", ""),
    supported("top_p", ""),
    supported("min_p", ""),
    supported("repeat_penalty", ""),
    supported("repeat_last_n", "by default -1: all of the prompt and of the answer"),
    supported("presence_penalty", ""),
    supported("frequency_penalty", ""),
    supported("seed", "-1: a random one, which the answer names"),
    supported("stop", "at most 16 strings of 256 bytes"),
    supported("logit_bias", "pairs or an object, of ids or texts; at most 1,024 tokens"),
    supported("ignore_eos", ""),
    supported("grammar", "GBNF"),
    supported("json_schema", ""),
    supported("n_probs", "at most 20; log-probabilities before sampling"),
    supported(
        "return_progress",
        "of a stream: events with `prompt_progress` until the first token",
    ),
    supported("return_tokens", "the tokens' ids; streams always have them"),
    supported("response_fields", "at most 64 paths such as `timings/predicted_n`"),
    ignored("cache_prompt", "equal prefixes are reused without it"),
    ignored("id_slot", ""),
    ignored("samplers", ""),
    ignored("n_indent", ""),
    ignored("n_keep", "an answer ends where the context is full"),
    ignored("t_max_prompt_ms", ""),
    ignored("t_max_predict_ms", ""),
    refused("post_sampling_probs", "probabilities are those before sampling"),
];

/// Support status of each parameter of `/completion` alone.
const COMPLETION: &[Parameter] =
    &[supported("prompt", "text or token ids, one or many; or one that mixes both; no media")];

/// Support status of each parameter of `/infill` alone.
const INFILL: &[Parameter] = &[
    supported("input_prefix", "text before the place"),
    supported("input_suffix", "text behind it"),
    supported("prompt", "the beginning of the line; joins the prefix"),
    ignored("input_extra", "other files; the prefix has room for them"),
];

/// The parameters of `POST /v1/ui/chat` beyond those of a chat completion. An app puts the latter
/// into its transport's `body`.
const UI_CHAT: &[Parameter] = &[
    supported(
        "messages",
        "UI messages; of past files, a line of text; data and source parts are left out",
    ),
    supported("id", "the chat's id, by which its answer is resumed and stopped"),
    supported("trigger", "accepted; has no effect"),
    supported("messageId", "as `trigger`"),
    supported("n", "1: a UI message holds one completion"),
];

/// An API's table of parameters, and how to read a request to it.
pub(super) struct Api {
    pub(super) endpoint: &'static str,
    pub(super) parameters: Vec<&'static Parameter>,
    /// A valid request.
    pub(super) base: Value,
    /// Support status of parameters that are not in the table.
    unknown: Support,
    /// Reads a request; returns the names that it ignores.
    pub(super) read: fn(Value) -> Result<Vec<String>, ApiError>,
}

impl Api {
    /// Returns an API that ignores unknown parameters, like all but a few.
    fn new(
        endpoint: &'static str,
        parameters: impl IntoIterator<Item = &'static Parameter>,
        base: Value,
        read: fn(Value) -> Result<Vec<String>, ApiError>,
    ) -> Self {
        let parameters = parameters.into_iter().collect();
        Self { endpoint, parameters, base, unknown: Support::Ignored, read }
    }
}

/// All tables.
pub(super) fn apis() -> Vec<Api> {
    [openai(), others(), ollamas()].into_iter().flatten().collect()
}

fn openai() -> Vec<Api> {
    let batch = json!({
        "input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h",
    });
    let question = json!({"messages": [{"role": "user", "content": "hi"}], "store": true});
    vec![
        Api::new("POST /v1/chat/completions", parameters::chat(), question, |body| {
            let mut fields = fields(&body)?;
            ChatToStore::take(&mut fields)?;
            Request::read(Endpoint::Chat, fields).map(|request| request.ignored)
        }),
        Api::new("GET /v1/chat/completions", LIST, json!({}), |query| {
            parse_list(Some(&list_query(&query))).map(|list| list.ignored)
        }),
        Api::new("POST /v1/completions", parameters::text(), json!({"prompt": "hi"}), |body| {
            Request::read(Endpoint::Text, fields(&body)?).map(|request| request.ignored)
        }),
        Api::new("POST /v1/responses", RESPONSE, json!({"input": "hi"}), read_response),
        Api::new("`reasoning` of responses", REASONING, json!({}), |reasoning| {
            let ignored = read_response(json!({"input": "hi", "reasoning": reasoning}))?;
            Ok(without_prefix(&ignored, "reasoning."))
        }),
        Api {
            unknown: Support::Refused,
            ..Api::new("`include` of responses", INCLUDES, json!({}), |named| {
                let names: Vec<&String> =
                    named.as_object().into_iter().flatten().map(|(name, _)| name).collect();
                let ignored = read_response(json!({"input": "hi", "include": names}))?;
                Ok(without_prefix(&ignored, "include."))
            })
        },
        Api::new("POST /v1/embeddings", EMBEDDINGS, json!({"input": "hi"}), |body| {
            EmbeddingRequest::read(fields(&body)?).map(|request| request.ignored)
        }),
        Api::new("POST /v1/batches", BATCH, batch, |body| {
            NewBatch::read(fields(&body)?).map(|request| request.ignored)
        }),
    ]
}

fn fields(body: &Value) -> Result<Fields, ApiError> {
    Fields::parse(body.to_string().as_bytes())
}

fn read_response(body: Value) -> Result<Vec<String>, ApiError> {
    ResponseRequest::read(fields(&body)?).map(|request| request.ignored)
}

fn without_prefix(names: &[String], prefix: &str) -> Vec<String> {
    names.iter().map(|name| name.strip_prefix(prefix).unwrap_or(name).to_owned()).collect()
}

/// Encodes `values` as the query of a list; metadata gets one parameter per key.
fn list_query(values: &Value) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for (name, value) in values.as_object().into_iter().flatten() {
        match value {
            Value::Object(members) if name == "metadata" => {
                for (key, value) in members {
                    query.append_pair(&format!("{name}[{key}]"), &text(value));
                }
            }
            value => {
                query.append_pair(name, &text(value));
            }
        }
    }
    query.finish()
}

fn others() -> Vec<Api> {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let parts = json!([{"type": "text", "text": "hi"}]);
    let ui_chat = json!({"messages": [{"role": "user", "parts": parts}]});
    vec![
        Api::new(
            "POST /completion",
            COMPLETION.iter().chain(NATIVE),
            json!({"prompt": "hi"}),
            |body| read_lowered(&body, infill::completion::lower),
        ),
        Api::new(
            "POST /infill",
            INFILL.iter().chain(NATIVE),
            json!({"input_prefix": "hi"}),
            |body| read_lowered(&body, infill::request::lower),
        ),
        Api::new("POST /v1/ui/chat", UI_CHAT, ui_chat, |body| {
            read_lowered(&body, ui_stream::request::lower)
        }),
        Api::new("POST /v1/messages", messages::request::PARAMETERS, chat, |body| {
            read_lowered(&body, messages::request::lower)
        }),
    ]
}

fn ollamas() -> Vec<Api> {
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let prompt = json!({"model": "m", "prompt": "hi"});
    vec![
        Api::new("POST /api/chat", CHAT_PARAMETERS, chat, |body| read_lowered(&body, lower_chat)),
        Api::new("POST /api/generate", GENERATE_PARAMETERS, prompt.clone(), |body| {
            read_lowered(&body, lower_generate)
        }),
        Api::new("Ollama's `options`", OPTIONS, json!({}), |options| {
            let body = json!({"model": "m", "prompt": "hi", "options": options});
            Ok(without_prefix(&read_lowered(&body, lower_generate)?, "options."))
        }),
        Api::new(
            "POST /api/embed",
            EMBED_PARAMETERS,
            json!({"model": "m", "input": "hi"}),
            |body| read_embed(fields(&body)?).map(|(request, _)| request.ignored),
        ),
        Api::new("POST /api/embeddings", EMBEDDINGS_PARAMETERS, prompt, |body| {
            read_embeddings(fields(&body)?).map(|(request, _)| request.ignored)
        }),
    ]
}

/// Returns the names that a dialect ignores, and those that the completion ignores.
fn read_lowered<T>(
    body: &Value,
    lower: fn(Fields) -> Result<Lowered<T>, ApiError>,
) -> Result<Vec<String>, ApiError> {
    let Lowered { endpoint, fields, ignored, .. } = lower(fields(body)?)?;
    let request = Request::read(endpoint, fields)?;
    Ok(ignored.into_iter().chain(request.ignored).collect())
}

/// Values of every kind, at least one of which has the type that a parameter takes.
fn probes() -> [Value; 6] {
    [json!(true), json!(1), json!("loquent"), json!({"a": {}}), json!(["loquent"]), json!([{}])]
}

/// Determines the support status of a parameter by sending it.
fn found(api: &Api, name: &str) -> Support {
    let outcomes: Vec<_> = probes()
        .into_iter()
        .map(|probe| {
            let mut body = api.base.clone();
            body[name] = probe;
            (api.read)(body)
        })
        .collect();
    if outcomes.iter().all(Result::is_err) {
        return Support::Refused;
    }
    let ignores = |read: &Vec<String>| read.iter().any(|ignored| ignored == name);
    match outcomes.iter().flatten().all(ignores) {
        true => Support::Ignored,
        false => Support::Supported,
    }
}

/// Supported parameters that accept none of the [`probes`], since each takes a form of its own.
const OWN_FORMS: &[&str] = &[
    "messages",
    "endpoint",
    "completion_window",
    "order",
    "stream_options",
    "top_logprobs",
    "tools",
    "tool_choice",
    "response_format",
    "logit_bias",
    "reasoning_effort",
    "guided_json",
    "json_schema",
    "include",
    "metadata",
    "truncation",
    "encoding_format",
    "output_format",
    "thinking",
    // For upstream servers alone.
    "images",
];

#[test]
fn each_parameter_does_what_its_table_says() {
    for api in apis() {
        for parameter in &api.parameters {
            let found = found(&api, parameter.name);
            let fits = found == parameter.support
                || found == Support::Refused
                    && parameter.support == Support::Supported
                    && OWN_FORMS.contains(&parameter.name);
            assert!(fits, "{} {}: {found:?}", api.endpoint, parameter.name);
        }
        assert_eq!(found(&api, "no_such_parameter"), api.unknown, "{}", api.endpoint);
    }
}

#[test]
fn the_page_is_made_from_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "run UPDATE_DOCS=1 cargo test -p loquent-dialects compatibility");
}

fn page() -> String {
    let mut page = String::from(
        "# Compatibility\n\n\
         What becomes of each parameter. *Ignored* ones are named in the response's header\n\
         `x-loquent-ignored-parameters`, unless they only annotate a request, and so is every name that\n\
         is not here. *Refused* ones get 400, because the answer would not be what was asked for.\n\
         [apis.md](apis.md) has examples. A test makes this page from the code and sends each parameter.\n",
    );
    for api in apis() {
        write!(page, "\n## {}\n\n", api.endpoint).unwrap();
        page.push_str("| parameter | | |\n| --- | --- | --- |\n");
        for Parameter { name, support, note } in api.parameters {
            let support = match support {
                Support::Supported => "supported",
                Support::Ignored => "ignored",
                Support::Refused => "refused",
            };
            writeln!(page, "| `{name}` | {support} | {note} |").unwrap();
        }
    }
    page
}
