//! Loads models on demand and unloads them, as decided by the [`ModelResidency`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use loquent_proto::Progress;
use tokio::sync::{Notify, watch};

use super::growing_list::GrowingList;
use super::model_use::ModelUse;
use crate::models::residency::{
    ModelId, ModelResidency, Move, NotLoaded, Presence, ResidencyLimits,
};
use crate::models::stats::{ModelCounts, ModelStats};
use crate::service::Service;
use loquent_serving::active_request::Observers;
use loquent_serving::admission::AdmissionGate;
use loquent_serving::api::sampling::SamplingDefaults;
use loquent_serving::engine_watch::EngineWatch;
use loquent_serving::error::ApiError;
use loquent_serving::keep_alive::KeepAlive;
use loquent_serving::serving_config::ServingConfig;

/// `Retry-After` in seconds for a request whose wait for its model has timed out.
const WAITED_RETRY_S: u64 = 10;
/// `Retry-After` in seconds if too many requests wait for models.
const CROWDED_RETRY_S: u64 = 5;
/// `Retry-After` in seconds while the server shuts down.
const DRAIN_RETRY_S: u64 = 5;
/// Time limit for the memory of an unused model to be freed. Chosen by hand: only the code that
/// reads the end of an answer still holds a part of it.
const FREE_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two checks of that memory.
const FREE_PAUSE: Duration = Duration::from_millis(5);

/// Source of engines.
pub trait EngineSource: Send + Sync {
    /// Loads the model called `name`, and starts its engine; `progress` receives the fraction
    /// loaded, 0 to 1. Called on a thread that may block, inside the runtime.
    ///
    /// # Errors
    /// If the model is missing, broken or too large; the message says what to do.
    fn load(&self, name: &str, progress: &dyn Fn(f32)) -> anyhow::Result<KeptEngine>;

    /// Returns the machine's free memory, if known.
    fn free_bytes(&self) -> Option<u64>;
}

/// A model that is loaded on demand.
#[derive(Debug, Clone)]
pub struct KeptModel {
    /// The model's name in the API.
    pub name: String,
    /// Memory taken by its file and its cache.
    pub bytes: u64,
    /// Size of its file in bytes.
    pub file_bytes: u64,
    /// Sampling parameters of requests that leave them open, as known before it is loaded.
    pub sampling: SamplingDefaults,
}

/// Limits of a keeper.
#[derive(Debug, Clone, Copy)]
pub struct KeeperConfig {
    /// Bounds on the models in memory.
    pub residency: ResidencyLimits,
    /// Maximum wait of a request for its model.
    pub wait_limit: Duration,
}

/// Settings and services that the keeper shares with the surrounding server.
pub struct KeeperContext {
    /// Gate that admits the requests for all models.
    pub gate: AdmissionGate,
    /// Metrics, traces and logs of requests.
    pub observers: Observers,
    /// Settings for serving requests.
    pub serving: ServingConfig,
    /// Maximum number of requests waiting for one model; several times as many may wait for all.
    pub max_waiting: usize,
}

/// An engine in memory.
pub struct KeptEngine {
    /// The service that uses the engine.
    pub service: Arc<Service>,
    /// The engine's thread, which ends after [`Service::stop`].
    pub thread: JoinHandle<()>,
}

/// State of one model apart from its presence.
struct ModelState {
    model: KeptModel,
    counts: ModelCounts,
    /// Loaded part, in thousandths.
    loaded_permille: AtomicU32,
}

struct Stock {
    residency: ModelResidency,
    engines: Vec<Option<KeptEngine>>,
    /// Duration of each model's latest load.
    took: Vec<Option<Duration>>,
    /// True if no new requests are accepted.
    is_draining: bool,
    /// True if all answers have been ended.
    is_stopping: bool,
}

impl ModelState {
    fn new(model: KeptModel) -> Self {
        Self { model, counts: ModelCounts::default(), loaded_permille: AtomicU32::new(0) }
    }
}

/// See the module's documentation.
pub struct Keeper {
    stock: Mutex<Stock>,
    places: GrowingList<ModelState>,
    /// Changes whenever waiting requests should check their model again.
    changed: watch::Sender<u64>,
    /// Wakes the task that loads and unloads.
    work: Notify,
    /// Why an engine failed, if one has.
    failure: watch::Sender<Option<Arc<str>>>,
    pub(super) context: KeeperContext,
    wait_limit: Duration,
}

/// A request's use of a model in memory.
struct UseToken {
    keeper: Arc<Keeper>,
    id: ModelId,
}

