//! A server for what the real one cannot show: it breaks the rules of `spec/session.md` on purpose,
//! loses its connection at a given token, keeps back datagrams, and reports what it has seen.
//!
//! It is written from the specification and not from the client, with the protocol's real sender.
//! The real server meets the client in `crates/server/tests/sessions/real_client.rs`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use loquent_proto::chunk::ChunkWriter;
use loquent_proto::fallback::LowerLayer;
use loquent_proto::frame::{Data, Frame};
use loquent_proto::message::Code;
use loquent_proto::wire::{FieldReader, put_int};
use loquent_proto::{Delta, Micros, ReliableFallback, Sender, SenderConfig, SenderState, grease};
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// The code with which a client cancels (S-2.6).
const CANCELLED: VarInt = VarInt::from_u32(3);

/// What the stand-in does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// No datagram leaves: the log comes on the stream alone.
    NoDatagrams,
    /// Datagrams of noise, and of other streams, between the right ones.
    Noise,
    /// After so many pieces the first connection is closed.
    CloseAfter(usize),
    /// After so many pieces the first stream ends as if all were said.
    EndAfter(usize),
    /// After so many pieces the first QUIC stream is reset with that code.
    ResetAfter(usize, u32),
    /// After so many pieces the first connection is closed because the server ends.
    ShutsDownAfter(usize),
    /// No datagram of the client's arrives, though its connection lives (S-4.4).
    Deaf,
    /// After so many pieces nothing is sent until a frame comes on the QUIC stream.
    Hushed(usize),
    /// Instead of an answer: a message of unknown type.
    UnknownMessage,
    /// Instead of an answer: a message that promises a gigabyte.
    HugeMessage,
    /// Instead of an answer: an answer to another stream.
    WrongStream,
    /// The log's records are noise.
    BadLog,
    /// Every request is refused.
    Refuse,
    /// Requests by QUIC are refused with 503, as by a replica that shuts down; HTTP leads to
    /// another one.
    Drains,
    /// Requests are taken, and get no response.
    Silent,
    /// The first event stream breaks after so many pieces.
    BreakSse(usize),
    /// The first event stream says no more after so many pieces, and does not end either.
    HangSse(usize),
    /// The log ends with an error.
    ServerError,
    /// Resumes are told that the answer is gone.
    Forgets,
    /// After so many pieces the first connection is closed, and another server takes the answer
    /// over: it has nothing that was sent, and says the same in larger pieces, or something else.
    TakenOver(usize, Says),
    /// The hash of another certificate is told.
    WrongHash,
}

/// What a server says that takes an answer over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The same text.
    Same,
    /// Another one.
    Other,
}

/// What was asked of the stand-in.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// A request by QUIC: its head and body.
    Quic(Value, String),
    /// A request by HTTP: its first line and body.
    Http(String, String),
    /// A request's idempotency key.
    Key(String),
    /// A resume by QUIC from that offset.
    Resume(u64),
    /// STOP, or a stream reset with code 3.
    Stop,
    /// The end of a path in both directions, before its answer's end (S-4.5).
    Left,
}

struct Shared {
    fault: Fault,
    deltas: Vec<Delta>,
    /// Those of the server that takes the answer over.
    again: Vec<Delta>,
    gap: Duration,
    started: Instant,
    answers: Mutex<HashMap<String, Arc<Kept>>>,
    seen: Mutex<Vec<Seen>>,
    offered_port: AtomicU16,
    certificate_sha256: String,
    /// How often the fault, where it happens once, may still happen.
    faults_left: AtomicUsize,
}

struct Kept {
    token: String,
    asked_at: Instant,
    state: Mutex<KeptState>,
    /// The path that may send: the newest.
    path: AtomicU64,
}

struct KeptState {
    sender: Sender,
    pushed: usize,
}

/// A running stand-in; it ends with the test's runtime.
pub struct StandIn {
    /// Where it takes HTTP.
    pub http: SocketAddr,
    /// Where it takes QUIC.
    pub quic: SocketAddr,
    shared: Arc<Shared>,
}

