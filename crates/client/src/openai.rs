//! Streaming completions in OpenAI's wire format, typed.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::ClientError;
use crate::http::{HttpClient, Response, Transport, Wire};
use crate::sse::Parser;

/// Limit of one event, in bytes: far above any delta, usage and timings included.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Limit of a `/tokenize` or `/v1/models` answer, in bytes.
const MAX_CALL_BYTES: usize = 16 << 20;
/// How long after `[DONE]` the body may take to end for its connection to be kept.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What to complete; its kind chooses the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// One user message to `/v1/chat/completions`.
    Chat(String),
    /// Raw text to `/v1/completions`.
    Text(String),
    /// Token ids to `/v1/completions`.
    Tokens(Vec<u32>),
}

/// How many tokens the server may merge into one chunk (Loquent's own parameter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamInterval {
    /// By backlog.
    Auto,
    /// At most this many tokens; at least 1.
    Tokens(u32),
}

/// One streaming completion request. `None` leaves a parameter to the server.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// Model name.
    pub model: String,
    /// What to complete.
    pub prompt: Prompt,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Generate `max_tokens` whatever the model says.
    pub ignore_eos: bool,
    /// Tokens per chunk.
    pub stream_interval: Option<StreamInterval>,
    /// Ask for `loquent_timings` in the last chunk.
    pub include_timings: bool,
    /// Further top-level fields, which win over those above.
    pub extra: Map<String, Value>,
}

impl Generate {
    /// The endpoint that serves this request.
    pub fn path(&self) -> &'static str {
        match self.prompt {
            Prompt::Chat(_) => "/v1/chat/completions",
            Prompt::Text(_) | Prompt::Tokens(_) => "/v1/completions",
        }
    }

    /// The request's JSON body.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        match &self.prompt {
            Prompt::Chat(text) => body["messages"] = json!([{ "role": "user", "content": text }]),
            Prompt::Text(text) => body["prompt"] = json!(text),
            Prompt::Tokens(ids) => body["prompt"] = json!(ids),
        }
        if let Some(temperature) = self.temperature {
            body["temperature"] = json!(temperature);
        }
        if let Some(seed) = self.seed {
            body["seed"] = json!(seed);
        }
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        match self.stream_interval {
            Some(StreamInterval::Auto) => body["stream_interval"] = json!("auto"),
            Some(StreamInterval::Tokens(tokens)) => body["stream_interval"] = json!(tokens),
            None => {}
        }
        if self.include_timings {
            body["stream_options"]["include_timings"] = json!(true);
        }
        for (name, value) in &self.extra {
            body[name] = value.clone();
        }
        body
    }
}

/// The server's own token count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Tokens generated.
    #[serde(default)]
    pub completion_tokens: u64,
}

/// Loquent's own record of a request, in microseconds since the request arrived
/// at the server. Every field may be absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerTimings {
    /// The server's name of the request.
    pub request_id: Option<String>,
    /// When admission let it in.
    pub admitted_us: Option<f64>,
    /// When its prompt was tokenized.
    pub tokenized_us: Option<f64>,
    /// When it entered a batch.
    pub scheduled_us: Option<f64>,
    /// When its first token was sampled.
    pub first_token_us: Option<f64>,
    /// When its last token was sampled.
    pub finished_us: Option<f64>,
    /// Duration of tokenizing.
    pub tokenize_us: Option<f64>,
    /// From tokenized to scheduled.
    pub queue_us: Option<f64>,
    /// From scheduled to the first token.
    pub prefill_us: Option<f64>,
    /// From the first token to the last.
    pub decode_us: Option<f64>,
    /// Rows in the native calls that decoded it, mean.
    pub decode_batch_size_mean: Option<f64>,
    /// From enqueued to native call, mean.
    pub decode_batch_wait_us_mean: Option<f64>,
    /// From enqueued to native call, maximum.
    pub decode_batch_wait_us_max: Option<f64>,
    /// When each token was emitted by the engine.
    pub emit_us: Vec<f64>,
    /// Each flush: the number of tokens flushed so far, and when.
    pub flush_us: Vec<(f64, f64)>,
}

/// What one chunk adds to the answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Text: content, reasoning and tool-call arguments in the order they came.
    pub text: String,
    /// Why the answer ended.
    pub finish_reason: Option<String>,
    /// The server's token count.
    pub usage: Option<Usage>,
    /// The server's timings.
    pub timings: Option<Box<ServerTimings>>,
}

/// A chunk and when it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// When the bytes that completed the chunk were read.
    pub at: Instant,
    /// What the chunk adds.
    pub delta: Delta,
    /// What the answer has cost on the wire until then.
    pub wire: Wire,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    error: Option<Value>,
    loquent_timings: Option<Box<ServerTimings>>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<ChatDelta>,
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ChatDelta {
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
}

