//! A real server with the simulated engine, and readers that the real client cannot play: they drop
//! frames by a seed, break the rules, and stop or migrate at a given byte.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use loquent_engine::sim::{SimOptions, StepPace};
use loquent_infer::runner::Capacity;
use loquent_proto::frame::{Frame, Resume};
use loquent_proto::message::{Code, MessageKind, put_message};
use loquent_proto::{AnswerHandle, Delta, Error, Micros, Receiver, ReceiverConfig, ReceiverEvent};
use loquent_server::{
    ALPN, Announcement, ApiKeys, CertificateSource, HttpConfig, PoolConfig, QuicConfig,
    ResumableLimits, ServerConfig, StoreConfig, StreamMessage, TcpLimits, UpstreamConfig,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use web_transport_quinn::Session;

use crate::simulated::{self, service_config};

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Name of the model that another server has.
pub const UPSTREAM_MODEL: &str = "elsewhere";

/// A running server; dropping it lets it go down with the runtime.
pub struct Server {
    pub http: SocketAddr,
    pub quic: SocketAddr,
    pub certificate: [u8; 32],
    stop: Option<oneshot::Sender<()>>,
}

impl Server {
    /// Has it shut down.
    pub fn stop(&mut self) {
        self.stop = None;
    }

    /// One in another process.
    pub fn elsewhere([http, quic]: [SocketAddr; 2], certificate: [u8; 32]) -> Self {
        Self { http, quic, certificate, stop: None }
    }
}

/// What tests change about a server.
#[derive(Clone)]
pub struct Setup {
    pub token_every: Duration,
    pub grace: Duration,
    pub keys: Vec<String>,
    /// A file with further keys.
    pub key_file: Option<PathBuf>,
    /// Sequences computed at once.
    pub batch: u16,
    pub kept: fn(&mut ResumableLimits),
    pub drain_limit: Duration,
    pub quic: fn(&mut QuicConfig),
    pub max_tcp_connections: usize,
    pub tcp: fn(&mut TcpLimits),
    pub store: StoreConfig,
    /// The server of [`UPSTREAM_MODEL`].
    pub upstream: Option<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            token_every: Duration::from_millis(5),
            grace: Duration::from_secs(20),
            keys: Vec::new(),
            key_file: None,
            batch: 16,
            kept: |_| {},
            drain_limit: Duration::from_secs(1),
            quic: |_| {},
            max_tcp_connections: 64,
            tcp: |_| {},
            store: StoreConfig::default(),
            upstream: None,
        }
    }
}

pub async fn start(setup: Setup) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let options = options(&setup);
    let capacity = Capacity {
        slots: 2 * setup.batch,
        kv_cells: 4096 * u32::from(setup.batch),
        ..SimOptions::default().capacity
    };
    let pace = StepPace::Fixed { step: setup.token_every };
    let loaded = simulated::loaded(SimOptions { capacity, pace, faults: Vec::new() });
    let load = move || Ok(loaded);
    tokio::spawn(async move {
        let announce = move |_: &Announcement<'_>| {
            let _ = ready.send(());
        };
        let shutdown = async { drop(stopped.await) };
        loquent_server::run(listener, options, load, announce, shutdown).await.unwrap();
    });
    is_ready.await.unwrap();
    let (status, _, body) = request(http, "GET", "/.well-known/loquent", &[], "").await;
    assert_eq!(status, 200, "{body}");
    let offer: Value = serde_json::from_str(&body).unwrap();
    let hash = offer["certificate_sha256"].as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&hash[2 * i..2 * i + 2], 16).unwrap();
    let quic = SocketAddr::new(http.ip(), offer["port"].as_u64().unwrap() as u16);
    Server { http, quic, certificate: std::array::from_fn(byte), stop: Some(stop) }
}

