//! Channels: models of packet loss on a link.
//!
//! A [`Channel`] is the description in a plan. A [`LossSchedule`] is one session's draw from it: a
//! timeline of loss probabilities that is fixed before anything is sent, so that the TCP model,
//! Eloquent, Loquent's sender and the oracle all meet the same losses.

use serde::{Deserialize, Serialize};

use crate::rng::{DrawSequence, Draws};

/// Loss model of a link, as written in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Channel {
    /// Nothing is lost.
    Clean,
    /// Two states of a fixed length (paper, section 4.2). The paper's `p` and `q` are used as the
    /// probabilities to *stay*, because only then do its "15 % loss" and "200 ms of every 1200 ms"
    /// result.
    Markov {
        /// Probability that a good state is followed by a good one.
        stay_good: f64,
        /// Probability that a lossy state is followed by a lossy one.
        stay_lossy: f64,
        /// Loss probability of a packet sent in the lossy state.
        #[serde(default = "default_loss")]
        loss: f64,
        /// Length of one state in ms.
        #[serde(default = "default_state_ms")]
        state_ms: f64,
    },
    /// Gilbert-Elliott in continuous time: good and lossy periods of exponential length.
    Bursts {
        /// Mean length of a good period in ms.
        good_ms: f64,
        /// Mean length of a lossy period in ms.
        burst_ms: f64,
        /// Loss probability in a lossy period.
        #[serde(default = "default_loss")]
        loss: f64,
        /// Loss probability in a good period.
        #[serde(default)]
        residual_loss: f64,
    },
    /// Each packet is lost independently.
    Random {
        /// Loss probability of a packet.
        loss: f64,
    },
    /// Total blackouts of uniformly distributed length.
    Outages {
        /// Mean time between two blackouts in ms.
        every_ms: f64,
        /// Shortest blackout in ms.
        min_ms: f64,
        /// Longest blackout in ms.
        max_ms: f64,
        /// Loss probability outside blackouts.
        #[serde(default)]
        residual_loss: f64,
    },
    /// A recording: the loss probability from each time on, repeated when it ends. Each session
    /// starts at its own point in the recording.
    Trace {
        /// (start in ms, loss probability) in rising order, the first at 0.
        steps: Vec<(f64, f64)>,
        /// Length of the recording in ms.
        length_ms: f64,
    },
}

fn default_loss() -> f64 {
    0.9
}

fn default_state_ms() -> f64 {
    100.0
}

impl Channel {
    /// Describes the first parameter that is out of range, if there is one.
    pub fn fault(&self) -> Option<String> {
        let probability = |name: &str, p: f64| {
            (!(0.0..=1.0).contains(&p)).then(|| format!("{name} = {p} is not a probability"))
        };
        let length = |name: &str, ms: f64| {
            (!(1.0..=1e7).contains(&ms)).then(|| format!("{name} = {ms} is not in 1..=1e7 ms"))
        };
        match *self {
            Self::Clean => None,
            Self::Markov { stay_good, stay_lossy, loss, state_ms } => {
                probability("stay_good", stay_good)
                    .or_else(|| probability("stay_lossy", stay_lossy))
                    .or_else(|| probability("loss", loss))
                    .or_else(|| length("state_ms", state_ms))
            }
            Self::Bursts { good_ms, burst_ms, loss, residual_loss } => length("good_ms", good_ms)
                .or_else(|| length("burst_ms", burst_ms))
                .or_else(|| probability("loss", loss))
                .or_else(|| probability("residual_loss", residual_loss)),
            Self::Random { loss } => probability("loss", loss),
            Self::Outages { every_ms, min_ms, max_ms, residual_loss } => {
                length("every_ms", every_ms)
                    .or_else(|| length("min_ms", min_ms))
                    .or_else(|| length("max_ms", max_ms))
                    .or_else(|| (min_ms > max_ms).then(|| "min_ms is above max_ms".to_owned()))
                    .or_else(|| probability("residual_loss", residual_loss))
            }
            Self::Trace { ref steps, length_ms } => trace_fault(steps, length_ms),
        }
    }
}

