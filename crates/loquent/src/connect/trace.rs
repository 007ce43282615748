//! The span of a request on its way through the proxy: from the local client's question to the end
//! of the answer. The server's span is its child, so what the two differ by is the network's.

use std::sync::Arc;

use http::Method;
use loquent_client::{Answer, ClientError, Request, Transport};
use loquent_server::{OpenSpan, Telemetry, TraceParent};

/// The span of one request, if there is a collector. It ends when this is dropped.
pub struct ProxyTrace(Option<OpenSpan>);

impl ProxyTrace {
    /// Begins the span of `request` to the server at `url`, which is told to continue it. Without
    /// one, the server continues the local client's.
    pub fn begin(telemetry: Option<&Arc<Telemetry>>, url: &str, request: &mut Request) -> Self {
        let Some(telemetry) = telemetry.filter(|_| request.method == Method::POST) else {
            return Self(None);
        };
        // A query may quote what is asked.
        let path = request.path.split('?').next().unwrap_or_default();
        let caller = TraceParent::from_headers(&request.headers);
        let span = telemetry.ask(format!("{} {path}", request.method), caller.as_ref());
        span.set("http.request.method", request.method.to_string());
        span.set("url.path", path.to_owned());
        span.set("url.full", format!("{url}{path}"));
        if let Some(place) = span.place() {
            place.put(&mut request.headers);
        }
        Self(Some(span))
    }

    /// Notes the status of the server's response, and what carried it.
    pub fn note_response(&self, status: u16, transport: Transport) {
        if let Some(span) = &self.0 {
            span.set("http.response.status_code", i64::from(status));
            span.set("transport", transport.name());
            if status >= 400 {
                span.fail("the request is refused");
            }
        }
    }

    /// Notes that the first piece of the answer is here.
    pub fn note_begun(&self) {
        self.0.iter().for_each(|span| span.note("first piece"));
    }

    /// Notes what carried `answer` in the end, and how often it went on over a new path.
    pub fn note_answer(&self, answer: &Answer) {
        if let Some(span) = &self.0 {
            span.set("transport", answer.transport().name());
            span.set("resumes", i64::from(answer.resumes()));
        }
    }

    /// Notes that there is no answer. What the server says of that may quote the request, and
    /// stays out.
    pub fn fail(&self, error: &ClientError) {
        let Some(span) = &self.0 else { return };
        match error {
            ClientError::Refused { status, .. } => {
                span.set("http.response.status_code", i64::from(*status));
                span.fail("the request is refused");
            }
            _ => span.fail("the server did not answer"),
        }
    }

    /// Notes that the answer is not whole.
    pub fn note_broken(&self) {
        self.0.iter().for_each(|span| span.fail("the answer broke off"));
    }
}