/// The log of an answer with these pieces of text.
fn log_of(pieces: &[String], fault: Fault) -> Vec<Delta> {
    let meta = json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "usage": "null",
    });
    let mut deltas = vec![Delta::Open { meta: meta.to_string() }];
    deltas.extend(pieces.iter().map(Delta::text));
    if fault == Fault::ServerError {
        deltas.push(Delta::Error { code: "internal_error".into(), message: "engine".into() });
        return deltas;
    }
    let completion = pieces.len() as u64;
    deltas.push(Delta::Finish { choice: 0, reason: "stop".into() });
    deltas.push(Delta::Usage { prompt: 3, completion, cached: 0, reasoning: 0 });
    deltas.push(Delta::Done);
    deltas
}

/// What a server has that takes an answer over.
fn pieces_again(pieces: &[String], fault: Fault) -> Vec<String> {
    let mut again: Vec<String> = pieces.chunks(3).map(|three| three.concat()).collect();
    if matches!(fault, Fault::TakenOver(_, Says::Other)) {
        again[1] = "something else".to_owned();
    }
    again
}

impl StandIn {
    /// Answers every question with `pieces`, one each `gap`.
    pub async fn start(pieces: &[String], gap: Duration, fault: Fault) -> StandIn {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = certified.cert.der().clone();
        let mut hash = Sha256::digest(&certificate).to_vec();
        if fault == Fault::WrongHash {
            hash[0] ^= 1;
        }
        let endpoint = endpoint(certificate, certified.signing_key.serialize_der());
        let quic = endpoint.local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            fault,
            deltas: log_of(pieces, fault),
            again: log_of(&pieces_again(pieces, fault), fault),
            gap,
            started: Instant::now(),
            answers: Mutex::default(),
            seen: Mutex::default(),
            offered_port: AtomicU16::new(quic.port()),
            certificate_sha256: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            faults_left: AtomicUsize::new(1),
        });
        let http = listener.local_addr().unwrap();
        tokio::spawn(accept_http(listener, Arc::clone(&shared)));
        tokio::spawn(accept_quic(endpoint, Arc::clone(&shared)));
        StandIn { http, quic, shared }
    }

    /// Offers this port for QUIC instead of its own: a relay's.
    pub fn offer_port(&self, port: u16) {
        self.shared.offered_port.store(port, Ordering::Relaxed);
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.http)
    }

    /// Whether the log of every answer is whole: no more will be written.
    pub fn has_said_all(&self) -> bool {
        self.shared.has_said_all()
    }

    /// What was asked so far, discovery left out.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

fn endpoint(certificate: CertificateDer<'static>, key: Vec<u8>) -> Endpoint {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(key).into())
        .unwrap();
    tls.alpn_protocols = vec![b"loquent/1".to_vec()];
    let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap()
}

impl Shared {
    fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().push(seen);
    }

    /// Whether a fault that happens once happens now.
    fn strikes(&self) -> bool {
        self.faults_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
    }

    /// A stand-in that hears no datagrams gives its client up soon.
    fn sender_config(&self) -> SenderConfig {
        let mut config = SenderConfig::default();
        if self.fault == Fault::Deaf {
            config.suspend_after = Micros::from_ms(1_500);
        }
        config
    }

    fn now(&self) -> Micros {
        Micros(self.started.elapsed().as_micros() as u64)
    }

    /// Whether another server has taken the answer over.
    fn is_taken_over(&self) -> bool {
        matches!(self.fault, Fault::TakenOver(..)) && self.faults_left.load(Ordering::Relaxed) == 0
    }

    /// What the answer's log has in the end.
    fn deltas(&self) -> &[Delta] {
        if self.is_taken_over() { &self.again } else { &self.deltas }
    }

    /// Whether the answer can be resumed from `offset`.
    fn resumes_at(&self, offset: u64) -> bool {
        self.fault != Fault::Forgets && (offset == 0 || !self.is_taken_over())
    }

    /// Deltas that exist by now. Another answer than the reader's does not end.
    fn due(&self, kept: &Kept) -> usize {
        if matches!(self.fault, Fault::TakenOver(_, Says::Other)) && self.is_taken_over() {
            return 4;
        }
        let gaps = kept.asked_at.elapsed().as_micros() / self.gap.as_micros().max(1);
        (gaps as usize + 1).min(self.deltas().len())
    }

    fn has_said_all(&self) -> bool {
        let answers = self.answers.lock().unwrap();
        answers.values().all(|kept| kept.state.lock().unwrap().pushed == self.deltas().len())
    }

    fn keep(&self) -> (String, Arc<Kept>) {
        let id = format!("{:032x}", rand::random::<u128>());
        let kept = Arc::new(Kept {
            token: format!("{:032x}", rand::random::<u128>()),
            asked_at: Instant::now(),
            state: Mutex::new(KeptState {
                sender: Sender::new(self.now(), 0, SenderConfig::default()),
                pushed: 0,
            }),
            path: AtomicU64::new(0),
        });
        self.answers.lock().unwrap().insert(id.clone(), Arc::clone(&kept));
        (id, kept)
    }

    fn find(&self, id: &str, token: &str) -> Option<Arc<Kept>> {
        let answers = self.answers.lock().unwrap();
        answers.get(id).filter(|kept| kept.token == token).cloned()
    }
}

