//! The span of a request through the proxy: from the local client's question to the end of the
//! answer. The server's span is its child, so the difference between the two is the network's
//! share.

use std::sync::Arc;

use http::Method;
use loquent_client::{Answer, ClientError, Request, Transport};
use loquent_server::{OpenSpan, Telemetry, TraceParent};

/// The span of one request, if there is a collector. Ends when dropped.
pub struct ProxyTrace(Option<OpenSpan>);

impl ProxyTrace {
    /// Starts the span of `request` to the server at `url`, and adds a header for the server to
    /// continue it. Without a span, the server continues the local client's.
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

    /// Records the status of the server's response, and its transport.
    pub fn note_response(&self, status: u16, transport: Transport) {
        if let Some(span) = &self.0 {
            span.set("http.response.status_code", i64::from(status));
            span.set("transport", transport.name());
            if status >= 400 {
                span.fail("the request is refused");
            }
        }
    }

    /// Records the arrival of the answer's first piece.
    pub fn note_begun(&self) {
        self.0.iter().for_each(|span| span.note("first piece"));
    }

    /// Records the final transport of `answer`, and its number of resumes.
    pub fn note_answer(&self, answer: &Answer) {
        if let Some(span) = &self.0 {
            span.set("transport", answer.transport().name());
            span.set("resumes", i64::from(answer.resumes()));
        }
    }

    /// Records that there is no answer. Leaves out the server's message, which may quote the
    /// request.
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

    /// Records that the answer is incomplete.
    pub fn note_broken(&self) {
        self.0.iter().for_each(|span| span.fail("the answer broke off"));
    }
}
