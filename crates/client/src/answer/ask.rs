//! Requests an answer over QUIC.

use loquent_proto::grease;

use super::driver::{AnswerPath, start};
use super::quic::{QuicPath, draw_grease};
use super::quic_lanes::QuicLanes;
use super::reader::Asked;
use crate::ClientError;
use crate::connections::Connections;
use crate::message::{AnswerHead, Code, Message, MessageKind, ResponseHead, put_body};
use crate::quic_connection::{MessageStream, QuicConnection};
use crate::reply::{Reply, header_map};
use crate::request::Request;
use crate::tunnel::unless_silent;

/// Requests an answer in datagrams (S-4.1).
///
/// # Errors
/// The connection failed; the server may or may not have started on the request.
pub(crate) async fn ask_over_quic(
    connections: &Connections,
    quic: &QuicConnection,
    request: &Request,
) -> Result<Asked, ClientError> {
    let route = quic.route();
    let mut pending = PendingRequest(Some(quic.open().await?));
    let mut out = Vec::new();
    let mut head = request.head(connections.key(), Some(route.channel));
    let grease = draw_grease();
    head.grease = grease;
    head.put(&mut out);
    if let Some(draw) = grease {
        grease::put_message(draw, &mut out);
    }
    put_body(&request.body, true, &mut out);
    let first = async {
        let stream = pending.0.as_mut().expect("it is taken below");
        stream.write(&out).await?;
        stream.incoming.next().await
    };
    let first = unless_silent(connections, quic, first).await;
    let mut stream = pending.0.take().expect("it is taken once");
    match first? {
        Some(Message { kind: MessageKind::Response, payload }) => {
            let head = ResponseHead::parse(&payload).inspect_err(|_| stream.refuse())?;
            let _ = stream.send.finish();
            Ok(Asked::Reply(Reply::by_quic(&head, stream, quic.tunnel())))
        }
        Some(Message { kind: MessageKind::Answer, payload }) => {
            let head = AnswerHead::parse(&payload).inspect_err(|_| stream.refuse())?;
            if (head.channel, head.offset) != (route.channel, 0) {
                stream.refuse();
                return Err(ClientError::Malformed("an answer to another request".into()));
            }
            let path = QuicPath::new(quic.clone(), stream, route, head.epoch);
            let path = AnswerPath::Quic(Box::new(QuicLanes::new(connections, path)));
            let answer = start(connections, head.handle, path, 0);
            Ok(Asked::Answer(answer.with_headers(header_map(&head.headers))))
        }
        Some(_) => {
            stream.refuse();
            Err(ClientError::Malformed("neither a response nor an answer".into()))
        }
        None => Err(ClientError::Truncated),
    }
}

/// The QUIC stream of a request that the server has not responded to. A caller that gives up
/// waiting drops it, which cancels the request (S-4.5).
struct PendingRequest(Option<MessageStream>);

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            let _ = stream.send.reset(Code::Cancelled.number().into());
        }
    }
}