async fn accept_quic(endpoint: Endpoint, shared: Arc<Shared>) {
    while let Some(incoming) = endpoint.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            serve_connection(connection, shared).await;
        });
    }
}

type Routes = Arc<Mutex<HashMap<u64, mpsc::UnboundedSender<Bytes>>>>;

async fn serve_connection(connection: Connection, shared: Arc<Shared>) {
    let routes = Routes::default();
    let mut streams = 0;
    loop {
        tokio::select! {
            datagram = connection.read_datagram() => {
                let Ok(datagram) = datagram else { return };
                if shared.fault == Fault::Deaf {
                    continue;
                }
                if let Ok(frame) = Frame::decode(&datagram, false)
                    && let Some(route) = routes.lock().unwrap().get(&frame.channel())
                {
                    let _ = route.send(datagram.clone());
                }
            }
            stream = connection.accept_bi() => {
                let Ok((send, recv)) = stream else { return };
                streams += 1;
                assert!(streams < 10_000, "a client that never stops opening streams");
                let stream = Stream {
                    connection: connection.clone(),
                    routes: Arc::clone(&routes),
                    shared: Arc::clone(&shared),
                    send,
                    messages: Messages { recv, buffer: BytesMut::new() },
                    has_heard_frame: false,
                };
                tokio::spawn(stream.serve());
            }
        }
    }
}

struct Messages {
    recv: RecvStream,
    buffer: BytesMut,
}

impl Messages {
    /// The next message's type and payload; `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<(u8, Bytes)>, quinn::ReadError> {
        loop {
            if let Some(&kind) = self.buffer.first() {
                let mut reader = FieldReader::new(&self.buffer[1..]);
                if let Ok(length) = reader.int()
                    && reader.rest().len() >= length as usize
                {
                    let head = self.buffer.len() - reader.rest().len();
                    self.buffer.advance(head);
                    let payload = self.buffer.split_to(length as usize).freeze();
                    if kind >= 64 {
                        continue; // unknown, to be skipped (S-2.1)
                    }
                    return Ok(Some((kind, payload)));
                }
            }
            match self.recv.read_chunk(65_536, true).await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk.bytes),
                None => return Ok(None),
            }
        }
    }
}

/// QUIC, as the fallback sees it.
struct Lower<'a>(&'a Connection);

impl LowerLayer for Lower<'_> {
    fn acks(&self) -> u64 {
        self.0.stats().frame_rx.acks
    }
}

fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    put_int(&mut out, payload.len() as u64);
    out.extend_from_slice(payload);
    out
}

struct Stream {
    connection: Connection,
    routes: Routes,
    shared: Arc<Shared>,
    send: SendStream,
    messages: Messages,
    /// A frame has come on the QUIC stream.
    has_heard_frame: bool,
}

impl Stream {
    async fn serve(mut self) {
        let Ok(Some((kind, payload))) = self.messages.next().await else { return };
        match kind {
            0 => self.serve_request(&payload).await,
            4 => self.serve_resume(&payload).await,
            _ => panic!("a client began with a message of type {kind}"),
        }
    }