/// A request's wait for a model.
struct WaitToken<'a> {
    keeper: &'a Keeper,
    id: ModelId,
    failures: u64,
}

impl Keeper {
    /// Creates a keeper of `models`, none of which is in memory yet.
    pub fn new(config: &KeeperConfig, models: Vec<KeptModel>, context: KeeperContext) -> Arc<Self> {
        let count = models.len();
        let residency =
            ModelResidency::new(config.residency, models.iter().map(|model| model.bytes));
        Arc::new(Self {
            stock: Mutex::new(Stock {
                residency,
                engines: (0..count).map(|_| None).collect(),
                took: vec![None; count],
                is_draining: false,
                is_stopping: false,
            }),
            places: GrowingList::new(models.into_iter().map(ModelState::new).collect()),
            changed: watch::Sender::new(0),
            work: Notify::new(),
            failure: watch::Sender::new(None),
            context,
            wait_limit: config.wait_limit,
        })
    }

    /// Adds a model, which is not in memory yet; returns `None` if there are too many.
    pub(super) fn add(&self, model: KeptModel) -> Option<ModelId> {
        // Under the lock, so that the lists agree.
        let mut stock = self.stock();
        let bytes = model.bytes;
        let id = ModelId(self.places.push(ModelState::new(model)).ok()?);
        stock.residency.add(bytes);
        stock.engines.push(None);
        stock.took.push(None);
        Some(id)
    }

    /// Loads and unloads models forever.
    pub async fn run(self: Arc<Self>, source: Arc<dyn EngineSource>) {
        loop {
            let (next, wake_at) = {
                let (now, free_bytes) = (self.now(), source.free_bytes());
                let mut stock = self.stock();
                (stock.residency.next_move(now, free_bytes), stock.residency.next_time(now))
            };
            self.changed.send_modify(|count| *count += 1);
            match next {
                Some(Move::Load(id)) => self.load(id, source.clone()).await,
                Some(Move::Unload(id)) => self.unload(id).await,
                None => {
                    let rest = wake_at.map(|at| at.saturating_sub(self.now()));
                    let rest = tokio::time::sleep(rest.unwrap_or(Duration::MAX));
                    tokio::select! {
                        () = self.work.notified() => {}
                        () = rest => {}
                    }
                }
            }
        }
    }

    async fn load(self: &Arc<Self>, id: ModelId, source: Arc<dyn EngineSource>) {
        let place = &self.places[id.0];
        let (name, began) = (&place.model.name, self.now());
        tracing::info!(model = name, mib = place.model.bytes >> 20, "loading a model");
        place.loaded_permille.store(0, Ordering::Relaxed);
        let keeper = self.clone();
        let work = move || {
            let permille = &keeper.places[id.0].loaded_permille;
            let progress = |share: f32| permille.store((share * 1000.0) as u32, Ordering::Relaxed);
            source.load(&keeper.places[id.0].model.name, &progress)
        };
        let loaded = tokio::task::spawn_blocking(work).await;
        let loaded = loaded.unwrap_or_else(|panic| Err(anyhow::anyhow!("{panic}")));
        let (now, took) = (self.now(), self.now().saturating_sub(began));
        let mut stock = self.stock();
        match loaded {
            Ok(engine) => {
                tracing::info!(model = name, seconds = took.as_secs_f64(), "loaded a model");
                if let Some(watch) = engine.service.health().engine_watch() {
                    tokio::spawn(report_failure(watch.clone(), self.failure.clone()));
                }
                if stock.is_stopping {
                    engine.service.stop();
                }
                stock.engines[id.0] = Some(engine);
                stock.took[id.0] = Some(took);
                stock.residency.loaded(id, now);
                place.counts.on_load(took);
            }
            Err(error) => {
                tracing::error!(model = name, "a model could not be loaded: {error:#}");
                stock.residency.failed(id, now);
                place.counts.on_failure();
            }
        }
    }

    async fn unload(&self, id: ModelId) {
        let place = &self.places[id.0];
        let engine = self.stock().engines[id.0].take();
        if let Some(KeptEngine { service, thread }) = engine {
            let vocab = Arc::downgrade(&service.model().vocab);
            service.stop();
            drop(service);
            let joined = tokio::task::spawn_blocking(|| thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::warn!(model = place.model.name, "a model's engine ended badly");
            }
            // The vocabulary holds the weights.
            let is_free = || vocab.strong_count() == 0;
            if !until(FREE_LIMIT, is_free).await {
                tracing::warn!(model = place.model.name, "a model's memory is still in use");
            }
        }
        tracing::info!(model = place.model.name, "unloaded a model");
        place.counts.on_unload();
        self.stock().residency.unloaded(id);
    }

