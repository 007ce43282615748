//! Chooses the next token from a row of logits.
//!
//! A [`Sampler`] can be rebuilt from its parameters and the tokens so far: the random number of the
//! i-th completion token is a function of `(seed, i)` alone. A sequence that was preempted and
//! recomputed therefore continues exactly as it would have.
//!
//! Order of steps: log-probabilities of the unmodified logits; repetition, presence and frequency
//! penalties; logit bias; forbidden tokens; the grammar's mask; temperature; min-p; top-k; top-p
//! over the remaining tokens; draw. Equals are ranked by token, lowest first.

mod constraint;
mod latest;
mod random;
mod row;
mod select;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::token::{RowError, TokenId};
pub use constraint::{Constraint, Grammar, SharedGrammar};
use latest::LatestTokens;
use select::{Candidate, LogitRow};

/// Temperatures below this are greedy: their weights would overflow.
const GREEDY_BELOW: f32 = 1e-5;
/// At temperature 1, a logit this far above all others is certain to be chosen.
const SURE_LEAD: f32 = 32.0;
/// A bias of this or less forbids the token.
const FORBIDDING_BIAS: f32 = -100.0;

/// Sampling parameters of a request. The caller validates them: see the bounds of the fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy (as are all values below 1e-5); finite, `0.0..=100.0`.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set with at least this probability mass, `0.0..=1.0`.
    pub top_p: f32,
    /// Drop tokens less probable than this fraction of the most probable one, `0.0..=1.0`.
    pub min_p: f32,
    /// Subtracted once from every token generated so far, `-2.0..=2.0`.
    pub presence_penalty: f32,
    /// Subtracted per occurrence among the generated tokens, `-2.0..=2.0`.
    pub frequency_penalty: f32,
    /// Divides positive (multiplies negative) logits of tokens in prompt and completion; above 0,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// Number of the latest tokens of prompt and completion to which `repetition_penalty` applies;
    /// `u32::MAX` for all.
    pub repeat_last_n: u32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Added to the logits of these tokens; -100 and below forbids. The completions of a request
    /// share it.
    pub logit_bias: Arc<[(TokenId, f32)]>,
    /// Return log-probabilities: `Some(k)` for the chosen token's and those of the k most probable
    /// tokens.
    pub logprobs: Option<u8>,
    /// Tokens that are never chosen (end tokens under `ignore_eos`).
    pub forbidden: Vec<TokenId>,
    /// Grammar that the completion must follow.
    pub grammar: Option<SharedGrammar>,
}

impl Default for Sampling {
    /// Greedy, without penalties, bias or log-probabilities.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            repeat_last_n: u32::MAX,
            seed: 0,
            logit_bias: Arc::default(),
            logprobs: None,
            forbidden: Vec::new(),
            grammar: None,
        }
    }
}

impl Sampling {
    fn has_penalties(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    /// Window of the repetition penalty, if there is a penalty and it does not apply to all tokens.
    fn window(&self) -> Option<u32> {
        let is_limited = self.repetition_penalty != 1.0 && self.repeat_last_n < u32::MAX;
        is_limited.then_some(self.repeat_last_n)
    }
}

/// Log-probabilities of one generated token, from the unmodified logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// Log-probability of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, best first.
    pub top: Vec<(TokenId, f32)>,
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    /// Index in the vocabulary.
    pub token: TokenId,
    /// Log-probabilities, if requested.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Memory that sampling reuses from row to row; one per sampling thread. Grows to about 16 bytes
/// per vocabulary entry if probabilities are flat, otherwise stays small.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    maxima: Vec<f32>,
    order: Vec<f32>,
    sums: Vec<f64>,
    candidates: Vec<Candidate>,
    ranked: Vec<Candidate>,
    /// Tokens whose logits were changed, with the original logits.
    touched: Vec<(TokenId, f32)>,
}

