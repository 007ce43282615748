//! A very fast SSE server to measure the generator against:
//! `sse_server 8099 2000` serves on port 8099 with 2000 µs between tokens.

#[path = "../tests/sse_server/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod sse_server;

use std::sync::Arc;
use std::time::Duration;

use sse_server::{Script, SseServer};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let port = args.next().transpose()?.unwrap_or(0);
    let gap = Duration::from_micros(args.next().transpose()?.unwrap_or(2000));
    let server = SseServer::new(Script { prefill: gap, gap, ..Script::default() });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", u16::try_from(port)?)).await?;
    println!("http://{} pid {}", listener.local_addr()?, std::process::id());
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(Arc::clone(&server).serve(socket));
    }
}