fn options(setup: &Setup) -> ServerConfig {
    let stall_limit = Duration::from_secs(30);
    let mut kept = ResumableLimits { grace: setup.grace, stall_limit, ..simulated::limits() };
    (setup.kept)(&mut kept);
    let mut quic = QuicConfig {
        port: Some(0),
        required: true,
        certificate: CertificateSource::SelfSigned(vec!["127.0.0.1".into()]),
        max_connections: 64,
        max_connections_per_address: 64,
        max_streams: 16,
    };
    (setup.quic)(&mut quic);
    let max_connections = setup.max_tcp_connections;
    let mut tcp = TcpLimits { max_connections, ..TcpLimits::default() };
    (setup.tcp)(&mut tcp);
    ServerConfig {
        http: HttpConfig {
            api_keys: ApiKeys::load(&setup.keys, setup.key_file.clone(), None).unwrap(),
            heartbeat: Duration::from_secs(10),
            ..simulated::http_config()
        },
        service: service_config(setup.batch.into()),
        kept,
        store: setup.store.clone(),
        quic: Some(quic),
        https: None,
        tcp,
        drain_limit: setup.drain_limit,
        upstreams: setup.upstream.iter().map(|url| upstream(url)).collect(),
        extension: Default::default(),
        pages: Vec::new(),
    }
}

fn upstream(url: &str) -> UpstreamConfig {
    let (name, urls) = (Some(UPSTREAM_MODEL.to_owned()), vec![url.to_owned()]);
    let pool = PoolConfig { name, urls, silence_limit: PATIENCE, ..PoolConfig::default() };
    UpstreamConfig { pool, ..UpstreamConfig::default() }
}