    /// Uses a model if it is in memory and accepts requests.
    pub(super) fn try_use(self: &Arc<Self>, id: ModelId) -> Option<ModelUse> {
        let now = self.now();
        let mut stock = self.stock();
        let service = stock.engines[id.0].as_ref()?.service.clone();
        stock.residency.try_use(id, now).then(|| {
            self.places[id.0].counts.on_use();
            ModelUse::holding(service, Arc::new(UseToken { keeper: self.clone(), id }))
        })
    }

    /// Uses a model, loading it first if necessary.
    ///
    /// # Errors
    /// 503 if it cannot be loaded or does not get its turn in time; 429 if too many requests wait.
    pub(super) async fn use_when_loaded(
        self: &Arc<Self>,
        id: ModelId,
    ) -> Result<ModelUse, ApiError> {
        let mut changed = self.changed.subscribe();
        if let Some(used) = self.try_use(id) {
            return Ok(used);
        }
        let waiting = self.wait(id)?;
        let mut limit = std::pin::pin!(tokio::time::sleep(self.wait_limit));
        loop {
            changed.borrow_and_update();
            if let Some(used) = self.try_use(id) {
                return Ok(used);
            }
            if self.places[id.0].counts.failures() > waiting.failures {
                return Err(self.not_loaded(id, NotLoaded::Failed(Duration::from_secs(10))));
            }
            tokio::select! {
                // The sender lives in `self`.
                _ = changed.changed() => {}
                () = &mut limit => {
                    let name = &self.places[id.0].model.name;
                    let message = format!(
                        "The model '{name}' did not get its turn to be loaded in time, because \
                         others are in use. Try again later."
                    );
                    return Err(ApiError::unavailable(message, WAITED_RETRY_S));
                }
            }
        }
    }

    /// Checks, before a request waits, that its model is in memory or can be loaded.
    ///
    /// # Errors
    /// 503 if it cannot be loaded now, or no requests are accepted.
    pub(super) fn check_loadable(&self, id: ModelId) -> Result<(), ApiError> {
        self.check_open()?;
        let possible = self.stock().residency.check(id, self.now());
        possible.map_err(|why| self.not_loaded(id, why))
    }

