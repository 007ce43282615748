//! What the engine thread does while the engine is gone.
//!
//! The scheduler has put all answers back, and they go on from their next token when the engine
//! is back. Until then commands are obeyed, and nothing is computed. If that takes longer than the
//! operator allows, all answers fail, and so does what comes until the engine is back.

use std::time::Duration;

use loquent_infer::request::{SequenceEvent, Step};
use loquent_infer::runner::Recovery;

use super::{EngineLoop, Outage};
use crate::engine_watch::EngineOutage;

/// Longest pause between two looks for the engine. One whose return is announced by a command is
/// found at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl EngineLoop {
    /// Notes that the engine was lost because of `why`.
    pub(super) fn begin_outage(&mut self, why: &str) {
        self.metrics.on_engine_lost();
        self.watch.note_outage(Some(EngineOutage { why: why.into(), is_given_up: false }));
        let since = self.clock.now();
        self.outage.get_or_insert(Outage { since, is_given_up: false });
    }

    /// Looks for the engine, and waits a moment if it is still gone; false when the thread has to
    /// end.
    pub(super) fn sit_out(&mut self) -> bool {
        let now = self.clock.now();
        let events = match self.runner.poll_recovery() {
            Recovery::Ready => {
                self.end_outage(now);
                return true;
            }
            Recovery::Pending(why) => self.pass_time(now, &why),
            Recovery::Never(why) => {
                let events = self.scheduler.abandon(now, self.runner.as_mut(), &why);
                self.watch.fail(&why);
                self.hand_over_events(now, events);
                return false;
            }
        };
        self.hand_over_events(now, events) && self.wait_for_command(Some(LOOK_EVERY))
    }

    fn end_outage(&mut self, now: Duration) {
        let outage = self.outage.take().expect("the engine was gone");
        let gone = now.saturating_sub(outage.since);
        self.metrics.on_engine_back(gone);
        self.watch.note_outage(None);
        tracing::info!(gone_s = gone.as_secs_f64(), "the engine is back, and answers go on");
    }

    /// Ends of answers that have waited for too long, or that the engine comes too late for.
    fn pass_time(&mut self, now: Duration, why: &str) -> Vec<SequenceEvent> {
        let outage = self.outage.as_mut().expect("the engine is gone");
        let is_given_up = now.saturating_sub(outage.since) >= self.outage_limit;
        self.watch.note_outage(Some(EngineOutage { why: why.into(), is_given_up }));
        if !is_given_up {
            return self.scheduler.give_up(now);
        }
        if !std::mem::replace(&mut outage.is_given_up, true) {
            let waited_s = self.outage_limit.as_secs_f64();
            tracing::error!(waited_s, "the engine is not back ({why}): its answers fail");
        }
        let why = format!("it was lost, and is not back in time ({why})");
        self.scheduler.abandon(now, self.runner.as_mut(), &why)
    }

    /// Hands ends over that belong to no batch; false when nobody takes them any more.
    pub(super) fn hand_over_events(&mut self, now: Duration, events: Vec<SequenceEvent>) -> bool {
        let step = Step { started: now, finished: now, events, ..Step::default() };
        step.events.is_empty() || self.hand_over(step)
    }
}
