//! Generates `docs/openapi.json` and `docs/api-reference.md` from the code. The routes are checked
//! against those in the sources, parameters come from the tables of [`super::compatibility`], and
//! their types are found by sending values of each. `UPDATE_DOCS=1 cargo test -p loquent-dialects
//! openapi` rewrites both files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::compatibility::{Api, apis};
use loquent_serving::api::parameter_table::{Parameter, Support};

/// The credential that a route requires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RouteAccess {
    /// An API key, if the server has keys.
    Key,
    /// None.
    Open,
    /// The answer's own token.
    StreamToken,
}

/// A route of the server.
struct RouteEntry {
    method: &'static str,
    path: &'static str,
    /// Name of the API that the route belongs to.
    api: &'static str,
    summary: &'static str,
    access: RouteAccess,
    query: &'static [(&'static str, &'static str)],
}

const fn keyed(
    method: &'static str,
    path: &'static str,
    api: &'static str,
    summary: &'static str,
) -> RouteEntry {
    RouteEntry { method, path, api, summary, access: RouteAccess::Key, query: &[] }
}

const fn open(method: &'static str, path: &'static str, summary: &'static str) -> RouteEntry {
    RouteEntry { access: RouteAccess::Open, ..keyed(method, path, SERVER, summary) }
}

const fn stream(method: &'static str, path: &'static str, summary: &'static str) -> RouteEntry {
    let query = STREAM_QUERY;
    RouteEntry { access: RouteAccess::StreamToken, query, ..keyed(method, path, LOQUENT, summary) }
}

impl RouteEntry {
    const fn with_query(self, query: &'static [(&'static str, &'static str)]) -> Self {
        Self { query, ..self }
    }
}

const OPENAI: &str = "OpenAI";
const BATCHES: &str = "OpenAI: files and batches";
const RESPONSES: &str = "OpenAI: responses";
const ANTHROPIC: &str = "Anthropic";
const OLLAMA: &str = "Ollama";
const AI_SDK: &str = "AI SDK";
const LLAMA_SERVER: &str = "llama-server";
const LM_STUDIO: &str = "LM Studio";
const LOQUENT: &str = "Resume";
const VLLM: &str = "vLLM";
const SERVER: &str = "Server";

const STREAM_QUERY: &[(&str, &str)] = &[
    ("token", "the answer's token, in place of the header `x-loquent-stream-token`"),
    ("offset", "Durable Streams: read from this offset on; `-1` is the beginning"),
    ("live", "Durable Streams: `long-poll` or `sse`"),
    ("as", "Durable Streams: `text` for the text alone"),
    ("timeout", "Durable Streams: seconds of a long poll"),
];

/// Query of a list, page by page.
const PAGE_QUERY: &[(&str, &str)] = &[("after", "the id before the page"), ("limit", "1 to 100")];

