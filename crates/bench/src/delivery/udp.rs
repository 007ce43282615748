//! The simulator's schemes over real UDP sockets: the same two ends, driven by the real clock.
//!
//! One task drives both ends of a stream, because Loquent's two ends share their measurements.
//! Their packets still cross the emulated network.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket as StdSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquent_sim::reader::ReaderBehaviour;
use loquent_sim::scheme::{DeliveryProgress, Ends as SchemeEnds, ReceiverEnd, SenderEnd};
use tokio::net::UdpSocket;
use tokio::task::{JoinHandle, LocalSet};

use super::metrics::{SchemeTrial, StreamTrace};
use super::plan::{DeliveryPlan, DeliveryScheme, TimedTokens};
use super::starts::{Starts, blocking_runtime};
use super::testbed::{StreamNetwork, Testbed};
use crate::link::LinkError;
use crate::link::realtime::be_realtime;

/// Buffer size, larger than any packet of these schemes.
const BUFFER_BYTES: usize = 2048;

/// The sockets of one stream: the server's and the client's.
type Sockets = (StdSocket, StdSocket);

/// Runs all sessions of a case.
///
/// # Errors
/// If the network or its sockets cannot be set up, or text arrives that was never sent.
pub fn run(
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
    starts: &Arc<Starts>,
) -> anyhow::Result<SchemeTrial> {
    let (testbed, sockets) = match plan.without_root {
        true => relayed(plan, rtt_ms)?,
        false => namespaced(plan, rtt_ms)?,
    };
    let driving = {
        let (plan, starts) = (plan.clone(), Arc::clone(starts));
        std::thread::Builder::new().name("udp".into()).spawn(move || {
            be_realtime();
            blocking_runtime()?.block_on(drive_all(&plan, scheme, rtt_ms, sockets, starts))
        })?
    };
    (0..plan.sessions).for_each(|_| starts.arrive());
    starts.open(|session, at| testbed.begin(session, at));
    let joined = driving.join();
    let traces = joined.unwrap_or_else(|_| Err(io::Error::other("a stream has panicked")))?;
    Ok(testbed.finish(traces)?)
}

fn bind(address: SocketAddr) -> Result<StdSocket, LinkError> {
    let bound = StdSocket::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    bound.map_err(LinkError::io("UDP socket"))
}

/// Creates sockets in both namespaces; the server sends from the address of its path.
fn namespaced(plan: &DeliveryPlan, rtt_ms: f64) -> Result<(Testbed, Vec<Sockets>), LinkError> {
    let testbed = Testbed::namespaces(plan, rtt_ms)?;
    let ends = testbed.ends.as_ref().expect("a testbed with namespaces");
    let mut sockets = Vec::new();
    for session in 0..plan.sessions {
        let server = ends.server.within(|| bind(testbed.server_address(session, 0)))??;
        let address = server.local_addr().map_err(LinkError::io("UDP socket"))?;
        let client = ends.client.within(|| bind((Ipv4Addr::UNSPECIFIED, 0).into()))??;
        client.connect(address).map_err(LinkError::io("UDP socket"))?;
        sockets.push((server, client));
    }
    Ok((testbed, sockets))
}

/// Creates sockets on loopback with a relay between them.
fn relayed(plan: &DeliveryPlan, rtt_ms: f64) -> Result<(Testbed, Vec<Sockets>), LinkError> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let servers: Result<Vec<StdSocket>, _> = (0..plan.sessions).map(|_| bind(any)).collect();
    let servers = servers?;
    let addresses: io::Result<Vec<_>> = servers.iter().map(StdSocket::local_addr).collect();
    let testbed = Testbed::relays(plan, rtt_ms, addresses.map_err(LinkError::io("UDP socket"))?)?;
    let mut sockets = Vec::new();
    for (session, server) in servers.into_iter().enumerate() {
        let client = bind(any)?;
        client.connect(testbed.server_address(session, 0)).map_err(LinkError::io("UDP socket"))?;
        sockets.push((server, client));
    }
    Ok((testbed, sockets))
}

async fn drive_all(
    plan: &DeliveryPlan,
    scheme: DeliveryScheme,
    rtt_ms: f64,
    sockets: Vec<Sockets>,
    starts: Arc<Starts>,
) -> io::Result<Vec<StreamTrace>> {
    let local = LocalSet::new();
    let link = Rc::new(plan.link(rtt_ms));
    let mut tasks: Vec<JoinHandle<io::Result<StreamTrace>>> = Vec::new();
    for (session, (server, client)) in sockets.into_iter().enumerate() {
        let (starts, link) = (Arc::clone(&starts), Rc::clone(&link));
        let answer = plan.answer(session);
        let sockets = (UdpSocket::from_std(server)?, UdpSocket::from_std(client)?);
        tasks.push(local.spawn_local(async move {
            let ends = scheme.simulated().ends(&link, &ReaderBehaviour::default());
            let start = starts.wait(session).await?;
            // An empty datagram tells the server the client's address, as a handshake would.
            sockets.1.send(&[]).await?;
            let mut stream = UdpSession::new(ends.expect("no oracle"), answer, sockets, start);
            stream.run(starts.deadline(start)).await
        }));
    }
    local
        .run_until(async {
            let mut traces = Vec::new();
            for task in tasks {
                traces.push(task.await.map_err(io::Error::other)??);
            }
            Ok(traces)
        })
        .await
}