/// The sampling state of one sequence.
pub struct Sampler {
    sampling: Sampling,
    constraint: Option<Box<dyn Constraint>>,
    /// Completion tokens so far: the index of the next random number.
    generated: u64,
    /// Occurrences in the completion of every token seen in prompt or completion; kept only if a
    /// penalty needs it.
    seen: HashMap<TokenId, u32>,
    /// Tokens to which the repetition penalty applies, if not to all that were seen.
    latest: Option<LatestTokens>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sampling, generated, .. } = self;
        f.debug_struct("Sampler")
            .field("sampling", sampling)
            .field("generated", generated)
            .finish_non_exhaustive()
    }
}

impl Sampler {
    /// Creates the sampler of a sequence that has `prompt` and has generated `generated`.
    pub fn new(sampling: Sampling, prompt: &[TokenId], generated: &[TokenId]) -> Self {
        let constraint = sampling.grammar.as_ref().map(|grammar| grammar.0.start(generated));
        let latest = sampling.window().map(|most| LatestTokens::of(most, prompt));
        let seen = HashMap::new();
        let mut sampler = Self { sampling, constraint, generated: 0, seen, latest };
        // Only the repetition penalty concerns the prompt.
        if sampler.sampling.has_penalties() && sampler.latest.is_none() {
            sampler.seen.extend(prompt.iter().map(|&token| (token, 0)));
        }
        generated.iter().for_each(|&token| sampler.remember(token));
        sampler
    }

    /// Recreates a sampler from the values of [`Sampler::sampling`], [`Sampler::generated`],
    /// [`Sampler::seen`] and [`Sampler::latest`] of another, for example on another machine. The
    /// grammar's state is not included; see [`Sampler::constrain`].
    pub fn restore(
        sampling: Sampling,
        generated: u64,
        seen: impl IntoIterator<Item = (TokenId, u32)>,
        latest: &[TokenId],
    ) -> Self {
        debug_assert!(sampling.grammar.is_none(), "a grammar's state does not travel");
        let latest = sampling.window().map(|most| LatestTokens::of(most, latest));
        Self { sampling, constraint: None, generated, seen: seen.into_iter().collect(), latest }
    }

    /// Returns true if a token can be sampled without a long wait for the constraint.
    pub fn is_ready(&mut self) -> bool {
        self.constraint.as_mut().is_none_or(|constraint| constraint.is_ready())
    }

    /// Replaces the constraint and returns the previous one, so that a grammar can be followed on
    /// another machine than the one that samples.
    pub fn constrain(
        &mut self,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Option<Box<dyn Constraint>> {
        std::mem::replace(&mut self.constraint, constraint)
    }

    /// Parameters of this sampler.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Tokens subject to penalties, with their occurrences in the completion.
    pub fn seen(&self) -> impl ExactSizeIterator<Item = (TokenId, u32)> {
        self.seen.iter().map(|(&token, &count)| (token, count))
    }

    /// Tokens in the window of the repetition penalty, the oldest first.
    pub fn latest(&self) -> impl Iterator<Item = TokenId> {
        self.latest.iter().flat_map(|latest| latest.in_order())
    }

    /// Completion tokens so far.
    pub fn generated(&self) -> u64 {
        self.generated
    }

    /// Samples a token from `logits` (one per vocabulary entry, overwritten) and records it.
    ///
    /// # Errors
    /// [`RowError`]; the sampler is then unchanged.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<SampledToken, RowError> {
        // Log-probabilities are those of the model: taken before anything is changed.
        let summary = match self.sampling.logprobs {
            Some(top) => Some(LogprobSummary::of(logits, top, scratch)?),
            None => None,
        };
        self.modify(logits, scratch);
        // One scan after all changes finds the maximum, the chunks' maxima and NaN at once.
        let masked = match &mut self.constraint {
            Some(constraint) => constraint::apply(constraint.allowed()?, logits)?,
            None => false,
        };
        let max = row::scan(logits, &mut scratch.maxima)?;
        check_touched(max, &scratch.touched, masked)?;
        let token = self.choose(logits, max, scratch);
        let logprobs = summary.map(|summary| {
            // The first entry has the unmodified logit; later ones were modified already.
            let touched = scratch.touched.iter().find(|(t, _)| *t == token);
            let logit = touched.map_or(logits[token as usize], |(_, logit)| *logit);
            Box::new(Logprobs { chosen: logit - summary.log_mass, top: summary.top })
        });
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        self.remember(token);
        Ok(SampledToken { token, logprobs })
    }