/// All routes in the order of the page; a test checks them against the sources.
const ROUTES: &[RouteEntry] = &[
    keyed("post", "/v1/chat/completions", OPENAI, "Answer a conversation, whole or as a stream"),
    keyed("get", "/v1/chat/completions", OPENAI, "List stored completions"),
    keyed("get", "/v1/chat/completions/{id}", OPENAI, "Read a stored completion"),
    keyed("post", "/v1/chat/completions/{id}", OPENAI, "Change a stored completion's metadata"),
    keyed("delete", "/v1/chat/completions/{id}", OPENAI, "Delete a stored completion"),
    keyed("get", "/v1/chat/completions/{id}/messages", OPENAI, "Its conversation, page by page"),
    keyed("post", "/v1/completions", OPENAI, "Continue text, whole or as a stream"),
    keyed("post", "/v1/embeddings", OPENAI, "Vectors of texts"),
    keyed("post", "/v1/files", BATCHES, "Upload a file, as a form with `file` and `purpose`"),
    keyed("get", "/v1/files", BATCHES, "List files").with_query(PAGE_QUERY),
    keyed("get", "/v1/files/{id}", BATCHES, "Facts about a file"),
    keyed("delete", "/v1/files/{id}", BATCHES, "Delete a file"),
    keyed("get", "/v1/files/{id}/content", BATCHES, "The bytes of a file"),
    keyed("post", "/v1/batches", BATCHES, "Answer the requests of a file when there is time"),
    keyed("get", "/v1/batches", BATCHES, "List batches").with_query(PAGE_QUERY),
    keyed("get", "/v1/batches/{id}", BATCHES, "A batch as far as it is"),
    keyed("post", "/v1/batches/{id}/cancel", BATCHES, "End a batch with what it has"),
    keyed("get", "/v1/models", OPENAI, "The models; in Anthropic's form with `anthropic-version`"),
    keyed("get", "/v1/models/{id}", OPENAI, "A model, by its name"),
    keyed("post", "/v1/responses", RESPONSES, "A response, whole or as a stream of events"),
    keyed("get", "/v1/responses/{id}", RESPONSES, "A response as far as it is")
        .with_query(&[("stream", "`true`: its events"), ("starting_after", "those behind it")]),
    keyed("delete", "/v1/responses/{id}", RESPONSES, "Forget a response"),
    keyed("post", "/v1/responses/{id}/cancel", RESPONSES, "End a background response"),
    keyed("get", "/v1/responses/{id}/input_items", RESPONSES, "The conversation before it"),
    keyed("post", "/v1/responses/compact", RESPONSES, "Sum a conversation up"),
    keyed("post", "/v1/responses/input_tokens", RESPONSES, "Count a prompt's tokens"),
    keyed("post", "/v1/messages", ANTHROPIC, "Answer a conversation, whole or as a stream"),
    keyed("post", "/v1/messages/count_tokens", ANTHROPIC, "Count a conversation's tokens"),
    keyed("post", "/api/chat", OLLAMA, "Answer a conversation in lines of JSON"),
    keyed("post", "/api/generate", OLLAMA, "Answer a prompt in lines of JSON"),
    keyed("post", "/api/embed", OLLAMA, "Vectors of texts"),
    keyed("post", "/api/embeddings", OLLAMA, "The vector of one text"),
    keyed("get", "/api/tags", OLLAMA, "The models"),
    keyed("get", "/api/ps", OLLAMA, "The models that are loaded"),
    keyed("post", "/api/show", OLLAMA, "Facts about a model"),
    keyed("post", "/api/pull", OLLAMA, "Download a model that is not there"),
    keyed("get", "/api/version", OLLAMA, "The version of Ollama's API"),
    keyed("post", "/v1/ui/chat", AI_SDK, "Answer a chat as a UI message stream"),
    keyed("delete", "/v1/ui/chat/{id}", AI_SDK, "Stop a chat's answer"),
    keyed("get", "/v1/ui/chat/{id}/stream", AI_SDK, "Resume a chat's answer").with_query(&[
        ("startIndex", "from this event on"),
        ("replay", "`true`: even one that a connection was handed to its end"),
    ]),
    keyed("delete", "/v1/ui/chat/{id}/stream", AI_SDK, "Stop a chat's answer"),
    keyed("post", "/v1/models/load", LLAMA_SERVER, "Begin to load a model"),
    keyed("post", "/v1/models/unload", LLAMA_SERVER, "Let a model go"),
    keyed("post", "/infill", LLAMA_SERVER, "Fill in the middle of code"),
    keyed("post", "/completion", LLAMA_SERVER, "A completion in llama-server's own form"),
    keyed("post", "/apply-template", LLAMA_SERVER, "The prompt that a conversation becomes"),
    keyed("post", "/v1/chat/completions/input_tokens", LLAMA_SERVER, "Count a chat's tokens"),
    keyed("get", "/props", LLAMA_SERVER, "Properties of a model, its template and its sampling")
        .with_query(&[("model", "the model, of several; otherwise the first")]),
    keyed("get", "/slots", LLAMA_SERVER, "How many completions are computed"),
    keyed("post", "/tokenize", VLLM, "The tokens of a text or conversation"),
    keyed("post", "/detokenize", VLLM, "The text of tokens"),
    keyed("get", "/tokenizer_info", VLLM, "Facts about the tokenizer"),
    keyed("post", "/api/v1/models/load", LM_STUDIO, "Load a model, and wait until it is there"),
    keyed("post", "/api/v1/models/unload", LM_STUDIO, "Let a model go"),
    keyed("post", "/api/v1/models/download", LM_STUDIO, "Download a model from the hub"),
    keyed("get", "/api/v1/models/download", LM_STUDIO, "The latest downloads"),
    keyed("get", "/api/v1/models/download/status/{id}", LM_STUDIO, "A download's progress"),
    keyed("delete", "/api/v1/models/download/status/{id}", LM_STUDIO, "Stop a download"),
    stream("get", "/v1/streams/{id}", "The rest of an answer, behind `last-event-id`"),
    stream("head", "/v1/streams/{id}", "Where an answer ends"),
    stream("delete", "/v1/streams/{id}", "Stop and forget an answer"),
    keyed("get", "/v1/usage", SERVER, "What a key's requests have used, by day").with_query(&[
        ("start_date", "the first day (UTC), as 2027-01-31; otherwise the first of the month"),
        ("end_date", "the last day; otherwise today"),
        ("key", "the name of a key, or * for all, for admins"),
        ("format", "json, or csv"),
    ]),
    keyed("post", "/v1/tokens", SERVER, "A short-lived token for a browser"),
    keyed("get", "/v1/dashboard/events", SERVER, "The server's figures, once a second"),
    keyed("get", "/v1/probe/events", SERVER, "A paced stream, which shows whether it is held back"),
    keyed("get", "/v1/probe/udp", SERVER, "The client's address, and its last QUIC handshake"),
    keyed("get", "/v1/lab/run", SERVER, "A simulated run for the laboratory"),
    open(
        "get",
        "/.well-known/loquent",
        "Where QUIC is, and the hashes of self-signed certificates",
    ),
    open("get", "/v1/delivery", "The same under its older path"),
    open("get", "/live", "Whether the process is of use; 503 after its engine has failed"),
    open("get", "/health", "Whether the model is loaded and its engine works"),
    open("get", "/ready", "Whether requests are accepted"),
    open("get", "/metrics", "Metrics in Prometheus' format"),
];

