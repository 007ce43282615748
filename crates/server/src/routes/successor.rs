//! Restarts the requests of replicas that have ended, with this server's own model.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use loquent_infer::tenant::TenantId;

use crate::app::App;
use crate::models::ModelEntry;
use crate::routes::stored_chats;
use crate::service::StartedAnswer;
use loquent_resumable::shared::kept_request::{
    KeptService, ReplayAsker, ReplayMetadata, ReplayableRequest,
};
use loquent_resumable::shared::offers::TakeoverOffer;
use loquent_resumable::shared::takeover::{FirstAnswer, SecondAnswer, TakeoverStarter};
use loquent_serving::api::request::StreamParams;
use loquent_serving::api::stored_chat::ChatToStore;
use loquent_serving::caller::Caller;
use loquent_serving::error::ApiError;
use loquent_serving::identity::token::TokenScope;
use loquent_serving::identity::{CountedBefore, Identity};
use loquent_serving::records::RecordContext;
use loquent_store::Kind;

/// A [`TakeoverStarter`] that starts requests on this server's [`App`].
pub struct AppTakeover(Weak<App>);

impl AppTakeover {
    /// Creates a successor that starts requests with `app`.
    pub fn of(app: &Arc<App>) -> Self {
        Self(Arc::downgrade(app))
    }

    fn app(&self) -> Result<Arc<App>, ApiError> {
        self.0.upgrade().ok_or_else(|| ApiError::internal("The server ends."))
    }
}

impl TakeoverStarter for AppTakeover {
    fn is_ready(&self) -> bool {
        self.0.upgrade().is_some_and(|app| app.is_ready())
    }

    fn offers(&self) -> Vec<TakeoverOffer> {
        self.0.upgrade().map(|app| app.offers()).unwrap_or_default()
    }

    fn check(&self, request: &ReplayableRequest) -> Result<(), ApiError> {
        self.app()?.check(request)
    }

    fn begin(
        &self,
        request: ReplayableRequest,
        first: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>> {
        Box::pin(async move { TakeoverStarter::begin(&*self.app()?, request, first).await })
    }
}

impl TakeoverStarter for App {
    fn is_ready(&self) -> bool {
        self.ready().is_ok()
    }

    fn offers(&self) -> Vec<TakeoverOffer> {
        // Answers of upstream servers are not taken over.
        let is_local = |entry: &&ModelEntry| {
            entry.constant().is_none_or(|service| service.upstream().is_none())
        };
        let entries = self.models.entries().filter(|_| self.is_ready()).filter(is_local);
        let offers = entries.map(|entry| TakeoverOffer {
            model: entry.name().to_owned(),
            answered_by: entry.answers_by(),
        });
        offers.collect()
    }

    fn check(&self, request: &ReplayableRequest) -> Result<(), ApiError> {
        model_of(self, request).map(drop)
    }

    fn begin(
        &self,
        request: ReplayableRequest,
        first: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>> {
        Box::pin(begin(self, request, first))
    }
}

/// `Retry-After` for an answer that another replica can continue, in seconds.
const ELSEWHERE_RETRY_S: u64 = 2;

/// Returns the model that `request` was sent to, if it gives the same answers here.
///
/// # Errors
/// 404 for a model that is not served here, 503 for one that gives other answers here.
fn model_of<'a>(app: &'a App, request: &ReplayableRequest) -> Result<&'a ModelEntry, ApiError> {
    let model = &request.marks.model;
    let entry = app.models.find(Some(model))?;
    // A server with one model answers with that, whatever a request calls it.
    let is_same = entry.name() == *model;
    if !is_same {
        return Err(ApiError::model_not_found(model, [entry.name()]));
    }
    check_service(entry, &request.marks.answered_by)?;
    Ok(entry)
}

/// Checks that `entry` gives the same answers as the first replica, if both are known.
fn check_service(entry: &ModelEntry, first: &KeptService) -> Result<(), ApiError> {
    match entry.answers_by().obstacle_to(first) {
        Some(obstacle) => Err(ApiError::unavailable(obstacle, ELSEWHERE_RETRY_S)),
        None => Ok(()),
    }
}

/// Returns the sender of a request, according to this server's keys. If the key is unknown, only
/// the server's own limits apply; prefixes still stay separate from those of others.
fn identity_of(app: &App, asker: ReplayAsker) -> Identity {
    let ReplayAsker { owner, tenant, token_salt } = asker;
    let key = app.config.api_keys.owners().into_iter().find(|key| key.owner() == owner);
    let token = token_salt.map(|salt| TokenScope { cache_salt: salt.into() });
    match (key, token) {
        (Some(key), Some(token)) => Identity::of_token(&key, token),
        (Some(key), None) => Identity::of_key(key),
        (None, token) => Identity { tenant: TenantId(tenant), token, ..Identity::in_process() },
    }
}

/// Starts a request again, with the same model and seed. `stream` replaces the request's own
/// streaming parameters, if given; `tokens` of the answer have been counted.
///
/// # Errors
/// Those of [`ServedModels::start`](crate::models::ServedModels::start), and 404 for a model that
/// is not served here.
async fn start_again(
    app: &App,
    kept: ReplayableRequest,
    stream: Option<StreamParams>,
    tokens: u64,
) -> Result<StartedAnswer, ApiError> {
    let entry = model_of(app, &kept)?;
    let ReplayableRequest { endpoint, marks, fields } = kept;
    // One that comes and goes is known once it is there.
    drop(entry.use_when_loaded().await?);
    check_service(entry, &marks.answered_by)?;
    let counted_before = Some(CountedBefore::new(tokens));
    let identity = Identity { counted_before, ..identity_of(app, marks.asker) };
    let trace_parent = marks.trace_parent;
    let caller = Caller { identity, trace_parent, ..Caller::default() };
    let mut request = entry.parse(endpoint, fields, caller)?;
    // Who named none may have another one here.
    request.model = Some(marks.model);
    request.sampling.seed = Some(marks.seed);
    request.sampling.stated = marks.sampling.into();
    request.call_ids = Some(marks.call_ids);
    request.date_prompts(marks.asked_at_s);
    let context = marks.answered_by.context_tokens;
    request.context_limit = (context > 0).then_some(context);
    request.resumable = true;
    request.stream = stream.or(request.stream).or_else(|| Some(StreamParams::default()));
    app.models.start(request, app.clock.now()).await
}

/// Starts the answer to `kept` again, under the name that `first` has for its readers.
///
/// # Errors
/// As [`start_again`]; those of the store.
async fn begin(
    app: &App,
    kept: ReplayableRequest,
    first: FirstAnswer,
) -> Result<SecondAnswer, ApiError> {
    let stored = kept.marks.stored.as_ref().map(|ReplayMetadata { owner, metadata }| {
        (*owner, Box::new(ChatToStore::of(&kept.fields, metadata.clone())))
    });
    let started = start_again(app, kept, first.stream, first.tokens).await?;
    let StartedAnswer { mut active, echo, vocab, .. } = started;
    active.take_over(first.name);
    if let Some((owner, chat)) = stored {
        let (kind, id) = (Kind::ChatCompletion, &active.head().id);
        // An owner that wakes up stores nothing from here on.
        app.store.raise_fence(kind, owner, id, first.fence).await?;
        stored_chats::record(app, &vocab, (owner, first.fence), Some(chat), &mut active);
    }
    let context = RecordContext { vocab: &vocab, echo: &echo, logprobs: None };
    Ok(SecondAnswer::open(active, &context))
}