fn trace_fault(steps: &[(f64, f64)], length_ms: f64) -> Option<String> {
    let rising = steps.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let inside = steps
        .iter()
        .all(|&(start, loss)| (0.0..length_ms).contains(&start) && (0.0..=1.0).contains(&loss));
    let starts = steps.first().is_some_and(|&(start, _)| start == 0.0);
    (!(rising && inside && starts && length_ms <= 1e7))
        .then(|| "trace steps must rise from 0 to below length_ms, losses in 0..=1".to_owned())
}

/// Losses on a channel over time, in one session.
#[derive(Debug, Clone)]
pub struct LossSchedule {
    /// (start in µs, loss probability), rising, the first at 0.
    steps: Vec<(u64, f64)>,
    length_us: u64,
    draws: Draws,
}

/// Length of a slot. A packet's fate is drawn by its slot and its place in the slot, so that two
/// schemes that send one packet each at about the same time share its fate. Chosen by hand: longer
/// slots would tie packets together that a real path treats independently.
const SLOT_US: u64 = 1_000;
/// Number of distinct draws in one slot; any further packets share the last one.
const DRAWS_PER_SLOT: u64 = 64;

impl LossSchedule {
    /// Draws the losses of `channel` from `seed` for `length_us`, after which they repeat.
    pub fn new(channel: &Channel, seed: u64, length_us: u64) -> Self {
        let mut stream = Draws::new(seed, "weather").stream();
        let mut builder =
            ScheduleBuilder { steps: Vec::new(), at_ms: 0.0, length_ms: length_us as f64 / 1e3 };
        builder.lay(channel, &mut stream);
        Self { steps: builder.steps, length_us, draws: Draws::new(seed, "loss") }
    }

    /// Returns the loss probability of a packet sent at `now_us`.
    pub fn loss(&self, now_us: u64) -> f64 {
        let at_us = now_us % self.length_us;
        let next = self.steps.partition_point(|&(start, _)| start <= at_us);
        self.steps[next - 1].1
    }

    /// Returns the loss probability from each time on, in µs and rising from 0, for times below
    /// `until_us`.
    pub fn steps(&self, until_us: u64) -> &[(u64, f64)] {
        &self.steps[..self.steps.partition_point(|&(start, _)| start < until_us)]
    }

    /// Returns true if the `nth` packet (from 0) sent in this slot gets through. The two directions
    /// share the channel's state, but each packet has its own fate.
    pub fn delivers(&self, now_us: u64, nth: u64, direction: Direction) -> bool {
        let loss = self.loss(now_us);
        let index =
            (slot(now_us) * 2 + direction as u64) * DRAWS_PER_SLOT + nth.min(DRAWS_PER_SLOT - 1);
        loss <= 0.0 || self.draws.unit(index) >= loss
    }
}

/// Returns the slot of a send time, as [`LossSchedule::delivers`] counts packets.
pub fn slot(now_us: u64) -> u64 {
    now_us / SLOT_US
}

/// A direction of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Server to client: tokens.
    Down = 0,
    /// Client to server: acknowledgements.
    Up = 1,
}

/// A schedule while its steps are being drawn.
struct ScheduleBuilder {
    steps: Vec<(u64, f64)>,
    at_ms: f64,
    length_ms: f64,
}

impl ScheduleBuilder {
    fn lay(&mut self, channel: &Channel, stream: &mut DrawSequence) {
        match channel {
            Channel::Clean => self.push(self.length_ms, 0.0),
            Channel::Random { loss } => self.push(self.length_ms, *loss),
            Channel::Markov { stay_good, stay_lossy, loss, state_ms } => {
                self.markov((*stay_good, *stay_lossy), *loss, *state_ms, stream)
            }
            Channel::Bursts { good_ms, burst_ms, loss, residual_loss } => {
                // The share of time in bursts, so that a session may begin within one.
                let mut lossy = stream.chance(burst_ms / (good_ms + burst_ms));
                while self.at_ms < self.length_ms {
                    let (mean, p) =
                        if lossy { (*burst_ms, *loss) } else { (*good_ms, *residual_loss) };
                    self.push(stream.exponential(mean), p);
                    lossy = !lossy;
                }
            }
            Channel::Outages { every_ms, min_ms, max_ms, residual_loss } => {
                while self.at_ms < self.length_ms {
                    self.push(stream.exponential(*every_ms), *residual_loss);
                    self.push(stream.range(*min_ms, *max_ms), 1.0);
                }
            }
            Channel::Trace { steps, length_ms } => self.replay(steps, *length_ms, stream),
        }
    }