/// Parameters that are objects with their own tables: endpoint, parameter, table.
const INNER: &[(&str, &str, &str)] = &[
    ("POST /v1/responses", "reasoning", "`reasoning` of responses"),
    ("POST /api/chat", "options", "Ollama's `options`"),
    ("POST /api/generate", "options", "Ollama's `options`"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_route_of_the_sources_is_in_the_openapi_file() {
    let mut found = BTreeSet::new();
    for folder in ["crates/server/src", "crates/loquent/src/lab.rs"] {
        routes_below(&root().join(folder), &mut found);
    }
    let listed: BTreeSet<_> =
        ROUTES.iter().map(|it| (it.method.to_owned(), it.path.to_owned())).collect();
    assert_eq!(listed.len(), ROUTES.len(), "a route stands there twice");
    assert_eq!(listed, found);
}

/// Adds the routes of the Rust files at `path`.
fn routes_below(path: &Path, found: &mut BTreeSet<(String, String)>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            routes_below(&entry.unwrap().path(), found);
        }
        return;
    }
    if path.ends_with("tests.rs") {
        return;
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for call in text.split(".route(").skip(1) {
        let Some(rest) = call.trim_start().strip_prefix('"') else { continue };
        let (path, handlers) = rest.split_once('"').unwrap();
        // `{*path}` of Ollama's stands for what there is not.
        if !path.starts_with('/') || path.ends_with("/{*path}") {
            continue;
        }
        let path = path.replace("{*", "{");
        let handlers = handlers.split(['\n', ';']).take(2).collect::<String>();
        let methods = ["get", "post", "head", "delete"];
        let has = |method: &&&str| handlers.contains(&format!("{method}("));
        found.extend(methods.iter().filter(has).map(|it| ((*it).to_owned(), path.clone())));
    }
}

#[test]
fn the_openapi_file_and_its_page_are_made_from_the_code() {
    let json = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    for (name, made) in [("openapi.json", json), ("api-reference.md", page())] {
        let path = root().join("docs").join(name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == made, "{name}: run UPDATE_DOCS=1 cargo test -p loquent-dialects openapi");
    }
}

#[test]
fn types_are_those_that_the_code_accepts() {
    let document = document();
    let property = |path: &str, name: &str| {
        let schema = &document["paths"][path]["post"]["requestBody"]["content"];
        schema["application/json"]["schema"]["properties"][name].clone()
    };
    let chat = "/v1/chat/completions";
    assert_eq!(property(chat, "stream")["type"], "boolean");
    assert_eq!(property(chat, "temperature")["type"], "number");
    assert_eq!(property(chat, "max_tokens")["type"], "integer");
    assert_eq!(property(chat, "stop")["type"], json!(["string", "array"]));
    assert_eq!(property(chat, "audio"), Value::Null, "it is refused");
    let reasoning = property("/v1/responses", "reasoning");
    assert!(reasoning["properties"]["effort"].is_object(), "{reasoning}");
}

/// Returns the whole file.
fn document() -> Value {
    let apis: BTreeMap<&str, Api> = apis().into_iter().map(|api| (api.endpoint, api)).collect();
    let mut paths = Map::new();
    for route in ROUTES {
        let item = paths.entry(route.path).or_insert_with(|| json!({}));
        item[route.method] = operation(route, &apis);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Loquent",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
            "description": "Properties that are not listed are accepted without effect and named \
                            in the header x-loquent-ignored-parameters.",
        },
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "streamToken": {
                    "type": "apiKey", "in": "header", "name": "x-loquent-stream-token",
                },
            },
            "schemas": {"Error": error_schema(), "ErrorText": error_text_schema()},
        },
    })
}

