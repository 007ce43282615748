//! Admission: one permit per completion, returned however the completion ends.

use std::sync::Arc;

use loquent_infer::admission::{Admission, Bounds, BudgetLevel, Demand, Refusal};
use loquent_openai::chunk::ReportedUsage;

use crate::clock::{Clock, unix_time_s};
use crate::error::{ApiError, LimitedRate};
use crate::identity::Identity;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Counts the admitted completions that have not reached the engine because their prompts are being
/// tokenized. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct PendingPrompts(Arc<AtomicUsize>);

impl PendingPrompts {
    /// Returns true if the engine should expect more work soon.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Issues permits. Its lock is taken per completion, never per token.
#[derive(Debug, Clone)]
pub struct AdmissionGate {
    admission: Arc<Mutex<Admission>>,
    clock: Clock,
    pending: PendingPrompts,
    /// Admitted completions that wait for a place in the batch, without those of batches.
    waiting: Arc<AtomicUsize>,
}

/// Maximum completions of one line of a batch.
const MAX_SPARE_COMPLETIONS: usize = 4;

impl AdmissionGate {
    /// Creates a gate without issued permits, which counts admitted prompts in `pending`.
    pub fn new(bounds: Bounds, clock: Clock, pending: PendingPrompts) -> Self {
        let admission = Arc::new(Mutex::new(Admission::new(bounds)));
        Self { admission, clock, pending, waiting: Arc::default() }
    }

    /// Returns the same gate for the requests of another engine, which waits for the prompts in
    /// `pending`.
    pub fn counting_in(&self, pending: PendingPrompts) -> Self {
        Self { pending, ..self.clone() }
    }

    /// Returns permits for all `completions` of a request from `identity`, or for none of them. The
    /// prompts have about `prompt_tokens`.
    ///
    /// # Errors
    /// The [`Refusal`] that names the limit the request would exceed.
    pub fn enter(
        &self,
        identity: &Identity,
        completions: usize,
        prompt_tokens: u64,
    ) -> Result<Vec<Permit>, Refusal> {
        // Whoever has spent a budget takes no place.
        let admitted = identity
            .check_budgets(unix_time_s())
            .and_then(|()| self.check_places(identity, completions, prompt_tokens));
        if let Err(refusal) = admitted {
            identity.count(|usage| &usage.refused, 1);
            tracing::debug!(key = identity.name(), %refusal, "refused a request");
            return Err(refusal);
        }
        if identity.counted_before.is_none() {
            identity.count(|usage| &usage.requests, 1);
        }
        identity.count(|usage| &usage.in_flight, completions as u64);
        identity.count(|usage| &usage.waiting, completions as u64);
        self.pending.0.fetch_add(completions, Ordering::Relaxed);
        if !identity.is_spare {
            self.waiting.fetch_add(completions, Ordering::Relaxed);
        }
        let permit = |index| Permit {
            gate: self.clone(),
            identity: identity.clone(),
            // The first one answers for the whole estimate.
            estimated_tokens: if index == 0 { prompt_tokens } else { 0 },
            generated_tokens: 0,
            has_prompt: false,
            queued_tokens: 0,
            is_pending: true,
            is_waiting: true,
        };
        Ok((0..completions).map(permit).collect())
    }

    /// # Errors
    /// The [`Refusal`] that names the limit the request would exceed.
    fn check_places(
        &self,
        identity: &Identity,
        completions: usize,
        prompt_tokens: u64,
    ) -> Result<(), Refusal> {
        let Identity { tenant, limits, .. } = *identity;
        if identity.is_spare {
            // It takes no place that another request could be refused for.
            let limit = MAX_SPARE_COMPLETIONS;
            return if completions > limit { Err(Refusal::Never { limit }) } else { Ok(()) };
        }
        let demand = Demand { tenant, limits, completions, prompt_tokens };
        let now = self.clock.now();
        self.with(|admission| admission.enter(&demand, now))
    }

