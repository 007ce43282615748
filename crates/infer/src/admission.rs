//! Admits requests, and computes the `Retry-After` of refused ones.
//!
//! Without a bound the queue grows until every client has given up. [`Admission`] limits the number
//! of requests in flight and of queued prompt tokens. It refuses all others, with the time until
//! the backlog is worked off at the present rate.
//!
//! Each tenant may use only a part of the places and of the queue, so that none fills the server
//! alone. If its key has one, a budget of requests and of tokens per minute applies too.

use std::collections::HashMap;
use std::time::Duration;

use crate::rate::MinuteBudget;
pub use crate::share::FAIR_MULTIPLE;
use crate::share::{Overflow, PoolKind, ShareRefusal, SharedPool};
use crate::tenant::TenantId;

/// Limits set by the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum completions running or waiting.
    pub max_inflight_requests: usize,
    /// Maximum of them for one tenant; `None` is [`FAIR_MULTIPLE`] times the places that stay free.
    pub max_inflight_per_tenant: Option<usize>,
    /// Maximum prompt tokens of completions that have not begun.
    pub max_queued_tokens: usize,
}

/// Limits of one tenant; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantLimits {
    /// Maximum completions running or waiting; `None` is [`Bounds::max_inflight_per_tenant`].
    pub max_inflight: Option<usize>,
    /// Requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, of prompts and answers.
    pub tokens_per_minute: Option<u32>,
}

/// Resources that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Tenant of the request.
    pub tenant: TenantId,
    /// Limits of that tenant.
    pub limits: TenantLimits,
    /// Number of completions.
    pub completions: usize,
    /// Estimated tokens of the prompts.
    pub prompt_tokens: u64,
}

/// Limit that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request exceeds [`Bounds::max_inflight_requests`].
    #[error("{limit} requests are in flight, the most this server accepts")]
    Requests {
        /// The limit.
        limit: usize,
        /// Time until a retry may succeed.
        retry_after: Duration,
    },
    /// The request's prompts exceed [`Bounds::max_queued_tokens`].
    #[error("the prompts in the queue would exceed {limit} tokens")]
    Tokens {
        /// The limit.
        limit: usize,
        /// Time until a retry may succeed.
        retry_after: Duration,
    },
    /// The tenant's prompts exceed its part of [`Bounds::max_queued_tokens`].
    #[error("{queued} prompt tokens wait for this client, and others need the rest of the queue")]
    TenantTokens {
        /// Prompt tokens of the tenant in the queue.
        queued: usize,
        /// Time until a retry may succeed.
        retry_after: Duration,
    },
    /// The tenant has its maximum of completions in flight.
    #[error("{inflight} requests are in flight for this client, the most it may have now")]
    TenantRequests {
        /// Completions that the tenant has in flight.
        inflight: usize,
        /// Time until a retry may succeed.
        retry_after: Duration,
    },
    /// The request asks for more completions than its tenant may ever have in flight.
    #[error("at most {limit} completions may be in flight for this client")]
    Never {
        /// The tenant's limit.
        limit: usize,
    },
    /// The request exceeds [`TenantLimits::requests_per_minute`].
    #[error("Limit {per_minute} requests per minute")]
    RequestRate {
        /// The limit.
        per_minute: u32,
        /// Time until the request is within the limit.
        retry_after: Duration,
    },
    /// The request exceeds [`TenantLimits::tokens_per_minute`].
    #[error("Limit {per_minute} tokens per minute")]
    TokenRate {
        /// The limit.
        per_minute: u32,
        /// Time until the request is within the limit.
        retry_after: Duration,
    },
    /// The tenant has spent its tokens of the day or of the month.
    #[error("the budget of {limit} tokens per {period} is spent")]
    Spent {
        /// The budget.
        limit: u64,
        /// `day` or `month`.
        period: &'static str,
        /// Time until the next day or month begins.
        retry_after: Duration,
    },
}

impl Refusal {
    /// Time until a retry may succeed, in whole seconds, at least one. Exact for rates: the same
    /// request is then within them. An estimate for places, from the rate at which they become
    /// free. `None` if the request is never admitted.
    pub fn retry_after_s(&self) -> Option<u64> {
        let (retry_after, most) = match self {
            Self::Never { .. } => return None,
            Self::Requests { retry_after, .. }
            | Self::Tokens { retry_after, .. }
            | Self::TenantTokens { retry_after, .. }
            | Self::TenantRequests { retry_after, .. } => (retry_after, MAX_RETRY_AFTER_S),
            Self::RequestRate { retry_after, .. }
            | Self::TokenRate { retry_after, .. }
            | Self::Spent { retry_after, .. } => (retry_after, u64::MAX),
        };
        let whole = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        Some(whole.clamp(1, most))
    }
}

