//! A race: several schemes deliver the same answer over the same link at the same time, and their
//! events are reported in order of time.

use std::ops::ControlFlow;

use crate::channel::LossSchedule;
use crate::events::{SessionEvent, SessionLog};
use crate::link::LinkState;
use crate::scheme::Scheme;
use crate::world::{SessionRun, SessionTrace, Setting, Transcript};

/// The answer that all schemes deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedAnswer {
    /// Text of the tokens.
    pub tokens: Vec<String>,
    /// Generation times of the tokens, in µs and rising.
    pub generated_us: Vec<u64>,
}

/// Receives the events of a race.
pub trait RaceWatch {
    /// Handles `event`, which happened in lane number `lane` at `at_us`. Returning a break ends the
    /// race.
    fn on_event(&mut self, lane: usize, at_us: u64, event: SessionEvent) -> ControlFlow<()>;
}

/// Runs each of `schemes` with `answer`, until `horizon_us` at the latest. The generator in
/// `setting` is ignored. The traces are in the order of the schemes.
///
/// # Panics
/// If a scheme is computed rather than simulated.
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

/// Returns the lane with the next event, and its time.
fn first_due(lanes: &[SessionRun<'_>]) -> Option<(usize, u64)> {
    let due = lanes.iter().enumerate();
    due.filter_map(|(lane, run)| Some((lane, run.next_us()?))).min_by_key(|due| due.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use crate::generate::{Generator, TokenKind};
    use crate::link::Link;
    use crate::reader::ReaderBehaviour;
    use crate::scheme::Tuning;
    use crate::world::{AFTERMATH_US, run_at};

    const SEED: u64 = 11;
    const TOKENS: usize = 100;

    struct Count(usize);

    impl RaceWatch for Count {
        fn on_event(&mut self, _: usize, _: u64, _: SessionEvent) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
    }

    fn answer() -> SharedAnswer {
        let token = |index| {
            let mut text = Vec::new();
            TokenKind::Short.put(SEED, index, &mut text);
            String::from_utf8(text).expect("tokens are letters")
        };
        SharedAnswer {
            tokens: (0..TOKENS).map(token).collect(),
            generated_us: (0..TOKENS as u64).map(|index| index * 50_000).collect(),
        }
    }

    #[test]
    fn each_lane_does_what_its_scheme_does_alone() {
        let lossy =
            Channel::Bursts { good_ms: 800.0, burst_ms: 200.0, loss: 0.9, residual_loss: 0.01 };
        let (answer, link) = (answer(), Link::new(120.0, lossy));
        let setting = Setting {
            link: &link,
            generator: &Generator::Constant { tokens_per_s: 20.0 },
            text: TokenKind::Short,
            reader: ReaderBehaviour::default(),
            length_us: TOKENS as u64 * 50_000,
            seed: SEED,
            observe: false,
        };
        let schemes = [
            Scheme::TCP,
            Scheme::Duplication { copies: 2, resend_ms: 200.0 },
            Scheme::Eloquent { max_tokens: 10, resend_ms: 200.0 },
            Scheme::Loquent { tuning: Tuning::padded(), congestion: None },
        ];
        let mut watch = Count(0);
        let horizon_us = setting.length_us + AFTERMATH_US;
        let together = race(&schemes, &setting, &answer, horizon_us, &mut watch);
        let alone = |scheme| run_at(scheme, &setting, answer.generated_us.clone());
        assert_eq!(together, schemes.iter().map(alone).collect::<Vec<_>>());
        assert!(watch.0 > 4 * TOKENS);
    }
}