    /// Returns the number of completions that wait for a place in the batch, without those of
    /// batches.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the remaining request and token budgets of `identity`.
    pub fn levels(&self, identity: &Identity) -> [Option<BudgetLevel>; 2] {
        let now = self.clock.now();
        self.with(|admission| admission.levels(identity.tenant, &identity.limits, now))
    }

    /// Charges `identity` for `actual` tokens in place of those `charged` before.
    fn true_up(&self, identity: &Identity, charged: u64, actual: u64) {
        let now = self.clock.now();
        self.with(|admission| admission.true_up(identity.tenant, charged, actual, now));
    }

    /// Checks that one more completion would be admitted now.
    ///
    /// # Errors
    /// [`Refusal::Requests`] when too many are in flight.
    pub fn check_room(&self) -> Result<(), Refusal> {
        self.with(|admission| admission.check_room(1))
    }

    /// Returns the number of completions running or waiting, without those of batches.
    pub fn in_flight(&self) -> usize {
        self.with(|admission| admission.inflight())
    }

    fn with<T>(&self, act: impl FnOnce(&mut Admission) -> T) -> T {
        act(&mut self.admission.lock().expect("admission does not panic"))
    }
}

/// Admits one completion until dropped.
#[derive(Debug)]
pub struct Permit {
    gate: AdmissionGate,
    identity: Identity,
    /// Prompt tokens charged to the tenant by estimate.
    estimated_tokens: u64,
    /// Tokens of the answer, charged to the tenant at the end.
    generated_tokens: u64,
    /// True if the prompt was charged to it, and not to another completion of the same prompt.
    has_prompt: bool,
    queued_tokens: usize,
    /// True while it is counted in the gate's [`PendingPrompts`].
    is_pending: bool,
    /// True while it is counted as waiting for its identity.
    is_waiting: bool,
}

impl Permit {
    /// Records that the completion has reached the engine: its prompt is no longer pending.
    pub fn arrive(&mut self) {
        if std::mem::take(&mut self.is_pending) {
            self.gate.pending.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Charges the tenant for a prompt of `tokens`, in place of the estimate.
    pub fn charge_prompt(&mut self, tokens: u64) {
        let estimated = std::mem::take(&mut self.estimated_tokens);
        self.has_prompt = self.identity.counted_before.is_none();
        let tokens = if self.has_prompt { tokens } else { 0 };
        self.gate.true_up(&self.identity, estimated, tokens);
        self.identity.count(|usage| &usage.prompt_tokens, tokens);
    }

    /// Counts the prompt tokens that came from the prefix cache.
    pub fn count_cached(&self, tokens: u64) {
        // Completions of one prompt share it, and it counts once.
        if self.has_prompt {
            self.identity.count(|usage| &usage.cached_tokens, tokens);
        }
    }

    /// Charges the estimate for a prompt that was computed and whose length stays unknown.
    pub fn charge_estimated_prompt(&mut self) {
        self.charge_prompt(self.estimated_tokens);
    }

    /// Counts tokens of the answer at once: what its replica has counted is counted though it is
    /// killed. They are charged when the permit is returned, so that no lock is taken per token.
    pub fn count_generated(&mut self, tokens: u64) {
        let fresh = self.identity.fresh(tokens);
        self.generated_tokens += fresh;
        self.identity.count(|usage| &usage.generated_tokens, fresh);
    }

    /// Returns an account that charges the tenant for the counts of an upstream server, whether or
    /// not the permit is still held then.
    pub fn account(&self) -> TokenAccount {
        let (gate, identity) = (self.gate.clone(), self.identity.clone());
        TokenAccount { gate, identity, estimated_tokens: self.estimated_tokens }
    }

    /// Adds the prompt to the queue, as [`enqueue_all`] does.
    ///
    /// # Errors
    /// As [`enqueue_all`].
    pub fn enqueue(&mut self, prompt_tokens: usize) -> Result<(), Refusal> {
        enqueue_all(std::slice::from_mut(self), &[prompt_tokens])
    }

    /// Removes the prompt from the queue: the completion no longer waits.
    pub fn dequeue(&mut self) {
        let tokens = std::mem::take(&mut self.queued_tokens);
        if tokens > 0 && !self.identity.is_spare {
            let tenant = self.identity.tenant;
            self.gate.with(|admission| admission.dequeue(tenant, tokens));
        }
        self.begin();
    }

    /// Records that the completion no longer waits.
    pub fn begin(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.identity.uncount(|usage| &usage.waiting, 1);
            if !self.identity.is_spare {
                self.gate.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Adds the prompts of one request to the queue: all of them, or none. `prompt_tokens` has one
/// number for each of its permits, 0 for those whose prompt another of them answers for.
///
/// # Errors
/// [`Refusal::TenantTokens`] when the tenant's part of the queue is full, or [`Refusal::Tokens`]
/// when all of it is. An empty queue accepts any request: one that was refused there could never be
/// admitted.
pub fn enqueue_all(permits: &mut [Permit], prompt_tokens: &[usize]) -> Result<(), Refusal> {
    debug_assert_eq!(permits.len(), prompt_tokens.len(), "each permit has its tokens");
    let Some(Permit { gate, identity, .. }) = permits.first() else { return Ok(()) };
    if !identity.is_spare {
        let all: usize = prompt_tokens.iter().sum();
        gate.with(|admission| admission.enqueue(identity.tenant, all))?;
    }
    for (permit, &tokens) in permits.iter_mut().zip(prompt_tokens) {
        permit.queued_tokens = tokens;
    }
    Ok(())
}

/// Charges a request's tenant once its token counts are known.
#[derive(Debug)]
pub struct TokenAccount {
    gate: AdmissionGate,
    identity: Identity,
    estimated_tokens: u64,
}

impl TokenAccount {
    /// Charges for the prompt that `counts` has, by estimate without them, and an answer of
    /// `generated` tokens.
    pub fn charge(&self, counts: Option<&ReportedUsage>, generated: u64) {
        let prompt = counts.map_or(self.estimated_tokens, |counts| counts.prompt_tokens);
        let cached = counts.map_or(0, |counts| counts.cached_tokens.min(prompt));
        self.identity.count(|usage| &usage.prompt_tokens, prompt);
        self.identity.count(|usage| &usage.cached_tokens, cached);
        self.identity.count(|usage| &usage.generated_tokens, generated);
        self.gate.true_up(&self.identity, 0, prompt.saturating_add(generated));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.dequeue();
        self.arrive();
        let now = self.gate.clock.now();
        let Self { identity, estimated_tokens, generated_tokens, .. } = self;
        identity.uncount(|usage| &usage.in_flight, 1);
        // It was never counted there.
        if identity.is_spare {
            return;
        }
        self.gate.with(|admission| {
            // An estimate is still there only if the prompt was never computed.
            admission.true_up(identity.tenant, *estimated_tokens, *generated_tokens, now);
            admission.leave(identity.tenant, now);
        });
    }
}

/// Returns the error for a request that admission refuses.
pub fn refused(refusal: Refusal) -> ApiError {
    let Some(retry_after_s) = refusal.retry_after_s() else {
        return ApiError::invalid_param("n", format!("Ask for fewer completions: {refusal}."));
    };
    let again = format!("Please try again in {retry_after_s}s.");
    let rate = match refusal {
        Refusal::TokenRate { .. } => LimitedRate::Tokens,
        Refusal::RequestRate { .. } => LimitedRate::Requests,
        Refusal::TenantRequests { .. } | Refusal::TenantTokens { .. } => {
            let message = format!("Too many requests at once: {refusal}. {again}");
            return ApiError::rate_limited(message, LimitedRate::Requests, retry_after_s);
        }
        Refusal::Spent { .. } => {
            let message = format!("You exceeded your quota: {refusal}.");
            return ApiError::rate_limited(message, LimitedRate::Quota, retry_after_s);
        }
        // The server's own limits.
        _ => {
            let message = format!("The server is busy: {refusal}. Try again later.");
            return ApiError::overloaded(message, retry_after_s);
        }
    };
    let message = format!("Rate limit reached for this API key: {refusal}. {again}");
    ApiError::rate_limited(message, rate, retry_after_s)
}

#[cfg(test)]
mod tests {
    //! An admitted request counts as pending until it reaches the engine or is given up.
    use super::*;
    use crate::identity::{ApiKey, CountedBefore};
    use crate::usage::UsageCounts;

    /// Creates a gate for `max_inflight_requests`, with room for 100 tokens in its queue.
    fn gate_of(max_inflight_requests: usize) -> AdmissionGate {
        let bounds =
            Bounds { max_inflight_requests, max_inflight_per_tenant: None, max_queued_tokens: 100 };
        AdmissionGate::new(bounds, Clock::start(), PendingPrompts::default())
    }

    #[test]
    fn a_prompt_is_pending_until_it_arrives_or_its_permit_is_dropped() {
        let bounds = Bounds {
            max_inflight_requests: 2,
            max_inflight_per_tenant: None,
            max_queued_tokens: 100,
        };
        let caller = Identity::in_process();
        let pending = PendingPrompts::default();
        let gate = AdmissionGate::new(bounds, Clock::start(), pending.clone());
        assert!(!pending.any());
        let mut permits = gate.enter(&caller, 2, 1).unwrap();
        assert!(gate.enter(&caller, 1, 1).is_err() && pending.any());
        permits[0].arrive();
        permits[0].arrive();
        assert!(pending.any(), "the other prompt is still being tokenized");
        drop(permits);
        assert!(!pending.any());
        assert_eq!(gate.in_flight(), 0);
    }

    #[test]
    fn a_line_of_a_batch_takes_no_place_and_no_part_of_the_queue() {
        let bounds = Bounds {
            max_inflight_requests: 1,
            max_inflight_per_tenant: None,
            max_queued_tokens: 10,
        };
        let gate = AdmissionGate::new(bounds, Clock::start(), PendingPrompts::default());
        let caller = Identity::of_address([192, 0, 2, 1].into());
        let mut lines = gate.enter(&caller.of_batches(), 4, 100).unwrap();
        assert!(lines.iter_mut().all(|line| line.enqueue(100).is_ok()));
        assert_eq!((gate.in_flight(), gate.waiting()), (0, 0));
        let mut others = gate.enter(&caller, 1, 10).expect("all places are free");
        others[0].enqueue(10).expect("the whole queue is free");
        assert_eq!((gate.in_flight(), gate.waiting()), (1, 1));
        others[0].dequeue();
        assert_eq!(gate.waiting(), 0, "it has begun");
        drop((lines, others));
        assert_eq!((gate.in_flight(), gate.waiting()), (0, 0));
        assert!(gate.enter(&caller.of_batches(), 5, 1).is_err(), "a line is bounded too");
    }

    #[test]
    fn the_prompts_of_a_request_are_queued_together_and_a_refused_one_is_not_charged() {
        let gate = gate_of(64);
        let mut caller = Identity::of_address([192, 0, 2, 1].into());
        caller.limits.tokens_per_minute = Some(1000);
        let left = || gate.levels(&caller)[1].unwrap().remaining;
        // One by one the second or the third prompt would be refused, whenever it is tried.
        let mut permits = gate.enter(&caller, 8, 320).unwrap();
        enqueue_all(&mut permits, &[40; 8]).expect("the queue is empty");
        drop(permits);
        // Those of one prompt share it.
        let mut permits = gate.enter(&caller, 8, 40).unwrap();
        enqueue_all(&mut permits, &[40, 0, 0, 0, 0, 0, 0, 0]).expect("the queue is empty");
        permits[1].dequeue();
        assert_eq!(gate.waiting(), 7, "it has begun");
        let before = left();
        let mut more = gate.enter(&caller, 2, 40).unwrap();
        assert!(enqueue_all(&mut more, &[20, 20]).is_err(), "others need the rest");
        drop(more);
        assert!((before..before + 100).contains(&left()), "{} of {before}", left());
        let mut more = gate.enter(&caller, 2, 20).unwrap();
        enqueue_all(&mut more, &[20, 0]).expect("the refused ones hold nothing");
    }

    #[test]
    fn a_tenant_is_charged_for_what_was_computed() {
        let gate = gate_of(8);
        let mut caller = Identity::of_address([192, 0, 2, 1].into());
        // A budget that does not fill noticeably while the test runs.
        caller.limits.tokens_per_minute = Some(1000);
        let left = || gate.levels(&caller)[1].unwrap().remaining;
        let near = |wanted: u64| (wanted..wanted + 100).contains(&left());
        let mut permits = gate.enter(&caller, 2, 400).unwrap();
        assert!(near(600), "{} by estimate", left());
        permits[0].charge_prompt(200);
        assert!(near(800), "{} after tokenizing", left());
        permits[1].count_generated(300);
        drop(permits);
        assert!(near(500), "{} after the answer", left());
        drop(gate.enter(&caller, 1, 400).unwrap());
        assert!(near(500), "{}: a request that was not computed is charged", left());
    }

    #[test]
    fn a_request_that_is_begun_again_counts_only_what_no_other_replica_has_counted() {
        let gate = gate_of(8);
        let key = Arc::new(ApiKey::unnamed("secret"));
        let counts = || key.usage.counts();
        let first = Identity::of_key(key.clone());
        let again = Identity { counted_before: Some(CountedBefore::new(30)), ..first.clone() };
        for (caller, wanted) in [(&first, 40), (&again, 50)] {
            let mut permits = gate.enter(caller, 2, 400).unwrap();
            permits[0].charge_prompt(200);
            permits[0].count_cached(100);
            // Which of them the other replica has counted makes no difference.
            permits.iter_mut().for_each(|permit| permit.count_generated(20));
            let UsageCounts { requests, prompt_tokens, cached_tokens, completion_tokens } =
                counts();
            assert_eq!((requests, prompt_tokens, cached_tokens), (1, 200, 100));
            assert_eq!(completion_tokens, wanted, "before the permit is returned");
            drop(permits);
            assert_eq!(counts().completion_tokens, wanted);
        }
    }
}

#[cfg(all(test, loquent_loom))]
mod interleavings {
    //! Permits that are taken, used and dropped by several threads, in every order.
    use super::*;
    use crate::sync::thread;
    use loquent_needs::interleavings::explore;

    /// Where in its life a permit is dropped.
    #[derive(Clone, Copy)]
    enum Until {
        Admitted,
        Queued,
        Begun,
    }

    /// Takes a permit and drops it; false if there was none.
    fn pass(gate: &AdmissionGate, until: Until) -> bool {
        let Ok(mut permits) = gate.enter(&Identity::in_process(), 1, 1) else { return false };
        let permit = &mut permits[0];
        if !matches!(until, Until::Admitted) {
            permit.arrive();
            permit.enqueue(10).expect("the queue has room for all");
        }
        if matches!(until, Until::Begun) {
            permit.dequeue();
        }
        true
    }

    #[test]
    fn a_permit_comes_back_once_wherever_its_request_ends() {
        explore("permits of three requests at two places", || {
            let bounds = Bounds {
                max_inflight_requests: 2,
                max_inflight_per_tenant: None,
                max_queued_tokens: 40,
            };
            let pending = PendingPrompts::default();
            let gate = AdmissionGate::new(bounds, Clock::start(), pending.clone());
            let others = [Until::Admitted, Until::Queued].map(|until| {
                let gate = gate.clone();
                thread::spawn(move || pass(&gate, until))
            });
            let own = pass(&gate, Until::Begun);
            let others = others.map(|other| other.join().unwrap());
            assert!(
                others.into_iter().filter(|&admitted| admitted).count() + usize::from(own) >= 2
            );
            assert_eq!((gate.in_flight(), gate.waiting(), pending.any()), (0, 0, false));
            let mut all = gate.enter(&Identity::in_process(), 2, 1).expect("all places are free");
            // All that one tenant may have of the queue.
            assert!(all[0].enqueue(30).is_ok(), "the queue is empty");
        });
    }
}
