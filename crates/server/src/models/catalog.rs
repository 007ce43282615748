//! The list of a server's models, and the lookup of a request's model.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use loquent_infer::admission::BudgetLevel;
use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use super::downloads::{Download, ModelDownloads};
use super::growing_list::GrowingList;
use super::keeper::{Keeper, KeptModel};
use super::model_use::ModelUse;
use crate::models::residency::ModelId;
use crate::models::stats::{ModelCollector, ModelStats};
use crate::service::{Service, StartedAnswer, embedding};
use loquent_resumable::shared::kept_request::KeptService;
use loquent_serving::active_request::{ActiveRequest, FlushSource, admitted_request};
use loquent_serving::admission::{AdmissionGate, refused};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::head::answer_head;
use loquent_serving::api::request::{Endpoint, Request};
use loquent_serving::api::sampling::SamplingDefaults;
use loquent_serving::caller::{Caller, read_for_engine};
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::identity::Identity;
use loquent_serving::keep_alive::KeepAlive;
use loquent_serving::loading_answer::{Begin, EngineAnswer, LateVocab, LoadingAnswer, News};
use loquent_serving::metrics::Metrics;
use loquent_serving::otel::Telemetry;

/// `Retry-After` while the first model loads, in seconds.
const LOADING_RETRY_S: u64 = 2;
/// Tag that Ollama's clients append to the name of a model without a tag.
const LATEST: &str = ":latest";

/// All models of a server. Empty until the first one is loaded.
#[derive(Default)]
pub struct ServedModels(OnceLock<Opened>);

struct Opened {
    entries: GrowingList<ModelEntry>,
    on_demand: Option<OnDemand>,
    /// True if one model was there at first: it answers requests for unknown ones.
    had_one: bool,
}

/// Models that are not in memory all the time.
pub struct OnDemand {
    /// Loads and unloads them.
    pub keeper: Arc<Keeper>,
    /// Downloads further ones; `None` on a server that does not.
    pub downloads: Option<Arc<ModelDownloads>>,
    /// Models that an earlier server downloaded, each with the name that was asked for.
    pub downloaded: Vec<(String, KeptModel)>,
}

/// One model of a server.
#[derive(Clone)]
pub struct ModelEntry {
    name: String,
    /// Another name, under which it was downloaded.
    alias: Option<String>,
    created_s: u64,
    source: ModelSource,
}

/// Source of a model's answers.
#[derive(Clone)]
enum ModelSource {
    /// A service that is never unloaded.
    Always(Arc<Service>),
    /// An engine that is loaded on demand.
    Kept(Arc<Keeper>, ModelId),
}

impl ServedModels {
    /// Opens the API: requests go to `entries` from now on. The first one answers requests that
    /// name no model.
    pub fn open(&self, entries: Vec<ModelEntry>, mut on_demand: Option<OnDemand>) {
        assert!(!entries.is_empty(), "a server has a model");
        let had_one = entries.len() == 1;
        let downloaded = on_demand.as_mut().map(|it| std::mem::take(&mut it.downloaded));
        let opened = Opened { entries: GrowingList::new(entries), on_demand, had_one };
        assert!(self.0.set(opened).is_ok(), "a server is opened once");
        for (asked, model) in downloaded.into_iter().flatten() {
            match self.add(model, &asked) {
                Ok(model) => tracing::info!(model, "serves a model that was downloaded before"),
                Err(error) => tracing::warn!(model = asked, "{error:#}"),
            }
        }
    }

    /// Adds a model that was downloaded as `asked`. Returns its name in the API: that of the model
    /// that is served already, if there is one.
    ///
    /// # Errors
    /// If there are too many models.
    fn add(&self, model: KeptModel, asked: &str) -> anyhow::Result<String> {
        let opened = self.0.get().context("the server has not started")?;
        let keeper = self.keeper().context("the server loads no models on demand")?;
        let name = model.name.clone();
        if self.entries().all(|entry| entry.name != name) {
            let full = || format!("{name} cannot be served: there are too many models");
            let id = keeper.add(model).with_context(full)?;
            let entry =
                ModelEntry { alias: Some(asked.to_owned()), ..ModelEntry::kept(keeper, id.0) };
            opened.entries.push(entry).ok().with_context(full)?;
        }
        Ok(name)
    }

    /// Begins to download the model called `name`, which is served once it is complete.
    ///
    /// # Errors
    /// The errors of [`Self::downloads`]; 429 while another model is downloaded, 400 for a name
    /// that is too long.
    pub fn download(self: &Arc<Self>, name: &str) -> Result<Arc<Download>, ApiError> {
        let models = self.clone();
        self.downloads()?.start(name, Box::new(move |model, asked| models.add(model, asked)))
    }