    /// Chooses `token`, whose logit is `lead` above all others, without the row of logits.
    ///
    /// Returns `None`, and records nothing, if the row could matter: the request wants
    /// log-probabilities, changes logits or has a grammar, or its temperature leaves each other
    /// token more than e^-32 of the probability.
    pub fn choose_leader(&mut self, token: TokenId, lead: f32) -> Option<SampledToken> {
        let Sampling { temperature, logprobs, logit_bias, forbidden, .. } = &self.sampling;
        let plain = logprobs.is_none() && logit_bias.is_empty() && self.constraint.is_none();
        let unchanged = !self.sampling.has_penalties() && !forbidden.contains(&token);
        if !plain || !unchanged || lead < temperature * SURE_LEAD {
            return None;
        }
        self.remember(token);
        Some(SampledToken { token, logprobs: None })
    }

    fn remember(&mut self, token: TokenId) {
        self.generated += 1;
        if self.sampling.has_penalties() {
            *self.seen.entry(token).or_default() += 1;
        }
        if let Some(latest) = &mut self.latest {
            latest.push(token);
        }
    }

    /// Applies penalties, bias and forbidden tokens to the few logits they concern.
    fn modify(&self, logits: &mut [f32], scratch: &mut Scratch) {
        let Sampling { presence_penalty, frequency_penalty, repetition_penalty, .. } =
            self.sampling;
        let touched = &mut scratch.touched;
        touched.clear();
        let repeated = |logit: f32| match logit > 0.0 {
            true => logit / repetition_penalty,
            false => logit * repetition_penalty,
        };
        for token in self.latest.iter().flat_map(|latest| latest.distinct()) {
            change(logits, touched, token, repeated);
        }
        for (&token, &count) in &self.seen {
            change(logits, touched, token, |logit| {
                let repeated = if self.latest.is_none() { repeated(logit) } else { logit };
                let presence = if count > 0 { presence_penalty } else { 0.0 };
                repeated - presence - frequency_penalty * count as f32
            });
        }
        for &(token, bias) in self.sampling.logit_bias.iter() {
            let forbids = bias <= FORBIDDING_BIAS;
            let biased = |logit| {
                if forbids { f32::NEG_INFINITY } else { logit + bias }
            };
            change(logits, touched, token, biased);
        }
        for &token in &self.sampling.forbidden {
            change(logits, touched, token, |_| f32::NEG_INFINITY);
        }
    }

    /// Chooses from scanned logits with a finite maximum.
    fn choose(&self, logits: &[f32], max: f32, scratch: &mut Scratch) -> TokenId {
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = self.sampling;
        let Scratch { maxima, order, sums, candidates, ranked, .. } = scratch;
        if temperature < GREEDY_BELOW {
            return row::first_at(logits, maxima, max) as TokenId;
        }
        let row = LogitRow { logits, maxima, max, scale: 1.0 / temperature };
        let u = random::uniform(seed, self.generated);
        // ln 0 is negative infinity: no floor.
        let floor = max + temperature * min_p.ln();
        // Four ways to the candidates, cheapest first. Only those that may be drawn are gathered;
        // without any filter none are, since sums per chunk are enough to draw from the row.
        let mass = if top_k > 0 && (top_k as usize) < logits.len() {
            row.best(top_k as usize, floor, candidates, order);
            // The draw goes through tokens in their order on every path, so that it does not
            // depend on which filter gathered them.
            candidates.sort_unstable_by_key(|candidate| candidate.token);
            select::mass(candidates)
        } else if min_p > 0.0 {
            row.collect(floor, candidates);
            select::mass(candidates)
        } else if top_p < 1.0 {
            let mass = row.mass();
            row.collect(row.floor_of_mass(mass, top_p), candidates);
            mass
        } else {
            return draw_from_row(&row, u, sums);
        };
        if top_p < 1.0 {
            select::keep_mass(candidates, mass * f64::from(top_p), ranked);
        }
        let target = u * select::mass(candidates);
        draw(candidates.iter().map(|c| (c.token, c.weight.into())), target)
    }
}

