//! Spans of a request to an upstream: the request's own, with one child per server tried, which
//! that server continues.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::header::HeaderMap;

use super::server::UpstreamServer;
use loquent_serving::error::ApiError;
use loquent_serving::otel::{OpenSpan, Telemetry};
use loquent_serving::trace_context::{TraceParent, remove_trace};

/// Trace context of a request.
#[derive(Default, Clone)]
pub struct RequestTrace {
    /// Span of the request; `None` without a collector.
    span: Option<Arc<OpenSpan>>,
    /// Span of the caller.
    caller: Option<TraceParent>,
}

impl RequestTrace {
    /// Begins the span of a request that arrived at `arrived`.
    pub fn begin(
        telemetry: Option<&Arc<Telemetry>>,
        name: impl FnOnce() -> String,
        arrived: Duration,
        caller: Option<TraceParent>,
    ) -> Self {
        let serve = |it: &Arc<Telemetry>| Arc::new(it.serve(name(), arrived, caller.as_ref()));
        Self { span: telemetry.map(serve), caller }
    }

    /// Returns the trace of a request without its own span: the upstream continues the caller's.
    pub fn of_caller(caller: Option<TraceParent>) -> Self {
        Self { span: None, caller }
    }

    /// Returns the request's span, for the code that sees its end.
    pub fn span(&self) -> Option<Arc<OpenSpan>> {
        self.span.clone()
    }

    /// Records the status of the response to the request.
    pub fn note_status(&self, status: u16) {
        self.span.iter().for_each(|span| note_status(span, status));
    }

    /// Records that the request is refused. The upstream's message may quote the request, and is
    /// left out.
    pub fn fail(&self, error: &ApiError) {
        if let Some(span) = &self.span {
            span.set("http.response.status_code", i64::from(error.status()));
            span.set("error.type", error.label());
            span.fail("the request is refused");
        }
    }

    /// Begins the span of the request to `server`.
    pub fn ask(&self, method: &Method, path: &str, server: &UpstreamServer) -> AskTrace {
        let Some(request) = &self.span else {
            return AskTrace { place: self.caller.clone(), ..AskTrace::default() };
        };
        // A query may quote what is asked.
        let path = path.split('?').next().unwrap_or_default();
        let span = request.ask(format!("{method} {path}"));
        span.set("http.request.method", method.to_string());
        span.set("url.path", path.to_owned());
        span.set("server.address", server.host().to_owned());
        span.set("server.port", i64::from(server.port()));
        // A span that begins after the export has ended has no place.
        let place = span.place().or_else(|| self.caller.clone());
        AskTrace { place, span: Some(span), _request: self.span() }
    }
}

/// Trace of a request to one server. Dropping it ends its span.
#[derive(Default)]
pub struct AskTrace {
    span: Option<OpenSpan>,
    /// Keeps the request's span open until this has ended.
    _request: Option<Arc<OpenSpan>>,
    /// Span that the server continues.
    place: Option<TraceParent>,
}

impl AskTrace {
    /// Adds the trace context to the request's headers.
    pub fn put(&self, headers: &mut HeaderMap) {
        match &self.place {
            Some(place) => place.put(headers),
            // What came instead of a place, and is none, goes no further.
            None => remove_trace(headers),
        }
    }

    /// Records that `asked` servers were tried before, and why the request moved on.
    pub fn note_retry(&self, asked: u32, reason: &str) {
        if let Some(span) = &self.span {
            span.set("http.request.resend_count", i64::from(asked));
            span.set("retry_reason", reason.to_owned());
        }
    }

    /// Records the status of the server's response.
    pub fn note_status(&self, status: u16) {
        self.span.iter().for_each(|span| note_status(span, status));
    }

    /// Records that the answer has begun.
    pub fn note_first_token(&self) {
        self.span.iter().for_each(|span| span.note("first token"));
    }

    /// Records that the server has failed.
    pub fn fail(&self, why: &str) {
        self.span.iter().for_each(|span| span.fail(why.to_owned()));
    }
}

fn note_status(span: &OpenSpan, status: u16) {
    span.set("http.response.status_code", i64::from(status));
    if status >= 400 {
        span.set("error.type", status.to_string());
        span.fail("");
    }
}