/// Maximum estimated `Retry-After`, in seconds: longer estimates are worthless.
const MAX_RETRY_AFTER_S: u64 = 600;
/// Assumed time between two ends until one is measured.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Weight of the newest interval between two ends: averages over about ten, since answers differ in
/// length.
const EWMA_WEIGHT: f64 = 0.1;

/// Counts the completions in flight and the prompt tokens in the queue, and keeps the tenants'
/// budgets.
#[derive(Debug, Clone)]
pub struct Admission {
    bounds: Bounds,
    inflight: usize,
    /// Prompt tokens in the queue.
    queue: SharedPool,
    tenants: HashMap<TenantId, TenantUse>,
    last_end: Option<Duration>,
    /// Mean time between two ends while there was work, in seconds.
    end_interval_s: f64,
}

/// Current use of a tenant; dropped when it is zero.
#[derive(Debug, Clone, Default)]
struct TenantUse {
    inflight: usize,
    requests: Option<MinuteBudget>,
    tokens: Option<MinuteBudget>,
}

/// Current level of a tenant's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLevel {
    /// Units per minute.
    pub limit: u32,
    /// Units that can be spent now.
    pub remaining: u64,
    /// Time until the budget is full.
    pub reset: Duration,
}

impl TenantUse {
    /// Applies `limits`, which a reloaded key file may have changed.
    fn follow(&mut self, limits: &TenantLimits, now: Duration) {
        follow(&mut self.requests, limits.requests_per_minute, now);
        follow(&mut self.tokens, limits.tokens_per_minute, now);
    }

    /// Returns true if the entry can be dropped without losing information.
    fn is_idle(&self, now: Duration) -> bool {
        let mut budgets = [&self.requests, &self.tokens].into_iter().flatten();
        self.inflight == 0 && budgets.all(|budget| budget.wait_until_full(now).is_zero())
    }

    /// # Errors
    /// The rate that the request exceeds; if both, the one with the longer wait.
    fn check_rates(&self, prompt_tokens: u64, now: Duration) -> Result<(), Refusal> {
        let wait = |budget: &Option<MinuteBudget>, units| {
            budget.as_ref().map_or(Duration::ZERO, |budget| budget.wait_for(units, now))
        };
        let (requests, tokens) = (wait(&self.requests, 1), wait(&self.tokens, prompt_tokens));
        let rate =
            |budget: &Option<MinuteBudget>| budget.as_ref().map_or(0, |one| one.per_minute());
        if requests.max(tokens).is_zero() {
            return Ok(());
        }
        Err(if requests >= tokens {
            Refusal::RequestRate { per_minute: rate(&self.requests), retry_after: requests }
        } else {
            Refusal::TokenRate { per_minute: rate(&self.tokens), retry_after: tokens }
        })
    }
}

fn follow(budget: &mut Option<MinuteBudget>, per_minute: Option<u32>, now: Duration) {
    match (per_minute, budget) {
        (None, budget) => *budget = None,
        (Some(rate), Some(budget)) if budget.per_minute() != rate.max(1) => {
            budget.set_per_minute(rate, now);
        }
        (Some(rate), budget) => {
            budget.get_or_insert_with(|| MinuteBudget::new(rate, now));
        }
    }
}

