//! Streaming completions in OpenAI's wire format, typed.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use loquent_openai::WireCounts;
use loquent_openai::chunk::{ChunkEvent, ReportedUsage, error_message};
use loquent_openai::http::{ConnectionOptions, HttpClient, HttpResponse, json_request, refusal};
use loquent_proto::Delta;
use loquent_proto::coalesce::StreamInterval;
use loquent_proto::sse::Parser;

use crate::ClientError;

/// Maximum size of one event, in bytes: far above any delta, usage and timings included.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Maximum size of a `/tokenize` or `/v1/models` response, in bytes.
const MAX_CALL_BYTES: usize = 16 << 20;
/// Time limit for the body to end after `[DONE]`, for its connection to be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Prompt to complete; its kind selects the endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// One user message to `/v1/chat/completions`.
    Chat(String),
    /// Raw text to `/v1/completions`.
    Text(String),
    /// Token ids to `/v1/completions`.
    Tokens(Vec<u32>),
}

/// One streaming completion request. `None` leaves a parameter to the server's default.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// Model name.
    pub model: String,
    /// Prompt to complete.
    pub prompt: Prompt,
    /// Maximum tokens to generate.
    pub max_tokens: u32,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Generates `max_tokens` even if the model ends earlier.
    pub ignore_eos: bool,
    /// Number of tokens that the server may merge into one chunk (a parameter of Loquent only).
    pub stream_interval: Option<StreamInterval>,
    /// Requests `loquent_timings` in the last chunk.
    pub include_timings: bool,
    /// Additional top-level fields, which override those above.
    pub extra: Map<String, Value>,
}

impl Generate {
    /// Returns the endpoint for this request.
    pub fn path(&self) -> &'static str {
        match self.prompt {
            Prompt::Chat(_) => "/v1/chat/completions",
            Prompt::Text(_) | Prompt::Tokens(_) => "/v1/completions",
        }
    }

    /// Returns the JSON body of the request.
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
            Some(StreamInterval::Every(tokens)) => body["stream_interval"] = json!(tokens),
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

/// Loquent's timings of a request, in microseconds since the request arrived at the server. Every
/// field may be absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerTimings {
    /// The server's identifier of the request.
    pub request_id: Option<String>,
    /// Admission time.
    pub admitted_us: Option<f64>,
    /// Time at which the prompt was tokenized.
    pub tokenized_us: Option<f64>,
    /// Time at which the request entered a batch.
    pub scheduled_us: Option<f64>,
    /// Time at which the first token was sampled.
    pub first_token_us: Option<f64>,
    /// Time at which the last token was sampled.
    pub finished_us: Option<f64>,
    /// Duration of tokenizing.
    pub tokenize_us: Option<f64>,
    /// Duration from tokenized to scheduled.
    pub queue_us: Option<f64>,
    /// Duration from scheduled to the first token.
    pub prefill_us: Option<f64>,
    /// Duration from the first token to the last.
    pub decode_us: Option<f64>,
    /// Mean rows per native call that decoded the request.
    pub decode_batch_size_mean: Option<f64>,
    /// Mean duration from enqueued to native call.
    pub decode_batch_wait_us_mean: Option<f64>,
    /// Maximum duration from enqueued to native call.
    pub decode_batch_wait_us_max: Option<f64>,
    /// Time at which the engine emitted each token.
    pub emit_us: Vec<f64>,
    /// For each flush: the number of tokens flushed so far, and its time.
    pub flush_us: Vec<(f64, f64)>,
}

/// Content of one chunk, summed over its choices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChunkSummary {
    /// Text: content, reasoning and tool calls ([`shown_call`]) in order of arrival.
    pub text: String,
    /// Reason why the answer ended.
    pub finish_reason: Option<String>,
    /// The server's token count.
    pub usage: Option<Usage>,
    /// The server's timings.
    pub timings: Option<Box<ServerTimings>>,
    /// The parts of `text` and all else, as records; empty unless the stream was created with
    /// [`AnswerStream::with_deltas`].
    pub deltas: Vec<Delta>,
}

