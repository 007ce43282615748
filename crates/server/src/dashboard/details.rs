//! Details of a dashboard event beside its row of figures: lists, and values without a history.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loquent_infer::remote::{RemoteStats, StageStats};
use serde_json::{Value, json};

use super::columns::busy_share;
use super::moment::Stretch;
use crate::models::{ModelEntry, ServedModels};
use crate::quic_links::LinkStats;
use loquent_serving::identity::{ApiKey, KeyUsage};
use loquent_serving::metrics::StreamCarrier;

/// Maximum number of key owners listed by name; the others are summed up.
const MAX_KEYS: usize = 50;

/// Maximum number of models listed.
const MAX_MODELS: usize = 50;

/// Lists the states of several models; null if all are always loaded.
pub fn models(all: &ServedModels) -> Value {
    if !all.entries().any(ModelEntry::is_kept) {
        return Value::Null;
    }
    let row = |model: &ModelEntry| {
        let it = model.figures();
        json!({"name": it.name, "state": it.state, "answers": it.uses, "share": it.share})
    };
    all.entries().take(MAX_MODELS).map(row).collect()
}

/// Usage by the owners of one or several keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KeyRow {
    in_flight: u64,
    waiting: u64,
    requests: u64,
    refused: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
}

impl KeyRow {
    fn of(usage: &KeyUsage) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let in_flight = read(&usage.in_flight);
        Self {
            in_flight,
            // The two are not read at the same time.
            waiting: read(&usage.waiting).min(in_flight),
            requests: read(&usage.requests),
            refused: read(&usage.refused),
            prompt_tokens: read(&usage.prompt_tokens),
            generated_tokens: read(&usage.generated_tokens),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight + other.in_flight,
            waiting: self.waiting + other.waiting,
            requests: self.requests + other.requests,
            refused: self.refused + other.refused,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            generated_tokens: self.generated_tokens + other.generated_tokens,
        }
    }

    fn json(self, name: Value) -> Value {
        json!({
            "name": name,
            "running": self.in_flight - self.waiting,
            "waiting": self.waiting,
            "requests": self.requests,
            "refused": self.refused,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
        })
    }
}

/// Lists each key owner's usage, busiest first. Unnamed owners share one row with the name `null`;
/// owners beyond the list's limit are summed up in `others`.
pub fn keys(owners: &[Arc<ApiKey>]) -> Value {
    let (named, unnamed): (Vec<_>, Vec<_>) = owners.iter().partition(|key| key.name.is_some());
    let row = |key: &&Arc<ApiKey>| (Value::from(key.name.clone()), KeyRow::of(&key.usage));
    let mut rows: Vec<_> = named.iter().map(row).collect();
    if !unnamed.is_empty() {
        let all = unnamed.iter().map(|key| KeyRow::of(&key.usage));
        rows.push((Value::Null, all.fold(KeyRow::default(), KeyRow::and)));
    }
    rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.in_flight, row.generated_tokens)));
    let others = rows.split_off(rows.len().min(MAX_KEYS));
    let listed: Vec<_> = rows.into_iter().map(|(name, row)| row.json(name)).collect();
    let rest = others.iter().fold(KeyRow::default(), |sum, (_, row)| sum.and(*row));
    let others = (!others.is_empty()).then(|| rest.json(Value::from(others.len())));
    json!({"listed": listed, "others": others})
}

/// Lists streams by transport, with the transport's connection figures.
pub fn transports(of: &Stretch<'_>) -> Value {
    let links = [None, Some(0), Some(1)];
    let row = |(transport, link): (StreamCarrier, Option<usize>)| {
        let link = link.map(|at| (&of.now.links[at], &of.window.links[at]));
        json!({
            "name": transport.label(),
            "streams": of.now.metrics.streams[transport as usize],
            "connections": link.map(|(now, _)| now.open),
            "loss_share": link.and_then(|(now, before)| lost_share(now, before)),
            "rtt_p50_ms": link.and_then(|(now, _)| now.rtt_p50).map(|rtt| rtt.as_secs_f64() * 1e3),
            "rtt_p95_ms": link.and_then(|(now, _)| now.rtt_p95).map(|rtt| rtt.as_secs_f64() * 1e3),
        })
    };
    StreamCarrier::ALL.into_iter().zip(links).map(row).collect()
}

fn lost_share(now: &LinkStats, before: &LinkStats) -> Option<f64> {
    (now.sent > before.sent)
        .then(|| (now.lost - before.lost) as f64 / (now.sent - before.sent) as f64)
}

/// Describes the stages of a split model and their work within the window; `null` if there are
/// none.
pub fn stages(of: &Stretch<'_>) -> Value {
    let Some(now) = &of.now.stages else { return Value::Null };
    let before = of.window.stages.as_ref().map_or(&[][..], |it| &it.stages);
    let stage = |(at, stage): (usize, &StageStats)| {
        // One that was started again counts from zero.
        let before = before.get(at).filter(|it| it.up <= stage.up).copied().unwrap_or_default();
        let up_s = (stage.up - before.up).as_secs_f64();
        json!({
            "busy_share": (up_s > 0.0)
                .then(|| (stage.busy.saturating_sub(before.busy).as_secs_f64() / up_s).min(1.0)),
            "batches": stage.batches.saturating_sub(before.batches),
            "round_trip_ms": stage.round_trip.as_secs_f64() * 1e3,
        })
    };
    let RemoteStats { connected, link_delay, pipeline_depth, stages } = now;
    json!({
        "connected": connected,
        "link_delay_ms": link_delay.as_secs_f64() * 1e3,
        "pipeline_depth": pipeline_depth,
        "list": stages.iter().enumerate().map(stage).collect::<Vec<_>>(),
    })
}

/// Describes the upstream server; `null` if there is none.
pub fn upstream(of: &Stretch<'_>, authority: Option<&str>) -> Value {
    let Some(authority) = authority else { return Value::Null };
    json!({
        "authority": authority,
        "running": of.now.metrics.running,
        "busy_share": busy_share(of.now, of.window),
    })
}
