//! Trace context of a distributed trace, as received and sent in the W3C Trace Context headers.

use http::header::HeaderMap;
use http::{HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Header with the ids of the trace and of the caller's span.
const PARENT_HEADER: &str = "traceparent";
const PARENT_NAME: HeaderName = HeaderName::from_static(PARENT_HEADER);
/// Header with the state of other tracing systems.
const STATE_HEADER: &str = "tracestate";
/// Longest `tracestate` that is kept: the length that every system must pass on (Trace Context
/// §3.3.1.5).
const MAX_STATE_BYTES: usize = 512;

/// A span that can be the parent of others, in this process or elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent(SpanContext);

impl TraceParent {
    /// Reads the two headers; `None` without a valid `traceparent`.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let found = TraceContextPropagator::new().extract(&FromHeaders(headers));
        Self::of(&found)
    }

    /// Parses the value of a `traceparent`.
    pub fn parse(text: &str) -> Option<Self> {
        let value = HeaderValue::from_str(text).ok()?;
        Self::from_headers(&HeaderMap::from_iter([(PARENT_NAME, value)]))
    }

    /// Formats the span as the value of a `traceparent`. Leaves out the `tracestate`.
    pub fn to_text(&self) -> String {
        let Self(span) = self;
        let flags = u8::from(span.is_sampled());
        format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
    }

    /// Returns the span of `context`, if it has one.
    pub fn of(context: &Context) -> Option<Self> {
        let span = context.span().span_context().clone();
        span.is_valid().then_some(Self(span))
    }

    /// Returns a context whose spans become children of this span.
    pub fn context(&self) -> Context {
        Context::new().with_remote_span_context(self.0.clone())
    }

    /// Puts the trace context into the headers of a request, in place of any other.
    pub fn put(&self, headers: &mut HeaderMap) {
        remove_trace(headers);
        TraceContextPropagator::new().inject_context(&self.context(), &mut IntoHeaders(headers));
    }
}

/// Removes the trace context from a request's headers.
pub fn remove_trace(headers: &mut HeaderMap) {
    headers.remove(PARENT_HEADER);
    headers.remove(STATE_HEADER);
}

struct FromHeaders<'a>(&'a HeaderMap);

impl Extractor for FromHeaders<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name)?.to_str().ok()?;
        (name != STATE_HEADER || value.len() <= MAX_STATE_BYTES).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        vec![PARENT_HEADER, STATE_HEADER]
    }
}

struct IntoHeaders<'a>(&'a mut HeaderMap);

impl Injector for IntoHeaders<'_> {
    fn set(&mut self, name: &str, value: String) {
        let name = match name {
            PARENT_HEADER => PARENT_HEADER,
            STATE_HEADER if !value.is_empty() => STATE_HEADER,
            _ => return,
        };
        // Both are made of what headers may have; what is not is no loss.
        if let Ok(value) = HeaderValue::try_from(value) {
            self.0.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_place_is_passed_on_as_it_came() {
        let came = headers(&[(PARENT_HEADER, PARENT), (STATE_HEADER, "a=b,c=d")]);
        let mut sent = headers(&[(PARENT_HEADER, "stale"), (STATE_HEADER, "stale"), ("x", "y")]);
        TraceParent::from_headers(&came).unwrap().put(&mut sent);
        assert_eq!(sent.remove("x").unwrap(), "y");
        assert_eq!(sent, came);
        let place = TraceParent::parse(PARENT).unwrap();
        assert_eq!(place.to_text(), PARENT);
        assert_eq!(TraceParent::parse("\n"), None);
    }

    #[test]
    fn what_is_no_place_is_none() {
        let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        for wrong in ["", "nonsense", zeros, &PARENT[..52], &PARENT.to_uppercase()] {
            let headers = headers(&[(PARENT_HEADER, wrong)]);
            assert_eq!(TraceParent::from_headers(&headers), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_systems_noted_is_bounded() {
        let long = format!("a={}", "b".repeat(MAX_STATE_BYTES));
        let came = headers(&[(PARENT_HEADER, PARENT), (STATE_HEADER, &long)]);
        let mut sent = HeaderMap::new();
        TraceParent::from_headers(&came).unwrap().put(&mut sent);
        assert_eq!(sent, headers(&[(PARENT_HEADER, PARENT)]));
    }
}