    /// Returns all models, in the order in which they were named.
    pub fn entries(&self) -> impl Iterator<Item = &ModelEntry> {
        self.0.get().into_iter().flat_map(|opened| opened.entries.iter())
    }

    /// Returns the model for requests that name none.
    ///
    /// # Errors
    /// 503 while it loads.
    pub fn first(&self) -> Result<&ModelEntry, ApiError> {
        let loading = || ApiError::unavailable("The model is loading.", LOADING_RETRY_S);
        self.entries().next().ok_or_else(loading)
    }

    /// Returns the model that a request calls `asked`.
    ///
    /// # Errors
    /// 404 for an unknown name if there were several models from the start, 503 while the first one
    /// loads.
    pub fn find(&self, asked: Option<&str>) -> Result<&ModelEntry, ApiError> {
        let first = self.first()?;
        let Some(asked) = asked.filter(|name| !name.is_empty()) else { return Ok(first) };
        let found = match (self.named(asked), asked.strip_suffix(LATEST)) {
            (Err(_), Some(short)) => self.named(short),
            (found, _) => found,
        };
        match found {
            // What worked before a download works afterwards.
            Err(_) if self.0.get().is_some_and(|opened| opened.had_one) => Ok(first),
            found => found,
        }
    }

    /// Returns the model with the name `id`.
    ///
    /// # Errors
    /// 404 if there is none, 503 while the first one loads.
    pub fn named(&self, id: &str) -> Result<&ModelEntry, ApiError> {
        // 503 where none is loaded yet, rather than 404.
        self.first()?;
        let is_called =
            |entry: &&ModelEntry| entry.name == id || entry.alias.as_deref() == Some(id);
        let names = self.entries().map(|entry| entry.name.as_str());
        self.entries().find(is_called).ok_or_else(|| ApiError::model_not_found(id, names))
    }

    /// Returns the model that `fields` name. Validating the field is left to the parser of the
    /// request. The field is set to the model's name in the API; if no server of that model accepts
    /// requests, to that of the model that answers in its place.
    ///
    /// # Errors
    /// The errors of [`Self::find`].
    pub fn find_for(&self, fields: &mut Fields) -> Result<&ModelEntry, ApiError> {
        let asked = fields.map().get("model").and_then(|model| model.as_str());
        let entry = self.find(asked)?;
        // So that answers and checks of the name know one name.
        if asked.is_some() && asked == entry.alias.as_deref() {
            fields.set_model(&entry.name);
        }
        let upstream = entry.constant().and_then(|service| service.upstream());
        let Some(name) = upstream.and_then(|upstream| upstream.stand_in()) else {
            return Ok(entry);
        };
        fields.set_model(name);
        self.find(Some(name))
    }

    /// Checks that the servers of at least one model accept requests.
    ///
    /// # Errors
    /// 503 if all models depend on other servers, and none of those accepts requests.
    pub fn check_servers(&self) -> Result<(), ApiError> {
        let mut outage = Ok(());
        for entry in self.entries() {
            let upstream = entry.constant().and_then(|service| service.upstream());
            match upstream.map_or(Ok(()), |upstream| upstream.check_room()) {
                Ok(()) => return Ok(()),
                Err(error) => outage = Err(error),
            }
        }
        outage
    }

    /// Returns true if any of the models is served by other servers.
    pub fn has_upstreams(&self) -> bool {
        self.always().any(|service| service.upstream().is_some())
    }

    /// Starts to answer `request`, which arrived at `arrived` on the server's clock. If its model
    /// still has to be loaded, the answer begins at once and a stream reports the progress.
    ///
    /// # Errors
    /// The errors of [`Service::start`]; 404 for an unknown model.
    pub async fn start(
        &self,
        request: Request,
        arrived: Duration,
    ) -> Result<StartedAnswer, ApiError> {
        let entry = self.find(request.model.as_deref())?.clone();
        match (&entry.source, entry.try_use()) {
            (_, Some(used)) => start_with(used, request, arrived).await,
            // What is to be repeated has to be known from the beginning.
            (ModelSource::Kept(keeper, id), None) if !request.echo => {
                entry.await_answer(keeper, *id, request, arrived)
            }
            _ => start_with(entry.use_when_loaded().await?, request, arrived).await,
        }
    }