/// A chunk and its arrival time.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Time at which the bytes that completed the chunk were read.
    pub at: Instant,
    /// Content of the chunk.
    pub delta: ChunkSummary,
    /// Bytes and reads of the answer so far.
    pub wire: WireCounts,
}

impl From<ReportedUsage> for Usage {
    fn from(reported: ReportedUsage) -> Self {
        let ReportedUsage { prompt_tokens, completion_tokens, .. } = reported;
        Self { prompt_tokens, completion_tokens }
    }
}

/// Formats a fragment of a tool call as text: a call starts on a new line with its name, which
/// comes with the first fragment.
pub fn shown_call(name: &str, arguments: String) -> String {
    if name.is_empty() { arguments } else { format!("\n{name} {arguments}") }
}

/// Parses the data of one event; returns `None` for `[DONE]`.
///
/// # Errors
/// [`ClientError::Stream`] for an error reported by the server, [`ClientError::Malformed`] if the
/// data is not a chunk.
pub fn parse_chunk(data: &[u8]) -> Result<Option<ChunkSummary>, ClientError> {
    summarize(data, DeltaUse::Sum)
}

/// Determines whether a chunk's deltas are kept besides their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeltaUse {
    Sum,
    Keep,
}

fn summarize(data: &[u8], deltas: DeltaUse) -> Result<Option<ChunkSummary>, ClientError> {
    let chunk = match ChunkEvent::parse(data)? {
        ChunkEvent::Done => return Ok(None),
        ChunkEvent::Failed(error) => return Err(ClientError::Stream(error_message(&error))),
        ChunkEvent::Chunk(chunk) => *chunk,
    };
    let mut summary = ChunkSummary::default();
    if deltas == DeltaUse::Keep {
        summary.deltas.extend(chunk.usage.as_ref().map(ReportedUsage::to_delta));
    }
    summary.usage = chunk.usage.map(Usage::from);
    for delta in chunk.deltas {
        summary.append(delta, deltas)?;
    }
    Ok(Some(summary))
}

