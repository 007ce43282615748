//! The bad weather on the demonstration's link: the user's settings, and the link they describe.

use loquent_bench::link::emulator::PathSchedule;
use loquent_sim::channel::{Channel, LossSchedule};
use loquent_sim::link::Link;
use serde::{Deserialize, Serialize};

/// Loss within a burst, as in the paper's channel: a burst is a bad moment, not a cut cable.
const LOSS_IN_BURSTS: f64 = 0.9;
/// Maximum loss that can be set. More is an outage, in which nothing can be compared.
const MAX_LOSS: f64 = 0.6;
/// Time after which the losses of a link repeat: one hour.
const SCHEDULE_US: u64 = 3_600_000_000;
/// Time resolution of storms, in µs.
const STORM_STEP_US: u64 = 5_000;

/// The weather of one run, the same for both columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkConditions {
    /// Round-trip time in ms; half of it each way.
    pub rtt_ms: f64,
    /// Share of packets that are lost, 0 to 0.6.
    pub loss: f64,
    /// Mean length of a burst of losses in ms; 0 spreads them evenly.
    pub burst_ms: f64,
    /// Rate of each direction in kbit/s; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_kbps: Option<f64>,
    /// Seed of the losses.
    pub seed: u32,
}

impl Default for NetworkConditions {
    /// Returns the weather of a train or a crowded café: the paper's share of losses, in bursts of
    /// a tenth of a second.
    fn default() -> Self {
        Self { rtt_ms: 200.0, loss: 0.15, burst_ms: 100.0, rate_kbps: None, seed: 1 }
    }
}

impl NetworkConditions {
    /// Returns the link in the simulator's terms.
    ///
    /// # Errors
    /// Names the parameter that is out of range.
    pub fn link(&self) -> Result<Link, String> {
        within("rtt_ms", self.rtt_ms, 0.0, 2_000.0)?;
        within("loss", self.loss, 0.0, MAX_LOSS)?;
        within("burst_ms", self.burst_ms, 0.0, 5_000.0)?;
        within("rate_kbps", self.rate_kbps.unwrap_or(8.0), 8.0, 1e6)?;
        let mut link = Link::new(self.rtt_ms, self.channel());
        link.rate_kbps = self.rate_kbps;
        link.fault().map_or(Ok(link), Err)
    }

    /// Returns the Gilbert-Elliott channel with two states: good, and a burst in which nearly all
    /// packets are lost.
    fn channel(&self) -> Channel {
        match self.loss {
            loss if loss <= 0.0 => Channel::Clean,
            // Below this the states would change faster than packets come.
            loss if self.burst_ms < 1.0 => Channel::Random { loss },
            loss => Channel::Bursts {
                good_ms: self.burst_ms * (LOSS_IN_BURSTS / loss - 1.0),
                burst_ms: self.burst_ms,
                loss: LOSS_IN_BURSTS,
                residual_loss: 0.0,
            },
        }
    }

    /// Returns the schedule of the packets of one path. Paths with the same weather have the same
    /// bursts.
    ///
    /// # Errors
    /// Same as [`Self::link`].
    pub fn schedule(&self) -> Result<PathSchedule, String> {
        Ok(PathSchedule::new(self.link()?, self.seed.into(), SCHEDULE_US, Vec::new()))
    }

    /// Returns start and end of each burst in the first `span_us`, in ms after the weather's start.
    pub fn storms(&self, span_us: u64) -> Vec<(u64, u64)> {
        let channel = self.channel();
        if !matches!(channel, Channel::Bursts { .. }) {
            return Vec::new();
        }
        let losses = LossSchedule::new(&channel, self.seed.into(), SCHEDULE_US);
        let mut storms: Vec<(u64, u64)> = Vec::new();
        for at_us in (0..span_us.min(SCHEDULE_US)).step_by(STORM_STEP_US as usize) {
            let (from_ms, to_ms) = (at_us / 1_000, (at_us + STORM_STEP_US) / 1_000);
            match storms.last_mut() {
                // Good weather is most of it, and ends no storm by itself: the next one does.
                _ if losses.loss(at_us) == 0.0 => {}
                Some(storm) if storm.1 == from_ms => storm.1 = to_ms,
                _ => storms.push((from_ms, to_ms)),
            }
        }
        storms
    }

    /// Formats the weather as one line for people.
    pub fn text(&self) -> String {
        let burst = match self.burst_ms {
            burst_ms if burst_ms < 1.0 => String::new(),
            burst_ms => format!(" in bursts of {burst_ms:.0} ms"),
        };
        let rate = self.rate_kbps.map(|kbps| format!(", {kbps:.0} kbit/s")).unwrap_or_default();
        let (rtt_ms, loss) = (self.rtt_ms, self.loss * 100.0);
        format!("{rtt_ms:.0} ms round trip, {loss:.0} % loss{burst}{rate}, seed {}", self.seed)
    }
}

