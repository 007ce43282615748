//! Response bodies charged to the memory of requests until their clients have received them: data
//! read from the store may be as long as its owner likes, and its client may be slow.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::{Frame, SizeHint};

use loquent_serving::body::RequestBodies;
use loquent_serving::error::ApiError;
use loquent_serving::memory::{MemoryCharge, SMALL_BYTES};

/// Bytes of one frame. Bounds how much a connection copies at a time when it sends.
const FRAME_BYTES: usize = 64 * 1024;

/// Returns a response with the JSON that `render` writes. `charge` covers the data it is written
/// from; it grows by `more` for the writing, and finally covers only the JSON.
///
/// # Errors
/// 503 when there is no memory for the JSON; those of `render`.
pub async fn charged_json<T: AsRef<[u8]> + Send + 'static>(
    bodies: &RequestBodies,
    mut charge: MemoryCharge,
    more: usize,
    render: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let memory = bodies.memory();
    memory.take(&mut charge, more).await?;
    let json = bodies.workers().run_if(charge.bytes() > SMALL_BYTES, render).await?;
    memory.settle(&mut charge, json.as_ref().len()).await?;
    let rest = Bytes::from_owner(ChargedBytes { bytes: json, _charge: charge });
    let content_type = HeaderValue::from_static("application/json");
    let body = Body::new(ChargedBody { rest });
    Ok(([(header::CONTENT_TYPE, content_type)], body).into_response())
}

/// Bytes with their charge, which lasts as long as any part of them: connections keep parts of a
/// body that has ended.
struct ChargedBytes<T> {
    bytes: T,
    _charge: MemoryCharge,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for ChargedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

struct ChargedBody {
    rest: Bytes,
}

impl http_body::Body for ChargedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let end = self.rest.len().min(FRAME_BYTES);
        Poll::Ready((end > 0).then(|| Ok(Frame::data(self.rest.split_to(end)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use loquent_serving::body::BodyLimits;

    #[tokio::test]
    async fn the_charge_lasts_as_long_as_any_byte() {
        let bodies = RequestBodies::new(BodyLimits { max_bytes: 1 << 20, total_bytes: 8 << 20 });
        let free = || bodies.memory().free_bytes();
        let all = free();
        let json = vec![b'7'; 300 * 1024];
        let expected = json.clone();
        let mut charge = MemoryCharge::default();
        bodies.memory().take(&mut charge, 5 << 20).await.unwrap();
        let response = charged_json(&bodies, charge, json.len(), move || Ok(json)).await.unwrap();
        assert_eq!(all - free(), 300 * 1024, "what it was read from is given back");
        let mut body = response.into_body();
        let (mut read, mut last) = (Vec::new(), Bytes::new());
        while let Some(frame) = body.frame().await {
            last = frame.unwrap().into_data().unwrap();
            assert!(last.len() <= FRAME_BYTES);
            read.extend_from_slice(&last);
        }
        drop(body);
        assert_eq!(read, expected);
        assert_eq!(all - free(), 300 * 1024, "a part of it is on its way");
        drop(last);
        assert_eq!(free(), all);
    }
}
