//! Information about token lengths that leaks to an observer who sees only packet lengths.
//!
//! The measure is mutual information in bits, within packets of the same number of new tokens: that
//! number can be inferred from the timing anyway. The estimate from counts is biased upwards by
//! chance, so the mean of the estimates for shuffled lengths is subtracted (the result can fall
//! below 0). The interval comes from a jackknife over groups of sessions, since packets of one
//! session depend on each other.

use std::collections::BTreeMap;

use crate::plan::Metric;
use crate::rng::{DrawSequence, Draws};

/// A packet as observed, with the text length that an observer wants to infer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    /// Number of tokens in its text.
    tokens: u16,
    /// Length of the packet, or its change.
    seen: i16,
    /// Bytes of its text.
    text: u16,
}

/// The packets of one session, in sending order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sightings {
    /// Sightings by metric, in the order of [`Metric::OBSERVED`].
    series: [Vec<Sighting>; 4],
    sent_tokens: usize,
    arrived_tokens: usize,
    /// Number and bytes of the tokens most recently sent for the first time.
    newest: (usize, usize),
    last_bytes: Option<usize>,
    /// True if the newest text was already repeated: further repetitions are not independent
    /// samples.
    is_repeated: bool,
}

/// Number of shuffles whose mean is subtracted. Chosen by hand: four leave a hundredth of a bit of
/// noise on some thousand samples, a tenth of the effect of interest.
const SHUFFLES: usize = 4;
/// Number of groups of sessions, one of which is left out in turn.
const GROUPS: usize = 12;
/// Maximum number of new tokens per packet; larger packets are left out because there are too few
/// of each size.
const MAX_TOKENS: usize = 8;

impl Sightings {
    /// Records a packet of `bytes` sent to the client, after which the first `tokens` tokens of the
    /// answer have been sent. `ends` are the ends of all tokens.
    pub fn on_data(&mut self, bytes: usize, tokens: usize, ends: &[usize]) {
        let is_new = tokens > self.sent_tokens;
        if is_new {
            self.newest = (tokens - self.sent_tokens, span(ends, self.sent_tokens, tokens));
            self.sent_tokens = tokens;
            self.is_repeated = false;
        }
        let change = bytes as i64 - self.last_bytes.replace(bytes).unwrap_or(bytes) as i64;
        match (is_new, self.newest.0) {
            (_, 0) => {} // nothing but the answer's head has left
            (true, _) => {
                self.note(Metric::TextBits, bytes as i64, self.newest);
                self.note(Metric::ChangeBits, change, self.newest);
            }
            (false, _) if self.is_repeated => {}
            (false, _) => {
                self.is_repeated = true;
                self.note(Metric::RepeatBits, bytes as i64, self.newest);
            }
        }
    }

    /// Records an acknowledgement of `bytes` sent to the server when `tokens` tokens have arrived.
    pub fn on_ack(&mut self, bytes: usize, tokens: usize, ends: &[usize]) {
        if tokens > self.arrived_tokens {
            let text = (tokens - self.arrived_tokens, span(ends, self.arrived_tokens, tokens));
            self.note(Metric::AckBits, bytes as i64, text);
            self.arrived_tokens = tokens;
        }
    }

    fn note(&mut self, metric: Metric, seen: i64, (tokens, text): (usize, usize)) {
        if tokens <= MAX_TOKENS {
            let sighting = Sighting { tokens: tokens as u16, seen: seen as i16, text: text as u16 };
            self.series[place(metric)].push(sighting);
        }
    }
}

/// Returns the bytes of the tokens from number `from` up to `to`, which must be larger.
fn span(ends: &[usize], from: usize, to: usize) -> usize {
    ends[to - 1] - from.checked_sub(1).map_or(0, |before| ends[before])
}

fn place(metric: Metric) -> usize {
    let found = Metric::OBSERVED.iter().position(|observed| *observed == metric);
    found.expect("a metric of an observer")
}

/// Returns the information in `sessions` by `metric`, in bits, and half the 95 % interval.
pub fn bits_told(sessions: &[&Sightings], metric: Metric) -> (f64, f64) {
    let place = place(metric);
    let without = |left_out: Option<usize>| -> f64 {
        let kept = sessions.iter().enumerate();
        let kept = kept.filter(|(number, _)| left_out != Some(number % GROUPS));
        told_beyond_chance(kept.flat_map(|(_, session)| &session.series[place]))
    };
    let groups = GROUPS.min(sessions.len());
    let estimates: Vec<f64> = (0..groups).map(|group| without(Some(group))).collect();
    let mean = estimates.iter().sum::<f64>() / groups as f64;
    let squares: f64 = estimates.iter().map(|estimate| (estimate - mean).powi(2)).sum();
    let variance = squares * (groups as f64 - 1.0) / groups as f64;
    (without(None), 1.96 * variance.sqrt())
}

fn told_beyond_chance<'a>(sightings: impl Iterator<Item = &'a Sighting>) -> f64 {
    let mut classes: BTreeMap<u16, Vec<(i16, u16)>> = BTreeMap::new();
    for sighting in sightings {
        classes.entry(sighting.tokens).or_default().push((sighting.seen, sighting.text));
    }
    let total: usize = classes.values().map(Vec::len).sum();
    let mut stream = Draws::new(23, "shuffles").stream();
    let of_class = |pairs: &Vec<(i16, u16)>| {
        pairs.len() as f64 * Contingency::of(pairs).told_beyond_chance(&mut stream)
    };
    classes.values().map(of_class).sum::<f64>() / (total as f64).max(1.0)
}

