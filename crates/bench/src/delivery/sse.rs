//! Server-sent events on kernel TCP, as used by today's chat services.
//!
//! The server writes each token at once, as one chunk of OpenAI's API (TCP_NODELAY), on sockets
//! with the chosen congestion control. The requests are complete before the losses begin, so that
//! only the delivery of tokens is measured.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::ends::{self, Known, Times};
use super::metrics::StreamTrace;
use super::plan::{DeliveryPlan, DeliveryScheme, TimedTokens};
use super::starts::Starts;
use super::testbed::StreamNetwork;
use crate::link::LinkError;

/// Port of the server, which is alone in its namespace.
const PORT: u16 = 8000;

/// Checks that the kernel supports this congestion control.
///
/// # Errors
/// If it is neither built in nor loadable.
pub fn check_congestion(name: &str) -> Result<(), LinkError> {
    congested_socket(name).map(drop)
}

fn congested_socket(name: &str) -> Result<Socket, LinkError> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))
        .map_err(LinkError::io("TCP socket"))?;
    let what = format!("congestion control {name} (try `modprobe tcp_{name}`)");
    socket.set_tcp_congestion(name.as_bytes()).map_err(LinkError::io(what))?;
    Ok(socket)
}

/// Opens a listening socket in the current namespace whose connections use `congestion`.
///
/// # Errors
/// If the port is taken or the congestion control unknown.
pub fn listen(congestion: &str, port: u16) -> Result<std::net::TcpListener, LinkError> {
    let socket = congested_socket(congestion)?;
    let bound = || -> io::Result<_> {
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
        socket.listen(1024)?;
        socket.set_nonblocking(true)?;
        Ok(std::net::TcpListener::from(socket))
    };
    bound().map_err(LinkError::io(format!("port {port}")))
}

/// Streams all sessions over a namespace pair. The traces are in session order.
///
/// # Errors
/// If sockets cannot be opened.
pub fn run(
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    network: &dyn StreamNetwork,
    starts: &Arc<Starts>,
) -> anyhow::Result<Vec<StreamTrace>> {
    let (server_side, _) = ends::sides(network)?;
    let congestion = scheme.congestion().expect("TCP has a congestion control");
    let listener = server_side.within(|| listen(congestion, PORT))??;
    let addresses: Vec<SocketAddr> =
        (0..plan.sessions).map(|session| network.server_address(session, PORT)).collect();
    let serve = move |known| serve(listener, known);
    let read = move |known| read_all(addresses, known);
    ends::stream(plan, network, starts, serve, read)
}

async fn serve(listener: std::net::TcpListener, (answers, starts): Known) -> io::Result<Times> {
    let listener = TcpListener::from_std(listener)?;
    let mut tasks = JoinSet::new();
    for _ in 0..answers.len() {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            () = starts.failed() => break,
        };
        let (answers, starts) = (Arc::clone(&answers), Arc::clone(&starts));
        tasks.spawn(serve_one(stream, answers, starts));
    }
    ends::gather(tasks, answers.len()).await
}

/// Serves one connection. The request's path contains the session's number: `/session/7`.
async fn serve_one(
    mut stream: TcpStream,
    answers: Arc<Vec<TimedTokens>>,
    starts: Arc<Starts>,
) -> io::Result<(usize, Vec<u64>)> {
    // Nagle's algorithm would hold a token back until the one before it is acknowledged.
    stream.set_nodelay(true)?;
    let head = read_head(&mut stream).await?;
    let number = head.strip_prefix("POST /session/").and_then(|rest| rest.split(' ').next());
    let session: usize = number
        .and_then(|number| number.parse().ok())
        .filter(|session| *session < answers.len())
        .ok_or_else(|| io::Error::other("a strange request"))?;
    let header = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\
                  connection: close\r\n\r\n: waiting\n\n";
    stream.write_all(header.as_bytes()).await?;
    let answer = &answers[session];
    let start = starts.wait(session).await?;
    let mut times_us = Vec::with_capacity(answer.tokens.len());
    for (token, &at_us) in answer.tokens.iter().zip(&answer.times_us) {
        tokio::time::sleep_until((start + Duration::from_micros(at_us)).into()).await;
        times_us.push(start.elapsed().as_micros() as u64);
        // A client that has gone away stops listening at the deadline.
        if stream.write_all(event(token).as_bytes()).await.is_err() {
            break;
        }
    }
    let _ = stream.write_all(b"data: [DONE]\n\n").await;
    let _ = stream.shutdown().await;
    // The kernel goes on until the client has everything or has gone.
    let _ = tokio::time::timeout_at(starts.deadline(start).into(), stream.read(&mut [0])).await;
    Ok((session, times_us))
}

async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 || head.len() > 4096 {
            return Err(io::Error::other("a strange request"));
        }
    }
    String::from_utf8(head).map_err(io::Error::other)
}

/// Formats a token as an event of OpenAI's API.
pub(super) fn event(token: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1700000000,\"model\":\"measured\",\"choices\":[{{\"index\":0,\
         \"delta\":{{\"content\":\"{token}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

async fn read_all(addresses: Vec<SocketAddr>, (answers, starts): Known) -> io::Result<Times> {
    let mut tasks = JoinSet::new();
    for (session, address) in addresses.into_iter().enumerate() {
        let (answers, starts) = (Arc::clone(&answers), Arc::clone(&starts));
        tasks.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            let request = format!("POST /session/{session} HTTP/1.1\r\nhost: link\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let ready = read_one(stream, session, &answers[session], &starts).await?;
            io::Result::Ok((session, ready))
        });
    }
    ends::gather(tasks, answers.len()).await
}

/// Reads one stream of events until its end or the deadline; returns the time at which each token
/// could be shown.
pub(super) async fn read_one(
    mut stream: impl AsyncRead + Unpin,
    session: usize,
    answer: &TimedTokens,
    starts: &Starts,
) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; 1];
    stream.read_exact(&mut bytes).await?;
    // The response has begun: connection and request are over, before losses begin.
    starts.arrive();
    let start = starts.wait(session).await?;
    let mut ready_us = Vec::with_capacity(answer.tokens.len());
    let mut parsed = 0;
    let deadline = starts.deadline(start).into();
    while let Ok(read) = tokio::time::timeout_at(deadline, stream.read_buf(&mut bytes)).await {
        if read? == 0 {
            break;
        }
        let now_us = Instant::now().saturating_duration_since(start).as_micros() as u64;
        while let Some((event, end)) = next_event(&bytes[parsed..]) {
            parsed += end;
            let Some(token) = token_of(event) else { continue };
            let expected = answer.tokens.get(ready_us.len()).map(String::as_str);
            if expected != Some(token) {
                return Err(io::Error::other(format!("session {session}: {token:?} is wrong")));
            }
            ready_us.push(now_us);
        }
    }
    Ok(ready_us)
}

/// Returns the first whole event and the offset of its end.
fn next_event(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n")?;
    Some((&bytes[..end], end + 2))
}

fn token_of(event: &[u8]) -> Option<&str> {
    let (_, rest) = std::str::from_utf8(event).ok()?.split_once("\"content\":\"")?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_from_events() {
        let text = format!(": waiting\n\n{}{}", event(" abc"), &event(" de")[..20]);
        let (comment, end) = next_event(text.as_bytes()).unwrap();
        assert_eq!(token_of(comment), None);
        let (token, next) = next_event(&text.as_bytes()[end..]).unwrap();
        assert_eq!(token_of(token), Some(" abc"));
        assert_eq!(next_event(&text.as_bytes()[end + next..]), None);
    }
}