    fn markov(&mut self, stay: (f64, f64), loss: f64, state_ms: f64, stream: &mut DrawSequence) {
        let (leave_good, leave_lossy) = (1.0 - stay.0, 1.0 - stay.1);
        let mut lossy = stream.chance(leave_good / (leave_good + leave_lossy).max(1e-9));
        // A channel's states are not aligned with the generator's tokens, so the session begins at
        // a random point of the first state.
        self.push(state_ms * stream.unit(), if lossy { loss } else { 0.0 });
        while self.at_ms < self.length_ms {
            lossy ^= stream.chance(if lossy { leave_lossy } else { leave_good });
            self.push(state_ms, if lossy { loss } else { 0.0 });
        }
    }

    fn replay(&mut self, steps: &[(f64, f64)], length_ms: f64, stream: &mut DrawSequence) {
        let enter_ms = stream.range(0.0, length_ms);
        let first = steps.partition_point(|&(start, _)| start <= enter_ms) - 1;
        let mut skip_ms = enter_ms - steps[first].0;
        let mut index = first;
        while self.at_ms < self.length_ms {
            let (start, loss) = steps[index];
            let end = steps.get(index + 1).map_or(length_ms, |next| next.0);
            self.push(end - start - skip_ms, loss);
            skip_ms = 0.0;
            index = (index + 1) % steps.len();
        }
    }

    fn push(&mut self, for_ms: f64, loss: f64) {
        let start_us = (self.at_ms * 1e3).round() as u64;
        self.at_ms += for_ms;
        match self.steps.last_mut() {
            // Equal neighbours become one step: most lookups then search a short list.
            Some(last) if last.1 == loss => {}
            Some(last) if last.0 == start_us => last.1 = loss,
            _ => self.steps.push((start_us, loss)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_share(channel: &Channel) -> f64 {
        let length_us = 2_000_000_000;
        let schedule = LossSchedule::new(channel, 5, length_us);
        let sent = length_us / 100_000;
        let lost =
            (0..sent).filter(|i| !schedule.delivers(i * 100_000, 0, Direction::Down)).count();
        lost as f64 / sent as f64
    }

    #[test]
    fn the_papers_default_loses_fifteen_percent() {
        let share = lost_share(&Channel::Markov {
            stay_good: 0.9,
            stay_lossy: 0.5,
            loss: 0.9,
            state_ms: 100.0,
        });
        assert!((share - 0.15).abs() < 0.015, "{share}");
    }

    #[test]
    fn every_kind_loses_its_share() {
        let bursts =
            Channel::Bursts { good_ms: 900.0, burst_ms: 100.0, loss: 1.0, residual_loss: 0.0 };
        let outages = Channel::Outages {
            every_ms: 8_000.0,
            min_ms: 500.0,
            max_ms: 3_500.0,
            residual_loss: 0.0,
        };
        let trace = Channel::Trace { steps: vec![(0.0, 0.0), (750.0, 1.0)], length_ms: 1_003.0 };
        for (channel, share) in [
            (Channel::Clean, 0.0),
            (Channel::Random { loss: 0.1 }, 0.1),
            (bursts, 0.1),
            (outages, 0.2),
            (trace, 0.25),
        ] {
            assert_eq!(channel.fault(), None);
            let lost = lost_share(&channel);
            assert!((lost - share).abs() < 0.04, "{channel:?}: {lost}");
        }
    }

    #[test]
    fn senseless_parameters_are_named() {
        let fault = Channel::Random { loss: 1.5 }.fault();
        assert_eq!(fault.as_deref(), Some("loss = 1.5 is not a probability"));
        let empty = Channel::Trace { steps: vec![], length_ms: 100.0 };
        assert!(empty.fault().is_some());
    }
}