    /// Checks that a request would be admitted, as far as possible without its body.
    ///
    /// # Errors
    /// 429 if the limits are reached, 503 while no requests are accepted.
    pub fn check_room(&self) -> Result<(), ApiError> {
        match &self.first()?.source {
            ModelSource::Always(service) => service.check_room(),
            ModelSource::Kept(keeper, _) => {
                keeper.check_open()?;
                keeper.context.gate.check_room().map_err(refused)
            }
        }
    }

    /// Checks that new requests are accepted.
    ///
    /// # Errors
    /// 503 while the first model loads, the server drains, or an engine has failed or is
    /// unreachable.
    pub fn ready(&self) -> Result<(), ApiError> {
        match &self.first()?.source {
            ModelSource::Always(service) => service.health().ready(),
            ModelSource::Kept(keeper, _) => keeper.check_open(),
        }
    }

    /// Returns true if an upstream server answers the request of `fields`.
    pub fn passes_on(&self, fields: &Fields) -> bool {
        let asked = fields.map().get("model").and_then(Value::as_str);
        let asked = asked.map(|name| name.strip_suffix(":latest").unwrap_or(name));
        let service = self.find(asked).ok().and_then(ModelEntry::constant);
        service.is_some_and(|service| service.upstream().is_some())
    }

    /// Checks that the process still works.
    ///
    /// # Errors
    /// 503 after an engine has failed.
    pub fn alive(&self) -> Result<(), ApiError> {
        self.keeper().map_or(Ok(()), |keeper| keeper.check_alive())?;
        self.always().try_for_each(|service| service.health().alive())
    }

    /// Returns the remaining request and token budgets of `identity`.
    pub fn budget_levels(&self, identity: &Identity) -> [Option<BudgetLevel>; 2] {
        self.gate().map_or([None, None], |gate| gate.levels(identity))
    }

    /// Returns the number of completions that have not begun, without those of batches.
    pub fn waiting(&self) -> usize {
        self.gate().map_or(0, AdmissionGate::waiting)
    }

    /// Returns the number of completions running or waiting, without those of batches.
    pub fn in_flight(&self) -> usize {
        self.gate().map_or(0, AdmissionGate::in_flight)
    }

    /// Returns the gate shared by all models.
    fn gate(&self) -> Option<&AdmissionGate> {
        self.entries().next().map(|entry| match &entry.source {
            ModelSource::Always(service) => service.gate(),
            ModelSource::Kept(keeper, _) => &keeper.context.gate,
        })
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.always().for_each(|service| service.health().drain());
        self.keeper().into_iter().for_each(|keeper| keeper.drain());
        self.downloads().into_iter().for_each(|downloads| downloads.stop());
    }

    /// Ends all streams with an error, and stops the engines.
    pub fn stop(&self) {
        self.always().for_each(|service| service.stop());
        self.keeper().into_iter().for_each(|keeper| keeper.stop());
    }

    /// Returns why an engine failed; `None` while none has.
    pub fn failure(&self) -> Option<Arc<str>> {
        let kept = self.keeper().and_then(|keeper| keeper.failure());
        kept.or_else(|| self.always().find_map(|service| service.health().failure()))
    }

    /// Waits until an engine fails. Returns the reason.
    pub async fn failed(&self) -> Arc<str> {
        let kept = async {
            match self.keeper() {
                Some(keeper) => keeper.failed().await,
                None => std::future::pending().await,
            }
        };
        // An upstream server's service never fails, and an engine that is always there is alone.
        let always = async {
            match self.always().find(|service| service.health().engine_watch().is_some()) {
                Some(service) => service.health().failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            why = kept => why,
            why = always => why,
        }
    }

    /// Returns the keeper of the models that are loaded on demand.
    pub fn keeper(&self) -> Option<&Arc<Keeper>> {
        Some(&self.0.get()?.on_demand.as_ref()?.keeper)
    }

    /// Returns the downloads of models.
    ///
    /// # Errors
    /// 404 on a server that downloads none.
    pub fn downloads(&self) -> Result<&Arc<ModelDownloads>, ApiError> {
        let on_demand = self.0.get().and_then(|opened| opened.on_demand.as_ref());
        let why = "This server downloads no models: its engine is simulated, is split over \
                   stages, or belongs to an upstream server.";
        on_demand
            .and_then(|on_demand| on_demand.downloads.as_ref())
            .ok_or_else(|| ApiError::not_offered(why))
    }

    /// Returns the exporter of requests' spans; `None` without a collector.
    pub fn telemetry(&self) -> Option<Arc<Telemetry>> {
        match &self.entries().next()?.source {
            ModelSource::Always(service) => service.telemetry(),
            ModelSource::Kept(keeper, _) => keeper.context.observers.telemetry.clone(),
        }
    }

    /// Returns the threads of the engines loaded on demand; call [`Self::stop`] first.
    pub fn take_threads(&self) -> Vec<JoinHandle<()>> {
        self.keeper().map(|keeper| keeper.take_threads()).unwrap_or_default()
    }

    /// Exports the statistics of each model loaded on demand in `metrics`.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let models = self.clone();
        let kept = move || {
            let kept = models.entries().filter(|entry| entry.is_kept());
            kept.map(ModelEntry::figures).collect()
        };
        metrics.watch_models(Box::new(ModelCollector::new(Box::new(kept))));
    }