/// A chat request for an answer of `tokens` tokens, with `more` fields.
pub fn chat(tokens: usize, more: Value) -> String {
    let content = format!("tokens={tokens}");
    let mut body = json!({"stream": true, "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// The same answer without streaming: what every reader must get.
pub async fn expected(server: &Server, tokens: usize) -> String {
    let body = chat(tokens, json!({"stream": false}));
    let (status, _, body) = request(server.http, "POST", "/v1/chat/completions", &[], &body).await;
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

pub type Headers = http::HeaderMap;

/// One whole HTTP request.
pub async fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Headers, String) {
    let (status, headers, body) = open(to, method, path, headers, body).await;
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    (status, headers, String::from_utf8(body.to_vec()).unwrap())
}

/// An HTTP request whose body is still to come.
pub async fn open(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Headers, hyper::body::Incoming) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut request = http::Request::builder().method(method).uri(format!("http://{to}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::from(body.to_owned())).unwrap();
    let response = client.request(request).await.unwrap();
    (response.status().as_u16(), response.headers().clone(), response.into_body())
}

/// Reads events until `enough` of the text has come, or the stream has ended or broken.
pub struct Events {
    pub text: String,
    pub last_id: Option<u64>,
    pub done: bool,
    pub broken: bool,
    rest: String,
}

impl Events {
    pub async fn read(body: &mut hyper::body::Incoming, enough: usize) -> Self {
        let mut events = Self {
            text: String::new(),
            last_id: None,
            done: false,
            broken: false,
            rest: String::new(),
        };
        while events.text.len() < enough {
            match tokio::time::timeout(PATIENCE, body.frame()).await.expect("an event") {
                None => break,
                Some(Err(_)) => {
                    events.broken = true;
                    break;
                }
                Some(Ok(frame)) => events.take(&frame.into_data().unwrap_or_default()),
            }
        }
        events
    }

    fn take(&mut self, bytes: &[u8]) {
        self.rest.push_str(std::str::from_utf8(bytes).unwrap());
        while let Some(end) = self.rest.find("\n\n") {
            let event: String = self.rest.drain(..end + 2).collect();
            for line in event.lines() {
                match line.split_once(": ") {
                    Some(("id", id)) => self.last_id = Some(id.parse().unwrap()),
                    Some(("data", "[DONE]")) => self.done = true,
                    Some(("data", json)) => self.chunk(&serde_json::from_str(json).unwrap()),
                    _ => {}
                }
            }
        }
    }

    fn chunk(&mut self, chunk: &Value) {
        if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str() {
            self.text.push_str(text);
        }
    }
}

/// Accepts the certificate with one hash, as browsers do.
#[derive(Debug)]
struct Pinned([u8; 32]);

impl rustls::client::danger::ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        let hash: [u8; 32] = Sha256::digest(end_entity).into();
        match hash == self.0 {
            true => Ok(rustls::client::danger::ServerCertVerified::assertion()),
            false => Err(rustls::Error::General("another certificate".into())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.verify_tls13_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let schemes = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        let provider = rustls::crypto::ring::default_provider();
        provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A client's QUIC configuration for `alpn`.
pub fn client_config(certificate: [u8; 32], alpn: &str, datagrams: bool) -> quinn::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(certificate)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    let mut transport = quinn::TransportConfig::default();
    if !datagrams {
        transport.datagram_receive_buffer_size(None);
    }
    config.transport_config(Arc::new(transport));
    config
}

pub async fn connect(server: &Server) -> (quinn::Endpoint, Session) {
    try_connect(server, ALPN, true).await.unwrap()
}

pub async fn try_connect(
    server: &Server,
    alpn: &str,
    datagrams: bool,
) -> Result<(quinn::Endpoint, Session), quinn::ConnectionError> {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = client_config(server.certificate, alpn, datagrams);
    let connection = endpoint.connect_with(config, server.quic, "localhost").unwrap().await?;
    Ok((endpoint, Session::raw(connection)))
}

/// A WebTransport session at `path`, for a page of `origin`.
pub async fn web_connect(
    server: &Server,
    path: &str,
    origin: &str,
) -> Result<(quinn::Endpoint, Session), web_transport_quinn::ClientError> {
    web_connect_as(server, &server.quic.to_string(), path, origin).await
}

/// A WebTransport session to the server by the name `authority`.
pub async fn web_connect_as(
    server: &Server,
    authority: &str,
    path: &str,
    origin: &str,
) -> Result<(quinn::Endpoint, Session), web_transport_quinn::ClientError> {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = client_config(server.certificate, "h3", true);
    let connection = endpoint.connect_with(config, server.quic, "localhost").unwrap();
    let url = format!("https://{authority}{path}");
    let mut request =
        web_transport_quinn::proto::ConnectRequest::new(url.parse::<url::Url>().unwrap());
    request.headers.insert("origin", origin.parse().unwrap());
    let session = Session::connect(connection.await.unwrap(), request).await?;
    Ok((endpoint, session))
}

/// SplitMix64, seeded.
pub struct Rng(pub u64);

impl Rng {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What a stream brought beside frames.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    Answer(Value),
    Response(Value, Vec<u8>),
    Frame(Vec<u8>),
    End,
    Reset(Code),
    Lost,
}

/// One bidirectional stream of the protocol.
pub struct Stream {
    pub send: web_transport_quinn::SendStream,
    recv: web_transport_quinn::RecvStream,
    buffer: BytesMut,
}

impl Stream {
    pub async fn open(connection: &Session) -> Self {
        let (send, recv) = connection.open_bi().await.unwrap();
        Self { send, recv, buffer: BytesMut::new() }
    }

    pub async fn say(&mut self, kind: MessageKind, payload: &[u8]) {
        let mut message = Vec::new();
        put_message(kind, payload, &mut message);
        // The server may have refused already, which `hear` tells.
        let _ = self.send.write_all(&message).await;
    }

    /// Reads no more, though the other side stays open.
    pub fn stop(&mut self) {
        self.recv.stop(Code::None.number()).unwrap();
    }

    /// Waits for a reset, and reads nothing.
    pub async fn reset(&mut self) -> Option<Code> {
        let code = self.recv.received_reset().await.unwrap();
        code.map(|number| Code::of(number.into()))
    }

    /// The next bytes, whatever they say.
    pub async fn bytes(&mut self) -> usize {
        let chunk = self.recv.read_chunk(65_536, true).await.unwrap().unwrap();
        self.buffer.extend_from_slice(&chunk.bytes);
        chunk.bytes.len()
    }

    /// The next message, or how the stream ended. A response is gathered with its body.
    pub async fn hear(&mut self) -> Said {
        let mut response = None;
        loop {
            while let Some(message) = StreamMessage::take(&mut self.buffer, 1 << 20).unwrap() {
                let json = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap();
                match message.kind {
                    MessageKind::Answer => return Said::Answer(json(&message.payload)),
                    MessageKind::Frame => return Said::Frame(message.payload.to_vec()),
                    MessageKind::Response => response = Some((json(&message.payload), Vec::new())),
                    MessageKind::Body => {
                        response.as_mut().unwrap().1.extend_from_slice(&message.payload)
                    }
                    MessageKind::Request => panic!("a request from the server"),
                }
            }
            match self.recv.read_chunk(65_536, true).await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk.bytes),
                Ok(None) => match response {
                    Some((head, body)) => return Said::Response(head, body),
                    None => return Said::End,
                },
                Err(web_transport_quinn::ReadError::Reset(number)) => {
                    let code = Code::of(number.into());
                    assert_eq!(code.number(), number, "a code that nobody knows");
                    return Said::Reset(code);
                }
                Err(_) => return Said::Lost,
            }
        }
    }
}

/// A reader of one answer by datagram.
pub struct Reader {
    pub connection: Session,
    pub stream: Stream,
    pub receiver: Receiver,
    pub number: u64,
    pub name: Option<AnswerHandle>,
    pub deltas: Vec<Delta>,
    pub said: Vec<Said>,
    /// Log frames that came by datagram, and by the stream.
    pub frames: [usize; 2],
    pub complete: bool,
    pub failed: bool,
    /// Chance that a datagram is lost, either way.
    pub loss: f64,
    pub upstream: Upstream,
    /// The last DATA came on the QUIC stream.
    by_stream: bool,
    rng: Rng,
    epoch: Instant,
}

/// How a reader's frames travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// In datagrams, as its loss lets them.
    Datagrams,
    /// Its datagrams are all lost; its acknowledgements come in FRAME messages while DATA does
    /// (S-4.4).
    Frames,
    /// It acknowledges nothing.
    Mute,
}

/// Why [`Reader::run`] has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    Enough,
    Over,
    Lost,
}

impl Reader {
    /// Asks for an answer with `number`.
    pub async fn ask(connection: &Session, number: u64, body: &str) -> Self {
        Self::ask_with_key(connection, number, body, None).await
    }

    pub async fn ask_with_key(
        connection: &Session,
        number: u64,
        body: &str,
        key: Option<&str>,
    ) -> Self {
        Self::ask_with(connection, number, body, json!({"key": key})).await
    }

    /// Asks with `more` in the request's head.
    pub async fn ask_with(connection: &Session, number: u64, body: &str, more: Value) -> Self {
        let mut reader = Self::new(connection, number, 0).await;
        let mut head = json!({"method": "POST", "path": "/v1/chat/completions", "channel": number});
        head.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        reader.stream.say(MessageKind::Request, head.to_string().as_bytes()).await;
        reader.stream.say(MessageKind::Body, body.as_bytes()).await;
        reader.stream.say(MessageKind::Body, b"").await;
        reader
    }

    /// Asks for the answer `name` from `offset` on.
    pub async fn resume(
        connection: &Session,
        number: u64,
        name: &AnswerHandle,
        offset: u64,
    ) -> Self {
        let mut reader = Self::new(connection, number, offset).await;
        reader.say_resume(name, offset).await;
        reader
    }

    async fn say_resume(&mut self, name: &AnswerHandle, offset: u64) {
        let mut frame = Vec::new();
        let resume = Resume { channel: self.number, id: name.id, token: name.token, offset };
        Frame::Resume(resume).encode(false, &mut frame);
        self.stream.say(MessageKind::Frame, &frame).await;
    }

    /// Goes on with what it has over another connection, as number `number`.
    pub async fn migrate(&mut self, connection: &Session, number: u64) {
        self.connection = connection.clone();
        self.stream = Stream::open(connection).await;
        self.number = number;
        let now = self.now();
        self.receiver.migrate(now, number);
        let name = self.name.expect("an answer was heard");
        self.say_resume(&name, self.receiver.cumulative()).await;
    }

    /// A reader whose request is yet to be said.
    pub async fn listening(connection: &Session, number: u64) -> Self {
        Self::new(connection, number, 0).await
    }

    async fn new(connection: &Session, number: u64, offset: u64) -> Self {
        Self {
            connection: connection.clone(),
            stream: Stream::open(connection).await,
            receiver: Receiver::new(Micros(0), number, offset, ReceiverConfig::default()),
            number,
            name: None,
            deltas: Vec::new(),
            said: Vec::new(),
            frames: [0, 0],
            complete: false,
            failed: false,
            loss: 0.0,
            upstream: Upstream::Datagrams,
            by_stream: false,
            rng: Rng(7),
            epoch: Instant::now(),
        }
    }

    pub fn losing(mut self, loss: f64, seed: u64) -> Self {
        (self.loss, self.rng) = (loss, Rng(seed));
        self
    }

    pub fn with_upstream(mut self, upstream: Upstream) -> Self {
        self.upstream = upstream;
        self
    }

    pub fn now(&self) -> Micros {
        Micros(self.epoch.elapsed().as_micros() as u64)
    }

    pub fn text(&self) -> String {
        let text = |delta: &Delta| match delta {
            Delta::Text { text, .. } => text.clone(),
            _ => String::new(),
        };
        self.deltas.iter().map(text).collect()
    }

    /// Runs until the text has `enough` bytes, or the stream and the answer are over.
    pub async fn run(&mut self, enough: usize) -> Ended {
        tokio::time::timeout(PATIENCE, self.run_until(enough)).await.expect("no answer in time")
    }

    async fn run_until(&mut self, enough: usize) -> Ended {
        let mut open = true;
        loop {
            self.drive().await;
            if self.text().len() >= enough {
                return Ended::Enough;
            }
            let cut = matches!(self.said.last(), Some(Said::Reset(_) | Said::Response(..)));
            if !open && (self.complete || self.failed || cut) {
                return Ended::Over;
            }
            let wake =
                self.receiver.poll_timeout().map(|at| self.epoch + Duration::from_micros(at.0));
            tokio::select! {
                datagram = self.connection.read_datagram() => match datagram {
                    Ok(datagram) if self.rng.unit() >= self.loss => self.handle(&datagram, 0),
                    Ok(_) => {}
                    Err(_) => return Ended::Lost,
                },
                said = self.stream.hear(), if open => open = self.note(said),
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => {}
            }
        }
    }

    fn note(&mut self, said: Said) -> bool {
        match &said {
            Said::Frame(frame) => self.handle(&frame.clone(), 1),
            Said::Answer(head) => self.name = Some(name(head)),
            _ => {}
        }
        let over = matches!(said, Said::End | Said::Reset(_) | Said::Lost | Said::Response(..));
        if !matches!(said, Said::Frame(_)) {
            self.said.push(said);
        }
        !over
    }

    fn handle(&mut self, frame: &[u8], way: usize) {
        let now = self.now();
        match self.receiver.handle_datagram(now, frame) {
            // A late datagram of an earlier answer on the same connection, or what is to be
            // skipped (S-2.7).
            Err(Error::WrongChannel) if way == 0 => {}
            Err(Error::Malformed) if way == 0 && Frame::peek_channel(frame).is_none() => {}
            other => {
                other.unwrap();
                self.frames[way] += 1;
                self.note_way(now, way == 1);
            }
        }
    }

    /// Acknowledgements go where DATA last came from; at once, if that has just changed (S-4.4).
    fn note_way(&mut self, now: Micros, by_stream: bool) {
        if by_stream && !self.by_stream {
            self.receiver.acknowledge_at_once(now);
        }
        self.by_stream = by_stream;
    }

    async fn drive(&mut self) {
        let now = self.now();
        self.receiver.handle_timeout(now);
        while let Some(event) = self.receiver.poll_event() {
            match event {
                ReceiverEvent::Delta { delta, .. } => self.deltas.push(delta),
                ReceiverEvent::Complete => self.complete = true,
                ReceiverEvent::Failed(_) => self.failed = true,
                ReceiverEvent::Silent => {}
            }
        }
        let mut ack = Vec::new();
        while self.receiver.poll_transmit(now, &mut ack).is_some() {
            let arrives = self.rng.unit() >= self.loss;
            match self.upstream {
                Upstream::Datagrams if arrives => {
                    let _ = self.connection.send_datagram(Bytes::copy_from_slice(&ack));
                }
                Upstream::Frames if self.by_stream => {
                    self.stream.say(MessageKind::Frame, &ack).await;
                }
                Upstream::Datagrams | Upstream::Frames | Upstream::Mute => {}
            }
            ack.clear();
        }
    }
}

/// The name in an ANSWER.
pub fn name(head: &Value) -> AnswerHandle {
    let field = |field: &str| head[field].as_str().unwrap();
    AnswerHandle::parse(field("id"), field("token")).unwrap()
}

/// One value of `/metrics`.
pub async fn metric(server: &Server, name: &str) -> f64 {
    let (_, _, text) = request(server.http, "GET", "/metrics", &[], "").await;
    let line = text.lines().find(|line| line.starts_with(&format!("loquent_{name} ")));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Waits until a metric is `value`.
pub async fn settle(server: &Server, name: &str, value: f64) {
    until(server, name, |now| now == value).await;
}

/// Waits until a metric is as `wanted`.
pub async fn until(server: &Server, name: &str, wanted: impl Fn(f64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = metric(server, name).await;
        if wanted(now) {
            return;
        }
        assert!(Instant::now() < deadline, "{name} stays at {now}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
