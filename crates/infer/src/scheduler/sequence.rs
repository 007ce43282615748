//! The scheduler's record of a completion, from its submission to its end.

use std::time::Duration;

use super::shares::AccountId;
use crate::reading::Reading;
use crate::request::{Admitted, RestoreId, Tag, Work};
use crate::runner::Slot;
use crate::sampling::{Sampler, Sampling};
use crate::speculation::AcceptanceStats;
use crate::tenant::CacheDomain;
use crate::token::TokenId;

/// A completion: waiting, running, put back or preempted.
#[derive(Debug)]
pub(super) struct Sequence {
    pub tag: Tag,
    /// The prompt, then the completion so far.
    pub tokens: Vec<TokenId>,
    pub prompt_len: usize,
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// Number of alternatives to report with the log-probabilities of the prompt's tokens, if
    /// requested.
    pub score_prompt: Option<u8>,
    /// Prompt tokens that were reported; the first has no log-probability.
    pub scored: usize,
    pub priority: i32,
    /// Number in the order of submission, unique per sequence.
    pub arrival: u64,
    /// Account of the tenant whose share is used.
    pub account: AccountId,
    /// True if the tenant takes only what others leave.
    pub is_spare: bool,
    pub cache_domain: CacheDomain,
    /// When the next computation became possible.
    pub ready_at: Duration,
    pub admitted: Option<Admitted>,
    /// True while the reader is behind: nothing is computed, and the KV is kept while there is
    /// room.
    pub paused: bool,
    /// State of the reader, if known.
    pub reading: Option<Reading>,
    /// True while the reader has enough in hand: nothing is computed for now; slot and KV are kept.
    pub rests: bool,
    /// Number of this sequence's latest row among those of all sequences.
    pub last_row: u64,
    /// Tokens in a batch that was planned and not yet committed; 0 if in none.
    pub in_flight: u32,
    /// True if it was cancelled, which takes effect when that batch is committed.
    pub is_ending: bool,
    /// While waiting: the idle slot that got the KV when the sequence left the batch.
    pub parked: Option<Slot>,
    /// The KV was lost, so the sequence keeps its place up to its next token: recomputing it is
    /// never in vain.
    pub keeps_place: bool,
    /// Number of times that the engine was lost while computing this sequence, since its last
    /// token.
    pub losses: u8,
    /// Number of tokens at the beginning of the prompt that a store has.
    pub stored_tokens: u32,
    /// While the beginning of the prompt comes from the store: nothing is computed.
    pub restoring: Option<RestoreId>,
    /// Position up to which tokens are not charged (again): the scheduler had put the sequence
    /// back.
    pub charged_from: u32,
    /// While waiting: the reason, so that it need not be determined again in each step.
    pub waits_for: Option<WaitReason>,
    /// Acceptance of this sequence's draft tokens.
    pub acceptance: AcceptanceStats,
    /// A draft token that was not worth computing.
    pub unverified: Option<TokenId>,
}

/// Reason why a waiting sequence was not admitted although it was its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The running sequence of this slot and arrival is computing the first `len` tokens of the
    /// prompt.
    Prefix { slot: Slot, arrival: u64, len: u32 },
    /// Too few cells could be freed; cells had become free this number of times.
    Cells { releases: u64 },
}

impl Sequence {
    pub fn new(work: Work, account: AccountId, arrival: u64, now: Duration) -> Self {
        Self {
            tag: work.tag,
            prompt_len: work.prompt.len(),
            stored_tokens: work.stored_tokens.min(work.prompt.len() as u32),
            tokens: work.prompt,
            max_tokens: work.max_tokens.max(1),
            sampling: work.sampling,
            score_prompt: work.score_prompt,
            scored: 1,
            priority: work.priority,
            arrival,
            account,
            is_spare: work.tenant.is_spare,
            cache_domain: work.cache_domain,
            ready_at: now,
            admitted: None,
            paused: false,
            reading: None,
            rests: false,
            last_row: 0,
            in_flight: 0,
            is_ending: false,
            parked: None,
            keeps_place: false,
            losses: 0,
            restoring: None,
            charged_from: 0,
            waits_for: None,
            acceptance: AcceptanceStats::default(),
            unverified: None,
        }
    }

    /// Returns true if the next tokens may be computed now.
    pub fn may_run(&self) -> bool {
        !self.paused && !self.rests && self.in_flight == 0 && self.restoring.is_none()
    }

    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// Returns true while log-probabilities of the prompt are still to be reported. Every position
    /// of the prompt must then be computed, whatever a prefix cache has.
    pub fn is_to_be_scored(&self) -> bool {
        self.score_prompt.is_some() && self.scored < self.prompt_len
    }

    /// Returns the position where a span from `start` must end so that its scores continue where
    /// the last report ended: tokens that are only recomputed are not scored again.
    pub fn scorable_end(&self, start: usize, end: usize) -> usize {
        match self.is_to_be_scored() && start + 1 < self.scored {
            true => end.min(self.scored - 1),
            false => end,
        }
    }

    /// Returns the tokens to score after those of the span `start..end`.
    pub fn score_targets(&self, start: usize, end: usize) -> Option<(u8, &[TokenId])> {
        let top = self.score_prompt.filter(|_| start + 1 == self.scored)?;
        let targets = self.tokens.get(start + 1..self.prompt_len.min(end + 1))?;
        (!targets.is_empty()).then_some((top, targets))
    }

    /// Creates a sampler that continues after the generated tokens.
    pub fn sampler(&self) -> Sampler {
        let (prompt, generated) = self.tokens.split_at(self.prompt_len);
        Sampler::new(self.sampling.clone(), prompt, generated)
    }

    /// Returns true if nothing was computed yet: the client has no part of the answer.
    pub fn not_begun(&self) -> bool {
        self.admitted.is_none()
    }

    /// Rank among the sequences of the tenant: priority, then arrival.
    pub fn rank(&self) -> (i32, u64) {
        (self.priority, self.arrival)
    }
}
