//! The list of a server's models, and how a request finds its own.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use loquent_infer::admission::BudgetLevel;
use loquent_infer::vocab::Vocab;
use serde_json::{Value, json};

use super::figures::{ModelCollector, ModelFigures};
use super::keeper::Keeper;
use super::model_use::ModelUse;
use super::shelf::{KeepAlive, ModelId};
use crate::active_request::{ActiveRequest, FlushSource};
use crate::admission::AdmissionGate;
use crate::api::fields::Fields;
use crate::api::request::{Endpoint, Request};
use crate::awaited::{AwaitedAnswer, Begin, EngineAnswer, LateVocab, News};
use crate::clock::unix_time_s;
use crate::error::ApiError;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::otel::Telemetry;
use crate::resumable::shared::kept_request::KeptService;
use crate::service::{
    Caller, Service, StartedAnswer, admitted_request, answer_head, read_for_engine, refused,
};

/// `Retry-After` while the first model loads, in seconds.
const LOADING_RETRY_S: u64 = 2;
/// What Ollama's clients put behind the name of a model without a tag.
const LATEST: &str = ":latest";

/// All models of a server. Empty until its first one is loaded.
#[derive(Default)]
pub struct ServedModels(OnceLock<Opened>);

struct Opened {
    entries: Vec<ModelEntry>,
    keeper: Option<Arc<Keeper>>,
}

/// One model of a server.
#[derive(Clone)]
pub struct ModelEntry {
    name: String,
    created_s: u64,
    source: ModelSource,
}

/// Where the answers of a model come from.
#[derive(Clone)]
enum ModelSource {
    /// A service that is always there.
    Always(Arc<Service>),
    /// An engine that is loaded when it is asked for.
    Kept(Arc<Keeper>, ModelId),
}

impl ServedModels {
    /// Opens the API: requests go to `entries` from here on. The first one answers those that name
    /// no model.
    pub fn open(&self, entries: Vec<ModelEntry>) {
        assert!(!entries.is_empty(), "a server has a model");
        let keeper = entries.iter().find_map(|entry| match &entry.source {
            ModelSource::Always(_) => None,
            ModelSource::Kept(keeper, _) => Some(keeper.clone()),
        });
        assert!(self.0.set(Opened { entries, keeper }).is_ok(), "a server is opened once");
    }

    /// All models, in the order in which they were named.
    pub fn entries(&self) -> &[ModelEntry] {
        self.0.get().map(|opened| opened.entries.as_slice()).unwrap_or_default()
    }

    /// The model for requests that name none.
    ///
    /// # Errors
    /// 503 while it loads.
    pub fn first(&self) -> Result<&ModelEntry, ApiError> {
        let loading = || ApiError::unavailable("The model is loading.", LOADING_RETRY_S);
        self.entries().first().ok_or_else(loading)
    }

    /// The model that a request calls `asked`.
    ///
    /// # Errors
    /// 404 for an unknown name where there are several models, 503 while the first one loads.
    pub fn find(&self, asked: Option<&str>) -> Result<&ModelEntry, ApiError> {
        let first = self.first()?;
        let asked = asked.filter(|name| !name.is_empty() && self.entries().len() > 1);
        let Some(asked) = asked else { return Ok(first) };
        match (self.named(asked), asked.strip_suffix(LATEST)) {
            (Err(_), Some(short)) => self.named(short),
            (found, _) => found,
        }
    }

    /// The model of the name `id`.
    ///
    /// # Errors
    /// 404 if there is none, 503 while the first one loads.
    pub fn named(&self, id: &str) -> Result<&ModelEntry, ApiError> {
        // 503 where none is loaded yet, rather than 404.
        self.first()?;
        let found = self.entries().iter().find(|entry| entry.name == id);
        let names = self.entries().iter().map(|entry| entry.name.as_str());
        found.ok_or_else(|| ApiError::model_not_found(id, names))
    }

    /// The model that `fields` name. What is wrong with the field is left to whoever reads it.
    /// Where no server of that model takes requests, the field becomes the name of the model that
    /// answers in its place.
    ///
    /// # Errors
    /// Those of [`Self::find`].
    pub fn find_for(&self, fields: &mut Fields) -> Result<&ModelEntry, ApiError> {
        let entry = self.find(fields.map().get("model").and_then(|model| model.as_str()))?;
        let upstream = entry.constant().and_then(|service| service.upstream());
        let Some(name) = upstream.and_then(|upstream| upstream.stand_in()) else {
            return Ok(entry);
        };
        fields.set_model(name);
        self.find(Some(name))
    }

    /// Whether any model can answer, as far as that depends on other servers.
    ///
    /// # Errors
    /// 503 when other servers answer for all models, and none of them takes requests.
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

    /// Whether other servers answer for any of the models.
    pub fn has_upstreams(&self) -> bool {
        self.always().any(|service| service.upstream().is_some())
    }

