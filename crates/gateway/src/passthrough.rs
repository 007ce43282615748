//! Response body of an upstream on its way through, unread but bounded in bytes and in time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use loquent_openai::http::ResponseBody;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::breaker::RequestVerdict;
use crate::pool::UpstreamLease;
use loquent_serving::admission::Permit;
use loquent_serving::api::request::BYTES_PER_TOKEN;

/// Maximum length of an upstream's response, whether passed through or relayed.
pub const MAX_RESPONSE_BYTES: u64 = 256 << 20;
/// Maximum total duration of a response that passes through.
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(4 * 3600);

/// Reason to break off a body: never with a clean end, which would look complete.
#[derive(Debug, thiserror::Error)]
pub enum PassageError {
    /// The upstream broke off.
    #[error("the upstream server broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// The upstream sent too many bytes.
    #[error("the upstream server sent more than {MAX_RESPONSE_BYTES} bytes")]
    TooLong,
    /// The upstream was silent for too long, or its response took too long.
    #[error("the upstream server takes too long to respond")]
    TooSlow,
}

/// A body that passes through.
pub struct PassingBody {
    body: ResponseBody,
    left_bytes: u64,
    silence_limit: Duration,
    /// Runs only while the upstream is awaited, so that a slow client does not count as silence.
    silence: Option<Pin<Box<Sleep>>>,
    end: Pin<Box<Sleep>>,
    /// Permits held until the body has ended, since the upstream works until then.
    permits: Vec<Permit>,
    place: UpstreamLease,
}

impl PassingBody {
    /// Passes `body` on, unless the upstream is silent for `silence_limit`.
    pub fn new(
        body: ResponseBody,
        silence_limit: Duration,
        mut permits: Vec<Permit>,
        place: UpstreamLease,
    ) -> Self {
        permits.iter_mut().for_each(Permit::begin);
        Self {
            body,
            left_bytes: MAX_RESPONSE_BYTES,
            silence_limit,
            silence: None,
            end: Box::pin(sleep_until(Instant::now() + MAX_RESPONSE_TIME)),
            permits,
            place,
        }
    }

    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let limit = self.silence_limit;
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(limit)));
        silence.as_mut().poll(context).is_ready() || self.end.as_mut().poll(context).is_ready()
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, PassageError> {
        self.silence = None;
        // Trailers concern the upstream's connection.
        let Ok(data) = frame.into_data() else { return Ok(None) };
        let left = self.left_bytes.checked_sub(data.len() as u64);
        self.left_bytes = left.ok_or(PassageError::TooLong)?;
        if self.end.is_elapsed() {
            return Err(PassageError::TooSlow);
        }
        Ok(Some(Frame::data(data)))
    }
}

impl Drop for PassingBody {
    /// Charges the tokens by estimate, because the body was not parsed.
    fn drop(&mut self) {
        let received_bytes = MAX_RESPONSE_BYTES - self.left_bytes;
        self.place.note_tokens(received_bytes / BYTES_PER_TOKEN as u64);
        if let Some(permit) = self.permits.first_mut() {
            permit.charge_estimated_prompt();
            permit.count_generated(received_bytes / BYTES_PER_TOKEN as u64);
        }
    }
}

impl Body for PassingBody {
    type Data = Bytes;
    type Error = PassageError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PassageError>>> {
        loop {
            let taken = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending if self.is_late(context) => {
                    self.place.judge(RequestVerdict::Fails);
                    Err(PassageError::TooSlow)
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Ok(frame))) => self.take(frame),
                Poll::Ready(Some(Err(error))) => {
                    self.place.judge(RequestVerdict::Fails);
                    Err(error.into())
                }
            };
            if let Some(outcome) = taken.transpose() {
                return Poll::Ready(Some(outcome));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
