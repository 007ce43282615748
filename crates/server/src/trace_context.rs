//! The caller's place in a distributed trace, as the W3C Trace Context headers give it.

use std::collections::HashMap;

/// The caller's place in a trace: W3C `traceparent` and `tracestate`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceParent(pub(crate) HashMap<String, String>);

impl TraceParent {
    /// Reads the two headers; `None` without a `traceparent`.
    pub fn from_headers(headers: &http::HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name)?.to_str().ok().map(str::to_owned);
        let names = ["traceparent", "tracestate"];
        let found = names.into_iter().filter_map(|name| Some((name.to_owned(), text(name)?)));
        let map: HashMap<_, _> = found.collect();
        map.contains_key("traceparent").then_some(Self(map))
    }
}
