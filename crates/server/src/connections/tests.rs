//! The listener's troubles.

use std::collections::VecDeque;
use std::sync::Mutex;

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn connections() -> Connections {
    let router = Router::new().route("/health", get(async || "well"));
    Connections::new(router, None, TcpLimits::default(), Arc::new(Metrics::new())).unwrap()
}

#[tokio::test]
async fn errors_of_accept_are_survived_unless_the_listener_is_broken() {
    // EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, ECONNABORTED, EPROTO, ENETDOWN, ETIMEDOUT.
    let passing = [24, 23, 105, 12, 1, 103, 71, 100, 110];
    let errors = Mutex::new(VecDeque::from(passing));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connections = connections();
    let accept = || async {
        let error = errors.lock().unwrap().pop_front();
        match error {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => listener.accept().await,
        }
    };
    let served = async {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        response
    };
    tokio::select! {
        error = connections.accept_all(accept) => panic!("{error}"),
        response = served => assert!(response.ends_with("well"), "{response}"),
    }
    for broken in [9, 22, 88] {
        let accept = || async { Err(io::Error::from_raw_os_error(broken)) };
        assert_eq!(connections.accept_all(accept).await.raw_os_error(), Some(broken));
    }
}

#[test]
fn a_trouble_that_repeats_itself_is_logged_once_a_second() {
    let mut log = RareLog::default();
    let mut logged = Vec::new();
    for _ in 0..1000 {
        log.log(|unsaid| logged.push(unsaid));
    }
    assert_eq!(logged, [0]);
    log.last = log.last.map(|last| last - LOG_INTERVAL);
    log.log(|unsaid| logged.push(unsaid));
    assert_eq!(logged, [0, 999], "what was left out is counted");
}
