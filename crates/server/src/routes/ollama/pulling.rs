//! The progress of a download in Ollama's form.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use crate::json_response::json_response;
use crate::models::{Download, DownloadEnd};
use loquent_serving::error::ApiError;

/// Interval between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(200);

/// Returns the last line of a download that succeeded.
pub fn done() -> Value {
    json!({"status": "success"})
}

/// Returns the progress of `download` as lines of JSON, up to its end.
pub fn lines(download: Arc<Download>) -> Body {
    Body::new(ProgressLines {
        download,
        pause: Box::pin(tokio::time::sleep(Duration::ZERO)),
        is_over: false,
    })
}

/// The lines of a download. A client that leaves does not stop it: others may wait for it too.
struct ProgressLines {
    download: Arc<Download>,
    pause: Pin<Box<Sleep>>,
    is_over: bool,
}

impl http_body::Body for ProgressLines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(context));
        self.pause.as_mut().reset(Instant::now() + INTERVAL);
        let end = self.download.end();
        let (is_over, line) = (end.is_some(), line(&self.download, end));
        self.is_over = is_over;
        let line = Bytes::from(format!("{line}\n"));
        Poll::Ready(Some(Ok(Frame::data(line))))
    }
}

/// Waits for the end of `download`, and responds with it.
///
/// # Errors
/// 502 if it failed, or was stopped.
pub async fn whole(download: &Download) -> Result<Response, ApiError> {
    while download.end().is_none() {
        tokio::time::sleep(INTERVAL).await;
    }
    let last = line(download, download.end());
    match last["error"].as_str() {
        None => Ok(json_response(&last)),
        Some(why) => Err(ApiError::bad_gateway(why)),
    }
}

fn line(download: &Download, end: Option<&DownloadEnd>) -> Value {
    let (done_bytes, total_bytes) = download.progress.bytes();
    match end {
        None if total_bytes == 0 => json!({"status": "pulling manifest"}),
        None => json!({
            "status": format!("pulling {}", download.asked), "digest": download.id,
            "total": total_bytes, "completed": done_bytes,
        }),
        Some(DownloadEnd::Completed { .. }) => done(),
        Some(DownloadEnd::Stopped) => json!({"error": "the download was stopped"}),
        Some(DownloadEnd::Failed { why }) => json!({"error": why}),
    }
}
