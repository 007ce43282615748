//! Spans of a request: its own, with its queue, prefill and decode as children, and one for each
//! stage of a split model.
//!
//! They are created when the request has ended, from times that are recorded for the metrics
//! anyway: they cost nothing per token, and nothing at all without a collector. Only a request to
//! an upstream server has its span from the beginning, because that server continues it.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::{Array, KeyValue, StringValue, Value};

use crate::api::head::AnswerHead;
use crate::api::request::Endpoint;
use crate::flush::CompletionTimings;
use crate::otel::{OpenSpan, Telemetry};
use crate::trace_context::TraceParent;
use crate::usage::Usage;

/// Data of a finished request for its spans.
pub struct Finished<'a> {
    /// Span of the request, if it has already begun.
    pub span: Option<Arc<OpenSpan>>,
    /// Span of the caller, which becomes the parent.
    pub parent: Option<&'a TraceParent>,
    /// Endpoint, id and model of the answer.
    pub head: &'a AnswerHead,
    /// Finish reasons of its completions; `abort` for those whose client disconnected.
    pub reasons: &'a [&'static str],
    /// Token counts of the answer.
    pub usage: Usage,
    /// Arrival of the request, on the server's clock.
    pub arrived: Duration,
    /// Time when its prompts were tokenized.
    pub tokenized: Duration,
    /// Times of the first completion.
    pub record: &'a CompletionTimings,
    /// True if it continues the answer of a replica that has ended.
    pub is_takeover: bool,
}

impl Finished<'_> {
    /// Creates the spans of the request's phases, and ends the request's own.
    pub fn trace(self, telemetry: &Arc<Telemetry>) {
        let name = span_name(self.head.endpoint, &self.head.model);
        let is_elsewhere = self.span.is_some();
        let span = match &self.span {
            Some(span) => {
                // Only its server has told which model answers.
                span.rename(name);
                span.clone()
            }
            None => Arc::new(telemetry.serve(name, self.arrived, self.parent)),
        };
        attributes(&self).into_iter().for_each(|(name, value)| span.set(name, value));
        // An abort is not an error: the client left.
        if self.reasons.iter().any(|reason| ["error", "expired"].contains(reason)) {
            span.fail("the answer is not complete");
        }
        // The phases of an upstream server's answer are that server's to tell.
        if !is_elsewhere {
            self.add_phases(&span);
            self.add_stages(&span, telemetry);
        }
        // Whoever still asks for it, such as a body that is drained, makes it no longer.
        span.end_now();
    }

    fn add_phases(&self, span: &OpenSpan) {
        let record = self.record;
        let admitted = record.admitted.map(|admitted| admitted.at);
        for (name, from, to) in [
            ("tokenize", Some(self.arrived), Some(self.tokenized)),
            ("queue", Some(self.tokenized), admitted),
            ("prefill", admitted, record.first_token),
            ("decode", record.first_token, record.last_token),
        ] {
            if let Some((from, to)) = from.zip(to) {
                span.add_phase(name, [from, to], Vec::new());
            }
        }
    }

    /// Adds a span for each stage while the request was decoding. Its attributes cover all batches
    /// of that time, including those of other requests, since batches are shared.
    fn add_stages(&self, span: &OpenSpan, telemetry: &Telemetry) {
        let Some((from, to)) = self.record.first_token.zip(self.record.last_token) else { return };
        let now = telemetry.clock().now();
        let ago = |time: Duration| now.saturating_sub(time);
        let Some(window) =
            telemetry.stages().and_then(|stages| stages.batch_times(ago(from), ago(to)))
        else {
            return;
        };
        for (index, stage) in window.stages.iter().enumerate() {
            let mut all = vec![KeyValue::new("batches", window.batches as i64)];
            let times =
                [("wait", stage.wait), ("busy", stage.busy), ("link_delay", window.link_delay)];
            for (name, time) in times {
                let ms = |time: Duration| time.as_secs_f64() * 1e3;
                all.push(KeyValue::new(format!("{name}_ms"), ms(time.mean)));
                all.push(KeyValue::new(format!("{name}_ms_max"), ms(time.max)));
            }
            span.add_phase(format!("stage {}", index + 1), [from, to], all);
        }
    }
}

/// Returns the name of a request's span.
pub fn span_name(endpoint: Endpoint, model: &str) -> String {
    format!("{} {model}", operation(endpoint))
}

fn operation(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Chat => "chat",
        Endpoint::Text => "text_completion",
    }
}

/// Returns the attributes, under the names of OpenTelemetry's conventions for generative AI where
/// those define one.
fn attributes(request: &Finished<'_>) -> Vec<(&'static str, Value)> {
    let Finished { head, record, usage, .. } = request;
    let reasons = request.reasons.iter().map(|&reason| StringValue::from(reason)).collect();
    let mut all: Vec<(&'static str, Value)> = vec![
        ("gen_ai.operation.name", operation(head.endpoint).into()),
        ("gen_ai.provider.name", "loquent".into()),
        ("gen_ai.request.model", head.model.clone().into()),
        ("gen_ai.response.id", head.id.clone().into()),
        ("gen_ai.response.model", head.model.clone().into()),
        ("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons))),
        ("gen_ai.usage.input_tokens", (usage.prompt_tokens as i64).into()),
        ("gen_ai.usage.cache_read.input_tokens", (usage.cached_tokens as i64).into()),
        ("gen_ai.usage.output_tokens", (usage.completion_tokens as i64).into()),
    ];
    if request.is_takeover {
        all.push(("takeover", true.into()));
    }
    if let Some(batch) = record.batch() {
        all.push(("decode_batch_size", batch.rows_mean.into()));
        all.push(("decode_batch_wait_ms", (batch.wait_mean.as_secs_f64() * 1e3).into()));
        all.push(("decode_batch_wait_ms_max", (batch.wait_max.as_secs_f64() * 1e3).into()));
    }
    all
}