/// A session in progress.
struct UdpSession {
    sender: Box<dyn SenderEnd>,
    receiver: Box<dyn ReceiverEnd>,
    answer: TimedTokens,
    text: Vec<u8>,
    server: UdpSocket,
    client: UdpSocket,
    /// Source address of the client's datagrams.
    client_address: Option<SocketAddr>,
    start: Instant,
    trace: StreamTrace,
    shown: Vec<u8>,
    packet: Vec<u8>,
}

impl UdpSession {
    fn new(
        (sender, receiver): SchemeEnds,
        answer: TimedTokens,
        (server, client): (UdpSocket, UdpSocket),
        start: Instant,
    ) -> Self {
        Self {
            sender,
            receiver,
            text: answer.tokens.concat().into_bytes(),
            answer,
            server,
            client,
            client_address: None,
            start,
            trace: StreamTrace::default(),
            shown: Vec::new(),
            packet: Vec::with_capacity(BUFFER_BYTES),
        }
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    async fn run(&mut self, deadline: Instant) -> io::Result<StreamTrace> {
        self.meet().await?;
        tokio::time::sleep_until(self.start.into()).await;
        let (mut from_client, mut from_server) = ([0; BUFFER_BYTES], [0; BUFFER_BYTES]);
        while !self.is_over() && Instant::now() < deadline {
            self.handle_time();
            self.transmit();
            let wake = self.wake_at().min(deadline);
            tokio::select! {
                received = self.server.recv_from(&mut from_client) => {
                    let (len, from) = received?;
                    self.client_address = Some(from);
                    let now_us = self.now_us();
                    self.sender.handle_packet(now_us, &from_client[..len]);
                }
                received = self.client.recv(&mut from_server) => {
                    let len = received?;
                    let now_us = self.now_us();
                    self.receiver.handle_packet(now_us, &from_server[..len]);
                    self.note_arrivals(now_us)?;
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
        Ok(std::mem::take(&mut self.trace))
    }

    /// Waits for the client's first datagram, sent before the losses begin.
    async fn meet(&mut self) -> io::Result<()> {
        self.server.writable().await?;
        let (_, from) = self.server.recv_from(&mut [0; BUFFER_BYTES]).await?;
        self.client_address = Some(from);
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.sender.progress() != DeliveryProgress::Active
            && self.trace.generated_us.len() == self.answer.tokens.len()
    }

    /// Handles the tokens and timers that are due.
    fn handle_time(&mut self) {
        let now_us = self.now_us();
        while let Some(&at_us) = self.answer.times_us.get(self.trace.generated_us.len()) {
            if at_us > now_us {
                break;
            }
            let token = self.answer.tokens[self.trace.generated_us.len()].as_bytes();
            self.trace.generated_us.push(now_us);
            let last = self.trace.generated_us.len() == self.answer.tokens.len();
            self.sender.handle_token(now_us, token, last);
        }
        let due = |at_us: Option<u64>| at_us.is_some_and(|at_us| at_us <= now_us);
        if due(self.sender.poll_timeout()) {
            self.sender.handle_timeout(now_us);
        }
        if due(self.receiver.poll_timeout()) {
            self.receiver.handle_timeout(now_us);
        }
    }

    /// Sends the due packets of both ends. A full socket drops a packet, as a full queue in the
    /// network would.
    fn transmit(&mut self) {
        let now_us = self.now_us();
        self.packet.clear();
        while self.sender.poll_transmit(now_us, &mut self.packet) {
            if let Some(to) = self.client_address {
                let _ = self.server.try_send_to(&self.packet, to);
            }
            self.packet.clear();
        }
        while self.receiver.poll_transmit(now_us, &mut self.packet) {
            let _ = self.client.try_send(&self.packet);
            self.packet.clear();
        }
    }

    fn wake_at(&self) -> Instant {
        let token_us = self.answer.times_us.get(self.trace.generated_us.len()).copied();
        let timers = [token_us, self.sender.poll_timeout(), self.receiver.poll_timeout()];
        let wake_us = timers.into_iter().flatten().min();
        self.start + wake_us.map_or(Duration::from_secs(1), Duration::from_micros)
    }

    /// Records when tokens became ready, and checks their text against the generated text.
    fn note_arrivals(&mut self, now_us: u64) -> io::Result<()> {
        let before = self.shown.len();
        self.receiver.take_shown(&mut self.shown);
        if self.text.get(before..self.shown.len()) != Some(&self.shown[before..]) {
            return Err(io::Error::other("text arrived that was never sent"));
        }
        self.trace.ready_us.resize(self.receiver.arrived(), now_us);
        Ok(())
    }
}