    /// Checks that a request for embeddings may be answered, as far as possible without its body.
    ///
    /// # Errors
    /// 503 while the model loads, 400 if it is the only one and has no embeddings.
    pub fn check_embeds(&self) -> Result<(), ApiError> {
        self.first()?;
        let mut entries = self.entries();
        match (entries.next().and_then(ModelEntry::constant), entries.next()) {
            (Some(only), None) => embedding::capacity(only).map(drop),
            _ => Ok(()),
        }
    }

    fn always(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.entries().filter_map(|entry| match &entry.source {
            ModelSource::Always(service) => Some(service),
            ModelSource::Kept(..) => None,
        })
    }
}

impl ModelEntry {
    /// Creates the entry of a model that `service` always answers for.
    pub fn new(service: Arc<Service>) -> Self {
        let (name, created_s) = (service.model().name.clone(), service.model().created_s);
        Self { name, alias: None, created_s, source: ModelSource::Always(service) }
    }

    /// Creates the entry of the model at `index` in `keeper`.
    pub fn kept(keeper: &Arc<Keeper>, index: usize) -> Self {
        let id = ModelId(index);
        let name = keeper.name(id).to_owned();
        let source = ModelSource::Kept(keeper.clone(), id);
        Self { name, alias: None, created_s: unix_time_s(), source }
    }

    /// Returns the model's name in the API.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the creation time shown in `/v1/models`, in Unix seconds.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// Returns the model's entry in `/v1/models`.
    pub fn card(&self) -> Value {
        let figures = self.figures();
        let mut card = match self.service() {
            Some(service) => service.model().card(),
            None => json!({
                "id": self.name, "object": "model", "created": self.created_s,
                "owned_by": "loquent",
            }),
        };
        if let Some(defaults) = self.sampling_defaults() {
            card["sampling_defaults"] = defaults.to_json();
        }
        // Under llama-server's names.
        card["status"] = json!({"value": figures.state});
        match figures.state {
            "loading" => card["status"]["progress"] = figures.share.into(),
            "failed" => {
                card["status"] = json!({"value": "unloaded", "failed": true});
            }
            // Ours: it cannot be unloaded.
            "loaded" if !self.is_kept() => card["status"]["permanent"] = true.into(),
            _ => {}
        }
        card
    }

    /// Returns the sampling parameters of requests that leave them open; `None` for the model of an
    /// upstream server, which has its own.
    pub fn sampling_defaults(&self) -> Option<SamplingDefaults> {
        match &self.source {
            ModelSource::Always(service) => {
                service.upstream().is_none().then(|| service.model().defaults)
            }
            ModelSource::Kept(keeper, id) => Some(keeper.sampling(*id)),
        }
    }

    /// Returns the service if it is in memory. For inspection only: a request calls
    /// [`Self::use_when_loaded`].
    pub fn service(&self) -> Option<Arc<Service>> {
        match &self.source {
            ModelSource::Always(service) => Some(service.clone()),
            ModelSource::Kept(keeper, id) => keeper.present(*id),
        }
    }

    /// Returns the description of the model that replicas need to continue an answer; empty while a
    /// model loaded on demand is not in memory.
    pub fn answers_by(&self) -> KeptService {
        let Some(service) = self.service() else { return KeptService::default() };
        KeptService {
            fingerprint: service.fingerprint().to_owned(),
            context_tokens: service.model().context_tokens,
        }
    }

    /// Returns the service of a model that is never unloaded.
    pub fn constant(&self) -> Option<&Arc<Service>> {
        match &self.source {
            ModelSource::Always(service) => Some(service),
            ModelSource::Kept(..) => None,
        }
    }