    async fn serve_request(mut self, head: &[u8]) {
        let head: Value = serde_json::from_slice(head).unwrap();
        let mut body = Vec::new();
        while let Ok(Some((kind, piece))) = self.messages.next().await {
            assert_eq!(kind, 1, "only BODY may follow a REQUEST");
            if piece.is_empty() {
                break;
            }
            body.extend_from_slice(&piece);
        }
        let body = String::from_utf8(body).unwrap();
        self.shared.note(Seen::Quic(head.clone(), body));
        let wrong = match self.shared.fault {
            Fault::UnknownMessage => Some(vec![9, 0]),
            Fault::HugeMessage => Some(vec![3, 0x80 | 0x3f, 0xff, 0xff, 0xff, 1]),
            Fault::WrongStream => {
                let digits = "0".repeat(32);
                let head = json!({"id": digits, "token": digits, "channel": 99, "offset": 0});
                Some(message(3, head.to_string().as_bytes()))
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            let _ = self.send.write_all(&wrong).await;
            let _ = self.send.stopped().await;
            return;
        }
        if self.shared.fault == Fault::Silent {
            if let Err(quinn::ReadError::Reset(CANCELLED)) = self.messages.next().await {
                self.shared.note(Seen::Stop);
            }
            return;
        }
        match head["channel"].as_u64() {
            Some(stream) if !matches!(self.shared.fault, Fault::Refuse | Fault::Drains) => {
                let (id, kept) = self.shared.keep();
                kept.state.lock().unwrap().sender =
                    Sender::new(self.shared.now(), stream, self.shared.sender_config());
                self.answer(id, kept, stream, 0).await;
            }
            _ => self.respond(&head).await,
        }
    }

    async fn respond(mut self, head: &Value) {
        let refused = self.shared.fault == Fault::Refuse;
        let (status, body) = match head["path"].as_str() {
            _ if self.shared.fault == Fault::Drains => {
                (503, json!({"error": {"message": "shutting down", "type": "server_error"}}))
            }
            _ if refused => {
                (429, json!({"error": {"message": "try later", "type": "rate_limit_error"}}))
            }
            Some("/patient") => {
                while !self.shared.has_said_all() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                (200, json!({"said": "all"}))
            }
            Some("/v1/models") => (200, json!({"data": [{"id": "m"}]})),
            _ => (404, json!({"error": {"message": "no such path"}})),
        };
        let headers = json!({"content-type": "application/json", "retry-after": "7"});
        let head = json!({"status": status, "headers": headers}).to_string();
        let mut out = message(2, head.as_bytes());
        for piece in body.to_string().as_bytes().chunks(5) {
            out.extend(message(1, piece));
        }
        let _ = self.send.write_all(&out).await;
        let _ = self.send.finish();
        let _ = self.send.stopped().await;
    }

    async fn serve_resume(mut self, frame: &[u8]) {
        let Ok(Frame::Resume(resume)) = Frame::decode(frame, false) else {
            panic!("a client began with another frame");
        };
        self.shared.note(Seen::Resume(resume.offset));
        let hex = |bytes: [u8; 16]| format!("{:032x}", u128::from_be_bytes(bytes));
        let kept = self.shared.find(&hex(resume.id), &hex(resume.token));
        let resumed = kept.filter(|kept| {
            let now = self.shared.now();
            let mut state = kept.state.lock().unwrap();
            if self.shared.is_taken_over() && resume.offset == 0 {
                state.sender = Sender::new(now, resume.channel, SenderConfig::default());
                state.pushed = 0;
            }
            self.shared.resumes_at(resume.offset)
                && state.sender.resume(now, resume.channel, resume.offset).is_ok()
        });
        match resumed {
            Some(kept) => self.answer(hex(resume.id), kept, resume.channel, resume.offset).await,
            None => {
                let mut gone = Vec::new();
                Frame::Gone { channel: resume.channel }.encode(false, &mut gone);
                let _ = self.send.write_all(&message(4, &gone)).await;
                let _ = self.send.finish();
                let _ = self.send.stopped().await;
            }
        }
    }

    async fn answer(mut self, id: String, kept: Arc<Kept>, stream: u64, offset: u64) {
        let path = kept.path.fetch_add(1, Ordering::Relaxed) + 1;
        let head = json!({"id": id, "token": kept.token, "channel": stream, "offset": offset});
        let (sender, mut datagrams) = mpsc::unbounded_channel();
        self.routes.lock().unwrap().insert(stream, sender);
        let _ = self.send.write_all(&message(3, head.to_string().as_bytes())).await;
        if self.shared.fault == Fault::Noise {
            self.grease(stream).await;
        }
        let mut fallback = ReliableFallback::default();
        let mut listening = true;
        loop {
            if kept.path.load(Ordering::Relaxed) != path {
                let _ = self.send.reset(Code::Superseded.number().into());
                return;
            }
            let (wake, ended) = self.transmit(&kept).await;
            if self.shared.fault == Fault::Deaf {
                self.fall_back(&kept, &mut fallback).await;
            }
            if ended || self.misbehave(&kept).await {
                let _ = self.send.finish();
                let _ = self.send.stopped().await;
                return;
            }
            let frame = tokio::select! {
                frame = datagrams.recv() => frame,
                read = self.messages.next(), if listening => match read {
                    Ok(Some((4, frame))) => {
                        self.has_heard_frame = true;
                        Some(frame)
                    }
                    Ok(Some((kind, _))) => panic!("a message of type {kind} within an answer"),
                    Ok(None) => { listening = false; None }
                    Err(quinn::ReadError::Reset(CANCELLED)) => {
                        self.shared.note(Seen::Stop);
                        return;
                    }
                    Err(_) => return,
                },
                Ok(Some(_)) = self.send.stopped(), if !listening => {
                    self.shared.note(Seen::Left);
                    return;
                }
                () = tokio::time::sleep(wake) => None,
                _ = self.connection.closed() => return,
            };
            if let Some(frame) = frame {
                let now = self.shared.now();
                let _ = kept.state.lock().unwrap().sender.handle_datagram(now, &frame);
            }
        }
    }

    /// Sends what is due; when to come again, and whether all is said and heard.
    async fn transmit(&mut self, kept: &Kept) -> (Duration, bool) {
        let (mut frames, now) = (Vec::new(), self.shared.now());
        let (wake, state) = {
            let mut kept_state = kept.state.lock().unwrap();
            let KeptState { sender, pushed } = &mut *kept_state;
            if matches!(self.shared.fault, Fault::Hushed(pieces) if *pushed > pieces)
                && !self.has_heard_frame
            {
                return (Duration::from_millis(5), false);
            }
            for delta in &self.shared.deltas()[*pushed..self.shared.due(kept)] {
                sender.push(now, delta).unwrap();
                *pushed += 1;
            }
            sender.handle_timeout(now);
            let mut frame = Vec::new();
            while sender.poll_transmit(now, &mut frame).is_some() {
                frames.push(std::mem::take(&mut frame));
            }
            let wake = sender.poll_timeout().map_or(u64::MAX, |at| at.since(now).0);
            (Duration::from_micros(wake.min(5_000)), sender.state())
        };
        for frame in frames {
            self.send_frame(frame).await;
        }
        if state == SenderState::Stopped {
            self.shared.note(Seen::Stop);
        }
        (wake, matches!(state, SenderState::Finished | SenderState::Stopped))
    }

    /// Sends what a client must skip (S-2.7).
    async fn grease(&mut self, channel: u64) {
        for draw in 0..8 {
            let (mut message, mut frame) = (Vec::new(), Vec::new());
            grease::put_message(draw << 60, &mut message);
            grease::put_frame(draw << 60, channel, &mut frame);
            let _ = self.send.write_all(&message).await;
            let _ = self.connection.send_datagram(frame.into());
        }
    }

    /// Sends the log on the QUIC stream too while datagrams are not acknowledged (S-4.4).
    async fn fall_back(&mut self, kept: &Kept, fallback: &mut ReliableFallback) {
        let (now, mut frames) = (self.shared.now(), Vec::new());
        {
            let sender = &mut kept.state.lock().unwrap().sender;
            let (delivery, answer) = sender.parts();
            fallback.handle_timeout(now, delivery, &Lower(&self.connection));
            let mut frame = Vec::new();
            while fallback.poll_transmit(now, delivery, answer, 1000, &mut frame).is_some() {
                frames.push(std::mem::take(&mut frame));
            }
        }
        for frame in frames {
            let _ = self.send.write_all(&message(4, &frame)).await;
        }
    }

    async fn send_frame(&mut self, mut frame: Vec<u8>) {
        match self.shared.fault {
            Fault::NoDatagrams => {
                let _ = self.send.write_all(&message(4, &frame)).await;
                return;
            }
            Fault::Noise => {
                let noise: Vec<u8> = (0..rand::random::<u8>()).map(|_| rand::random()).collect();
                let _ = self.connection.send_datagram(noise.into());
                if let Ok(Frame::Data(data)) = Frame::decode(&frame, false) {
                    let other = Data { channel: data.channel ^ 0x21, ..data };
                    let _ = self.connection.send_datagram(encoded(other).into());
                }
            }
            Fault::BadLog => {
                if let Ok(Frame::Data(data)) = Frame::decode(&frame, false) {
                    let bytes = vec![0x05; data.bytes.len()];
                    frame = encoded(Data { bytes: &bytes, ..data });
                }
            }
            _ => {}
        }
        let _ = self.connection.send_datagram(frame.into());
    }

    /// Does what the fault says at this point; whether that ends the stream.
    async fn misbehave(&mut self, kept: &Kept) -> bool {
        let pushed = kept.state.lock().unwrap().pushed;
        match self.shared.fault {
            Fault::CloseAfter(pieces) | Fault::TakenOver(pieces, _)
                if pushed > pieces && self.shared.strikes() =>
            {
                self.connection.close(VarInt::from_u32(0), b"");
                true
            }
            Fault::ShutsDownAfter(pieces) if pushed > pieces && self.shared.strikes() => {
                self.connection.close(Code::ShuttingDown.number().into(), b"");
                true
            }
            Fault::ResetAfter(pieces, code) if pushed > pieces && self.shared.strikes() => {
                let _ = self.send.reset(VarInt::from_u32(code));
                true
            }
            Fault::EndAfter(pieces) => pushed > pieces && self.shared.strikes(),
            _ => false,
        }
    }
}

async fn accept_http(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let _ = serve_http(BufReader::new(stream), shared).await;
        });
    }
}

