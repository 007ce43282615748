//! The plan of `loquent bench fairness`: bottlenecks, downloads and streams to measure.

use std::path::PathBuf;
use std::time::Duration;

use loquent_sim::channel::Channel;
use loquent_sim::link::Link;
use loquent_sim::rng::Draws;
use serde::Serialize;

use crate::delivery::plan::{DeliveryPlan, DeliveryReportPaths, DeliveryScheme};

/// The congestion control of the downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DownloadControl {
    /// TCP CUBIC
    Cubic,
    /// TCP BBR
    Bbr,
}

impl DownloadControl {
    /// Returns the kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

/// Traffic that shares the bottleneck with the downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Company {
    /// Nothing.
    Nothing,
    /// Token streams as server-sent events on kernel TCP.
    Events,
    /// Token streams by Loquent.
    Loquent,
}

impl Company {
    /// All variants, in the order of the reports.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Events, Self::Loquent];
}

/// A bottleneck and the congestion control of the downloads over it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FairnessCase {
    /// Rate of each direction in kbit/s.
    pub rate_kbps: f64,
    /// Queue size of the bottleneck, in bytes.
    pub queue_bytes: u64,
    /// The downloads' congestion control.
    pub control: DownloadControl,
}

impl FairnessCase {
    /// Returns the delay of a packet by the full queue, in ms.
    pub fn queue_ms(&self) -> f64 {
        self.queue_bytes as f64 * 8.0 / self.rate_kbps
    }
}

/// Plan of a fairness benchmark: the options, resolved and checked.
#[derive(Debug, Clone)]
pub struct FairnessPlan {
    /// The bottlenecks and downloads, in order.
    pub cases: Vec<FairnessCase>,
    /// Round-trip time of the empty link in ms.
    pub rtt_ms: f64,
    /// Number of downloads.
    pub downloads: usize,
    /// Number of token streams.
    pub streams: usize,
    /// Tokens per second of each stream.
    pub tokens_per_s: f64,
    /// Delivery scheme of the event streams.
    pub events: DeliveryScheme,
    /// Time from the first token to the measurement.
    pub warm_up: Duration,
    /// Length of the measurement.
    pub length: Duration,
    /// Number of runs of each case with each company.
    pub runs: usize,
    /// Trials that run at the same time, each on its own link.
    pub parallel: usize,
    /// Seed of the first run; each further run adds one.
    pub seed: u64,
    /// Program to start as the server.
    pub server_program: PathBuf,
    /// Additional options of that server.
    pub server_options: Vec<String>,
}

impl FairnessPlan {
    /// Returns the bottleneck of a case.
    pub fn link(&self, case: &FairnessCase) -> Link {
        let mut link = Link::new(self.rtt_ms, Channel::Clean);
        (link.rate_kbps, link.queue_bytes) = (Some(case.rate_kbps), case.queue_bytes);
        link
    }

    /// Returns about how long the whole plan takes, in seconds: servers and clients start for each
    /// trial.
    pub fn expected_s(&self) -> f64 {
        const AROUND_S: f64 = 4.0;
        let trials = self.cases.len() * Company::ALL.len() * self.runs;
        let trial_s = (self.warm_up + self.length).as_secs_f64() + AROUND_S;
        trials.div_ceil(self.parallel.max(1)) as f64 * trial_s
    }

    /// Returns the plan of a run's token streams, which send from the start of the warm-up to the
    /// end of the measurement.
    pub fn stream_plan(&self, run: usize, scheme: DeliveryScheme) -> DeliveryPlan {
        DeliveryPlan {
            title: String::new(),
            rtts_ms: vec![self.rtt_ms],
            channel: Channel::Clean,
            jitter_ms: 0.0,
            rate_kbps: None,
            sessions: self.streams,
            seconds: (self.warm_up + self.length).as_secs_f64(),
            tokens_per_s: self.tokens_per_s,
            seed: self.seed + run as u64,
            schemes: vec![scheme],
            pace_ms: 0,
            server_program: self.server_program.clone(),
            server_options: self.server_options.clone(),
            without_root: false,
            outputs: DeliveryReportPaths::default(),
        }
    }

    /// Returns the delay of a download's start after the first token: spread over the first half of
    /// the warm-up, so that runs differ and slow starts do not coincide.
    pub fn download_delay(&self, run: usize, download: usize) -> Duration {
        let draw = Draws::new(self.seed + run as u64, "downloads").unit(download as u64);
        self.warm_up.mul_f64(draw / 2.0)
    }
}