impl Admission {
    /// Creates an admission with nothing in flight.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            inflight: 0,
            queue: SharedPool::new(
                PoolKind::QueuedTokens,
                bounds.max_queued_tokens,
                Overflow::EqualParts,
            ),
            tenants: HashMap::new(),
            last_end: None,
            end_interval_s: FIRST_INTERVAL.as_secs_f64(),
        }
    }

    /// Admits a request at `now`, and charges its tenant's budgets. A refused request is charged
    /// nothing.
    ///
    /// # Errors
    /// The [`Refusal`] with the limit that the request would exceed. An idle server admits any
    /// request within its tenant's rates.
    pub fn enter(&mut self, demand: &Demand, now: Duration) -> Result<(), Refusal> {
        let Demand { tenant, limits, completions, prompt_tokens } = *demand;
        let mut used = self.tenants.remove(&tenant).unwrap_or_default();
        used.follow(&limits, now);
        let checked = used
            .check_rates(prompt_tokens, now)
            .and_then(|()| self.check_places(used.inflight, completions, &limits));
        if checked.is_ok() {
            self.inflight += completions;
            used.inflight += completions;
            if let Some(requests) = &mut used.requests {
                requests.spend(1, now);
            }
            if let Some(tokens) = &mut used.tokens {
                tokens.spend(prompt_tokens, now);
            }
        }
        self.keep(tenant, used, now);
        checked
    }

    /// Checks that the server has room for `completions` of any tenant.
    ///
    /// # Errors
    /// [`Refusal::Requests`] if not.
    pub fn check_room(&self, completions: usize) -> Result<(), Refusal> {
        let limit = self.bounds.max_inflight_requests;
        let wanted = self.inflight + completions;
        if self.inflight > 0 && wanted > limit {
            // One of those in flight has to end for each completion over the limit.
            let retry_after = self.estimate((wanted - limit) as f64);
            return Err(Refusal::Requests { limit, retry_after });
        }
        Ok(())
    }

    /// # Errors
    /// [`Refusal::TenantRequests`] or [`Refusal::Requests`] if there are too few places.
    fn check_places(
        &self,
        held: usize,
        completions: usize,
        limits: &TenantLimits,
    ) -> Result<(), Refusal> {
        self.check_room(completions)?;
        let after = self.inflight + completions;
        let free = self.bounds.max_inflight_requests.saturating_sub(after);
        let own = match limits.max_inflight.or(self.bounds.max_inflight_per_tenant) {
            Some(limit) if completions > limit => return Err(Refusal::Never { limit }),
            Some(limit) => limit,
            // Whoever has nothing may have one request, however few places there are.
            None if held == 0 => return Ok(()),
            None => FAIR_MULTIPLE.saturating_mul(free),
        };
        if held + completions > own {
            let over = (held + completions - own).min(held) as f64;
            // Of the ends, a part as large as the tenant's part of the places is its own.
            let retry_after = self.estimate(over * self.inflight as f64 / held as f64);
            return Err(Refusal::TenantRequests { inflight: held, retry_after });
        }
        Ok(())
    }

    /// Time in which `ends` completions end at the present rate.
    fn estimate(&self, ends: f64) -> Duration {
        Duration::from_secs_f64((ends * self.end_interval_s).min(MAX_RETRY_AFTER_S as f64))
    }

    /// Corrects the charge of `charged` tokens to `tenant`, to `actual` tokens.
    pub fn true_up(&mut self, tenant: TenantId, charged: u64, actual: u64, now: Duration) {
        let used = self.tenants.get_mut(&tenant);
        let Some(tokens) = used.and_then(|used| used.tokens.as_mut()) else { return };
        if actual >= charged {
            tokens.spend(actual - charged, now);
        } else {
            tokens.give_back(charged - actual, now);
        }
    }

    /// Levels of the budgets of `tenant`, for requests and for tokens.
    pub fn levels(
        &self,
        tenant: TenantId,
        limits: &TenantLimits,
        now: Duration,
    ) -> [Option<BudgetLevel>; 2] {
        let mut used = self.tenants.get(&tenant).cloned().unwrap_or_default();
        used.follow(limits, now);
        let level = |budget: MinuteBudget| BudgetLevel {
            limit: budget.per_minute(),
            remaining: budget.remaining(now),
            reset: budget.wait_until_full(now),
        };
        [used.requests.map(level), used.tokens.map(level)]
    }

    /// Puts the prompt of a completion of `tenant` into the queue.
    ///
    /// # Errors
    /// [`Refusal::TenantTokens`] if the tenant would have more than its share of the queue, or
    /// [`Refusal::Tokens`] if a tenant with nothing in it finds it full. An empty queue accepts any
    /// prompt.
    pub fn enqueue(&mut self, tenant: TenantId, prompt_tokens: usize) -> Result<(), Refusal> {
        let retry_after = self.estimate(self.inflight as f64);
        self.queue.take(tenant, prompt_tokens).map_err(|refusal| match refusal {
            ShareRefusal::Share { held: queued } => Refusal::TenantTokens { queued, retry_after },
            ShareRefusal::Full { limit } => Refusal::Tokens { limit, retry_after },
        })
    }

    /// Removes the prompt of a completion of `tenant` from the queue: it runs, or it was given up.
    pub fn dequeue(&mut self, tenant: TenantId, prompt_tokens: usize) {
        self.queue.give_back(tenant, prompt_tokens);
    }

    /// Counts the end of a completion of `tenant` at `now`, for whatever reason.
    pub fn leave(&mut self, tenant: TenantId, now: Duration) {
        debug_assert!(self.inflight > 0);
        self.inflight -= 1;
        if let Some(mut used) = self.tenants.remove(&tenant) {
            used.inflight -= 1;
            self.keep(tenant, used, now);
        }
        if let Some(last) = self.last_end {
            let interval_s = now.saturating_sub(last).as_secs_f64();
            self.end_interval_s += EWMA_WEIGHT * (interval_s - self.end_interval_s);
        }
        // The time until an idle server's next end is not a measure of its speed.
        self.last_end = (self.inflight > 0).then_some(now);
    }

    fn keep(&mut self, tenant: TenantId, used: TenantUse, now: Duration) {
        if !used.is_idle(now) {
            self.tenants.insert(tenant, used);
        }
    }

    /// Number of completions running or waiting.
    pub fn inflight(&self) -> usize {
        self.inflight
    }

    /// Number of completions of `tenant` running or waiting.
    pub fn inflight_of(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).map_or(0, |used| used.inflight)
    }
}

#[cfg(test)]
mod tests;
