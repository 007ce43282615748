//! An answer while the engine, or an upstream server, generates it: converts flushes to records.
//! An answer that is generated again, because its replica has ended, is compared with what is known
//! of it, and only the rest is passed on.

use loquent_proto::{Delta, Differs, Replay};

use crate::fit_record::fit_record;
use loquent_serving::active_request::ActiveRequest;
use loquent_serving::error::ApiError;
use loquent_serving::flush::Flush;
use loquent_serving::records::{RecordContext, RecordWriter};

/// The generation of one answer. Dropping it cancels the request.
pub struct Generation {
    request: Box<ActiveRequest>,
    writer: RecordWriter,
    /// Records of the same answer that its readers may have.
    known: Option<Replay>,
}

/// State of an answer after a flush.
#[derive(Debug)]
pub enum Generated {
    /// More records may follow.
    Going,
    /// The answer is complete, and its last record was passed on.
    Complete,
    /// The answer has failed. The record of its end is left to the caller.
    Failed(ApiError),
}

impl Generation {
    /// Starts the generation of the answer to `request`; passes its first records to `put`.
    pub fn open(
        request: ActiveRequest,
        context: &RecordContext<'_>,
        put: &mut impl FnMut(Delta),
    ) -> Self {
        let writer = RecordWriter::open(&request, context, put);
        Self { request: Box::new(request), writer, known: None }
    }

    /// Returns the error that ends an answer for good that differs from what is known of it.
    pub fn differs() -> ApiError {
        ApiError::internal(
            "The replica that generated this answer has ended, and another one has another answer \
             to the same request.",
        )
    }

    /// Compares the answer with `known` from here on, beginning with its `first` records, of which
    /// the rest goes to `put`.
    ///
    /// # Errors
    /// [`Differs`]
    pub fn compare(
        &mut self,
        known: Option<Replay>,
        first: Vec<Delta>,
        put: &mut impl FnMut(Delta),
    ) -> Result<(), Differs> {
        self.known = known;
        first.into_iter().try_for_each(|delta| put_rest(&mut self.known, delta, put))
    }

    /// Returns the request.
    pub fn request(&self) -> &ActiveRequest {
        &self.request
    }

    /// Returns the request, to take its flushes and to report to it.
    pub fn request_mut(&mut self) -> &mut ActiveRequest {
        &mut self.request
    }

    /// Passes the records of `flush`, or those of the answer's end, to `put`.
    ///
    /// # Errors
    /// [`Differs`] if the answer differs from what is known of it.
    pub fn take(
        &mut self,
        flush: Option<Flush>,
        put: &mut impl FnMut(Delta),
    ) -> Result<Generated, Differs> {
        let Self { request, writer, known } = self;
        let mut compared = Ok(());
        let mut put = |delta| {
            if compared.is_ok() {
                compared = put_rest(known, delta, put);
            }
        };
        let generated = match flush {
            Some(flush) => {
                let error = flush.error();
                writer.flush(flush, || request.usage(), &mut put);
                error.map_or(Generated::Going, Generated::Failed)
            }
            None if request.is_complete() => {
                writer.finish(request, &mut put);
                Generated::Complete
            }
            None => Generated::Failed(ApiError::internal("The engine has stopped.")),
        };
        compared.map(|()| generated)
    }
}

/// Passes the part of `delta` that is not yet known to `put`, as a record that fits a log.
fn put_rest(
    known: &mut Option<Replay>,
    delta: Delta,
    put: &mut impl FnMut(Delta),
) -> Result<(), Differs> {
    let rest = match known {
        Some(known) => known.rest_of(fit_record(delta))?,
        None => Some(fit_record(delta)),
    };
    rest.into_iter().for_each(put);
    Ok(())
}
