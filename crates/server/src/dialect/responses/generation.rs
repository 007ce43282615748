//! A response while the engine, or an upstream server, generates it: from flushes to records.

use std::task::{Context, Poll, ready};

use loquent_proto::{Delta, Differs, Replay};
use serde_json::json;

use super::events::{CANCELLED, COMPLETED_AT};
use crate::active_request::ActiveRequest;
use crate::clock::unix_time_s;
use crate::error::ApiError;
use crate::records::{RecordContext, RecordWriter};
use crate::resumable::fit_record::fit_record;

/// Why a response ends that another replica has begun.
const DIFFERS: &str = "The replica that generated this response has ended, and another one has \
                       another answer to the same request.";

/// Generates the records of one response. Dropping it cancels the generation.
pub struct Generation {
    active: ActiveRequest,
    records: RecordWriter,
    /// What is known of a response that is generated once more.
    known: Option<Replay>,
}

/// What came of a look at the engine's work.
#[derive(Debug)]
pub enum Generated {
    /// There may be more records.
    Going,
    /// The last record was given: the response is complete.
    Complete,
    /// The last record was given: it says that the response failed.
    Failed(ApiError),
}

impl Generation {
    /// The generation of `active`; `put` gets the records that begin it.
    pub fn open(
        active: ActiveRequest,
        context: &RecordContext<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Self {
        let records = RecordWriter::open(&active, context, put);
        Self { active, records, known: None }
    }

    /// The generation of `active`, of whose response `known` is known: only what follows is given.
    pub fn again(active: ActiveRequest, context: &RecordContext<'_>, known: Replay) -> Self {
        // The first record is there.
        let records = RecordWriter::open(&active, context, &mut |_| {});
        Self { active, records, known: Some(known) }
    }

    /// Gives `put` the records of the next flush.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Poll<Generated> {
        let Some(flush) = ready!(self.active.poll_flush(context)) else {
            return Poll::Ready(self.finish(put));
        };
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

    /// The records of a response that its client cancels.
    pub fn cancel(&self, put: &mut impl FnMut(Delta)) {
        put(self.active.usage().to_delta());
        put(Delta::Error { code: CANCELLED.into(), message: "The response was cancelled.".into() });
    }

    /// The records of a response that ends with `error`.
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

/// Gives `put` what lacks of `delta`, where something is known already.
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
