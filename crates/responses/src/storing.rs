//! Stores a response: a background response at checkpoints and at its end, any other at its end,
//! with the records that are kept for that while its reader gets the events.

use std::pin::Pin;

use loquent_proto::Delta;

use crate::record_log::RecordLog;
use crate::stored::{KeptInput, StoredResponse};
use loquent_dialects::responses::events::ResponseEvents;
use loquent_resumable::shared::offers::OthersOffers;
use loquent_serving::event_writer::EventWriter;
use loquent_store::object::WriteMode;
use loquent_store::recorder::StoreTarget;
use loquent_store::{AnswerFence, Progress, StoreError, StoredObject};

/// Highest fence of an owner whose failed engine does not end the response: the second one's.
const LAST_FENCE_THAT_FAILS: AnswerFence = AnswerFence(2);

/// A response being stored; resolves to whether that succeeded.
pub type Saving = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Writes one response to the store.
pub struct ResponseRecorder {
    /// Place of the response in the store.
    pub target: StoreTarget,
    /// Id of the response.
    pub id: String,
    /// Time of creation, Unix time in seconds.
    pub created_s: u64,
    /// The conversation before the response.
    pub input: KeptInput,
}

impl ResponseRecorder {
    /// Stores the response with the records of `log`, and with its request until it has ended.
    /// Returns false if another replica has taken it over.
    ///
    /// # Errors
    /// [`StoreError`]; the store then keeps what it had.
    pub async fn save(&self, log: RecordLog) -> Result<bool, StoreError> {
        let KeptInput { head, running, .. } = &self.input;
        let (progress, head) = match log.is_ended() {
            true => (Progress::Ended, head),
            false if running.is_empty() => (Progress::Running, head),
            false => (Progress::Running, running),
        };
        let (head, id, created_s) = (head.clone(), self.id.clone(), self.created_s);
        let bytes = head.len() + log.bytes().len();
        let render = move || {
            let json = StoredResponse::encode(&head, log.bytes()).into();
            StoredObject { id, created_s, progress, json }
        };
        self.target.write(bytes, render, WriteMode::Checkpoint).await
    }

    /// Retries storing a response that has ended, with backoff, until the store works again or
    /// would not keep the response any more.
    pub async fn save_later(&self, log: &RecordLog, first: &StoreError) {
        let again = || self.save(log.clone());
        self.target.store_later(self.created_s, first, again).await;
    }

    /// Returns true if any replica can continue the response.
    pub fn can_be_left(&self) -> bool {
        !self.input.running.is_empty()
    }

    /// Returns true if one of the `others` can continue the response.
    pub fn is_covered_by(&self, others: &OthersOffers) -> bool {
        if others.is_empty() {
            return false;
        }
        // Decoded for this alone, when this replica shuts down.
        let request = StoredResponse::decode(&self.input.running).and_then(|it| it.request);
        request.is_some_and(|request| others.cover(request.as_bytes()))
    }

    /// Returns true if another replica offers to continue the response, whose engine has failed
    /// here. If the engines of several owners failed, the request may be why, and comes to no
    /// further one.
    pub async fn goes_on_elsewhere(&self) -> bool {
        let StoreTarget { store, fence, .. } = &self.target;
        let Some(connection) = store.shared().filter(|_| *fence <= LAST_FENCE_THAT_FAILS) else {
            return false;
        };
        // A store that cannot be asked knows of nobody.
        OthersOffers::ask(connection).await.is_ok_and(|others| self.is_covered_by(&others))
    }

    /// Stores the records so far of a response that another replica is to continue, and releases
    /// it.
    ///
    /// # Errors
    /// [`StoreError`]: the other replica then begins at an older checkpoint.
    pub async fn leave(&self, log: RecordLog) -> Result<(), StoreError> {
        let StoreTarget { store, kind, owner, .. } = &self.target;
        match self.save(log).await? {
            true => store.disown(*kind, *owner, &self.id).await,
            false => Ok(()),
        }
    }
}

/// The records of a response with a single reader. The last one reports whether the response is
/// stored, and is not written before that is known.
pub struct KeptRecords {
    kept: Kept,
    last: Vec<Delta>,
}

enum Kept {
    /// The request does not ask for storage, or storing is in progress.
    Nothing,
    /// All records so far, and the recorder that stores them.
    Log(RecordLog, Box<ResponseRecorder>),
    /// The records exceed the store's limit.
    TooMuch,
}

impl KeptRecords {
    /// Keeps the records that follow those of `log`, if `recorder` is to store them.
    pub fn new(log: RecordLog, recorder: Option<ResponseRecorder>) -> Self {
        let kept = recorder.map_or(Kept::Nothing, |it| Kept::Log(log, Box::new(it)));
        Self { kept, last: Vec::new() }
    }

    /// Writes the events of `delta`, in the records to which the log splits it.
    pub fn put(&mut self, delta: Delta, events: &mut ResponseEvents, out: &mut Vec<u8>) {
        let Kept::Log(log, _) = &mut self.kept else { return self.write(delta, events, out) };
        let at = log.bytes().len();
        if log.push(&delta).is_err() {
            tracing::warn!(bytes = at, "a response is too long for the store");
            self.kept = Kept::TooMuch;
            return self.write(delta, events, out);
        }
        let last = &mut self.last;
        log.read(at, |delta| match delta.is_last() {
            true => last.push(delta),
            false => write(events, &delta, out),
        });
    }

    fn write(&mut self, delta: Delta, events: &mut ResponseEvents, out: &mut Vec<u8>) {
        match delta.is_last() {
            true => self.last.push(delta),
            false => write(events, &delta, out),
        }
    }

    /// Stores the response, which has ended. Resolves to true if the object's `store` member is
    /// correct: the response was stored, or was not meant to be.
    pub fn store(&mut self) -> Saving {
        match std::mem::replace(&mut self.kept, Kept::Nothing) {
            Kept::Log(log, recorder) => Box::pin(async move {
                let stored = recorder.save(log).await;
                if let Err(error) = &stored {
                    // Its reader gets the response all the same.
                    tracing::warn!(%error, "a response could not be stored");
                }
                stored.is_ok()
            }),
            Kept::Nothing => Box::pin(std::future::ready(true)),
            Kept::TooMuch => Box::pin(std::future::ready(false)),
        }
    }

    /// Writes the last events; `stored` is the result of [`Self::store`].
    pub fn end(&mut self, stored: bool, events: &mut ResponseEvents, out: &mut Vec<u8>) {
        if !stored {
            events.not_stored();
        }
        for delta in self.last.drain(..) {
            write(events, &delta, out);
        }
    }
}

/// Writes the events of one record.
pub fn write(events: &mut ResponseEvents, delta: &Delta, out: &mut Vec<u8>) {
    events.write(None, delta, out).expect("no record is unwritable here");
}
