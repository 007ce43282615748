//! Sessions over randomly drawn links, to find failures that nobody thought of.

use crate::channel::Channel;
use crate::generate::Generator;
use crate::link::{AckPath, Link};
use crate::reader::ReaderBehaviour;
use crate::rng::{DrawSequence, Draws};

/// Draws a link, a generator and a reader from `seed`, ranging from mild to hostile.
pub fn draw(seed: u64) -> (Link, Generator, ReaderBehaviour) {
    let mut stream = Draws::new(seed, "campaign").stream();
    let link = draw_link(&mut stream);
    let generator = draw_generator(&mut stream);
    let reader = draw_reader(&mut stream);
    debug_assert_eq!(link.fault().or_else(|| generator.fault()), None);
    (link, generator, reader)
}

/// Draws a value whose logarithm is uniform, so that small and large values are equally likely.
fn log_range(stream: &mut DrawSequence, low: f64, high: f64) -> f64 {
    low * (high / low).powf(stream.unit())
}

fn draw_link(stream: &mut DrawSequence) -> Link {
    let rtt_ms = log_range(stream, 5.0, 800.0);
    let mut link = Link::new(rtt_ms, draw_channel(stream));
    if stream.chance(0.2) {
        link.acks = AckPath::Clean;
    }
    if stream.chance(0.25) {
        link.rate_kbps = Some(log_range(stream, 24.0, 500.0));
        link.queue_bytes = log_range(stream, 2_000.0, 64_000.0) as u64;
    }
    if stream.chance(0.4) {
        link.jitter_ms = stream.range(1.0, rtt_ms);
    }
    if stream.chance(0.3) {
        link.duplicate = stream.range(0.01, 0.3);
    }
    if stream.chance(0.3) {
        link.corrupt = stream.range(0.001, 0.3);
    }
    if stream.chance(0.3) {
        link.migrate_every_ms = Some(log_range(stream, 2_000.0, 10_000.0));
    }
    link
}

fn draw_channel(stream: &mut DrawSequence) -> Channel {
    match stream.bits() % 5 {
        0 => Channel::Clean,
        1 => Channel::Markov {
            stay_good: stream.range(0.3, 0.99),
            stay_lossy: stream.range(0.1, 0.9),
            loss: stream.range(0.5, 1.0),
            state_ms: log_range(stream, 10.0, 500.0),
        },
        2 => Channel::Bursts {
            good_ms: log_range(stream, 150.0, 5_000.0),
            burst_ms: log_range(stream, 10.0, 600.0),
            loss: stream.range(0.5, 1.0),
            residual_loss: stream.range(0.0, 0.1),
        },
        3 => Channel::Random { loss: stream.range(0.0, 0.5) },
        _ => Channel::Outages {
            every_ms: log_range(stream, 2_000.0, 20_000.0),
            min_ms: 500.0,
            max_ms: log_range(stream, 600.0, 10_000.0),
            residual_loss: stream.range(0.0, 0.1),
        },
    }
}

fn draw_generator(stream: &mut DrawSequence) -> Generator {
    let tokens_per_s = log_range(stream, 1.0, 150.0);
    if stream.chance(0.7) {
        Generator::Constant { tokens_per_s }
    } else {
        Generator::Bursty { tokens_per_s, group: log_range(stream, 1.5, 60.0) }
    }
}

fn draw_reader(stream: &mut DrawSequence) -> ReaderBehaviour {
    let paced = stream.chance(0.4);
    let slow = stream.chance(0.2);
    let hidden = stream.chance(0.2);
    let from_s = stream.range(0.0, 4.0);
    ReaderBehaviour {
        buffer_ms: if paced { stream.range(20.0, 800.0) } else { 0.0 },
        max_tokens_per_s: slow.then(|| log_range(stream, 10.0, 100.0) as u32),
        hidden_s: hidden.then_some((from_s, from_s + 3.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_draw_makes_sense_and_the_seed_decides_it() {
        for seed in 0..2_000 {
            let (link, generator, reader) = draw(seed);
            let fault = link.fault().or_else(|| generator.fault());
            assert_eq!(fault.or_else(|| reader.fault()), None, "seed {seed}");
        }
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