    fn wait(&self, id: ModelId) -> Result<WaitToken<'_>, ApiError> {
        let now = self.now();
        let failures = self.places[id.0].counts.failures();
        let mut stock = self.stock();
        if stock.is_stopping {
            return Err(ApiError::unavailable("The server is shutting down.", DRAIN_RETRY_S));
        }
        if stock.residency.is_crowded(id, self.context.max_waiting) {
            let message = "Too many requests wait for models to be loaded. Try again later.";
            return Err(ApiError::overloaded(message, CROWDED_RETRY_S));
        }
        stock.residency.wait(id, now).map_err(|why| self.not_loaded(id, why))?;
        drop(stock);
        self.work.notify_one();
        Ok(WaitToken { keeper: self, id, failures })
    }

    fn not_loaded(&self, id: ModelId, why: NotLoaded) -> ApiError {
        let message =
            format!("The model '{}' is not available: {why}.", self.places[id.0].model.name);
        let retry_s = match why {
            NotLoaded::Failed(rest) => rest.as_secs() + 1,
            NotLoaded::TooLarge { .. } => 3600,
        };
        ApiError::unavailable(message, retry_s)
    }

    /// Returns the progress report for a request that has waited for a model for `waited`.
    pub(super) fn news(&self, id: ModelId, waited: Duration) -> Progress {
        let stock = self.stock();
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let (queued, eta) = match stock.residency.presence(id) {
            Presence::Loading { since } => {
                let passed = self.now().saturating_sub(since);
                (0, stock.took[id.0].map(|took| took.saturating_sub(passed)))
            }
            _ => (stock.residency.ahead_of(id) + 1, None),
        };
        Progress {
            queued: u32::try_from(queued).unwrap_or(u32::MAX),
            eta_ms: eta.map(millis),
            elapsed_ms: millis(waited),
            ..Progress::default()
        }
    }

    /// Loads a model although no request waits for it.
    pub(super) fn preload(self: &Arc<Self>, id: ModelId) {
        let keeper = self.clone();
        tokio::spawn(async move {
            // What is wrong is in the log.
            let _ = keeper.use_when_loaded(id).await;
        });
    }

    /// Unloads a model once nothing uses it. Returns false if it is not in memory.
    pub(super) fn ask_to_leave(&self, id: ModelId) -> bool {
        let is_there = self.stock().residency.ask_to_leave(id);
        self.work.notify_one();
        is_there
    }

    /// Sets how long a model stays in memory after its last use.
    pub(super) fn keep(&self, id: ModelId, keep: KeepAlive) {
        self.stock().residency.keep(id, keep);
        self.work.notify_one();
    }

    /// Returns a model's name.
    pub(super) fn name(&self, id: ModelId) -> &str {
        &self.places[id.0].model.name
    }

    /// Returns the sampling defaults of model `id`.
    pub(super) fn sampling(&self, id: ModelId) -> SamplingDefaults {
        self.places[id.0].model.sampling
    }

    /// Checks that requests are accepted.
    ///
    /// # Errors
    /// 503 while the server shuts down, or after an engine has failed.
    pub(super) fn check_open(&self) -> Result<(), ApiError> {
        self.check_alive()?;
        match self.stock().is_draining {
            true => Err(ApiError::unavailable("The server is shutting down.", DRAIN_RETRY_S)),
            false => Ok(()),
        }
    }

    /// Checks that no engine has failed.
    ///
    /// # Errors
    /// 503 after one has.
    pub(super) fn check_alive(&self) -> Result<(), ApiError> {
        if self.failure.borrow().is_some() {
            let message = "An engine has failed. The server ends, and must be started again.";
            return Err(ApiError::unavailable(message, DRAIN_RETRY_S));
        }
        Ok(())
    }

    /// Refuses new requests.
    pub(super) fn drain(&self) {
        self.stock().is_draining = true;
    }

    /// Ends all answers with an error, and stops the engines.
    pub(super) fn stop(&self) {
        let mut stock = self.stock();
        stock.is_stopping = true;
        stock.engines.iter().flatten().for_each(|engine| engine.service.stop());
    }

    /// Returns the engines' threads, to be joined so that their memory is freed in order. Call
    /// [`Self::stop`] first.
    pub fn take_threads(&self) -> Vec<JoinHandle<()>> {
        let mut stock = self.stock();
        stock.engines.iter_mut().filter_map(Option::take).map(|engine| engine.thread).collect()
    }

    /// Returns the service of a model in memory, for inspection only.
    pub(super) fn present(&self, id: ModelId) -> Option<Arc<Service>> {
        self.stock().engines[id.0].as_ref().map(|engine| engine.service.clone())
    }

    fn now(&self) -> Duration {
        self.context.observers.clock.now()
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().expect("nothing panics under this lock")
    }

    /// Returns a model's statistics.
    pub(super) fn figures(&self, id: ModelId) -> ModelStats {
        let (now, place) = (self.now(), &self.places[id.0]);
        let stock = self.stock();
        let presence = stock.residency.presence(id);
        let share = match presence {
            Presence::Loading { .. } => place.loaded_permille.load(Ordering::Relaxed),
            Presence::Ready { .. } | Presence::Unloading => 1000,
            Presence::Unloaded | Presence::Failed { .. } => 0,
        };
        ModelStats {
            name: place.model.name.clone(),
            state: presence.word(),
            is_loaded: matches!(presence, Presence::Ready { .. }),
            uses: stock.residency.uses(id),
            bytes: place.model.bytes,
            file_bytes: place.model.file_bytes,
            share: f64::from(share) / 1000.0,
            expires_in: stock.residency.expires_at(id).map(|at| at.saturating_sub(now)),
            counts: place.counts.read(),
        }
    }

    /// Returns why an engine failed; `None` while none has.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.failure.borrow().clone()
    }

    /// Waits until an engine fails. Returns the reason.
    pub(super) async fn failed(&self) -> Arc<str> {
        let mut failure = self.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            // The sender lives in `self`.
            _ => std::future::pending().await,
        }
    }
}

impl Drop for UseToken {
    fn drop(&mut self) {
        let now = self.keeper.now();
        let uses = {
            let mut stock = self.keeper.stock();
            stock.residency.end_use(self.id, now);
            stock.residency.uses(self.id)
        };
        if uses == 0 {
            self.keeper.work.notify_one();
        }
    }
}

impl Drop for WaitToken<'_> {
    fn drop(&mut self) {
        self.keeper.stock().residency.end_wait(self.id);
    }
}

/// Stores the reason in `failure` if the engine fails.
async fn report_failure(watch: EngineWatch, failure: watch::Sender<Option<Arc<str>>>) {
    if let Some(why) = watch.failed().await {
        failure.send_replace(Some(why));
    }
}

/// Waits until `is_so` returns true. Returns false if that takes longer than `limit`.
async fn until(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(FREE_PAUSE).await;
        }
    };
    tokio::time::timeout(limit, wait).await.is_ok()
}
