//! Plain requests through the tunnel of the QUIC connection (S-3.1), or over HTTP.

use std::time::Duration;

use http::{HeaderValue, Method};
use loquent_proto::AnswerHandle;
use loquent_proto::headers::TOKEN_HEADER;

use crate::ClientError;
use crate::connections::Connections;
use crate::message::{Message, MessageKind, RequestHead, ResponseHead, put_body};
use crate::quic_connection::{MessageStream, QuicConnection};
use crate::reply::Reply;
use crate::request::Request;

/// Silence from the server after which the connection of a request counts as dead. Twice the
/// interval of QUIC's keep-alives would be 10 s; nobody waits that long for a click.
const REQUEST_SILENCE: Duration = Duration::from_secs(4);
/// The same where another network has a connection too: trying that one costs one request.
const NETWORK_SILENCE: Duration = Duration::from_secs(1);
/// Time limit for telling the server that an answer is not wanted.
const FORGET_TIMEOUT: Duration = Duration::from_secs(5);

impl Connections {
    /// Sends a plain request: over the QUIC connection if there is one, else over HTTP.
    ///
    /// # Errors
    /// A failure to reach the server. If the QUIC connection dies during a request, the request is
    /// sent again over HTTP only if its method is idempotent (RFC 9110 §9.2.2).
    pub async fn request(&self, request: &Request) -> Result<Reply, ClientError> {
        if let Some(quic) = self.quic_now()
            && let Ok(stream) = quic.open().await
        {
            match request.tunnel(self, stream, &quic).await {
                Ok(reply) => return Ok(reply),
                Err(error) if request.method.is_idempotent() => {
                    tracing::debug!("{} over QUIC: {error}", request.path);
                }
                Err(error) => return Err(error),
            }
        }
        self.send_by_http(request, request.body.clone()).await.map(Reply::by_http)
    }

    /// Tells the server that nobody reads the answer any more (S-5.3), if the server can be
    /// reached.
    pub(crate) async fn forget(&self, handle: AnswerHandle) {
        let mut request =
            Request::new(Method::DELETE, format!("/v1/streams/{}", handle.id_hex()), "");
        let token = HeaderValue::try_from(handle.token_hex()).expect("hex digits");
        request.headers.insert(TOKEN_HEADER, token);
        let _ = tokio::time::timeout(FORGET_TIMEOUT, self.request(&request)).await;
    }
}

/// Waits for `work` as long as packets arrive; gives up a connection without any.
pub(crate) async fn unless_silent<T>(
    connections: &Connections,
    quic: &QuicConnection,
    work: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let mut work = std::pin::pin!(work);
    let silence = match connections.other_than(quic) {
        Some(_) => NETWORK_SILENCE,
        None => REQUEST_SILENCE,
    };
    loop {
        let packets = quic.packets_received();
        match tokio::time::timeout(silence, &mut work).await {
            Ok(done) => return done,
            Err(_) if quic.packets_received() == packets => {
                connections.give_up(quic);
                return Err(ClientError::Broken("the server has sent nothing for a while".into()));
            }
            Err(_) => {}
        }
    }
}

impl Request {
    /// Returns the head of the request; with a `channel` it requests the answer in datagrams.
    pub(crate) fn head<'a>(
        &'a self,
        key: Option<&'a str>,
        channel: Option<u64>,
    ) -> RequestHead<'a> {
        let headers = self.headers.iter().filter(|(name, _)| *name != "authorization");
        let headers = headers
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect();
        let key = self.key.as_deref().or(key);
        let method = self.method.as_str();
        RequestHead { key, method, path: &self.path, headers, channel, grease: None }
    }

    /// Sends the request through the tunnel of `quic` (S-3.1).
    ///
    /// # Errors
    /// The connection failed; the server may or may not have started on the request.
    pub(crate) async fn tunnel(
        &self,
        connections: &Connections,
        mut stream: MessageStream,
        quic: &QuicConnection,
    ) -> Result<Reply, ClientError> {
        let mut out = Vec::new();
        self.head(connections.key(), None).put(&mut out);
        put_body(&self.body, false, &mut out);
        let first = async {
            stream.write(&out).await?;
            let _ = stream.send.finish();
            stream.incoming.next().await
        };
        let (message, tunnel) = if self.method.is_idempotent() {
            (unless_silent(connections, quic, first).await?, quic.tunnel())
        } else {
            // It is sent only once, and may come through an outage: QUIC's own time limit holds.
            let tunnel = quic.tunnel();
            (first.await?, tunnel)
        };
        match message {
            Some(Message { kind: MessageKind::Response, payload }) => {
                let head = ResponseHead::parse(&payload).inspect_err(|_| stream.refuse())?;
                Ok(Reply::by_quic(&head, stream, tunnel))
            }
            Some(_) => {
                stream.refuse();
                Err(ClientError::Malformed("no response to a request".into()))
            }
            None => Err(ClientError::Truncated),
        }
    }
}
