//! The background responses of one replica, which are called as the server's routes call them.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use loquent_dialects::responses::events::{EventRange, ResponseEvents};
use loquent_dialects::responses::object::ResponseTemplate;
use loquent_responses::generation::ResponseGeneration;
use loquent_responses::live::{LiveResponses, NewResponse};
use loquent_responses::lookup::ResponseLookup;
use loquent_responses::record_log::RecordLog;
use loquent_responses::stored::{KeptInput, StoredResponse};
use loquent_responses::storing::ResponseRecorder;
use loquent_responses::stream::ResponseReader;
use loquent_resumable::ResumableAnswers;
use loquent_resumable::shared::offers::OthersOffers;
use loquent_serving::body::RequestBodies;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::event_writer::{EventSource, StreamStatus};
use loquent_serving::identity::Owner;
use loquent_serving::memory::MemoryCharge;
use loquent_serving::records::RecordContext;
use loquent_store::recorder::StoreTarget;
use loquent_store::{AnswerFence, Kind, Store};
use serde_json::{Value, json};

use crate::glue::GlueFault;
use crate::requests::OWNER;
use crate::service::{SimulatedService, kept_question, key_of, vocab};

/// The background responses of one replica.
#[derive(Clone)]
pub struct ReplicaResponses {
    live: Arc<LiveResponses>,
    answers: Arc<ResumableAnswers>,
    service: SimulatedService,
    store: Arc<OnceLock<Store>>,
    bodies: Arc<RequestBodies>,
    glue: Option<GlueFault>,
}

impl ReplicaResponses {
    /// Creates those of a replica that has `answers` and `service`, and that uses `store` once it
    /// has started.
    pub fn new(
        answers: Arc<ResumableAnswers>,
        service: SimulatedService,
        store: Arc<OnceLock<Store>>,
        bodies: Arc<RequestBodies>,
        glue: Option<GlueFault>,
    ) -> Self {
        Self { live: Arc::default(), answers, service, store, bodies, glue }
    }

    /// Returns the number of responses that are generated here, or whose end is not stored yet.
    pub fn count(&self) -> usize {
        self.live.count()
    }

    /// Leaves the responses that `others` cover to them, as after SIGTERM.
    pub async fn leave(&self, others: &Arc<OthersOffers>) {
        self.live.leave(others).await;
    }

    /// Leaves all responses, as at the drain limit.
    pub async fn leave_all(&self) {
        self.live.leave_all().await;
    }

    /// Waits, within a time limit, until the responses that have ended are stored.
    pub async fn flush(&self) {
        self.live.flush().await;
    }

    fn store(&self) -> &Store {
        self.store.get().expect("only a replica that has started is asked")
    }

    /// Creates the response `id` to the question with this `seed`.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub async fn create(&self, id: &str, seed: u64) -> Result<(), ApiError> {
        let reservation = self.answers.reserve(key_of(seed), 0)?;
        let template = ResponseTemplate { object: json!({"id": id}), background: true };
        let request = kept_question(seed, self.service.settings);
        let request = str::from_utf8(&request).ok();
        let input = KeptInput {
            head: StoredResponse::encode_head(&template, &[], None).into(),
            running: StoredResponse::encode_head(&template, &[], request).into(),
            ..KeptInput::default()
        };
        let active = self.service.begin(seed, key_of(seed));
        let mut log = RecordLog::new(usize::MAX / 2);
        let vocab = vocab();
        let context = RecordContext { vocab: &vocab, echo: &[], logprobs: None };
        let generation = ResponseGeneration::open(active, None, &context, &mut log);
        let log = log.bounded(self.answers.limits().log_bytes);
        let (store, workers) = (self.store().clone(), self.bodies.workers().clone());
        let (kind, owner, fence) = (Kind::Response, OWNER, AnswerFence::FIRST);
        let target = StoreTarget { store, workers, kind, owner, fence };
        // What is too old to be kept is not tried again.
        let is_planted = self.glue == Some(GlueFault::EndTriedOnce);
        let created_s = if is_planted { 0 } else { unix_time_s() };
        let recorder = ResponseRecorder { target, id: id.to_owned(), created_s, input };
        let new = NewResponse { recorder, template, log };
        self.live.start(new, generation, reservation).await.map(drop)
    }

    /// Returns the object of the response `id` of `owner`.
    ///
    /// # Errors
    /// 404 if there is none, 503 without the store.
    pub async fn retrieve(&self, owner: Owner, id: &str) -> Result<Value, ApiError> {
        let found = self.lookup().get(owner, id, &mut MemoryCharge::default()).await?;
        Ok(found.object())
    }

    fn lookup(&self) -> ResponseLookup<'_> {
        ResponseLookup {
            live: &self.live,
            answers: &self.answers,
            starter: &self.service,
            store: self.store(),
            bodies: &self.bodies,
        }
    }

    /// Reads the events of the response `id` from number `first` on, and passes each to `take`;
    /// returns once the stream has ended cleanly.
    ///
    /// # Errors
    /// As [`Self::retrieve`], 410 for an event that was never stored, and why the stream broke off.
    pub async fn stream(
        &self,
        id: &str,
        first: u64,
        mut take: impl FnMut(Value) + Send,
    ) -> Result<(), ApiError> {
        let mut reader = self.reader(id, first).await?;
        loop {
            let mut out = Vec::new();
            let status = poll_fn(|context| match reader.poll_events(context, &mut out) {
                StreamStatus::Open if out.is_empty() => Poll::Pending,
                status => Poll::Ready(status),
            });
            let status = status.await;
            events_in(&out).for_each(&mut take);
            match status {
                StreamStatus::Open => {}
                StreamStatus::Complete => return Ok(()),
                StreamStatus::Broken(why) => return Err(why),
            }
        }
    }

    async fn reader(&self, id: &str, first: u64) -> Result<ResponseReader, ApiError> {
        let mut charge = MemoryCharge::default();
        let found = self.lookup().get(OWNER, id, &mut charge).await?;
        if self.glue != Some(GlueFault::NumberUnchecked) {
            found.check_number(first)?;
        }
        let (template, records) = found.into_records(charge)?;
        let events = ResponseEvents::new(template, EventRange::From(first));
        Ok(ResponseReader::new(records, events))
    }

    /// Cancels the response `id`; returns its object.
    ///
    /// # Errors
    /// As [`Self::retrieve`], and 503 where another replica generates it.
    pub async fn cancel(&self, id: &str) -> Result<Value, ApiError> {
        if self.glue == Some(GlueFault::CancelWithoutStore)
            && let Some(live) = self.live.find(OWNER, id)
        {
            drop(live.cancel().await);
            return Ok(live.object());
        }
        let cancelled = self.lookup().cancel(OWNER, id, &mut MemoryCharge::default()).await?;
        Ok(cancelled.object())
    }

    /// Deletes the response `id`; returns true if there was one.
    ///
    /// # Errors
    /// 503 without the store.
    pub async fn delete(&self, id: &str) -> Result<bool, ApiError> {
        Ok(self.live.delete(self.store(), OWNER, id).await?)
    }
}

/// Returns the events in the text of an event stream.
fn events_in(text: &[u8]) -> impl Iterator<Item = Value> {
    let text = str::from_utf8(text).expect("events are text");
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter_map(|data| serde_json::from_str(data).ok())
}
