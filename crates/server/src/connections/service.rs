//! Requests of one connection. Each is tracked while it runs, carries its client's address, and
//! goes to the router, or is refused if the connection has no place.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use tower::ServiceExt;

use super::activity::Activity;
use super::body::{Exchange, RequestBody, ResponseBody};
use super::limits::TcpLimits;
use crate::connection_limits::ConnectionRefusal;
use crate::peer_router::PeerRouter;
use loquent_serving::error::ApiError;
use loquent_serving::metrics::Metrics;

/// Paths answered even when all places are taken.
const ALWAYS_ANSWERED: [&str; 4] = ["/live", "/health", "/ready", "/metrics"];
/// `Retry-After` when all places are taken, in seconds.
const RETRY_S: u64 = 5;

/// Answers the requests of one connection.
#[derive(Clone)]
pub struct ConnectionService {
    /// The router that answers the requests.
    pub router: PeerRouter,
    /// Tracks the requests while they run.
    pub activity: Arc<Activity>,
    /// Time limits of bodies.
    pub limits: Arc<TcpLimits>,
    /// Counter of refusals.
    pub metrics: Arc<Metrics>,
    /// Reason why the connection has no place; `None` if it has one.
    pub no_place: Option<ConnectionRefusal>,
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let service = self.clone();
        // Noted now and not when the future is polled: from here on, the client has asked.
        let exchange = Exchange::begin(&self.activity);
        Box::pin(async move {
            let one_by_one = is_one_by_one(&request);
            let expects_continue = request.headers().contains_key(header::EXPECT);
            let (head, body) = request.into_parts();
            let (body, unread) = RequestBody::new(body, exchange.clone(), &service.limits);
            let request = Request::from_parts(head, Body::new(body));
            let mut response = service.respond(request).await;
            let goes_on = service.no_place.is_none();
            if one_by_one && !(goes_on && unread.read(expects_continue).await) {
                announce_close(&mut response);
            }
            Ok(response.map(|body| ResponseBody::new(body, exchange)))
        })
    }
}

impl ConnectionService {
    async fn respond(&self, request: Request<Body>) -> Response {
        let refusal = self.no_place.filter(|_| !is_always_answered(&request));
        match refusal {
            Some(no_place) => {
                let error = refusal_for(no_place);
                self.metrics.on_refusal(error.status());
                error.into_response()
            }
            None => {
                let response = self.router.clone().oneshot(request).await;
                response.unwrap_or_else(|never| match never {})
            }
        }
    }
}

/// Tells an HTTP/1 client that its connection ends after `response`, so that it sends its next
/// request on another.
fn announce_close(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Returns whether requests follow each other on the connection; in HTTP/2 each has its own stream.
fn is_one_by_one<T>(request: &Request<T>) -> bool {
    request.version() < Version::HTTP_2
}

fn is_always_answered(request: &Request<Body>) -> bool {
    ALWAYS_ANSWERED.contains(&request.uri().path())
}

fn refusal_for(no_place: ConnectionRefusal) -> ApiError {
    let message = match no_place {
        ConnectionRefusal::Full => {
            "The server has as many connections as --max-connections allows. Try again later."
        }
        ConnectionRefusal::NetworkFull => {
            "Your address has as many connections as --max-connections-per-address allows. \
             Close some, or try again later."
        }
    };
    ApiError::unavailable(message, RETRY_S)
}
