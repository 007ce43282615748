//! Selects candidate tokens by min-p, top-k and top-p without sorting the vocabulary.

use std::cmp::Ordering;

use super::row::{CHUNK, exp, sum_exp};
use crate::token::TokenId;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: TokenId,
    pub(super) logit: f32,
    /// Probability up to a common factor; the most probable token has 1.
    pub(super) weight: f32,
}

impl Candidate {
    /// Orders the most probable first; equals by lowest token.
    fn rank(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

/// A row of logits with the maxima from [`super::row::scan`].
#[derive(Clone, Copy)]
pub(super) struct LogitRow<'a> {
    pub(super) logits: &'a [f32],
    /// Maximum of each chunk of [`CHUNK`] logits.
    pub(super) maxima: &'a [f32],
    /// Maximum of the row; finite.
    pub(super) max: f32,
    /// Inverse of the temperature.
    pub(super) scale: f32,
}

impl LogitRow<'_> {
    /// Chunks with a logit of at least `floor`: first token and logits.
    fn chunks(&self, floor: f32) -> impl Iterator<Item = (usize, &[f32])> {
        let chunks = self.logits.chunks(CHUNK).enumerate();
        let chunks = chunks.filter(move |(i, _)| self.maxima[*i] >= floor);
        chunks.map(|(i, chunk)| (i * CHUNK, chunk))
    }

    /// Collects the finite logits of at least `floor`, in token order.
    pub(super) fn collect(&self, floor: f32, into: &mut Vec<Candidate>) {
        into.clear();
        for (start, chunk) in self.chunks(floor) {
            for (i, &logit) in chunk.iter().enumerate() {
                if logit >= floor && logit > f32::NEG_INFINITY {
                    let weight = exp((logit - self.max) * self.scale);
                    into.push(Candidate { token: (start + i) as TokenId, logit, weight });
                }
            }
        }
    }

    /// Returns a logit that the `k` best tokens, at least one, reach: the k-th greatest of the
    /// chunks' maxima, since each of those is a token's logit.
    fn floor_of_best(&self, k: usize, order: &mut Vec<f32>) -> f32 {
        if k > self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        order.clear();
        order.extend_from_slice(self.maxima);
        *order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Collects the `k` best tokens with at least `floor`, best first.
    pub(super) fn best(
        &self,
        k: usize,
        floor: f32,
        into: &mut Vec<Candidate>,
        order: &mut Vec<f32>,
    ) {
        if k == 0 {
            // Without a k-th greatest logit there is no floor: all of the row would be collected.
            return into.clear();
        }
        // Of a peaked row, few chunks reach the floor, so that few logits are looked at twice.
        self.collect(floor.max(self.floor_of_best(k, order)), into);
        if into.len() > k {
            into.select_nth_unstable_by(k - 1, Candidate::rank);
        }
        into.truncate(k);
        into.sort_unstable_by(Candidate::rank);
    }

    /// Sum of the weights of all tokens, in 64 bits: with 150,000 addends, 32 bits would lose the
    /// tail.
    pub(super) fn mass(&self) -> f64 {
        self.logits.chunks(CHUNK).map(|chunk| sum_exp(chunk, self.max, self.scale)).sum()
    }

    /// Returns a logit that every token of the top-p set reaches, given the total weight `mass`:
    /// tokens that weigh less than (1 - p) of the average weigh together less than 1 - p of the
    /// total, so the others reach p without them.
    pub(super) fn floor_of_mass(&self, mass: f64, p: f32) -> f32 {
        let least = (1.0 - f64::from(p)) * mass / self.logits.len() as f64;
        // A hundredth less, for the rounding of weights and logarithm.
        (f64::from(self.max) + (least * 0.99).ln() / f64::from(self.scale)) as f32
    }
}

/// Keeps the fewest most probable `candidates` that together weigh at least `enough`, and at least
/// one. Partitions instead of sorting: linear time.
pub(super) fn keep_mass(candidates: &mut Vec<Candidate>, enough: f64, order: &mut Vec<Candidate>) {
    order.clear();
    order.extend_from_slice(candidates);
    // Quickselect by mass instead of by rank: each round decides for the upper or the lower
    // half, and `rest` ends as the last candidate that is needed.
    let mut missing = enough;
    let mut rest = order.as_mut_slice();
    while rest.len() > 1 {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, Candidate::rank);
        let (upper, lower) = rest.split_at_mut(middle);
        let upper_mass = mass(upper);
        rest = if upper_mass >= missing {
            upper
        } else {
            missing -= upper_mass;
            lower
        };
    }
    if let Some(&last) = rest.first() {
        // `candidates` keeps its token order, in which the draw goes through it.
        candidates.retain(|candidate| candidate.rank(&last).is_le());
    }
}

/// Sum of the weights.
pub(super) fn mass(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
}
