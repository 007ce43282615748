//! Holds `docs/compatibility.md` to the code: its tables are the APIs' own, and each parameter is
//! sent to find out whether it does what its table says. `UPDATE_DOCS=1 cargo test -p
//! loquent-server compatibility` writes the page anew.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use super::generation::Lowered;
use super::infill;
use super::parameters::{Parameter, Support};
use super::responses;
use super::responses::request::ResponseRequest;
use super::stored_chats::request::{ChatToStore, parse_list};
use super::{messages, ollama, stored_chats, ui_stream};
use crate::api::embeddings::{self, EmbeddingRequest};
use crate::api::fields::Fields;
use crate::api::parameters;
use crate::api::request::{Endpoint, Request};
use crate::error::ApiError;

/// An API's table, and how a request of it is read.
struct Api {
    endpoint: &'static str,
    parameters: Vec<&'static Parameter>,
    /// A valid request.
    base: Value,
    /// Reads a request; gives the names that it ignores.
    read: fn(Value) -> Result<Vec<String>, ApiError>,
}

fn apis() -> Vec<Api> {
    [openai(), others()].into_iter().flatten().collect()
}

fn openai() -> Vec<Api> {
    vec![
        Api {
            endpoint: "POST /v1/chat/completions",
            parameters: parameters::chat().collect(),
            base: json!({"messages": [{"role": "user", "content": "hi"}], "store": true}),
            read: |body| {
                let mut fields = Fields::parse(body.to_string().as_bytes())?;
                ChatToStore::take(&mut fields)?;
                Request::read(Endpoint::Chat, fields).map(|request| request.ignored)
            },
        },
        Api {
            endpoint: "GET /v1/chat/completions",
            parameters: stored_chats::request::PARAMETERS.iter().collect(),
            base: json!({}),
            read: |query| parse_list(Some(&list_query(&query))).map(|list| list.ignored),
        },
        Api {
            endpoint: "POST /v1/completions",
            parameters: parameters::text().collect(),
            base: json!({"prompt": "hi"}),
            read: |body| {
                let request = Request::parse(Endpoint::Text, body.to_string().as_bytes());
                request.map(|request| request.ignored)
            },
        },
        Api {
            endpoint: "POST /v1/responses",
            parameters: responses::request::PARAMETERS.iter().collect(),
            base: json!({"input": "hi"}),
            read: |body| {
                let fields = Fields::parse(body.to_string().as_bytes())?;
                ResponseRequest::read(fields).map(|request| request.ignored)
            },
        },
        Api {
            endpoint: "POST /v1/embeddings",
            parameters: embeddings::PARAMETERS.iter().collect(),
            base: json!({"input": "hi"}),
            read: |body| {
                let fields = Fields::parse(body.to_string().as_bytes())?;
                EmbeddingRequest::read(fields).map(|request| request.ignored)
            },
        },
    ]
}

/// `values` as the query of a list, which has metadata by its keys.
fn list_query(values: &Value) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for (name, value) in values.as_object().into_iter().flatten() {
        match value {
            Value::Object(members) => {
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
    vec![
        Api {
            endpoint: "POST /infill",
            parameters: infill::request::PARAMETERS.iter().collect(),
            base: json!({"input_prefix": "hi"}),
            read: |body| {
                let fields = Fields::parse(body.to_string().as_bytes())?;
                let fields = infill::request::lower(fields)?;
                Request::read(Endpoint::Text, fields).map(|request| request.ignored)
            },
        },
        Api {
            endpoint: "POST /v1/ui/chat",
            parameters: ui_stream::request::PARAMETERS.iter().collect(),
            base: json!({"messages": [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]}),
            read: read_ui_chat,
        },
        Api {
            endpoint: "POST /v1/messages",
            parameters: messages::request::PARAMETERS.iter().collect(),
            base: json!({"messages": [{"role": "user", "content": "hi"}]}),
            read: |body| read_lowered(&body, messages::request::lower),
        },
        Api {
            endpoint: "POST /api/chat",
            parameters: ollama::request::CHAT_PARAMETERS.iter().collect(),
            base: json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
            read: |body| read_lowered(&body, ollama::request::lower_chat),
        },
        Api {
            endpoint: "POST /api/generate",
            parameters: ollama::request::GENERATE_PARAMETERS.iter().collect(),
            base: json!({"model": "m", "prompt": "hi"}),
            read: |body| read_lowered(&body, ollama::request::lower_generate),
        },
        Api {
            endpoint: "POST /api/embed",
            parameters: ollama::embed::EMBED_PARAMETERS.iter().collect(),
            base: json!({"model": "m", "input": "hi"}),
            read: |body| {
                let fields = Fields::parse(body.to_string().as_bytes())?;
                ollama::embed::read_embed(fields).map(|(request, _)| request.ignored)
            },
        },
        Api {
            endpoint: "POST /api/embeddings",
            parameters: ollama::embed::EMBEDDINGS_PARAMETERS.iter().collect(),
            base: json!({"model": "m", "prompt": "hi"}),
            read: |body| {
                let fields = Fields::parse(body.to_string().as_bytes())?;
                ollama::embed::read_embeddings(fields).map(|(request, _)| request.ignored)
            },
        },
        Api {
            endpoint: "Ollama's `options`",
            parameters: ollama::request::OPTIONS.iter().collect(),
            base: json!({}),
            read: |options| {
                let body = json!({"model": "m", "prompt": "hi", "options": options});
                let names = read_lowered(&body, ollama::request::lower_generate)?;
                Ok(names.iter().map(|name| name.replace("options.", "")).collect())
            },
        },
    ]
}

fn read_ui_chat(body: Value) -> Result<Vec<String>, ApiError> {
    let (fields, _) = ui_stream::request::lower(Fields::parse(body.to_string().as_bytes())?)?;
    Request::read(Endpoint::Chat, fields).map(|request| request.ignored)
}

/// The names that a dialect ignores, and those that a completion does of what it is lowered to.
fn read_lowered<T>(
    body: &Value,
    lower: fn(Fields) -> Result<Lowered<T>, ApiError>,
) -> Result<Vec<String>, ApiError> {
    let Lowered { endpoint, fields, ignored, .. } =
        lower(Fields::parse(body.to_string().as_bytes())?)?;
    let request = Request::read(endpoint, fields)?;
    Ok(ignored.into_iter().chain(request.ignored).collect())
}

/// Values of every kind: one of them is of the type that the parameter takes, or of none.
fn probes() -> [Value; 6] {
    [json!(true), json!(1), json!("loquent"), json!({"a": {}}), json!(["loquent"]), json!([{}])]
}

/// What the code makes of a parameter.
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

/// Supported parameters that none of [`probes`] fits: each takes a form of its own.
const OWN_FORMS: &[&str] = &[
    "messages",
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
        assert_eq!(found(&api, "no_such_parameter"), Support::Ignored, "{}", api.endpoint);
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
    assert!(kept == page, "run UPDATE_DOCS=1 cargo test -p loquent-server compatibility");
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
