//! Router of one connection's requests.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use loquent_serving::peer::PeerAddress;
use tower::Service;

/// Router for the requests of one connection: each gets the connection's [`PeerAddress`].
#[derive(Clone)]
pub struct PeerRouter {
    router: Router,
    peer: PeerAddress,
}

impl PeerRouter {
    /// Creates a router for the requests from `peer`.
    pub fn new(router: Router, peer: PeerAddress) -> Self {
        Self { router, peer }
    }

    /// Returns the connection's other end.
    pub fn peer(&self) -> PeerAddress {
        self.peer
    }
}

impl<B> Service<Request<B>> for PeerRouter
where
    Router: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <Router as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.router.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        self.router.call(request)
    }
}
