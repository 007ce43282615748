//! Downloads on kernel TCP: a server that always has more to send, and clients that count bytes.

use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::bottleneck::{Bottleneck, TimesWatch, TrialTimes};
use super::plan::{FairnessCase, FairnessPlan};
use crate::delivery::sse;
use crate::delivery::starts::blocking_runtime;
use crate::link::realtime::be_realtime;

/// Port of the downloads, not used by the token streams' servers.
const PORT: u16 = 9000;
/// Bytes per system call: more than a low rate carries between two calls.
const BLOCK_BYTES: usize = 64 << 10;

/// Downloads that wait for their trial, or take part in it.
#[derive(Debug)]
pub struct Downloads {
    serving: JoinHandle<io::Result<io::Result<()>>>,
    reading: JoinHandle<io::Result<io::Result<Vec<u64>>>>,
}

impl Downloads {
    /// Connects all downloads of a run; each starts at its own time after the trial's start.
    ///
    /// # Errors
    /// If sockets cannot be opened.
    pub fn start(
        plan: &FairnessPlan,
        case: &FairnessCase,
        run: usize,
        bottleneck: &Bottleneck,
    ) -> anyhow::Result<Self> {
        let ends = bottleneck.ends();
        let listener = ends.server.within(|| sse::listen(case.control.name(), PORT))??;
        let (count, times) = (plan.downloads, bottleneck.follow());
        let serving = {
            let times = times.clone();
            ends.server.spawn("download-server", move || {
                be_realtime();
                blocking_runtime()?.block_on(serve(listener, count, times))
            })?
        };
        let asked: Vec<(SocketAddr, Duration)> = (0..count)
            .map(|i| (bottleneck.download_address(i, PORT), plan.download_delay(run, i)))
            .collect();
        let reading = ends.client.spawn("download-client", move || {
            be_realtime();
            blocking_runtime()?.block_on(read_all(asked, times))
        })?;
        Ok(Self { serving, reading })
    }

    /// Waits for the end of the measurement; returns the bytes that each download read during it.
    ///
    /// # Errors
    /// If a download broke off.
    pub fn finish(self) -> io::Result<Vec<u64>> {
        let panicked = || io::Error::other("a side of the downloads has panicked");
        self.serving.join().map_err(|_| panicked())???;
        self.reading.join().map_err(|_| panicked())??
    }
}

async fn serve(listener: std::net::TcpListener, count: usize, times: TimesWatch) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let (stream, _) = listener.accept().await?;
        tasks.spawn(serve_one(stream, times.clone()));
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Sends continuously after the client's request, until the measurement is over.
async fn serve_one(mut stream: TcpStream, mut times: TimesWatch) -> io::Result<()> {
    stream.read_exact(&mut [0]).await?;
    let to = times.wait().await?.to;
    let block = vec![0x55; BLOCK_BYTES];
    let sending = async {
        // Fails at the latest when the client has closed.
        while stream.write_all(&block).await.is_ok() {}
    };
    let _ = tokio::time::timeout_at(to.into(), sending).await;
    // What the kernel still holds shall not be sent: the trial is over.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

async fn read_all(asked: Vec<(SocketAddr, Duration)>, times: TimesWatch) -> io::Result<Vec<u64>> {
    let mut tasks = JoinSet::new();
    let count = asked.len();
    for (download, (address, delay)) in asked.into_iter().enumerate() {
        let times = times.clone();
        tasks.spawn(
            async move { io::Result::Ok((download, read_one(address, delay, times).await?)) },
        );
    }
    let mut bytes = vec![0; count];
    while let Some(done) = tasks.join_next().await {
        let (download, read) = done.map_err(io::Error::other)??;
        bytes[download] = read;
    }
    Ok(bytes)
}

/// Reads until the end of the measurement; returns the bytes that arrived during it.
async fn read_one(address: SocketAddr, delay: Duration, mut times: TimesWatch) -> io::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    let TrialTimes { start, from, to } = times.wait().await?;
    tokio::time::sleep_until((start + delay).into()).await;
    // Downloads that begin together would lose together, and share the link in lockstep.
    stream.write_all(&[0]).await?;
    let (mut block, mut counted) = (vec![0; BLOCK_BYTES], 0);
    while let Ok(read) = tokio::time::timeout_at(to.into(), stream.read(&mut block)).await {
        let now = Instant::now();
        match read {
            Ok(read) if read > 0 && now < to => {
                counted += if now >= from { read as u64 } else { 0 };
            }
            // The server ends at the same time, and may be a moment earlier.
            _ if now + Duration::from_secs(1) > to => break,
            Ok(_) => return Err(io::Error::other("a download has ended early")),
            Err(error) => return Err(error),
        }
    }
    Ok(counted)
}
