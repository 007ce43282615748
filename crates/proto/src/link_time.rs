//! Time that a thin link takes for a packet, measured while its queue fills.
//!
//! A queue that fills is never empty, so packets leave it back to back: what passes within a time
//! is what the link carries in it, however fast it was sent (packet pairs, S. Keshav 1991, over
//! more than two packets and with acknowledgements in place of arrivals). A path whose queue never
//! fills has no such time, and is as fast as it needs to be.

use crate::Micros;

/// Round trips in a row, each longer than the one before, that show a queue that fills. One can be
/// a late acknowledgement.
const TELLING_SAMPLES: u32 = 2;

/// Growth of the round trip meanwhile. Less is noise, and within the tolerance of the queue guard.
const TELLING_GROWTH: Micros = Micros::from_ms(20);

/// Time for which a measurement holds. Packets that leave no faster than the link fill no queue
/// that could measure it again; a link that has become faster is noticed by this alone.
const MEMORY: Micros = Micros::from_ms(30_000);

/// Estimate of the narrowest link of one path, from its round trips.
#[derive(Debug, Clone, Default)]
pub struct LinkTime {
    last: Option<Arrival>,
    filling: Filling,
    measured: Option<Measured>,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: Micros,
    rtt: Micros,
}

/// Round trips in a row of which each was longer than the one before.
#[derive(Debug, Clone, Copy, Default)]
struct Filling {
    samples: u32,
    growth: Micros,
    span: Micros,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    /// When the queue filled last.
    at: Micros,
    ns_per_byte: u64,
}

impl LinkTime {
    /// Notes a measured round trip `rtt` of a packet that arrived at `at`, on the receiver's side
    /// of the acknowledgement's hold; `bytes` were sent since the packet of the round trip before.
    pub fn on_round_trip(&mut self, at: Micros, rtt: Micros, bytes: u64) {
        let before = self.last.replace(Arrival { at, rtt });
        let Some(before) = before.filter(|before| rtt > before.rtt) else {
            self.filling = Filling::default();
            return;
        };
        self.filling = Filling {
            samples: self.filling.samples + 1,
            growth: self.filling.growth + rtt.since(before.rtt),
            span: self.filling.span + at.since(before.at),
            bytes: self.filling.bytes + bytes,
        };
        self.measure(at);
    }

    /// Forgets everything: on a path that reorders, round trips grow without a queue.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    fn measure(&mut self, at: Micros) {
        let Filling { samples, growth, span, bytes } = self.filling;
        if samples < TELLING_SAMPLES || growth < TELLING_GROWTH || bytes == 0 {
            return;
        }
        let ns_per_byte = span.times(1_000).0 / bytes;
        // Of a queue that others fill, this stream's packets get a part, so the least is nearest.
        let least = self.known(at).map_or(ns_per_byte, |known| known.min(ns_per_byte));
        self.measured = Some(Measured { at, ns_per_byte: least });
    }

    fn known(&self, now: Micros) -> Option<u64> {
        let measured = self.measured.filter(|measured| now < measured.at + MEMORY)?;
        Some(measured.ns_per_byte)
    }

    /// Returns the time in which the link carries `bytes`; 0 if its queue has not filled lately.
    pub fn of(&self, now: Micros, bytes: u64) -> Micros {
        self.known(now).map_or(Micros::ZERO, |ns| Micros(ns.saturating_mul(bytes) / 1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Micros {
        Micros::from_ms(ms)
    }

    /// Round trips of packets of 100 bytes, each with the time at which it arrived, in ms.
    fn after(round_trips: &[(u64, u64)]) -> LinkTime {
        let mut link = LinkTime::default();
        for &(at, rtt) in round_trips {
            link.on_round_trip(ms(at), ms(rtt), 100);
        }
        link
    }

    #[test]
    fn packets_that_fill_a_queue_arrive_at_the_link_s_pace() {
        // 100 bytes every 20 ms over 16 kbit/s, which takes 50 ms for them.
        let link = after(&[(100, 100), (150, 130), (200, 160)]);
        assert_eq!(link.of(ms(200), 100), ms(50));
        assert_eq!(link.of(ms(200), 160), ms(80));
        assert_eq!(link.of(ms(30_199), 100), ms(50));
        assert_eq!(link.of(ms(30_200), 100), ms(0), "it may be faster by now");
    }

    #[test]
    fn what_fills_no_queue_says_nothing() {
        for quiet in [
            &[(100, 100), (200, 100), (300, 100), (400, 100)][..],
            // One late packet, noise, and a queue that drains.
            &[(100, 100), (250, 150), (300, 100), (400, 100)],
            &[(100, 100), (201, 101), (302, 102), (403, 103)],
            &[(100, 100), (300, 300), (380, 280), (460, 260)],
        ] {
            assert_eq!(after(quiet).of(ms(400), 1_000), ms(0), "{quiet:?}");
        }
    }

    #[test]
    fn the_fastest_filling_counts_and_what_was_forgotten_does_not() {
        let mut link = after(&[(100, 100), (150, 130), (200, 160)]);
        link.on_round_trip(ms(210), ms(100), 100);
        for (at, rtt) in [(310, 180), (410, 260)] {
            link.on_round_trip(ms(at), ms(rtt), 100);
        }
        assert_eq!(link.of(ms(410), 100), ms(50), "others had a part of the queue");
        link.forget();
        for (at, rtt) in [(460, 290), (510, 320)] {
            link.on_round_trip(ms(at), ms(rtt), 100);
        }
        assert_eq!(link.of(ms(510), 100), ms(0), "one of them can be late");
    }
}
