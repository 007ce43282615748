//! Behaviour of the engine thread while the engine is lost.
//!
//! The scheduler has put all answers back; they continue from their next token once the engine
//! returns. Until then, commands are handled and nothing is computed. After the operator's time
//! limit, all answers fail, and so do new ones until the engine returns.

use std::time::Duration;

use loquent_infer::request::{SequenceEvent, Step};
use loquent_infer::runner::Recovery;

use super::{EngineLoop, LastOutage, Outage};
use crate::engine_watch::EngineOutage;

/// Longest pause between two checks for the engine. A return that is announced by a command is
/// noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl EngineLoop {
    /// Records that the engine was lost because of `why`.
    pub(super) fn begin_outage(&mut self, why: &str) {
        self.metrics.on_engine_lost();
        self.watch.note_outage(Some(EngineOutage { why: why.into(), is_given_up: false }));
        let since = self.clock.now();
        // An engine that is lost again before it has computed anything was not back. One that had
        // nothing to do was, after a while.
        let again = self.last_outage.take();
        let again = again.filter(|last| since.saturating_sub(last.ended) < self.outage_limit);
        let limited_from = again.map_or(since, |last| last.limited_from);
        self.outage.get_or_insert(Outage { since, limited_from, is_given_up: false });
    }

    /// Checks for the engine, and waits a moment if it is still lost. Returns false when the thread
    /// has to end.
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
        self.last_outage = Some(LastOutage { limited_from: outage.limited_from, ended: now });
        let gone = now.saturating_sub(outage.since);
        self.metrics.on_engine_back(gone);
        self.watch.note_outage(None);
        tracing::info!(gone_s = gone.as_secs_f64(), "the engine is back, and answers go on");
    }

    /// Returns the ends of answers that have waited too long, or that the engine returns too late
    /// for.
    fn pass_time(&mut self, now: Duration, why: &str) -> Vec<SequenceEvent> {
        let outage = self.outage.as_mut().expect("the engine is gone");
        let is_given_up = now.saturating_sub(outage.limited_from) >= self.outage_limit;
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

    /// Delivers ends that belong to no batch. Returns false when there is no receiver left.
    pub(super) fn hand_over_events(&mut self, now: Duration, events: Vec<SequenceEvent>) -> bool {
        let step = Step { started: now, finished: now, events, ..Step::default() };
        step.events.is_empty() || self.hand_over(step)
    }
}