fn error_schema() -> Value {
    let nullable = json!({"type": ["string", "null"]});
    let error = json!({
        "type": "object",
        "required": ["message", "type"],
        "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": nullable,
            "code": nullable,
        },
    });
    json!({"type": "object", "required": ["error"], "properties": {"error": error}})
}

/// Returns the schema of Ollama's errors.
fn error_text_schema() -> Value {
    json!({"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}})
}

fn operation(route: &RouteEntry, apis: &BTreeMap<&str, Api>) -> Value {
    let endpoint = format!("{} {}", route.method.to_uppercase(), route.path);
    let api = apis.get(&*endpoint);
    let mut operation = json!({"tags": [route.api], "summary": route.summary});
    match route.access {
        RouteAccess::Key => {}
        RouteAccess::Open => operation["security"] = json!([]),
        RouteAccess::StreamToken => operation["security"] = json!([{"streamToken": []}, {}]),
    }
    let mut parameters = path_parameters(route.path);
    parameters.extend(route.query.iter().map(|(name, note)| query_parameter(name, note)));
    match api {
        Some(api) if route.method == "get" => {
            parameters.extend(api.parameters.iter().map(|it| query_parameter(it.name, it.note)));
        }
        Some(api) => operation["requestBody"] = request_body(schema_with_tables(api, apis)),
        None if takes_object(route) => {
            operation["requestBody"] = request_body(json!({"type": "object"}));
        }
        None => {}
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    let streams = api.is_some_and(|api| api.parameters.iter().any(|it| it.name == "stream"));
    operation["responses"] = responses(route, streams);
    operation
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split(['{', '}']).skip(1).step_by(2);
    names
        .map(|name| {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})
        })
        .collect()
}

fn query_parameter(name: &str, note: &str) -> Value {
    json!({"name": name, "in": "query", "description": note, "schema": {"type": "string"}})
}

/// Returns true for a route without a table that refuses a request without a body.
fn takes_object(route: &RouteEntry) -> bool {
    // A file is a form.
    route.method == "post" && !route.path.ends_with("/cancel") && route.path != "/v1/files"
}

fn request_body(schema: Value) -> Value {
    json!({"required": true, "content": {"application/json": {"schema": schema}}})
}

/// Returns an API's table as a schema, with the tables of those parameters that have their own.
fn schema_with_tables(api: &Api, apis: &BTreeMap<&str, Api>) -> Value {
    let mut schema = schema(api);
    for (endpoint, name, table) in INNER {
        if *endpoint == api.endpoint {
            let property = &mut schema["properties"][*name];
            let note = property.get("description").cloned();
            *property = self::schema(&apis[table]);
            if let Some(note) = note {
                property["description"] = note;
            }
        }
    }
    schema
}

/// Returns an API's table as the schema of an object.
fn schema(api: &Api) -> Value {
    let listed = api.parameters.iter().filter(|it| it.support != Support::Refused);
    let properties: Map<String, Value> =
        listed.map(|it| (it.name.to_owned(), property(api, it))).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    let required = required(api);
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

fn property(api: &Api, parameter: &Parameter) -> Value {
    let mut property = Map::new();
    if !parameter.note.is_empty() {
        property.insert("description".into(), parameter.note.into());
    }
    if parameter.support == Support::Ignored {
        property.insert("x-loquent-ignored".into(), true.into());
        return property.into();
    }
    let mut types = accepted_types(api, parameter.name);
    match types.len() {
        0 => {}
        1 => drop(property.insert("type".into(), types.remove(0).into())),
        _ => drop(property.insert("type".into(), types.into())),
    }
    property.into()
}

/// Returns the JSON types of which a parameter accepts some value.
fn accepted_types(api: &Api, name: &str) -> Vec<&'static str> {
    let accepts = |value: Value| {
        let mut body = api.base.clone();
        body[name] = value;
        (api.read)(body).is_ok()
    };
    // A fraction that any bound of a number has room for; whole numbers take none.
    let number = if accepts(json!(0.5)) { "number" } else { "integer" };
    let strings = ["loquent", "auto", "none", "low", "float", "asc", "5m"];
    let arrays = [json!(["loquent"]), json!([1]), json!([{}]), json!([])];
    let objects = [json!({"a": {}}), json!({"a": "b"}), json!({"type": "text"}), json!({"1": 1})];
    let kinds = [
        ("boolean", accepts(json!(true))),
        (number, accepts(json!(1)) || number == "number"),
        ("string", strings.into_iter().any(|it| accepts(it.into()))),
        ("array", arrays.into_iter().any(accepts)),
        ("object", objects.into_iter().any(accepts)),
    ];
    kinds.into_iter().filter(|(_, accepted)| *accepted).map(|(kind, _)| kind).collect()
}

/// Returns the parameters that a request requires.
fn required(api: &Api) -> Vec<String> {
    let members = api.base.as_object().into_iter().flatten();
    let is_required = |name: &String| {
        let mut body = api.base.clone();
        body.as_object_mut().expect("a body").shift_remove(name);
        (api.read)(body).is_err()
    };
    members.map(|(name, _)| name.clone()).filter(is_required).collect()
}

fn responses(route: &RouteEntry, streams: bool) -> Value {
    let object = json!({"schema": {"type": "object"}});
    let text = json!({"schema": {"type": "string"}});
    let mut content = match route.path {
        "/metrics" => json!({"text/plain": text}),
        "/v1/lab/run" => json!({"application/x-ndjson": text}),
        "/v1/dashboard/events" | "/v1/ui/chat/{id}/stream" => json!({"text/event-stream": text}),
        "/slots" => json!({"application/json": {"schema": {"type": "array"}}}),
        _ => json!({"application/json": object}),
    };
    if streams || route.access == RouteAccess::StreamToken && route.method == "get" {
        let kind = if route.api == OLLAMA { "application/x-ndjson" } else { "text/event-stream" };
        content[kind] = text;
    }
    let mut success = json!({"description": "Success"});
    if route.method != "head" {
        success["content"] = content;
    }
    let form = if route.api == OLLAMA { "ErrorText" } else { "Error" };
    let error = json!({"schema": {"$ref": format!("#/components/schemas/{form}")}});
    let mut responses = Map::new();
    // A chat's answer that does not run is resumed and stopped all the same.
    let can_be_empty = route.path.starts_with("/v1/ui/chat/");
    if can_be_empty {
        responses.insert("204".into(), json!({"description": "Success, without content"}));
    }
    if !(can_be_empty && route.method == "delete") {
        responses.insert("2XX".into(), success);
    }
    let error = json!({"description": "An error", "content": {"application/json": error}});
    responses.insert("default".into(), error);
    responses.into()
}

/// Returns the page of all routes.
fn page() -> String {
    let mut page = String::from(
        "# API reference\n\n\
         All routes, made from the code like [openapi.json](openapi.json), which has their parameters with\n\
         types for tools and code generators; every server has it at `/openapi.json`.\n\
         [Compatibility](compatibility.md) says of each parameter whether it is supported, ignored or\n\
         refused, and [APIs](apis.md) has examples.\n\n\
         ```sh\ncurl -s http://127.0.0.1:8080/openapi.json -o openapi.json\n```\n\n\
         Routes take the key as `Authorization: Bearer KEY` where the server has keys. Those marked *open*\n\
         take none; those marked *token* take the answer's own token in `x-loquent-stream-token`.\n",
    );
    let mut last = "";
    for route in ROUTES {
        if route.api != last {
            write!(page, "\n## {}\n\n| route | does | key |\n| --- | --- | --- |\n", route.api)
                .unwrap();
            last = route.api;
        }
        let mark = match route.access {
            RouteAccess::Key => "",
            RouteAccess::Open => "open",
            RouteAccess::StreamToken => "token",
        };
        let method = route.method.to_uppercase();
        writeln!(page, "| `{method} {}` | {} | {mark} |", route.path, route.summary).unwrap();
    }
    page
}