async fn serve_http(mut stream: BufReader<TcpStream>, shared: Arc<Shared>) -> std::io::Result<()> {
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let mut headers = HashMap::new();
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(0, |value| value.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let body = String::from_utf8(body).unwrap();
        let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        if line == "GET /.well-known/loquent" {
            let port = shared.offered_port.load(Ordering::Relaxed);
            let hash = &shared.certificate_sha256;
            let offer = json!({"version": 1, "port": port, "certificate_sha256": hash, "path": "/loquent/1"});
            plain(&mut stream, 200, &offer).await?;
            continue;
        }
        shared.note(Seen::Http(line.clone(), body.clone()));
        if shared.fault == Fault::Refuse {
            plain(&mut stream, 429, &json!({"error": {"message": "try later"}})).await?;
            continue;
        }
        if line == "POST /v1/chat/completions" {
            shared.note(Seen::Key(headers["idempotency-key"].clone()));
            assert!(body.contains(r#""resumable":true"#), "{body}");
            let (id, kept) = shared.keep();
            return events(&mut stream, &shared, &id, &kept, 0).await;
        }
        let id = line.split("/v1/streams/").nth(1).unwrap_or_default();
        let token = headers.get("x-loquent-stream-token").cloned().unwrap_or_default();
        let from = headers.get("last-event-id").map_or(0, |id| id.parse().unwrap());
        match shared.find(id, &token).filter(|_| shared.resumes_at(from)) {
            Some(kept) if line.starts_with("GET ") => {
                return events(&mut stream, &shared, id, &kept, from).await;
            }
            Some(_) => {
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?;
            }
            None => plain(&mut stream, 404, &json!({"error": {"message": "no"}})).await?,
        }
    }
}

async fn plain(
    stream: &mut BufReader<TcpStream>,
    status: u16,
    body: &Value,
) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await
}

/// The answer as server-sent events from log offset `from` on (S-5.1, S-5.2).
async fn events(
    stream: &mut BufReader<TcpStream>,
    shared: &Shared,
    id: &str,
    kept: &Kept,
    from: u64,
) -> std::io::Result<()> {
    let path = kept.path.fetch_add(1, Ordering::Relaxed) + 1;
    let token = &kept.token;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\
         x-loquent-stream-id: {id}\r\nx-loquent-stream-token: {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let (mut chunks, mut log, mut written) = (ChunkWriter::new(), Vec::new(), 0);
    for (at, delta) in shared.deltas().iter().enumerate() {
        while shared.due(kept) <= at {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if kept.path.load(Ordering::Relaxed) != path {
            return Ok(());
        }
        let mut out = Vec::new();
        delta.encode(&mut log).unwrap();
        chunks.write(Some(log.len() as u64), delta, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        if log.len() as u64 <= from || out.is_empty() {
            continue;
        }
        written += 1;
        if shared.fault == Fault::BreakSse(written) && shared.strikes() {
            return Ok(());
        }
        if shared.fault == Fault::HangSse(written) && shared.strikes() {
            return std::future::pending().await;
        }
        stream.write_all(format!("{:x}\r\n{out}\r\n", out.len()).as_bytes()).await?;
    }
    if !matches!(shared.deltas().last(), Some(Delta::Error { .. })) {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}

fn encoded(data: Data<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    Frame::Data(data).encode(false, &mut frame);
    frame
}
