//! Begins the requests of replicas that have ended once more, with this server's own model.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use super::shared::kept_request::KeptRequest;
use super::shared::takeover::{SecondAnswer, Successor};
use crate::app::App;
use crate::error::ApiError;
use crate::records::{RecordContext, RecordWriter};
use crate::service::{Caller, StartedAnswer};

/// See the module's documentation.
pub struct AppSuccessor(Weak<App>);

impl AppSuccessor {
    /// One that begins requests as `app` does.
    pub fn of(app: &Arc<App>) -> Self {
        Self(Arc::downgrade(app))
    }
}

impl Successor for AppSuccessor {
    fn is_ready(&self) -> bool {
        self.0.upgrade().is_some_and(|app| app.ready().is_ok())
    }

    fn begin(
        &self,
        request: KeptRequest,
    ) -> Pin<Box<dyn Future<Output = Result<SecondAnswer, ApiError>> + Send + '_>> {
        Box::pin(async move {
            let ends = || ApiError::internal("The server ends.");
            begin(&*self.0.upgrade().ok_or_else(ends)?, request).await
        })
    }
}

async fn begin(app: &App, kept: KeptRequest) -> Result<SecondAnswer, ApiError> {
    let KeptRequest { model, endpoint, seed, fields, trace_parent } = kept;
    let entry = app.models.find(Some(&model))?;
    if entry.name() != model {
        return Err(ApiError::internal("This replica has another model."));
    }
    let caller = Caller { trace_parent, ..Caller::default() };
    let mut request = entry.parse(endpoint, fields, caller)?;
    request.sampling.seed = Some(seed);
    request.resumable = true;
    request.stream.get_or_insert_default();
    let started = app.models.start(request, app.clock.now()).await?;
    let StartedAnswer { mut active, echo, vocab, .. } = started;
    active.note_takeover();
    let context = RecordContext { vocab: &vocab, echo: &echo };
    let mut first = Vec::new();
    let records = RecordWriter::open(&active, &context, &mut |delta| first.push(delta));
    Ok(SecondAnswer { request: Box::new(active), records, first })
}