    /// Starts to answer `request`, which arrived at `arrived` on the server's clock. One whose
    /// model is still to be loaded begins at once: a stream tells its reader how that goes on.
    ///
    /// # Errors
    /// Those of [`Service::start`]; 404 for an unknown model.
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

    /// Whether a request would be admitted, as far as can be said without its body.
    ///
    /// # Errors
    /// 429 over the bounds, 503 while no requests are accepted.
    pub fn check_room(&self) -> Result<(), ApiError> {
        match &self.first()?.source {
            ModelSource::Always(service) => service.check_room(),
            ModelSource::Kept(keeper, _) => {
                keeper.check_open()?;
                keeper.context.gate.check_room().map_err(refused)
            }
        }
    }

    /// Whether new requests are accepted.
    ///
    /// # Errors
    /// 503 while the first model loads, the server drains, or an engine has failed or is out of
    /// reach.
    pub fn ready(&self) -> Result<(), ApiError> {
        match &self.first()?.source {
            ModelSource::Always(service) => service.ready(),
            ModelSource::Kept(keeper, _) => keeper.check_open(),
        }
    }

    /// Whether the process is of use.
    ///
    /// # Errors
    /// 503 after an engine has failed.
    pub fn alive(&self) -> Result<(), ApiError> {
        self.keeper().map_or(Ok(()), |keeper| keeper.check_alive())?;
        self.always().try_for_each(|service| service.alive())
    }

    /// What is left of the budgets of `identity`, for requests and for tokens.
    pub fn budget_levels(&self, identity: &Identity) -> [Option<BudgetLevel>; 2] {
        self.gate().map_or([None, None], |gate| gate.levels(identity))
    }

    /// Completions running or waiting.
    pub fn in_flight(&self) -> usize {
        self.gate().map_or(0, AdmissionGate::in_flight)
    }

    /// One gate is before all models.
    fn gate(&self) -> Option<&AdmissionGate> {
        self.entries().first().map(|entry| match &entry.source {
            ModelSource::Always(service) => service.gate(),
            ModelSource::Kept(keeper, _) => &keeper.context.gate,
        })
    }

    /// Refuses new requests from here on.
    pub fn drain(&self) {
        self.always().for_each(|service| service.drain());
        self.keeper().into_iter().for_each(|keeper| keeper.drain());
    }

    /// Ends all streams with an error, and lets the engines stop.
    pub fn stop(&self) {
        self.always().for_each(|service| service.stop());
        self.keeper().into_iter().for_each(|keeper| keeper.stop());
    }

    /// Why an engine failed; `None` while none has.
    pub fn failure(&self) -> Option<Arc<str>> {
        let kept = self.keeper().and_then(|keeper| keeper.failure());
        kept.or_else(|| self.always().find_map(|service| service.failure()))
    }

    /// Waits until an engine fails.
    pub async fn failed(&self) -> Arc<str> {
        let kept = async {
            match self.keeper() {
                Some(keeper) => keeper.failed().await,
                None => std::future::pending().await,
            }
        };
        // An upstream server's service never fails, and an engine that is always there is alone.
        let always = async {
            match self.always().find(|service| service.engine_watch().is_some()) {
                Some(service) => service.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            why = kept => why,
            why = always => why,
        }
    }

    /// The keeper of those that are not always there.
    pub fn keeper(&self) -> Option<&Arc<Keeper>> {
        self.0.get()?.keeper.as_ref()
    }

    /// Sends the spans of requests; `None` without a collector.
    pub fn telemetry(&self) -> Option<Arc<Telemetry>> {
        match &self.entries().first()?.source {
            ModelSource::Always(service) => service.telemetry(),
            ModelSource::Kept(keeper, _) => keeper.context.observers.telemetry.clone(),
        }
    }

    /// The threads of the engines that come and go; call [`Self::stop`] first.
    pub fn take_threads(&self) -> Vec<JoinHandle<()>> {
        self.keeper().map(|keeper| keeper.take_threads()).unwrap_or_default()
    }

    /// Shows the figures of each model that comes and goes in `metrics`.
    pub fn watch(self: &Arc<Self>, metrics: &Metrics) {
        let models = self.clone();
        let kept = move || {
            let kept = models.entries().iter().filter(|entry| entry.is_kept());
            kept.map(ModelEntry::figures).collect()
        };
        metrics.watch_models(Box::new(ModelCollector::new(Box::new(kept))));
    }

    /// Whether a request for embeddings may be answered, as far as can be said without its body.
    ///
    /// # Errors
    /// 503 while the model loads, 400 if it is the only one and embeds nothing.
    pub fn check_embeds(&self) -> Result<(), ApiError> {
        self.first()?;
        match self.entries() {
            [ModelEntry { source: ModelSource::Always(service), .. }] => {
                service.embedder().map(drop)
            }
            _ => Ok(()),
        }
    }

    fn always(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.entries().iter().filter_map(|entry| match &entry.source {
            ModelSource::Always(service) => Some(service),
            ModelSource::Kept(..) => None,
        })
    }
}

impl ModelEntry {
    /// A model that `service` always answers for.
    pub fn new(service: Arc<Service>) -> Self {
        let (name, created_s) = (service.model().name.clone(), service.model().created_s);
        Self { name, created_s, source: ModelSource::Always(service) }
    }

