//! Who gets a place, and what a server says that has none left.

use loquent_server::TcpLimits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::harness::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_says_so_and_answers_health_checks() {
    let server = Server::start(TcpLimits { max_connections: 2, ..limits() }).await;
    let held = [server.connect().await, server.connect().await];
    let (status, text) = server.get("/v1/models", &[]).await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("--max-connections ") && text.contains("retry-after: 5"), "{text}");
    for path in ["/live", "/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path, &[]).await.0, 200, "{path}");
    }
    let (_, metrics) = server.get("/metrics", &[]).await;
    assert!(metrics.contains(r#"status="503"} 1"#), "the refusal is counted: {metrics}");
    drop(held);
    server.until_free().await;
}

/// A supervisor must not restart a process that loads its model, and a balancer must not send it
/// requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_model_is_alive_and_not_healthy() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (load, until) = std::sync::mpsc::channel::<()>();
    let (server, announced) = Server::launch(
        listener,
        |_| (),
        move || {
            let _ = until.recv();
        },
    );
    let status = async |path| server.get(path, &[]).await.0;
    assert_eq!(status("/live").await, 200);
    for path in ["/health", "/ready", "/v1/models"] {
        let (status, text) = server.get(path, &[]).await;
        assert!(status == 503 && text.contains("loading"), "{path}: {text}");
    }
    load.send(()).unwrap();
    announced.await.unwrap();
    for path in ["/live", "/health", "/ready"] {
        assert_eq!(status(path).await, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_beyond_the_limit_keep_no_health_check_out() {
    let limits = TcpLimits { max_connections: 1, reserve_timeout: FOREVER, ..limits() };
    let server = Server::start(limits).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(server.connect().await);
    }
    assert_eq!(server.get("/health", &[]).await.0, 200);
    assert_eq!(server.get("/v1/models", &[]).await.0, 503);
    assert_eq!(server.get("/health", &[]).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_beyond_the_limit_does_not_last() {
    let limits = TcpLimits { max_connections: 1, reserve_timeout: SOON, ..limits() };
    let server = Server::start(limits).await;
    let _held = server.connect().await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /health HTTP/1.1\r\nx: ").await.unwrap();
    closed(slow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_cannot_take_all_places() {
    if let Err(error) = std::net::TcpListener::bind("127.0.0.2:0") {
        return loquent_needs::Need::Loopback.lack(error);
    }
    let limits = TcpLimits { max_connections_per_address: 2, ..limits() };
    let server = Server::start(limits).await;
    let held = [server.connect_from("127.0.0.2").await, server.connect_from("127.0.0.2").await];
    let third = server.connect_from("127.0.0.2").await;
    let (status, text) = exchange(third, "GET", "/v1/models", &[], "").await;
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("--max-connections-per-address"), "{text}");
    let other = server.connect_from("127.0.0.3").await;
    assert_eq!(exchange(other, "GET", "/v1/models", &[], "").await.0, 200);
    drop(held);
    // A proxy on this machine is one address and many clients.
    let mut proxied = Vec::new();
    for _ in 0..5 {
        proxied.push(server.connect().await);
    }
    assert_eq!(server.get("/v1/models", &[]).await.0, 200);
}
