//! The server's view of an engine whose layers run in stages on other machines: whether it can
//! compute, and the figures reported by its stages.

use std::time::Duration;

/// Stages behind an engine. Callable from any thread.
pub trait RemoteStages: Send + Sync {
    /// Reason why nothing can be computed at present; `None` while the stages are connected.
    fn outage(&self) -> Option<String>;

    /// Current figures of the stages, for metrics.
    fn figures(&self) -> RemoteStats;

    /// Times of the batches that returned between `from_ago` and `to_ago` before now; `None` if no
    /// batch did.
    fn batch_times(&self, from_ago: Duration, to_ago: Duration) -> Option<BatchTimes>;
}

/// Mean and maximum of a duration over several batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeanMax {
    /// Mean; zero without batches.
    pub mean: Duration,
    /// Maximum.
    pub max: Duration,
}

impl MeanMax {
    /// Computes the mean and the maximum of `times`.
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        let (count, sum, max) = times
            .fold((0, Duration::ZERO, Duration::ZERO), |(count, sum, max), time| {
                (count + 1, sum + time, max.max(time))
            });
        Self { mean: sum.checked_div(count).unwrap_or_default(), max }
    }
}

/// Times of batches in one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageTimes {
    /// From a batch's arrival to its native call.
    pub wait: MeanMax,
    /// The native call and sampling.
    pub busy: MeanMax,
}

/// Times of the batches that returned in a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchTimes {
    /// Number of batches.
    pub batches: usize,
    /// Times in each stage, in the order of the layers.
    pub stages: Vec<StageTimes>,
    /// Time on one link: for each batch the mean of its links.
    pub link_delay: MeanMax,
}

/// Figures of all stages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RemoteStats {
    /// True while a session with all stages is open.
    pub connected: bool,
    /// One-way delay of a link in the last batch, averaged over its links.
    pub link_delay: Duration,
    /// Maximum batches in flight now.
    pub pipeline_depth: usize,
    /// One entry for each stage, in the order of the layers.
    pub stages: Vec<StageStats>,
}

/// Figures of one stage; totals count from the start of its process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageStats {
    /// Native calls.
    pub batches: u64,
    /// Sequences in those calls.
    pub batch_rows: u64,
    /// Sequences in the largest batch.
    pub batch_rows_max: u64,
    /// Time in native calls and sampling.
    pub busy: Duration,
    /// Time since the stage's first session began, of which `busy` is a part.
    pub up: Duration,
    /// Total time that batches waited for their native call.
    pub wait: Duration,
    /// Longest of those waits.
    pub wait_max: Duration,
    /// Bytes sent to the next stage or, by the last stage, to the runner.
    pub sent_bytes: u64,
    /// Latest measured round trip of a ping.
    pub round_trip: Duration,
}
