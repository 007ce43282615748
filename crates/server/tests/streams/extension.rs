//! Routes that the program around the server brings: behind the same keys, and before an upstream.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode, header};
use loquent_server::{ApiKeys, App, Clock, HttpConfig, Metrics, router};
use tower::ServiceExt;

use super::harness::{http_config, limits};

/// The status of a GET of `path` with `key`, on a server with one route of its own.
async fn status(keys: &[&str], path: &str, key: Option<&str>) -> StatusCode {
    let api_keys = ApiKeys::new(keys.iter().map(|key| (*key).to_owned()));
    let http = HttpConfig { api_keys, ..http_config() };
    let app = App::new(http, limits(), Clock::start(), Arc::new(Metrics::new()));
    let extension = Router::new().route("/v1/extra", get(async || "extra"));
    let mut request = Request::get(path);
    if let Some(key) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    let request = request.body(Body::empty()).unwrap();
    let app = Arc::new(app.with_extension(extension));
    router(app).oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn an_extension_is_served_and_hides_nothing() {
    assert_eq!(status(&[], "/v1/extra", None).await, StatusCode::OK);
    assert_eq!(status(&[], "/v1/nothing", None).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_extension_needs_a_key_where_there_are_keys() {
    let keys = ["sk-right"];
    assert_eq!(status(&keys, "/v1/extra", None).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&keys, "/v1/extra", Some("sk-wrong")).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&keys, "/v1/extra", Some("sk-right")).await, StatusCode::OK);
    assert_eq!(status(&keys, "/live", None).await, StatusCode::OK);
}