    /// Uses the model if it is in memory and accepts requests.
    pub fn try_use(&self) -> Option<ModelUse> {
        match &self.source {
            ModelSource::Always(service) => Some(ModelUse::of(service.clone())),
            ModelSource::Kept(keeper, id) => keeper.try_use(*id),
        }
    }

    /// Uses the model, loading it first if necessary.
    ///
    /// # Errors
    /// 503 if it cannot be loaded or does not get its turn in time; 429 if too many requests wait.
    pub async fn use_when_loaded(&self) -> Result<ModelUse, ApiError> {
        match &self.source {
            ModelSource::Always(service) => Ok(ModelUse::of(service.clone())),
            ModelSource::Kept(keeper, id) => keeper.use_when_loaded(*id).await,
        }
    }

    /// Parses a request's JSON for the backend that will answer it.
    ///
    /// # Errors
    /// 400 with the name of the first invalid parameter.
    pub fn parse(
        &self,
        endpoint: Endpoint,
        fields: Fields,
        caller: Caller,
    ) -> Result<Request, ApiError> {
        match (&self.source, self.service()) {
            (_, Some(service)) => service.parse(endpoint, fields, caller),
            (ModelSource::Kept(keeper, _), None) => {
                read_for_engine(endpoint, fields, caller, &keeper.context.serving)
            }
            (ModelSource::Always(_), None) => Err(ApiError::internal("There is no service.")),
        }
    }

    /// Loads the model although no request waits for it.
    pub fn preload(&self) {
        if let ModelSource::Kept(keeper, id) = &self.source {
            keeper.preload(*id);
        }
    }

    /// Unloads the model once nothing uses it. Returns false if it is not in memory or is never
    /// unloaded.
    pub fn unload(&self) -> bool {
        match &self.source {
            ModelSource::Always(_) => false,
            ModelSource::Kept(keeper, id) => keeper.ask_to_leave(*id),
        }
    }

    /// Sets how long the model stays in memory after its last use.
    pub fn keep(&self, keep: KeepAlive) {
        if let ModelSource::Kept(keeper, id) = &self.source {
            keeper.keep(*id, keep);
        }
    }

    /// Returns true if the model is loaded on demand.
    pub fn is_kept(&self) -> bool {
        matches!(self.source, ModelSource::Kept(..))
    }

    /// Returns the model's statistics.
    pub fn figures(&self) -> ModelStats {
        match &self.source {
            ModelSource::Always(_) => ModelStats::of_constant(self.name.clone()),
            ModelSource::Kept(keeper, id) => keeper.figures(*id),
        }
    }

    /// Creates an admitted answer that waits for the model.
    fn await_answer(
        &self,
        keeper: &Arc<Keeper>,
        id: ModelId,
        request: Request,
        arrived: Duration,
    ) -> Result<StartedAnswer, ApiError> {
        keeper.check_loadable(id)?;
        let context = &keeper.context;
        let (choices, tokens) = (request.choices(), request.estimated_prompt_tokens());
        let permits = context.gate.enter(&request.identity, choices, tokens).map_err(refused)?;
        let head = answer_head(request.endpoint, self.name.clone());
        let accepted = context.observers.clock.now();
        let admitted = admitted_request(&request, head, arrived, accepted);
        let tells = request.stream.is_some();
        let (ignored, vocab) = (request.ignored_names(), Arc::new(LateVocab::default()));
        let (waiter, late) = (keeper.clone(), vocab.clone());
        let begin: Begin = Box::pin(async move {
            let used = waiter.use_when_loaded(id).await?;
            late.arrive(used.model().vocab.clone());
            let begun = used.begin_admitted(request, permits).await?;
            Ok(EngineAnswer { held: used.held(), ..begun })
        });
        let teller = keeper.clone();
        let news: News = Box::new(move |waited| teller.news(id, waited));
        let awaited = LoadingAnswer::new(begin, tells.then_some(news));
        let source = FlushSource::Awaited(Box::new(awaited));
        let active = ActiveRequest::new(admitted, source, context.observers.clone());
        let vocab: Arc<dyn Vocab> = vocab;
        Ok(StartedAnswer { active, echo: Vec::new(), ignored, vocab })
    }
}

/// Starts an answer with a model that is in memory.
async fn start_with(
    used: ModelUse,
    mut request: Request,
    arrived: Duration,
) -> Result<StartedAnswer, ApiError> {
    if used.held().is_some() {
        // It may have been parsed before the model was there.
        used.prompts().adopt(&mut request);
    }
    let mut started = used.start(request, arrived).await?;
    started.active.hold(used.held());
    Ok(started)
}