/// Pairs of an observed length and a text's length, both as ranks among the values that occur.
struct Contingency {
    pairs: Vec<(usize, usize)>,
    seen_kinds: usize,
    text_kinds: usize,
}

impl Contingency {
    fn of(pairs: &[(i16, u16)]) -> Self {
        let seen = ranks(pairs.iter().map(|pair| i32::from(pair.0)));
        let text = ranks(pairs.iter().map(|pair| i32::from(pair.1)));
        let kinds = |ranks: &[usize]| ranks.iter().max().map_or(0, |most| most + 1);
        let (seen_kinds, text_kinds) = (kinds(&seen), kinds(&text));
        Self { pairs: seen.into_iter().zip(text).collect(), seen_kinds, text_kinds }
    }

    fn told_beyond_chance(mut self, stream: &mut DrawSequence) -> f64 {
        let told = self.told();
        let by_chance: f64 = (0..SHUFFLES)
            .map(|_| {
                self.shuffle(stream);
                self.told()
            })
            .sum();
        told - by_chance / SHUFFLES as f64
    }

    /// Returns the mutual information of the pairs' frequencies, in bits.
    fn told(&self) -> f64 {
        let mut joint = vec![0u32; self.seen_kinds * self.text_kinds];
        let (mut seen, mut text) = (vec![0u32; self.seen_kinds], vec![0u32; self.text_kinds]);
        for &(a, b) in &self.pairs {
            joint[a * self.text_kinds + b] += 1;
            seen[a] += 1;
            text[b] += 1;
        }
        let sum = |counts: &[u32]| counts.iter().map(|&n| weighted_log(n)).sum::<f64>();
        let total = self.pairs.len() as u32;
        (sum(&joint) - sum(&seen) - sum(&text) + weighted_log(total)) / f64::from(total.max(1))
    }

    fn shuffle(&mut self, stream: &mut DrawSequence) {
        for last in (1..self.pairs.len()).rev() {
            let other = (stream.bits() % (last as u64 + 1)) as usize;
            let text = self.pairs[last].1;
            self.pairs[last].1 = self.pairs[other].1;
            self.pairs[other].1 = text;
        }
    }
}

fn ranks(values: impl Iterator<Item = i32> + Clone) -> Vec<usize> {
    let mut known: Vec<i32> = values.clone().collect();
    known.sort_unstable();
    known.dedup();
    values.map(|value| known.partition_point(|&other| other < value)).collect()
}

/// Returns n log2 n.
fn weighted_log(count: u32) -> f64 {
    let count = f64::from(count);
    if count > 0.0 { count * count.log2() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns sessions of 300 packets of one token each, whose lengths are the token's transformed
    /// by `seen`.
    fn sessions(seen: impl Fn(usize, u64) -> usize) -> Vec<Sightings> {
        let mut stream = Draws::new(1, "test").stream();
        let session = |_| {
            let (mut sightings, mut ends) = (Sightings::default(), Vec::new());
            for tokens in 1..=300 {
                let length = 1 + (stream.bits() % 8) as usize;
                ends.push(ends.last().copied().unwrap_or(0) + length);
                sightings.on_data(seen(length, stream.bits()), tokens, &ends);
            }
            sightings
        };
        (0..24).map(session).collect()
    }

    fn told(sessions: &[Sightings]) -> (f64, f64) {
        bits_told(&sessions.iter().collect::<Vec<_>>(), Metric::TextBits)
    }

    #[test]
    fn a_length_that_follows_the_token_tells_all_of_it() {
        let (bits, half) = told(&sessions(|length, _| 20 + length));
        assert!((bits - 3.0).abs() < 0.05 && half < 0.02, "{bits} ± {half}");
    }

    #[test]
    fn a_length_that_is_chance_or_constant_tells_nothing() {
        let (bits, half) = told(&sessions(|_, chance| (chance % 50) as usize));
        assert!(bits.abs() < 0.01 && half < 0.02, "{bits} ± {half}");
        assert_eq!(told(&sessions(|_, _| 64)), (0.0, 0.0));
    }

    #[test]
    fn one_step_within_the_lengths_tells_one_bit() {
        let (bits, _) = told(&sessions(|length, _| if length > 4 { 64 } else { 32 }));
        assert!((bits - 1.0).abs() < 0.02, "{bits}");
    }

    #[test]
    fn repetitions_are_held_against_the_newest_text() {
        let mut sightings = Sightings::default();
        sightings.on_data(40, 0, &[]); // the answer's head alone
        sightings.on_data(50, 1, &[5]);
        sightings.on_data(46, 1, &[5]);
        sightings.on_data(46, 1, &[5]);
        sightings.on_data(60, 3, &[5, 7, 10]);
        let seen = |metric| {
            let series = &sightings.series[place(metric)];
            series.iter().map(|s| (s.tokens, s.seen, s.text)).collect::<Vec<_>>()
        };
        assert_eq!(seen(Metric::TextBits), [(1, 50, 5), (2, 60, 5)]);
        assert_eq!(seen(Metric::ChangeBits), [(1, 10, 5), (2, 14, 5)]);
        assert_eq!(seen(Metric::RepeatBits), [(1, 46, 5)]);
    }
}
