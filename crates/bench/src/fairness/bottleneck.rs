//! The link shared by downloads and token streams, with a path and counters for each of them.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::sync::watch;

use super::plan::{FairnessCase, FairnessPlan};
use crate::delivery::testbed::StreamNetwork;
use crate::link::LinkError;
use crate::link::emulator::{PathLinks, PathSchedule};
use crate::link::netns::Namespace;
use crate::link::packet_stats::LinkSummary;
use crate::link::relay::LinkRelay;
use crate::link::tun::{self, Ends, Paths};

/// Length of the schedule. The link draws no losses, so it may repeat immediately.
const SCHEDULE_US: u64 = 1_000_000;

/// Times of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialTimes {
    /// Time of the first token, and start of the warm-up.
    pub start: Instant,
    /// Start of the measurement.
    pub from: Instant,
    /// End of the measurement.
    pub to: Instant,
}

/// Two namespaces with one bottleneck between them. Downloads use the first paths, token streams
/// the following ones.
#[derive(Debug)]
pub struct Bottleneck {
    ends: Ends,
    relay: LinkRelay,
    downloads: usize,
    paths: usize,
    plan: FairnessPlan,
    /// Set once the first stream has started.
    times: watch::Sender<Option<TrialTimes>>,
}

impl Bottleneck {
    /// Creates both namespaces and the link.
    ///
    /// # Errors
    /// If this process lacks the privilege (root).
    pub fn new(plan: &FairnessPlan, case: &FairnessCase, run: usize) -> Result<Self, LinkError> {
        let paths = plan.downloads + plan.streams;
        let (ends, wire) = tun::create(Paths::ByAddress(paths))?;
        // What one flow has learnt of the link must not help the next.
        ends.server.set_sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
        let seed = plan.seed + run as u64;
        let schedule = PathSchedule::new(plan.link(case), seed, SCHEDULE_US, Vec::new());
        let links = PathLinks::Shared { bottleneck: Box::new(schedule), paths };
        let relay = LinkRelay::start_over(wire, links, None)?;
        let times = watch::Sender::new(None);
        Ok(Self { ends, relay, downloads: plan.downloads, paths, plan: plan.clone(), times })
    }

    /// Returns both namespaces.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Returns the server's address for a download.
    pub fn download_address(&self, download: usize, port: u16) -> SocketAddr {
        (tun::path_address(download), port).into()
    }

    /// Fixes the times of the trial, whose first token is generated at `start`.
    pub fn open(&self, start: Instant) {
        let from = start + self.plan.warm_up;
        let times = TrialTimes { start, from, to: from + self.plan.length };
        self.times.send_if_modified(|known| {
            // Every stream says when it begins; the first one decides.
            if known.is_some() {
                return false;
            }
            for path in 0..self.paths {
                self.relay.begin(path, times.from);
                self.relay.end(path, times.to);
            }
            *known = Some(times);
            true
        });
    }

    /// Returns the times of the trial, if its first stream has started.
    pub fn times(&self) -> Option<TrialTimes> {
        *self.times.borrow()
    }

    /// Returns a watch for the times of the trial, for tasks that start with it.
    pub fn follow(&self) -> TimesWatch {
        TimesWatch(self.times.subscribe())
    }

    /// Stops the link and returns its packet counts.
    ///
    /// # Errors
    /// If the relay failed.
    pub fn finish(self) -> Result<LinkSummary, LinkError> {
        self.relay.stop().map_err(LinkError::io("the link"))
    }
}

/// Waits for the times of a trial.
#[derive(Debug, Clone)]
pub struct TimesWatch(watch::Receiver<Option<TrialTimes>>);

impl TimesWatch {
    /// Returns the times, once they are known.
    ///
    /// # Errors
    /// If the trial failed before it began.
    pub async fn wait(&mut self) -> io::Result<TrialTimes> {
        let known = self.0.wait_for(Option::is_some).await;
        let times = known.ok().and_then(|times| *times);
        times.ok_or_else(|| io::Error::other("the trial did not begin"))
    }
}

impl StreamNetwork for Bottleneck {
    fn server_side(&self) -> Option<&Namespace> {
        Some(&self.ends.server)
    }

    fn client_side(&self) -> Option<&Namespace> {
        Some(&self.ends.client)
    }

    fn server_address(&self, session: usize, port: u16) -> SocketAddr {
        (tun::path_address(self.downloads + session), port).into()
    }

    /// Opens the trial when the first session begins.
    fn begin(&self, _session: usize, at: Instant) {
        self.open(at);
    }

    /// Does nothing: every path counts until the end of the measurement.
    fn end(&self, _session: usize, _at: Instant) {}
}
