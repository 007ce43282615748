//! A response while the engine, or an upstream server, generates it: converts flushes to records.

use std::task::{Context, Poll, ready};

use loquent_proto::{Delta, Differs, Replay};
use serde_json::json;

use loquent_dialects::responses::events::{CANCELLED, COMPLETED_AT};
use loquent_resumable::fit_record::fit_record;
use loquent_resumable::shared::takeover::SecondAnswer;
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::records::{RecordContext, RecordWriter};

/// Error that ends a response taken over from another replica, if the answers differ.
const DIFFERS: &str = "The replica that generated this response has ended, and another one has \
                       another answer to the same request.";

/// Generates the records of one response. Dropping it cancels the generation.
pub struct Generation {
    active: Box<ActiveRequest>,
    /// Charge of the answer, which the object that ends it repeats; `None` if its memory is
    /// reserved.
    held: Option<HeldAnswer>,
    records: RecordWriter,
    /// The records known so far of a response that is generated again.
    known: Option<Replay>,
}

/// Result of polling the generation.
#[derive(Debug)]
pub enum Generated {
    /// More records may follow.
    Going,
    /// The last record was passed on: the response is complete.
    Complete,
    /// The last record was passed on: the response failed.
    Failed(ApiError),
}

impl Generation {
    /// Starts the generation of `active`, charged to `held`; passes its first records to `put`.
    pub fn open(
        active: ActiveRequest,
        held: Option<HeldAnswer>,
        context: &RecordContext<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Self {
        let records = RecordWriter::open(&active, context, put);
        Self { active: Box::new(active), held, records, known: None }
    }

    /// Continues the generation of `answer`, whose response is known up to `known`: only the rest
    /// is passed on.
    pub fn again(answer: SecondAnswer, known: Replay) -> Self {
        // The first records are there.
        let SecondAnswer { request, records, .. } = answer;
        Self { active: request, held: None, records, known: Some(known) }
    }

    /// Passes the records of the next flush to `put`.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Poll<Generated> {
        let Some(flush) = ready!(self.active.poll_flush(context)) else {
            return Poll::Ready(self.finish(put));
        };
        if let Some(Err(error)) = self.held.as_mut().map(|held| held.add(&flush)) {
            return Poll::Ready(self.fail(error, put));
        }
        let error = flush.error();
        let (active, known, mut differs) = (&self.active, &mut self.known, false);
        // What an upstream server adds may be longer than a record may be.
        self.records.flush(flush, || active.usage(), &mut |delta| {
            differs = differs || rest_of(known, delta, &mut |rest| put(fit_record(rest))).is_err();
        });
        Poll::Ready(match error {
            _ if differs => self.fail(ApiError::internal(DIFFERS), put),
            None => Generated::Going,
            Some(error) => self.fail(error, put),
        })
    }

    /// Passes on the records that end a cancelled response.
    pub fn cancel(&self, put: &mut impl FnMut(Delta)) {
        put(self.active.usage().to_delta());
        put(Delta::Error { code: CANCELLED.into(), message: "The response was cancelled.".into() });
    }

    /// Passes on the records that end a response with `error`.
    pub fn fail(&self, error: ApiError, put: &mut impl FnMut(Delta)) -> Generated {
        // Before the end, behind which nothing is read.
        put(self.active.usage().to_delta());
        put(RecordWriter::fail(&error));
        Generated::Failed(error)
    }

    fn finish(&self, put: &mut impl FnMut(Delta)) -> Generated {
        if !self.active.is_complete() {
            return self.fail(ApiError::internal("The engine has stopped."), put);
        }
        if self.known.as_ref().is_some_and(|known| !known.is_over()) {
            return self.fail(ApiError::internal(DIFFERS), put);
        }
        // A record, so that whoever reads the response later sees the same time.
        put(Delta::Other { choice: 0, json: json!({COMPLETED_AT: unix_time_s()}).to_string() });
        put(self.active.usage().to_delta());
        put(Delta::Done);
        Generated::Complete
    }
}

/// Passes the part of `delta` that is not yet known to `put`.
fn rest_of(
    known: &mut Option<Replay>,
    delta: Delta,
    put: &mut impl FnMut(Delta),
) -> Result<(), Differs> {
    let rest = match known {
        Some(known) => known.rest_of(delta)?,
        None => Some(delta),
    };
    rest.into_iter().for_each(put);
    Ok(())
}
