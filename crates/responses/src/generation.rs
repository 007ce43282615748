//! A response while the engine, or an upstream server, generates it: an answer with the records
//! that only responses have.

use std::task::{Context, Poll, ready};

use loquent_proto::{Delta, Differs};
use serde_json::json;

use crate::record_log::RecordLog;
use loquent_dialects::responses::events::{CANCELLED, COMPLETED_AT};
use loquent_resumable::generation::{Generated, Generation};
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::clock::unix_time_s;
use loquent_serving::error::ApiError;
use loquent_serving::held_answer::HeldAnswer;
use loquent_serving::records::{RecordContext, RecordWriter};

/// Generates the records of one response, with those of its end. Dropping it cancels the
/// generation.
pub struct ResponseGeneration {
    /// Its request has the counts streamed.
    answer: Generation,
    /// Charge of the answer, which the object that ends it repeats; `None` if its memory is
    /// reserved.
    held: Option<HeldAnswer>,
}

impl ResponseGeneration {
    /// Starts the generation of the response to `request`, charged to `held`. Its first records go
    /// to `log`.
    pub fn open(
        request: ActiveRequest,
        held: Option<HeldAnswer>,
        context: &RecordContext<'_>,
        log: &mut RecordLog,
    ) -> Self {
        let answer = Generation::open(request, context, &mut |delta| {
            log.push(&delta).expect("the first record fits");
        });
        Self::new(answer, held)
    }

    /// Generates the response that `answer` is, charged to `held`.
    pub const fn new(answer: Generation, held: Option<HeldAnswer>) -> Self {
        Self { answer, held }
    }

    /// Passes the records of the next flush to `put`. Where the response has failed,
    /// [`Self::fail`] ends it.
    pub fn poll(
        &mut self,
        context: &mut Context<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Poll<Generated> {
        let flush = ready!(self.answer.request_mut().poll_flush(context));
        let charged = match (&mut self.held, &flush) {
            (Some(held), Some(flush)) => held.add(flush),
            _ => Ok(()),
        };
        let taken = match charged {
            Ok(()) => self.answer.take(flush, &mut |delta| put_with_time(delta, put)),
            Err(error) => Ok(Generated::Failed(error)),
        };
        Poll::Ready(taken.unwrap_or_else(|Differs| Generated::Failed(Generation::differs())))
    }

    /// Passes on the records that end a response that has failed because of `error`.
    pub fn fail(&self, error: &ApiError, put: &mut impl FnMut(Delta)) {
        self.put_end(RecordWriter::fail(error), put);
    }

    /// Passes on the records that end a cancelled response.
    pub fn cancel(&self, put: &mut impl FnMut(Delta)) {
        let message = "The response was cancelled.".into();
        self.put_end(Delta::Error { code: CANCELLED.into(), message }, put);
    }

    /// Passes on the counts, and behind them the `end` of a response that is incomplete.
    fn put_end(&self, end: Delta, put: &mut impl FnMut(Delta)) {
        put(self.answer.request().usage().to_delta());
        put(end);
    }
}

/// Passes `delta` on. Before [`Delta::Done`] it inserts the time of completion, so that all later
/// readers of the log see the same time.
fn put_with_time(delta: Delta, put: &mut impl FnMut(Delta)) {
    if let Delta::Done = delta {
        put(Delta::Other { choice: 0, json: json!({COMPLETED_AT: unix_time_s()}).to_string() });
    }
    put(delta);
}
