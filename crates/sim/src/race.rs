//! Several schemes deliver the same answer over the same link at the same time, and what happens to
//! each is told in the order of time.

use std::ops::ControlFlow;

use crate::channel::LossSchedule;
use crate::events::{SessionEvent, SessionLog};
use crate::link::LinkState;
use crate::scheme::Scheme;
use crate::world::{SessionRun, SessionTrace, Setting, Transcript};

/// The answer that all schemes deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedAnswer {
    /// Its tokens' text.
    pub tokens: Vec<String>,
    /// When each is generated, in µs and rising.
    pub generated_us: Vec<u64>,
}

/// Receives what happens in a race.
pub trait RaceWatch {
    /// In lane number `lane`, `event` happened at `at_us`. A break ends the race.
    fn on_event(&mut self, lane: usize, at_us: u64, event: SessionEvent) -> ControlFlow<()>;
}

/// Lets each of `schemes` deliver `answer`, until `horizon_us` at the latest. What `setting` says of
/// generation does not matter. The traces are in the order of the schemes.
///
/// # Panics
/// If a scheme is computed and not simulated.
pub fn race(
    schemes: &[Scheme],
    setting: &Setting<'_>,
    answer: &SharedAnswer,
    horizon_us: u64,
    watch: &mut dyn RaceWatch,
) -> Vec<SessionTrace> {
    let schedule = LossSchedule::new(&setting.link.channel, setting.seed, horizon_us);
    let start = |scheme| start_lane(scheme, setting, answer, &schedule, horizon_us);
    let mut lanes: Vec<SessionRun<'_>> = schemes.iter().map(start).collect();
    while let Some((lane, at_us)) = first_due(&lanes).filter(|due| due.1 <= horizon_us) {
        lanes[lane].step(at_us);
        let mut events = lanes[lane].take_events().into_iter();
        if events.try_for_each(|(at_us, event)| watch.on_event(lane, at_us, event)).is_break() {
            break;
        }
    }
    let finish = |lane: SessionRun<'_>| {
        let cut_off = lane.next_us().is_some();
        lane.into_trace(cut_off)
    };
    lanes.into_iter().map(finish).collect()
}

fn start_lane<'a>(
    scheme: &Scheme,
    setting: &Setting<'a>,
    answer: &SharedAnswer,
    schedule: &'a LossSchedule,
    horizon_us: u64,
) -> SessionRun<'a> {
    let ends = scheme.ends(setting.link, &setting.reader).expect("the scheme is simulated");
    let path = LinkState::new(setting.link, schedule, setting.seed, horizon_us);
    let first_us = answer.generated_us.first().copied().unwrap_or(0);
    let start_us = first_us + (setting.link.rtt_ms * 500.0) as u64;
    let transcript = Transcript::given(&answer.tokens, answer.generated_us.clone());
    SessionRun::new(setting, transcript, path, ends)
        .logged(SessionLog::new(answer.tokens.len(), start_us))
}

/// The lane in which something happens next, and when.
fn first_due(lanes: &[SessionRun<'_>]) -> Option<(usize, u64)> {
    let due = lanes.iter().enumerate();
    due.filter_map(|(lane, run)| Some((lane, run.next_us()?))).min_by_key(|due| due.1)
}