fn within(name: &str, value: f64, low: f64, high: f64) -> Result<(), String> {
    let is_inside = (low..=high).contains(&value);
    is_inside.then_some(()).ok_or_else(|| format!("{name} has to be from {low} to {high}"))
}

#[cfg(test)]
mod tests {
    use loquent_bench::link::emulator::{Emulator, PacketRoute, PathLinks};
    use loquent_bench::link::packet_stats::Fate;

    use super::*;

    /// Returns the fates of `count` packets sent down the link, one every 5 ms.
    fn fates(weather: &NetworkConditions, count: u64) -> Vec<Fate> {
        let links = PathLinks::Own(vec![weather.schedule().unwrap()]);
        let mut emulator = Emulator::new(&links);
        emulator.begin(0, 0);
        let route = PacketRoute { path: 0, flow: 0, up: false };
        (0..count).map(|n| emulator.handle_packet(n * 5_000, route, 200, &[0; 200])).collect()
    }

    fn lost(fates: &[Fate]) -> f64 {
        fates.iter().filter(|fate| **fate == Fate::Lost).count() as f64 / fates.len() as f64
    }

    #[test]
    fn the_share_asked_for_is_lost_in_bursts_or_evenly() {
        for (loss, burst_ms) in [(0.0, 200.0), (0.15, 200.0), (0.15, 0.0), (0.5, 1_000.0)] {
            let weather = NetworkConditions { loss, burst_ms, ..NetworkConditions::default() };
            let fates = fates(&weather, 400_000);
            assert!((lost(&fates) - loss).abs() < 0.03, "{weather:?}: {}", lost(&fates));
        }
        // A packet after a lost one is lost too, as often as the burst says.
        let after_loss = |weather: &NetworkConditions| {
            let fates = fates(weather, 200_000);
            let after: Vec<_> =
                fates.windows(2).filter(|two| two[0] == Fate::Lost).map(|two| two[1]).collect();
            lost(&after)
        };
        assert!(after_loss(&NetworkConditions::default()) > 0.8);
        assert!(
            after_loss(&NetworkConditions { burst_ms: 0.0, ..NetworkConditions::default() }) < 0.2
        );
    }

    #[test]
    fn the_seed_alone_decides_which_packets_are_lost() {
        let (one, two) = (
            NetworkConditions::default(),
            NetworkConditions { seed: 2, ..NetworkConditions::default() },
        );
        assert_eq!(fates(&one, 2_000), fates(&one, 2_000));
        assert_ne!(fates(&one, 2_000), fates(&two, 2_000));
    }

    #[test]
    fn packets_are_lost_in_the_storms_that_are_told() {
        let weather = NetworkConditions::default();
        let storms = weather.storms(60_000_000);
        assert!(storms.len() > 20, "{storms:?}");
        assert!(storms.windows(2).all(|two| two[0].1 < two[1].0), "apart and in order");
        for (number, fate) in fates(&weather, 12_000).iter().enumerate() {
            let at_ms = number as u64 * 5;
            let stormy = storms.iter().any(|&(from, to)| (from..to).contains(&at_ms));
            assert!(stormy || *fate != Fate::Lost, "lost at {at_ms} ms in good weather");
        }
        assert_eq!(NetworkConditions { burst_ms: 0.0, ..weather }.storms(60_000_000), []);
    }

    #[test]
    fn a_rate_delays_and_a_delay_is_half_a_round_trip() {
        let calm =
            NetworkConditions { loss: 0.0, rate_kbps: Some(64.0), ..NetworkConditions::default() };
        let links = PathLinks::Own(vec![calm.schedule().unwrap()]);
        let mut emulator = Emulator::new(&links);
        let route = PacketRoute { path: 0, flow: 0, up: true };
        let due = |fate| match fate {
            Fate::Delivered { due_us, .. } => due_us,
            other => panic!("{other:?}"),
        };
        // 200 bytes take 25 ms at 64 kbit/s, and 100 ms of delay follow.
        let sent = [(); 3].map(|()| due(emulator.handle_packet(0, route, 200, &[0; 200])));
        assert_eq!(sent, [125_000, 150_000, 175_000]);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (weather, name) in [
            (NetworkConditions { rtt_ms: -1.0, ..NetworkConditions::default() }, "rtt_ms"),
            (NetworkConditions { rtt_ms: f64::NAN, ..NetworkConditions::default() }, "rtt_ms"),
            (NetworkConditions { loss: 0.61, ..NetworkConditions::default() }, "loss"),
            (NetworkConditions { burst_ms: 1e9, ..NetworkConditions::default() }, "burst_ms"),
            (
                NetworkConditions { rate_kbps: Some(1.0), ..NetworkConditions::default() },
                "rate_kbps",
            ),
        ] {
            assert!(weather.schedule().unwrap_err().contains(name));
        }
        assert!(
            serde_json::from_str::<NetworkConditions>(
                r#"{"rtt_ms":1,"loss":0,"burst_ms":0,"seed":-1}"#
            )
            .is_err()
        );
    }
}