impl ChunkSummary {
    fn append(&mut self, delta: Delta, deltas: DeltaUse) -> Result<(), ClientError> {
        if deltas == DeltaUse::Keep {
            self.deltas.push(delta.clone());
        }
        match delta {
            Delta::Text { text, .. } | Delta::Reasoning { text, .. } => self.append_text(text),
            Delta::ToolCall { name, arguments, .. } => {
                self.append_text(shown_call(&name, arguments));
            }
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason),
            Delta::Other { json, .. } => return self.append_others(&json),
            _ => {}
        }
        Ok(())
    }

    /// Appends text. The usual chunk has one piece, whose allocation is reused.
    fn append_text(&mut self, text: String) {
        if self.text.is_empty() {
            self.text = text;
        } else {
            self.text.push_str(&text);
        }
    }

    /// Reads the members that the chunk reader does not know: our own timings.
    fn append_others(&mut self, json: &str) -> Result<(), ClientError> {
        let others: OtherMembers = serde_json::from_str(json)
            .map_err(|error| ClientError::Malformed(format!("a chunk's members: {error}")))?;
        if others.loquent_timings.is_some() {
            self.timings = others.loquent_timings;
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OtherMembers {
    loquent_timings: Option<Box<ServerTimings>>,
}

/// Progress of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No finish reason has come.
    Open,
    /// The finish reason has come; usage may follow.
    Finished,
    /// `[DONE]` has come.
    Done,
}

/// An answer in transit.
pub struct AnswerStream {
    response: HttpResponse,
    deltas: DeltaUse,
    parser: Parser,
    ready: VecDeque<Arrival>,
    progress: Progress,
    failure: Option<ClientError>,
    ended_at: Option<Instant>,
}

impl AnswerStream {
    /// Creates a stream that reads the body of `response` as an answer.
    pub fn new(response: HttpResponse) -> AnswerStream {
        AnswerStream {
            response,
            deltas: DeltaUse::Sum,
            parser: Parser::new(MAX_EVENT_BYTES),
            ready: VecDeque::new(),
            progress: Progress::Open,
            failure: None,
            ended_at: None,
        }
    }

    /// Like [`Self::new`], but keeps each chunk's deltas, which distinguish reasoning, text and
    /// tool calls.
    pub fn with_deltas(response: HttpResponse) -> AnswerStream {
        AnswerStream { deltas: DeltaUse::Keep, ..AnswerStream::new(response) }
    }

    /// Returns the next chunk, or `None` once the answer is complete, that is after its finish. A
    /// connection that ends before is an error, even if it ends cleanly. Cancel safe.
    ///
    /// # Errors
    /// [`ClientError::Stream`] if the server reports an error, [`ClientError::Truncated`] or
    /// [`ClientError::Broken`] if the answer breaks off, [`ClientError::Malformed`] or
    /// [`ClientError::TooLarge`] for events that cannot be read.
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
            match self.response.body_mut().piece().await? {
                Some(piece) => self.handle_piece(&piece, Instant::now()),
                None if self.progress == Progress::Open => return Err(ClientError::Truncated),
                None => {
                    self.ended_at.get_or_insert_with(Instant::now);
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the arrival time of the last byte of a complete answer.
    pub fn ended_at(&self) -> Option<Instant> {
        self.ended_at
    }

    /// Returns the bytes and reads of the answer so far.
    pub fn wire(&self) -> WireCounts {
        self.response.body().wire()
    }

    fn handle_piece(&mut self, piece: &Bytes, now: Instant) {
        let wire = self.response.body().wire();
        let AnswerStream { parser, ready, progress, failure, .. } = self;
        let deltas = self.deltas;
        let pushed = parser.push(piece, |event| {
            if *progress == Progress::Done || failure.is_some() {
                return;
            }
            match summarize(event.data, deltas) {
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

    /// Reads to the end of the body, so that the connection can be reused.
    async fn drain(&mut self) {
        let to_end = async { while let Ok(Some(_)) = self.response.body_mut().piece().await {} };
        // A body that does not end only costs us its connection.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, to_end).await;
    }
}

/// Sends `request` and waits for the head of its response.
///
/// # Errors
/// A failure to reach the server, or [`ClientError::Refused`].
pub async fn generate(
    client: &HttpClient,
    request: &Generate,
    options: ConnectionOptions,
) -> Result<AnswerStream, ClientError> {
    let body = Bytes::from(request.body().to_string());
    let request = json_request(Method::POST, request.path(), body)?;
    let response = client.send_with(request, options).await?;
    if response.status().as_u16() != 200 {
        return Err(refusal(response).await.into());
    }
    Ok(AnswerStream::new(response))
}

/// Returns the names of the models that the server offers.
///
/// # Errors
/// A failure to reach the server, a refusal, or [`ClientError::Malformed`].
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

/// Returns the token ids of `text`, using `POST /tokenize`. vLLM's field is `prompt`,
/// llama-server's is `content`; both are sent, each with its switch for special tokens.
///
/// # Errors
/// A failure to reach the server, a refusal, or [`ClientError::Malformed`].
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
    use std::num::NonZeroU32;

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

    fn delta(data: &str) -> ChunkSummary {
        parse_chunk(data.as_bytes()).unwrap().expect("a chunk, not [DONE]")
    }

    #[test]
    fn bodies_carry_what_was_asked() {
        let mut asked = request(Prompt::Tokens(vec![1, 2]));
        asked.seed = Some(5);
        asked.ignore_eos = true;
        asked.stream_interval = Some(StreamInterval::Every(NonZeroU32::new(8).unwrap()));
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
        let named = call.replace("{\"arguments", "{\"name\":\"weather\",\"arguments");
        assert_eq!(delta(&named).text, "\nweather {}");
        assert_eq!(
            delta(r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#).text,
            ""
        );
    }

    #[test]
    fn deltas_are_kept_apart_where_they_are_wanted() {
        let chunk = br#"{"choices":[{"delta":{"reasoning":"r","content":"t"}}]}"#;
        assert_eq!(summarize(chunk, DeltaUse::Sum).unwrap().unwrap().deltas, []);
        let kept = summarize(chunk, DeltaUse::Keep).unwrap().unwrap().deltas;
        let reasoning = Delta::Reasoning { choice: 0, tokens: 1, text: "r".into() };
        let text = Delta::Text { choice: 0, tokens: 0, text: "t".into() };
        assert_eq!(kept, [reasoning, text]);
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
