//! The engine of this process without HTTP: a benchmark target, and the partner of `loquent run`.
//!
//! A request takes the same path as one from the network, starting from its JSON: it is parsed,
//! admitted, tokenized, scheduled, and its tokens become flushes. Only the socket, the HTTP framing
//! and the event stream are missing; a comparison with a server measures their cost.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use futures_util::stream;
use loquent_bench::Target;
use loquent_bench::target::{ArrivalStream, RequestFailure};
use loquent_client::ClientError;
use loquent_client::openai::{self, Arrival, ChunkSummary, Generate};
use loquent_infer::vocab::Encode;
use loquent_openai::http::ConnectionOptions;
use loquent_openai::{BoxFuture, WireCounts};
use loquent_proto::Delta as Record;
use loquent_server::{
    ActiveRequest, ApiError, Clock, Endpoint, Flush, Identity, LoadedEngine, Metrics, Prompt,
    Request, Service, ServingConfig, StatedSampling, StreamBounds, WorkClass,
};
use tokio::time::Instant;

use crate::model_args::ModelArgs;
use crate::serve::args::{
    AdmissionArgs, EngineArgs, SLOW_READER_TIMEOUT_S, STREAM_BUFFER_BYTES, SourceArgs,
    service_options,
};
use crate::serve::load::load;

/// The engine that `loquent bench engine` measures and `loquent run` chats with.
#[derive(Debug, Args)]
pub struct InProcessArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    admission: AdmissionArgs,
}

impl InProcessArgs {
    /// Returns true if the model is the bundled one.
    pub(crate) fn is_demonstration(&self) -> bool {
        self.source.is_demonstration()
    }

    /// Returns the model's selection, if a model answers, and no simulation.
    pub(crate) fn model_mut(&mut self) -> Option<&mut ModelArgs> {
        self.source.simulate.is_none().then_some(&mut self.source.file)
    }

    /// Sets the sampling parameters of requests that leave them open.
    pub(crate) fn set_sampling(&mut self, sampling: StatedSampling) {
        self.engine.sampling = sampling;
    }

    /// Takes words given in place of a model's name if they are a sentence and not a file, so
    /// cannot be a name; the bundled model is then used.
    pub(crate) fn take_sentence(&mut self) -> Option<String> {
        self.source.file.take_sentence()
    }

    /// Returns the source and the engine with the settings of the model's profile: for a
    /// measurement without requests.
    ///
    /// # Errors
    /// If the profile cannot be read.
    #[cfg(feature = "llama")]
    pub(crate) fn into_engine(self) -> anyhow::Result<(SourceArgs, EngineArgs)> {
        let Self { source, mut engine, .. } = self;
        engine.adopt_profile(&source)?;
        Ok((source, engine))
    }
}

/// A service without a listener.
pub struct InProcess {
    service: Arc<Service>,
    description: String,
    engine: JoinHandle<()>,
}

impl InProcess {
    /// Loads the model of `args` and starts its engine; delivery runs on the current runtime.
    /// Streams use the defaults of `loquent serve`.
    ///
    /// # Errors
    /// If the model cannot be loaded; the message contains advice.
    pub async fn open(args: InProcessArgs) -> anyhow::Result<Self> {
        let InProcessArgs { source, mut engine, admission } = args;
        engine.adopt_profile(&source)?;
        let streams = StreamBounds {
            buffer_bytes: STREAM_BUFFER_BYTES,
            stall_limit: Duration::from_secs(SLOW_READER_TIMEOUT_S),
        };
        let serving = ServingConfig::default();
        let options = service_options(&engine, &admission, streams, serving, None)?;
        let loading = tokio::task::spawn_blocking(move || load(&source, &engine, None));
        let loaded = loading.await??;
        let LoadedEngine { model, description, .. } = &loaded;
        tracing::info!(model = model.name, "in process: {}", description.summary);
        Self::start(&options, loaded)
    }

    fn start(
        options: &loquent_server::ServiceConfig,
        loaded: LoadedEngine,
    ) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new());
        let description = loaded.description.summary.clone();
        let (service, engine) =
            loquent_server::start_engine(options, loaded, Clock::start(), metrics)?;
        Ok(Self { service, description, engine })
    }

    /// Returns the service for the chat.
    pub fn service(&self) -> Arc<Service> {
        self.service.clone()
    }

    /// Returns a description of the model and its engine.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the service as a target of the load generator.
    pub fn target(&self) -> Arc<dyn Target> {
        Arc::new(ServiceTarget { service: self.service.clone() })
    }

    /// Aborts running requests and waits until the engine is freed.
    pub async fn close(self) {
        self.service.stop();
        // An engine that panicked has said so, and its requests have failed.
        let _ = tokio::task::spawn_blocking(|| self.engine.join()).await;
    }
}

