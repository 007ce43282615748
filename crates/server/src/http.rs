//! The router: all routes, and what each request passes before and after its handler.

use std::sync::Arc;

use axum::Router;
use axum::middleware;
use http::{Method, Uri};
use tower::ServiceExt;

use crate::app::App;
use crate::dialect_errors;
use crate::routes::passthrough::{ask_upstream, elsewhere, with_version};
use crate::routes::{
    self, authorize, browser, dashboard, durable, health, observed, page, path_probe, resumable,
    token, usage,
};
use loquent_serving::error::ApiError;

/// Builds all routes of the server.
pub fn router(app: Arc<App>) -> Router {
    let api = routes::api(app.config.offers_ollama())
        .route_layer(middleware::from_fn_with_state(app.clone(), ask_upstream))
        .route_layer(middleware::from_fn_with_state(app.clone(), authorize::authorize));
    let all = Router::new()
        .merge(api)
        .merge(extension(&app))
        // Without an API key: the answer's random token is the credential.
        .merge(durable::routes())
        .merge(resumable::routes())
        .merge(health::routes())
        .merge(own(&app))
        .merge(page::routes(&app.pages))
        .fallback(elsewhere)
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            ApiError::method_not_allowed(&method, uri.path())
        })
        .layer(middleware::from_fn_with_state(app.clone(), browser::guard))
        .layer(middleware::from_fn(browser::harden))
        .layer(middleware::from_fn_with_state(app.clone(), observed::observe))
        .layer(middleware::from_fn(dialect_errors::translate))
        .with_state(app.clone());
    // Before routing: axum's own layers come after it.
    Router::new().fallback_service(all.map_request(move |request| with_version(&app, request)))
}

/// Returns the routes that are never passed on to an upstream server, because they concern this
/// one.
fn own(app: &Arc<App>) -> Router<Arc<App>> {
    dashboard::routes()
        .merge(token::routes())
        .merge(usage::routes())
        .merge(path_probe::routes())
        .route_layer(middleware::from_fn_with_state(app.clone(), authorize::authorize))
}

/// Returns the routes of the program around this crate. They are never passed on to an upstream
/// server, because they concern this one.
fn extension(app: &Arc<App>) -> Router<Arc<App>> {
    let routes = app.extension.clone().with_state(());
    // axum panics where a layer has no route to lie on.
    if !routes.has_routes() {
        return routes;
    }
    routes.route_layer(middleware::from_fn_with_state(app.clone(), authorize::authorize))
}
