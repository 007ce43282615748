//! The proxy's HTTP/1.1 connections, limited in number and time.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;

use super::limited_listener::LimitedListener;

/// Maximum silence of a connection before a request's head is complete.
pub(super) const HEAD_LIMIT: Duration = Duration::from_secs(60);

/// Serves the requests of `listener`'s connections until `stop`. Running answers then have `drain`
/// to finish.
pub(super) async fn serve(
    listener: LimitedListener,
    app: Router,
    head_limit: Duration,
    stop: impl Future<Output = ()>,
    drain: Duration,
) {
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_limit);
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            biased;
            () = &mut stop => break,
            stream = listener.accept() => stream,
        };
        let service = TowerToHyperService::new(app.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    // The port is free for the next process while the last answers end.
    drop(listener);
    let _ = tokio::time::timeout(drain, graceful.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::*;

    /// Starts a proxy server with room for one connection, which answers "hi".
    async fn start() -> (SocketAddr, oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = oneshot::channel();
        let app = Router::new().route("/", get(async || "hi"));
        let limit = Duration::from_millis(200);
        let stopping = async { drop(stopping.await) };
        let listener = LimitedListener::new(listener, 1, limit);
        tokio::spawn(serve(listener, app, limit, stopping, limit));
        (address, stop)
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    #[tokio::test]
    async fn silent_and_idle_connections_give_up_their_place() {
        let (address, _stop) = start().await;
        for beginning in [&b""[..], b"GET / HTT", REQUEST] {
            let mut silent = TcpStream::connect(address).await.unwrap();
            silent.write_all(beginning).await.unwrap();
            // It has the only place until it is closed.
            let mut next = TcpStream::connect(address).await.unwrap();
            next.write_all(REQUEST).await.unwrap();
            let mut answer = [0; 15];
            let answered = next.read_exact(&mut answer);
            let answered = tokio::time::timeout(Duration::from_secs(30), answered).await;
            answered.expect("the silent one has gone").unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200 OK", "after {beginning:?}");
            drop(next);
        }
    }

    #[tokio::test]
    async fn it_ends_when_it_is_told_to() {
        let (address, stop) = start().await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), idle.read_to_end(&mut rest));
        let _ = ended.await.expect("the connection ends");
    }
}