/// Submits to a service directly. Its futures need any runtime for tokenizing: the caller's own
/// reads the flushes without another task in between.
struct ServiceTarget {
    service: Arc<Service>,
}

impl ServiceTarget {
    async fn answer(&self, request: Generate) -> Result<ActiveRequest, ApiError> {
        let endpoint = match request.prompt {
            openai::Prompt::Chat(_) => Endpoint::Chat,
            openai::Prompt::Text(_) | openai::Prompt::Tokens(_) => Endpoint::Text,
        };
        let body = request.body().to_string();
        let arrived = self.service.clock().now();
        let request = Request::parse(endpoint, body.as_bytes())?;
        if request.echo || request.stream.is_none() {
            let message = "Neither 'echo' nor 'stream': false is possible in process.";
            return Err(ApiError::invalid(message));
        }
        Ok(self.service.start(request, arrived).await?.active)
    }

    fn refusal(&self, error: &ApiError) -> RequestFailure {
        self.service.metrics().on_refusal(error.status());
        RequestFailure::from(ClientError::Refused {
            status: error.status(),
            retry_after_s: error.retry_after_s(),
            message: error.to_string(),
        })
    }
}

impl Target for ServiceTarget {
    fn name(&self) -> &str {
        "in-process"
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<String>, RequestFailure>> {
        Box::pin(async { Ok(vec![self.service.model().name.clone()]) })
    }

    fn submit(
        &self,
        request: Generate,
        _: ConnectionOptions,
    ) -> BoxFuture<'_, Result<ArrivalStream, RequestFailure>> {
        Box::pin(async move {
            let active = self.answer(request).await.map_err(|error| self.refusal(&error))?;
            Ok(Box::pin(stream::unfold(Some(Box::new(active)), read)) as ArrivalStream)
        })
    }

    fn tokenize<'a>(
        &'a self,
        _model: &'a str,
        text: &'a str,
        add_special: bool,
    ) -> BoxFuture<'a, Result<Vec<u32>, RequestFailure>> {
        Box::pin(async move {
            let prompt = Prompt::Text(text.to_owned());
            let class = WorkClass::of_bytes(&Identity::in_process(), text.len());
            let how = Encode { add_bos: add_special, parse_special: add_special };
            let prompts = self.service.prompts();
            let encoding = prompts.for_tokenize(class, move |it| it.encode(prompt, how));
            encoding.await.map_err(|error| self.refusal(&error))
        })
    }

    fn metrics(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { Some(self.service.metrics().render()) })
    }
}

/// State of reading an answer: `None` after its end. Boxed because it moves at every flush.
type Reading = Option<Box<ActiveRequest>>;

async fn read(reading: Reading) -> Option<(Result<Arrival, RequestFailure>, Reading)> {
    let mut active = reading?;
    let flush = active.next_flush().await;
    let at = Instant::now();
    let arrived = |delta| Ok(Arrival { at, delta, wire: WireCounts::default() });
    match flush {
        Some(flush) => match delta(flush) {
            Ok(delta) => Some((arrived(delta), Some(active))),
            Err(error) => Some((Err(broken(&error)), None)),
        },
        None if active.is_complete() => Some((last_delta(&active).and_then(arrived), None)),
        None => Some((Err(broken(&ApiError::internal("The engine has stopped."))), None)),
    }
}

fn broken(error: &ApiError) -> RequestFailure {
    ClientError::Stream(error.to_string()).into()
}

fn delta(flush: Flush) -> Result<ChunkSummary, ApiError> {
    if let Some(error) = flush.error() {
        return Err(error);
    }
    let mut arrived = ChunkSummary::default();
    for delta in flush.deltas {
        match delta {
            Record::Text { text, .. } | Record::Reasoning { text, .. } => {
                arrived.text.push_str(&text);
            }
            Record::ToolCall { arguments, .. } => arrived.text.push_str(&arguments),
            Record::Finish { reason, .. } => arrived.finish_reason = Some(reason),
            _ => {}
        }
    }
    Ok(arrived)
}

/// Returns the content of a stream's usage chunk.
fn last_delta(active: &ActiveRequest) -> Result<ChunkSummary, RequestFailure> {
    let mut delta = ChunkSummary::default();
    if active.stream().include_usage {
        let usage = active.usage();
        delta.usage = Some(openai::Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
        });
    }
    if active.stream().include_usage && active.stream().include_timings {
        // By way of their JSON, as over the wire, so that neither path knows more.
        let timings = serde_json::from_value(active.timings());
        let malformed = |error| ClientError::Malformed(format!("the server's timings: {error}"));
        delta.timings = Some(Box::new(timings.map_err(malformed)?));
    }
    Ok(delta)
}
