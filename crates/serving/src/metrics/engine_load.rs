//! Load of one engine, as its part of statistics that all engines of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loquent_infer::scheduler::Load;
use prometheus::{Gauge, IntCounter, IntGauge};

/// KV cells of all engines together.
#[derive(Debug, Default)]
struct KvCells {
    used: AtomicU64,
    all: AtomicU64,
}

impl KvCells {
    /// Applies the change in one engine's numbers. Differences wrap around, and so may be negative.
    fn change(&self, before: &Load, after: &Load) {
        let changes = [
            (&self.used, before.kv_used_cells, after.kv_used_cells),
            (&self.all, before.kv_cells, after.kv_cells),
        ];
        for (sum, before, after) in changes {
            sum.fetch_add(u64::from(after).wrapping_sub(before.into()), Ordering::Relaxed);
        }
    }

    /// Returns the fraction in use, 0 to 1.
    fn share(&self) -> f64 {
        let used = self.used.load(Ordering::Relaxed);
        used as f64 / self.all.load(Ordering::Relaxed).max(1) as f64
    }
}

/// Combined load of a server's engines. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct LoadStats {
    pub running: IntGauge,
    pub resting: IntGauge,
    pub waiting: IntGauge,
    pub kv_usage: Gauge,
    pub all_kv_cells: IntGauge,
    pub prefix_queries: IntCounter,
    pub prefix_hits: IntCounter,
    pub preemptions: IntCounter,
    pub draft_tokens: IntCounter,
    pub accepted_tokens: IntCounter,
    kv_cells: Arc<KvCells>,
}

impl LoadStats {
    /// Creates statistics that are exported in the given metrics.
    pub fn new(shown: [IntGauge; 4], kv_usage: Gauge, counters: [IntCounter; 5]) -> Self {
        let ([running, resting, waiting, all_kv_cells], kv_cells) = (shown, Arc::default());
        let [prefix_queries, prefix_hits, preemptions, draft_tokens, accepted_tokens] = counters;
        Self {
            running,
            resting,
            waiting,
            kv_usage,
            all_kv_cells,
            prefix_queries,
            prefix_hits,
            preemptions,
            draft_tokens,
            accepted_tokens,
            kv_cells,
        }
    }
}

/// One engine's part of the statistics. Dropping it subtracts its part from the gauges.
#[derive(Debug)]
pub struct EngineLoad {
    figures: LoadStats,
    noted: Load,
}

impl EngineLoad {
    /// Creates the part of an idle engine.
    pub(super) fn new(figures: LoadStats) -> Self {
        Self { figures, noted: Load::default() }
    }

    /// Records the engine's current load.
    pub fn note(&mut self, load: &Load) {
        let before = std::mem::replace(&mut self.noted, *load);
        let figures = &self.figures;
        let raise = |counter: &IntCounter, before: u64, after: u64| counter.inc_by(after - before);
        raise(&figures.prefix_queries, before.prefix_queries, load.prefix_queries);
        raise(&figures.prefix_hits, before.prefix_hits, load.prefix_hits);
        raise(&figures.preemptions, before.preemptions, load.preemptions);
        raise(&figures.draft_tokens, before.draft_tokens, load.draft_tokens);
        raise(&figures.accepted_tokens, before.accepted_tokens, load.accepted_tokens);
        self.change(&before, load);
    }

    fn change(&self, before: &Load, after: &Load) {
        let figures = &self.figures;
        figures.running.add(after.running as i64 - before.running as i64);
        figures.resting.add(after.resting as i64 - before.resting as i64);
        figures.waiting.add(after.waiting as i64 - before.waiting as i64);
        figures.all_kv_cells.add(i64::from(after.kv_cells) - i64::from(before.kv_cells));
        figures.kv_cells.change(before, after);
        figures.kv_usage.set(figures.kv_cells.share());
    }
}

impl Drop for EngineLoad {
    fn drop(&mut self) {
        self.change(&self.noted, &Load::default());
    }
}