#[derive(Deserialize)]
struct ToolCall {
    function: Option<ToolFunction>,
}

#[derive(Deserialize)]
struct ToolFunction {
    arguments: Option<String>,
}

/// Parses the data of one event; `None` stands for `[DONE]`.
pub fn parse_chunk(data: &[u8]) -> Result<Option<Delta>, ClientError> {
    if data == b"[DONE]" {
        return Ok(None);
    }
    let chunk: Chunk = serde_json::from_slice(data)
        .map_err(|error| ClientError::Malformed(format!("a chunk is not valid JSON: {error}")))?;
    if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
        let message = error.get("message").and_then(Value::as_str);
        let text = message.map_or_else(|| error.to_string(), str::to_owned);
        return Err(ClientError::Stream(text.chars().take(300).collect()));
    }
    let mut delta =
        Delta { usage: chunk.usage, timings: chunk.loquent_timings, ..Delta::default() };
    for choice in chunk.choices.unwrap_or_default() {
        append_choice(&mut delta, choice);
    }
    Ok(Some(delta))
}

fn append_choice(into: &mut Delta, choice: Choice) {
    let mut append = |text: Option<String>| match text {
        Some(text) if into.text.is_empty() => into.text = text,
        Some(text) => into.text.push_str(&text),
        None => {}
    };
    append(choice.text);
    if let Some(delta) = choice.delta {
        append(delta.reasoning_content);
        append(delta.reasoning);
        append(delta.content);
        for call in delta.tool_calls.into_iter().flatten() {
            append(call.function.and_then(|function| function.arguments));
        }
    }
    if choice.finish_reason.is_some() {
        into.finish_reason = choice.finish_reason;
    }
}

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No finish reason has come.
    Open,
    /// The finish reason has come; usage may follow.
    Finished,
    /// `[DONE]` has come.
    Done,
}

/// An answer that is arriving.
pub struct AnswerStream {
    response: Response,
    parser: Parser,
    ready: VecDeque<Arrival>,
    progress: Progress,
    failure: Option<ClientError>,
    ended_at: Option<Instant>,
}

impl AnswerStream {
    /// Reads the body of `response` as an answer.
    pub fn new(response: Response) -> AnswerStream {
        AnswerStream {
            response,
            parser: Parser::new(MAX_EVENT_BYTES),
            ready: VecDeque::new(),
            progress: Progress::Open,
            failure: None,
            ended_at: None,
        }
    }

    /// The next chunk; `None` when the answer is complete, that is after its finish.
    /// A connection that ends before is an error, even if it ends cleanly.
    /// Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Option<Arrival>, ClientError> {
        loop {
            if let Some(arrival) = self.ready.pop_front() {
                return Ok(Some(arrival));
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.progress == Progress::Done {
                self.drain().await;
                return Ok(None);
            }
            match self.response.frame().await? {
                Some(piece) => self.handle_piece(&piece, Instant::now()),
                None if self.progress == Progress::Open => return Err(ClientError::Truncated),
                None => {
                    self.ended_at.get_or_insert_with(Instant::now);
                    return Ok(None);
                }
            }
        }
    }

    /// When the last byte of a complete answer arrived.
    pub fn ended_at(&self) -> Option<Instant> {
        self.ended_at
    }

    /// Heartbeats (comment lines) seen so far.
    pub fn heartbeats(&self) -> u64 {
        self.parser.comments()
    }

    /// What the answer has cost on the wire so far.
    pub fn wire(&self) -> Wire {
        self.response.wire()
    }

    fn handle_piece(&mut self, piece: &Bytes, now: Instant) {
        let wire = self.response.wire();
        let AnswerStream { parser, ready, progress, failure, .. } = self;
        let pushed = parser.push(piece, |event| {
            if *progress == Progress::Done || failure.is_some() {
                return;
            }
            match parse_chunk(event.data) {
                Ok(Some(delta)) => {
                    if delta.finish_reason.is_some() {
                        *progress = Progress::Finished;
                    }
                    ready.push_back(Arrival { at: now, delta, wire });
                }
                Ok(None) => *progress = Progress::Done,
                Err(error) => *failure = Some(error),
            }
        });
        if let (Err(error), None) = (pushed, &self.failure) {
            self.failure = Some(error.into());
        }
        if self.progress != Progress::Open {
            self.ended_at = Some(now);
        }
    }

    /// Reads to the end of the body, so that the connection can be used again.
    async fn drain(&mut self) {
        let to_end = async { while let Ok(Some(_)) = self.response.frame().await {} };
        // A body that does not end only costs us its connection.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, to_end).await;
    }
}

/// Sends `request` and waits for the head of its answer.
pub async fn generate(
    client: &HttpClient,
    request: &Generate,
    transport: Transport,
) -> Result<AnswerStream, ClientError> {
    let body = Bytes::from(request.body().to_string());
    let response = client.send(Method::POST, request.path(), body, transport).await?;
    if response.status != 200 {
        return Err(response.into_refusal().await);
    }
    Ok(AnswerStream::new(response))
}