/// Changes one logit and records the original; tokens outside the vocabulary are ignored.
fn change(
    logits: &mut [f32],
    touched: &mut Vec<(TokenId, f32)>,
    token: TokenId,
    to: impl Fn(f32) -> f32,
) {
    if let Some(logit) = logits.get_mut(token as usize) {
        touched.push((token, *logit));
        *logit = to(*logit);
    }
}

/// Distinguishes broken logits from forbidden ones, since both may leave no finite maximum.
/// `masked`: a mask was applied to logits of which some were finite.
fn check_touched(max: f32, touched: &[(TokenId, f32)], masked: bool) -> Result<(), RowError> {
    if touched.iter().any(|(_, logit)| logit.is_nan() || *logit == f32::INFINITY) {
        return Err(RowError::NonFiniteLogits);
    }
    match max.is_finite() {
        true => Ok(()),
        false if masked || touched.iter().any(|(_, logit)| logit.is_finite()) => {
            Err(RowError::NothingAllowed)
        }
        false => Err(RowError::NonFiniteLogits),
    }
}

/// Draws from all tokens: sums per chunk first, then inside the chunk that was hit.
fn draw_from_row(row: &LogitRow<'_>, u: f64, sums: &mut Vec<f64>) -> TokenId {
    let chunks = || row.logits.chunks(row::CHUNK);
    sums.clear();
    sums.extend(chunks().map(|chunk| row::sum_exp(chunk, row.max, row.scale)));
    let mut target = u * sums.iter().sum::<f64>();
    let chunk_sums = sums.iter().enumerate();
    let hit = draw(chunk_sums.map(|(i, &sum)| (i as TokenId, sum)), target) as usize;
    target -= sums[..hit].iter().sum::<f64>();
    let start = hit * row::CHUNK;
    let chunk = &row.logits[start..row.logits.len().min(start + row::CHUNK)];
    let weights = chunk.iter().map(|&logit| row::exp((logit - row.max) * row.scale).into());
    draw(weights.enumerate().map(|(i, w)| ((start + i) as TokenId, w)), target)
}

/// Returns the first item at which the running sum of weights exceeds `target`; the last item with
/// a weight if rounding leaves the sum below.
fn draw(items: impl Iterator<Item = (TokenId, f64)>, target: f64) -> TokenId {
    let (mut sum, mut last) = (0.0, 0);
    for (token, weight) in items.filter(|(_, weight)| *weight > 0.0) {
        sum += weight;
        last = token;
        if sum > target {
            break;
        }
    }
    last
}

/// Returns the log-probabilities of `token` and of the `top` most likely tokens according to
/// `logits`.
///
/// # Errors
/// [`RowError`] for broken logits, or for a token outside the vocabulary.
pub fn score(
    logits: &[f32],
    token: TokenId,
    top: u8,
    scratch: &mut Scratch,
) -> Result<SampledToken, RowError> {
    let LogprobSummary { log_mass, top } = LogprobSummary::of(logits, top, scratch)?;
    let logit = logits.get(token as usize).ok_or(RowError::OutOfStep)?;
    let logprobs = Logprobs { chosen: logit - log_mass, top };
    Ok(SampledToken { token, logprobs: Some(Box::new(logprobs)) })
}

/// Values that log-probabilities need from a row before it is modified.
struct LogprobSummary {
    /// Logarithm of the sum of all `exp(logit)`.
    log_mass: f32,
    top: Vec<(TokenId, f32)>,
}

impl LogprobSummary {
    fn of(logits: &[f32], top: u8, scratch: &mut Scratch) -> Result<Self, RowError> {
        let max = row::scan(logits, &mut scratch.maxima)?;
        if max == f32::NEG_INFINITY {
            return Err(RowError::NonFiniteLogits);
        }
        let row = LogitRow { logits, maxima: &scratch.maxima, max, scale: 1.0 };
        let log_mass = (f64::from(max) + row.mass().ln()) as f32;
        let best = &mut scratch.candidates;
        row.best(top.into(), f32::NEG_INFINITY, best, &mut scratch.order);
        let top = best.iter().map(|c| (c.token, c.logit - log_mass)).collect();
        Ok(Self { log_mass, top })
    }
}

#[cfg(test)]
mod tests;
