//! The progress of a download in Ollama's form.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::json_response::json_response;
use crate::models::{Download, DownloadEnd};
use crate::paced_body::{Piece, paced_body};
use loquent_serving::error::ApiError;

/// Interval between two lines of progress.
const INTERVAL: Duration = Duration::from_millis(200);

/// Returns the last line of a download that succeeded.
pub fn done() -> Value {
    json!({"status": "success"})
}

/// Returns the progress of `download` as lines of JSON, up to its end. A client that leaves does
/// not stop it: others may wait for it too.
pub fn lines(download: Arc<Download>) -> Body {
    paced_body(INTERVAL, move || {
        let end = download.end();
        let line = Bytes::from(format!("{}\n", line(&download, end)));
        if end.is_some() { Piece::Last(line) } else { Piece::More(line) }
    })
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
