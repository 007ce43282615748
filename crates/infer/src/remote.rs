//! An engine whose layers run in stages on other machines, as the server around it sees it:
//! whether it can compute, and the figures that its stages report.

use std::time::Duration;

/// The stages behind an engine. Any thread may ask.
pub trait RemoteStages: Send + Sync {
    /// Why nothing can be computed at present; `None` while the stages are connected.
    fn outage(&self) -> Option<String>;

    /// The stages' figures at present, for metrics.
    fn figures(&self) -> RemoteFigures;

    /// Where the batches spent their time that returned in a window, which is given by the ages
    /// of its ends; `None` if no batch returned in it.
    fn batch_times(&self, from_ago: Duration, to_ago: Duration) -> Option<BatchTimes>;
}

/// Mean and maximum of a duration over several batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MeanMax {
    /// Zero where there were no batches.
    pub mean: Duration,
    /// The longest one.
    pub max: Duration,
}

impl MeanMax {
    /// The mean and the maximum of `times`.
    pub fn of(times: impl Iterator<Item = Duration>) -> Self {
        let (count, sum, max) = times
            .fold((0, Duration::ZERO, Duration::ZERO), |(count, sum, max), time| {
                (count + 1, sum + time, max.max(time))
            });
        Self { mean: sum.checked_div(count).unwrap_or_default(), max }
    }
}

/// What batches spent in one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageTimes {
    /// From a batch's arrival to its native call.
    pub wait: MeanMax,
    /// The native call and sampling.
    pub busy: MeanMax,
}

/// Where the batches of a window of time spent theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchTimes {
    /// How many batches returned in the window.
    pub batches: usize,
    /// Their times in each stage, in the order of the layers.
    pub stages: Vec<StageTimes>,
    /// Their time on one link: for each batch the mean of its links.
    pub link_delay: MeanMax,
}

/// Figures of all stages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RemoteFigures {
    /// Whether a session with all stages is open.
    pub connected: bool,
    /// One-way delay of a link in the last batch, the mean over its links.
    pub link_delay: Duration,
    /// Maximum batches in flight now.
    pub pipeline_depth: usize,
    /// One entry for each stage, in the order of the layers.
    pub stages: Vec<StageFigures>,
}

/// Figures of one stage; totals count from the start of its process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageFigures {
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
    /// How long batches waited for their native call, in total.
    pub wait: Duration,
    /// The longest of those waits.
    pub wait_max: Duration,
    /// Bytes sent to the next stage or, by the last stage, to the runner.
    pub sent_bytes: u64,
    /// The latest measured time from a ping to its answer.
    pub round_trip: Duration,
}
