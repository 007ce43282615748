//! The spans of a request to an upstream: the request's own, and below it one for each server that
//! is asked, which that server continues.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::header::HeaderMap;

use super::server::UpstreamServer;
use crate::error::ApiError;
use crate::otel::{OpenSpan, Telemetry};
use crate::trace_context::{TraceParent, remove_trace};

/// A request's place in a trace.
#[derive(Default, Clone)]
pub struct RequestTrace {
    /// Its span; `None` without a collector.
    span: Option<Arc<OpenSpan>>,
    /// The caller's span.
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

    /// A request without a span of its own: whoever answers it continues the caller's.
    pub fn of_caller(caller: Option<TraceParent>) -> Self {
        Self { span: None, caller }
    }

    /// The request's span, for whoever sees its end.
    pub fn span(&self) -> Option<Arc<OpenSpan>> {
        self.span.clone()
    }

    /// Notes the status that the request is answered with.
    pub fn note_status(&self, status: u16) {
        self.span.iter().for_each(|span| note_status(span, status));
    }

    /// Notes that the request is refused. What an upstream says of that may quote the request, and
    /// stays out.
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

/// One server is asked. Dropping this ends its span.
#[derive(Default)]
pub struct AskTrace {
    span: Option<OpenSpan>,
    /// Keeps the request's span open until this has ended.
    _request: Option<Arc<OpenSpan>>,
    /// The span that the server continues.
    place: Option<TraceParent>,
}

impl AskTrace {
    /// Tells the server its place in the trace.
    pub fn put(&self, headers: &mut HeaderMap) {
        match &self.place {
            Some(place) => place.put(headers),
            // What came instead of a place, and is none, goes no further.
            None => remove_trace(headers),
        }
    }

    /// Notes that `asked` servers were asked before, and why that was not enough.
    pub fn note_retry(&self, asked: u32, reason: &str) {
        if let Some(span) = &self.span {
            span.set("http.request.resend_count", i64::from(asked));
            span.set("retry_reason", reason.to_owned());
        }
    }

    /// Notes the status of the server's response.
    pub fn note_status(&self, status: u16) {
        self.span.iter().for_each(|span| note_status(span, status));
    }

    /// Notes that the answer has begun.
    pub fn note_first_token(&self) {
        self.span.iter().for_each(|span| span.note("first token"));
    }

    /// Notes that the server has failed.
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