    /// The model in place `index` of those that `keeper` has.
    pub fn kept(keeper: &Arc<Keeper>, index: usize) -> Self {
        let id = ModelId(index);
        let name = keeper.name(id).to_owned();
        Self { name, created_s: unix_time_s(), source: ModelSource::Kept(keeper.clone(), id) }
    }

    /// Its name in the API.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Since when it is served, in Unix seconds.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// Its entry in `/v1/models`.
    pub fn card(&self) -> Value {
        let figures = self.figures();
        let mut card = match self.service() {
            Some(service) => service.model().card(),
            None => json!({
                "id": self.name, "object": "model", "created": self.created_s,
                "owned_by": "loquent",
            }),
        };
        // Under llama-server's names.
        card["status"] = json!({"value": figures.state});
        match figures.state {
            "loading" => card["status"]["progress"] = figures.share.into(),
            "failed" => {
                card["status"] = json!({"value": "unloaded", "failed": true});
            }
            _ => {}
        }
        card
    }

    /// The service that answers, while it is there. For looking at it: a request uses
    /// [`Self::use_when_loaded`].
    pub fn service(&self) -> Option<Arc<Service>> {
        match &self.source {
            ModelSource::Always(service) => Some(service.clone()),
            ModelSource::Kept(keeper, id) => keeper.present(*id),
        }
    }

    /// What answers, for replicas that go on with an answer; not known before a model that comes
    /// and goes is there.
    pub fn answers_by(&self) -> KeptService {
        let Some(service) = self.service() else { return KeptService::default() };
        KeptService {
            fingerprint: service.fingerprint().to_owned(),
            context_tokens: service.model().context_tokens,
        }
    }

    /// The service, if it is always there.
    pub fn constant(&self) -> Option<&Arc<Service>> {
        match &self.source {
            ModelSource::Always(service) => Some(service),
            ModelSource::Kept(..) => None,
        }
    }

    /// Uses the model, if it is there and takes requests.
    pub fn try_use(&self) -> Option<ModelUse> {
        match &self.source {
            ModelSource::Always(service) => Some(ModelUse::of(service.clone())),
            ModelSource::Kept(keeper, id) => keeper.try_use(*id),
        }
    }

    /// Uses the model, which is loaded first where necessary.
    ///
    /// # Errors
    /// 503 if it cannot be loaded or does not get its turn in time; 429 where too many wait.
    pub async fn use_when_loaded(&self) -> Result<ModelUse, ApiError> {
        match &self.source {
            ModelSource::Always(service) => Ok(ModelUse::of(service.clone())),
            ModelSource::Kept(keeper, id) => keeper.use_when_loaded(*id).await,
        }
    }

    /// Parses a request's JSON for the backend that will answer it.
    ///
    /// # Errors
    /// 400 with the name of the first parameter that is wrong.
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

    /// Has the model loaded, though no request waits for it.
    pub fn preload(&self) {
        if let ModelSource::Kept(keeper, id) = &self.source {
            keeper.preload(*id);
        }
    }

    /// Lets the model go as soon as nobody uses it; false if it is not there, or always.
    pub fn unload(&self) -> bool {
        match &self.source {
            ModelSource::Always(_) => false,
            ModelSource::Kept(keeper, id) => keeper.ask_to_leave(*id),
        }
    }

    /// How long the model stays after its last use, from here on.
    pub fn keep(&self, keep: KeepAlive) {
        if let ModelSource::Kept(keeper, id) = &self.source {
            keeper.keep(*id, keep);
        }
    }

    /// Whether it comes and goes.
    pub fn is_kept(&self) -> bool {
        matches!(self.source, ModelSource::Kept(..))
    }

    /// What is known of it.
    pub fn figures(&self) -> ModelFigures {
        match &self.source {
            ModelSource::Always(_) => ModelFigures::of_constant(self.name.clone()),
            ModelSource::Kept(keeper, id) => keeper.figures(*id),
        }
    }

    /// An answer that waits for the model, and is admitted already.
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
        let awaited = AwaitedAnswer::new(begin, tells.then_some(news));
        let source = FlushSource::Awaited(Box::new(awaited));
        let active = ActiveRequest::new(admitted, source, context.observers.clone());
        let vocab: Arc<dyn Vocab> = vocab;
        Ok(StartedAnswer { active, echo: Vec::new(), ignored, vocab })
    }
}

/// Has a model in memory answer.
async fn start_with(
    used: ModelUse,
    mut request: Request,
    arrived: Duration,
) -> Result<StartedAnswer, ApiError> {
    if used.held().is_some() {
        // It may have been parsed before the model was there.
        used.adopt(&mut request);
    }
    let mut started = used.start(request, arrived).await?;
    started.active.hold(used.held());
    Ok(started)
}
