//! Begins the requests of replicas that have ended once more, with this server's own model.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use super::shared::kept_request::{KeptMetadata, KeptRequest};
use super::shared::takeover::{FirstAnswer, SecondAnswer, Successor};
use crate::api::request::StreamParams;
use crate::app::App;
use crate::dialect::stored_chats;
use crate::dialect::stored_chats::request::ChatToStore;
use crate::error::ApiError;
use crate::models::ModelEntry;
use crate::records::{RecordContext, RecordWriter};
use crate::service::{Caller, StartedAnswer};
use crate::store::Kind;

/// See the module's documentation.
pub struct AppSuccessor(Weak<App>);

impl AppSuccessor {
    /// One that begins requests as `app` does.
    pub fn of(app: &Arc<App>) -> Self {
        Self(Arc::downgrade(app))
    }

    fn app(&self) -> Result<Arc<App>, ApiError> {
        self.0.upgrade().ok_or_else(|| ApiError::internal("The server ends."))
    }
}

impl Successor for AppSuccessor {
    fn is_ready(&self) -> bool {
        self.0.upgrade().is_some_and(|app| app.ready().is_ok())
    }

    fn check(&self, request: &KeptRequest) -> Result<(), ApiError> {
        model_of(&*self.app()?, request).map(drop)
    }

    fn begin(
        &self,
        request: KeptRequest,
        first: FirstAnswer,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>> {
        Box::pin(async move { begin(&*self.app()?, request, first).await })
    }
}

/// The model that `request` was sent to.
pub fn model_of<'a>(app: &'a App, request: &KeptRequest) -> Result<&'a ModelEntry, ApiError> {
    let model = &request.marks.model;
    let entry = app.models.find(Some(model))?;
    // A server with one model answers with that, whatever a request calls it.
    let is_same = entry.name() == *model;
    is_same.then_some(entry).ok_or_else(|| ApiError::model_not_found(model, [entry.name()]))
}

/// Starts a request once more, with the same model and chances; with `stream`, as if it had asked
/// for that.
///
/// # Errors
/// Those of [`ServedModels::start`](crate::models::ServedModels::start), and 404 for a model that
/// is not served here.
pub async fn start_again(
    app: &App,
    kept: KeptRequest,
    stream: Option<StreamParams>,
) -> Result<StartedAnswer, ApiError> {
    let entry = model_of(app, &kept)?;
    let KeptRequest { endpoint, marks, fields } = kept;
    let caller = Caller { trace_parent: marks.trace_parent, ..Caller::default() };
    let mut request = entry.parse(endpoint, fields, caller)?;
    // Who named none may have another one here.
    request.model = Some(marks.model);
    request.sampling.seed = Some(marks.seed);
    request.call_ids = Some(marks.call_ids);
    request.resumable = true;
    request.stream = stream.or(request.stream).or_else(|| Some(StreamParams::default()));
    app.models.start(request, app.clock.now()).await
}

async fn begin(app: &App, kept: KeptRequest, first: FirstAnswer) -> Result<SecondAnswer, ApiError> {
    let stored = kept.marks.stored.as_ref().map(|KeptMetadata { owner, metadata }| {
        (*owner, Box::new(ChatToStore::of(&kept.fields, metadata.clone())))
    });
    let started = start_again(app, kept, None).await?;
    let StartedAnswer { mut active, echo, vocab, .. } = started;
    active.take_over(first.name);
    if let Some((owner, chat)) = stored {
        let (kind, id) = (Kind::ChatCompletion, &active.head().id);
        // An owner that wakes up stores nothing from here on.
        app.store.raise_fence(kind, owner, id, first.fence).await?;
        stored_chats::record(app, &vocab, (owner, first.fence), Some(chat), &mut active);
    }
    let context = RecordContext { vocab: &vocab, echo: &echo };
    let mut first = Vec::new();
    let records = RecordWriter::open(&active, &context, &mut |delta| first.push(delta));
    Ok(SecondAnswer { request: Box::new(active), records, first })
}
