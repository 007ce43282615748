//! A stand-in for an upstream server, which misbehaves to order: raw HTTP over TCP, so that
//! it can break where no proper server would.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// What it does with each request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Sends these bytes, which may be a part of an answer, then closes the connection.
    Close(Vec<u8>),
    /// Sends these bytes and keeps the connection for the next request.
    Keep(Vec<u8>),
    /// Answers the first request of a connection, and closes it when the second has come.
    CloseWhenReused(Vec<u8>),
    /// Sends these bytes, until a request contains the text: then the listener is closed, and the
    /// connection behind it.
    DieOf(&'static str, Vec<u8>),
    /// Sends these bytes, each after a pause, and says nothing more.
    Slowly(Vec<Vec<u8>>, Duration),
}

/// A running stand-in; it ends with the test's runtime.
pub struct StandIn {
    pub url: String,
    /// The requests' heads and bodies, as they came.
    pub requests: mpsc::UnboundedReceiver<String>,
    /// Told when a client has closed a connection that waited for more.
    pub left: mpsc::UnboundedReceiver<()>,
    connections: Arc<AtomicUsize>,
}

impl StandIn {
    pub async fn start(act: Act) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), act)
    }

    pub fn on(listener: TcpListener, act: Act) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, requests) = mpsc::unbounded_channel();
        let (leaving, left) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let death = Arc::new(Death::default());
        tokio::spawn(async move {
            let accept = async {
                while let Ok((stream, _)) = listener.accept().await {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let (seen, leaving) = (seen.clone(), leaving.clone());
                    tokio::spawn(serve(stream, act.clone(), seen, leaving, death.clone()));
                }
            };
            tokio::select! {
                () = accept => {}
                () = death.begins.notified() => {}
            }
            drop(listener);
            death.refuses.notify_one();
        });
        Self { url, requests, left, connections }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// The end of a stand-in, which refuses connections from then on.
#[derive(Default)]
struct Death {
    begins: Notify,
    refuses: Notify,
}

async fn serve(
    mut stream: TcpStream,
    act: Act,
    seen: mpsc::UnboundedSender<String>,
    leaving: mpsc::UnboundedSender<()>,
    death: Arc<Death>,
) {
    let mut served = 0;
    while let Some(request) = read_request(&mut stream).await {
        let is_poison = matches!(&act, Act::DieOf(text, _) if request.contains(text));
        let _ = seen.send(request);
        match &act {
            Act::DieOf(..) if is_poison => {
                death.begins.notify_one();
                return death.refuses.notified().await;
            }
            Act::Close(bytes) => {
                let _ = stream.write_all(bytes).await;
                return;
            }
            Act::Keep(bytes) | Act::DieOf(_, bytes) => drop(stream.write_all(bytes).await),
            Act::CloseWhenReused(_) if served > 0 => return,
            Act::CloseWhenReused(bytes) => drop(stream.write_all(bytes).await),
            Act::Slowly(pieces, pause) => {
                for piece in pieces {
                    tokio::time::sleep(*pause).await;
                    if stream.write_all(piece).await.is_err() {
                        break;
                    }
                }
                // Whatever comes now is the client's leaving.
                let _ = stream.read(&mut [0; 1]).await;
                let _ = leaving.send(());
                return;
            }
        }
        served += 1;
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:")
                .map(|length| length.trim().parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(text.into_owned());
        }
    }
}

/// The head of a stream of events, in chunks.
pub fn head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// One HTTP chunk.
pub fn piece(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// A whole stream of these events, cleanly ended.
pub fn stream(events: &[&str]) -> Vec<u8> {
    let mut bytes = head();
    events.iter().for_each(|event| bytes.extend(piece(&format!("data: {event}\n\n"))));
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// A complete answer that is not streamed.
pub fn whole(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nretry-after: 7\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}