/// The names of the models that the server offers.
pub async fn models(client: &HttpClient) -> Result<Vec<String>, ClientError> {
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    let body = client.get("/v1/models", MAX_CALL_BYTES).await?;
    let models: Models = serde_json::from_slice(&body)
        .map_err(|error| ClientError::Malformed(format!("the list of models: {error}")))?;
    Ok(models.data.into_iter().map(|model| model.id).collect())
}

/// Token ids of `text`, by `POST /tokenize`. vLLM's field is `prompt`, llama-server's
/// is `content`; both are sent, each with its switch for special tokens.
pub async fn tokenize(
    client: &HttpClient,
    model: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ClientError> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<u32>,
    }
    let body = json!({
        "model": model,
        "prompt": text,
        "add_special_tokens": add_special,
        "content": text,
        "add_special": add_special,
    });
    let body = Bytes::from(body.to_string());
    let answer = client.call(Method::POST, "/tokenize", body, MAX_CALL_BYTES).await?;
    let tokens: Tokens = serde_json::from_slice(&answer)
        .map_err(|error| ClientError::Malformed(format!("the answer of /tokenize: {error}")))?;
    Ok(tokens.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: Prompt) -> Generate {
        Generate {
            model: "m".into(),
            prompt,
            max_tokens: 3,
            temperature: None,
            seed: None,
            ignore_eos: false,
            stream_interval: None,
            include_timings: false,
            extra: Map::new(),
        }
    }

    fn delta(data: &str) -> Delta {
        parse_chunk(data.as_bytes()).unwrap().expect("a chunk, not [DONE]")
    }

    #[test]
    fn bodies_carry_what_was_asked() {
        let mut asked = request(Prompt::Tokens(vec![1, 2]));
        asked.seed = Some(5);
        asked.ignore_eos = true;
        asked.stream_interval = Some(StreamInterval::Tokens(8));
        asked.include_timings = true;
        asked.extra.insert("max_tokens".into(), json!(4));
        let expected = json!({
            "model": "m", "prompt": [1, 2], "max_tokens": 4, "stream": true, "seed": 5,
            "ignore_eos": true, "stream_interval": 8,
            "stream_options": { "include_usage": true, "include_timings": true },
        });
        assert_eq!((asked.path(), asked.body()), ("/v1/completions", expected));
        let chat = request(Prompt::Chat("hi".into()));
        assert_eq!(chat.path(), "/v1/chat/completions");
        assert_eq!(chat.body()["messages"], json!([{ "role": "user", "content": "hi" }]));
        assert_eq!(chat.body().get("ignore_eos"), None);
    }

    #[test]
    fn text_is_taken_from_every_field_that_shows_it() {
        assert_eq!(delta(r#"{"choices":[{"text":"a\n"}]}"#).text, "a\n");
        assert_eq!(delta(r#"{"choices":[{"delta":{"content":"é"}}]}"#).text, "é");
        let both = r#"{"choices":[{"delta":{"content":"b","reasoning_content":"a"}}]}"#;
        assert_eq!(delta(both).text, "ab");
        let call = r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}"#;
        assert_eq!(delta(call).text, "{}");
        assert_eq!(
            delta(r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#).text,
            ""
        );
    }

    #[test]
    fn finish_usage_and_timings_are_read() {
        let last = delta(
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3},
                "loquent_timings":{"request_id":"r","emit_us":[10,20.5],"flush_us":[[1,11]],"new":1}}"#,
        );
        assert_eq!(last.usage, Some(Usage { prompt_tokens: 1, completion_tokens: 2 }));
        let timings = last.timings.unwrap();
        assert_eq!(timings.emit_us, [10.0, 20.5]);
        assert_eq!(timings.flush_us, [(1.0, 11.0)]);
        assert_eq!(timings.queue_us, None);
        let finish = delta(r#"{"choices":[{"delta":{},"finish_reason":"length"}],"usage":null}"#);
        assert_eq!(finish.finish_reason.as_deref(), Some("length"));
    }

    #[test]
    fn done_errors_and_rubbish_are_told_apart() {
        assert_eq!(parse_chunk(b"[DONE]"), Ok(None));
        let error = parse_chunk(br#"{"error":{"message":"out of memory"}}"#).unwrap_err();
        assert_eq!(error, ClientError::Stream("out of memory".into()));
        for rubbish in [&b"{"[..], b"[]", b"\xff", b"{\"choices\":7}", b"[DONE] "] {
            assert!(matches!(parse_chunk(rubbish), Err(ClientError::Malformed(_))));
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(parse_chunk(deep.as_bytes()), Err(ClientError::Malformed(_))));
    }
}
