//! A completion as the scheduler keeps it, from its submission to its end.

use std::time::Duration;

use super::shares::AccountId;
use crate::reading::Reading;
use crate::request::{Admitted, Tag, Work};
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
    /// How many alternatives to report with the log-probabilities of its prompt's tokens, where
    /// these are wanted.
    pub score_prompt: Option<u8>,
    /// Tokens of its prompt that were reported; the first has no log-probability.
    pub scored: usize,
    pub priority: i32,
    /// Its number in the order of submission, which no other sequence has.
    pub arrival: u64,
    /// Whose share it takes.
    pub account: AccountId,
    pub cache_domain: CacheDomain,
    /// When its next computation became possible.
    pub ready_at: Duration,
    pub admitted: Option<Admitted>,
    /// Its reader is behind: it computes nothing, and keeps its KV while there is room.
    pub paused: bool,
    /// What its reader has in hand, if that is known.
    pub reading: Option<Reading>,
    /// Its reader has enough in hand: it computes nothing for now, and keeps its slot and its KV.
    pub rests: bool,
    /// The latest step that had a row of it, by their number.
    pub last_row: u64,
    /// Its tokens in a batch that was planned and not yet committed; 0 if it is in none.
    pub in_flight: u32,
    /// How it ends when that batch is committed, if that was asked for.
    pub ending: Option<KvAfterEnd>,
    /// While it waits: the idle slot that held its KV when it left the batch.
    pub parked: Option<Slot>,
    /// Its KV was lost, so it keeps its place up to its next token: computing it again is never
    /// in vain.
    pub keeps_place: bool,
    /// How often the engine was lost while it computed this sequence, since the last token.
    pub losses: u8,
    /// Up to here its tokens are not charged (again): the scheduler had put it back.
    pub charged_from: u32,
    /// While it waits: what it waits for, so that this need not be found again in each step.
    pub waits_for: Option<WaitReason>,
    /// How its draft tokens fared.
    pub acceptance: AcceptanceStats,
    /// A draft token that it did not pay to compute.
    pub unverified: Option<TokenId>,
}

/// Why a waiting sequence was not admitted although it was its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The running sequence of this slot and arrival is computing the first `len` tokens of its
    /// prompt.
    Prefix { slot: Slot, arrival: u64, len: u32 },
    /// Too few cells could be freed; this many times cells had become free.
    Cells { releases: u64 },
}

/// How to treat the KV of a sequence that ends. If a sequence in flight is ended twice, the greater
/// value counts: once its client has left, nobody needs the KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KvAfterEnd {
    /// It stays as a prefix for later prompts, if the prefix cache is on.
    KeepPrefix,
    /// Its cells are freed at once.
    Free,
}

impl Sequence {
    pub fn new(work: Work, account: AccountId, arrival: u64, now: Duration) -> Self {
        Self {
            tag: work.tag,
            prompt_len: work.prompt.len(),
            tokens: work.prompt,
            max_tokens: work.max_tokens.max(1),
            sampling: work.sampling,
            score_prompt: work.score_prompt,
            scored: 1,
            priority: work.priority,
            arrival,
            account,
            cache_domain: work.cache_domain,
            ready_at: now,
            admitted: None,
            paused: false,
            reading: None,
            rests: false,
            last_row: 0,
            in_flight: 0,
            ending: None,
            parked: None,
            keeps_place: false,
            losses: 0,
            charged_from: 0,
            waits_for: None,
            acceptance: AcceptanceStats::default(),
            unverified: None,
        }
    }

    pub fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// Whether log-probabilities of its prompt are still to be reported. Every position of the
    /// prompt must be computed for that, whatever a prefix cache has.
    pub fn is_to_be_scored(&self) -> bool {
        self.score_prompt.is_some() && self.scored < self.prompt_len
    }

    /// Where a span from `start` must end so that what it scores goes on where the last report
    /// ended: what is only computed again is not scored again.
    pub fn scorable_end(&self, start: usize, end: usize) -> usize {
        match self.is_to_be_scored() && start + 1 < self.scored {
            true => end.min(self.scored - 1),
            false => end,
        }
    }

    /// The tokens to be scored behind those of the span `start..end`.
    pub fn score_targets(&self, start: usize, end: usize) -> Option<(u8, &[TokenId])> {
        let top = self.score_prompt.filter(|_| start + 1 == self.scored)?;
        let targets = self.tokens.get(start + 1..self.prompt_len.min(end + 1))?;
        (!targets.is_empty()).then_some((top, targets))
    }

    /// A sampler that goes on after what was generated.
    pub fn sampler(&self) -> Sampler {
        let (prompt, generated) = self.tokens.split_at(self.prompt_len);
        Sampler::new(self.sampling.clone(), prompt, generated)
    }

    /// Whether nothing of it was computed yet: its client has no part of the answer.
    pub fn not_begun(&self) -> bool {
        self.admitted.is_none()
    }

    /// Its place among the sequences of its tenant: priority, then arrival.
    pub fn rank(&self) -> (i32, u64) {
        (self.priority, self.arrival)
    }
}
