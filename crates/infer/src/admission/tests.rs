//! Bounds hold, waits are exact, and no tenant takes places that others need.

use proptest::prelude::*;

use super::*;

const NS: Duration = Duration::from_nanos(1);
const LIMITS: TenantLimits =
    TenantLimits { max_inflight: None, requests_per_minute: None, tokens_per_minute: None };

fn admission(max_inflight_requests: usize) -> Admission {
    let max_inflight_per_tenant = None;
    Admission::new(Bounds {
        max_inflight_requests,
        max_inflight_per_tenant,
        max_queued_tokens: 100,
    })
}

/// Returns a demand for one completion of a tenant without limits of its own.
fn of(tenant: u64) -> Demand {
    Demand { tenant: TenantId(tenant), limits: LIMITS, completions: 1, prompt_tokens: 1 }
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Admits one completion of each of `tenants`.
fn fill(admission: &mut Admission, tenants: std::ops::Range<u64>) {
    tenants.for_each(|tenant| admission.enter(&of(tenant), Duration::ZERO).unwrap());
}

#[test]
fn refuses_beyond_the_bound_and_takes_again_after_an_end() {
    let mut admission = admission(4);
    fill(&mut admission, 0..4);
    let refused = admission.enter(&of(4), seconds(1));
    assert!(matches!(refused, Err(Refusal::Requests { limit: 4, .. })));
    admission.leave(TenantId(0), seconds(1));
    admission.enter(&of(4), seconds(1)).unwrap();
}

#[test]
fn retry_after_follows_the_rate_of_ends() {
    let mut admission = admission(4);
    fill(&mut admission, 0..4);
    for n in 0..200 {
        admission.leave(TenantId(n % 4), seconds(5 * n));
        admission.enter(&of(n % 4), seconds(5 * n)).unwrap();
    }
    let three = Demand { completions: 3, ..of(9) };
    assert_eq!(admission.enter(&of(9), seconds(1000)).unwrap_err().retry_after_s(), Some(5));
    assert_eq!(admission.enter(&three, seconds(1000)).unwrap_err().retry_after_s(), Some(15));
}

/// Puts a prompt of `tenant` into the queue.
fn enqueue(admission: &mut Admission, tenant: u64, tokens: usize) -> Result<(), Refusal> {
    admission.enqueue(TenantId(tenant), tokens)
}

#[test]
fn queued_tokens_are_bounded_but_never_deadlock() {
    let mut admission = admission(4);
    enqueue(&mut admission, 1, 1000).unwrap();
    let refused = enqueue(&mut admission, 1, 1);
    assert!(matches!(refused, Err(Refusal::TenantTokens { queued: 1000, .. })));
    assert!(matches!(enqueue(&mut admission, 2, 90), Err(Refusal::Tokens { limit: 100, .. })));
    admission.dequeue(TenantId(1), 1000);
    enqueue(&mut admission, 1, 60).unwrap();
    enqueue(&mut admission, 1, 15).unwrap();
    assert!(enqueue(&mut admission, 1, 1).is_err(), "a quarter stays free for others");
    enqueue(&mut admission, 2, 25).unwrap();
}

#[test]
fn a_tenant_that_fills_the_queue_keeps_no_other_out() {
    let bounds = Bounds {
        max_inflight_requests: 256,
        max_inflight_per_tenant: None,
        max_queued_tokens: 10_000,
    };
    let mut admission = Admission::new(bounds);
    // Long prompts first, then ever shorter ones, down to the last token that is taken.
    for tenant in 0..20 {
        for tokens in [4096, 512, 64, 8, 1] {
            while enqueue(&mut admission, tenant, tokens).is_ok() {}
        }
        assert!(enqueue(&mut admission, tenant, 1).is_err(), "tenant {tenant} has its part");
    }
    enqueue(&mut admission, 99, 100).expect("whoever has nothing in the queue gets in");
    assert!(admission.queue.held() <= 2 * bounds.max_queued_tokens);
    let refused = enqueue(&mut admission, 1, 1).unwrap_err();
    assert!(matches!(refused, Refusal::TenantTokens { .. }) && refused.retry_after_s() > Some(0));
}

/// Admits completions of `tenant` until one is refused, and returns the number in flight.
fn take_all(admission: &mut Admission, tenant: u64) -> usize {
    while admission.enter(&of(tenant), Duration::ZERO).is_ok() {}
    admission.inflight_of(TenantId(tenant))
}

#[test]
fn no_tenant_fills_the_server_alone() {
    let mut admission = admission(256);
    assert_eq!(take_all(&mut admission, 1), 192);
    assert_eq!(take_all(&mut admission, 2), 48);
    assert_eq!(take_all(&mut admission, 3), 12);
    assert!(admission.inflight() < 256);
}

#[test]
fn whoever_came_first_makes_room_as_its_requests_end() {
    let mut admission = admission(256);
    take_all(&mut admission, 1);
    for _ in 0..192 {
        admission.leave(TenantId(1), Duration::ZERO);
        take_all(&mut admission, 2);
        // It asks again at once, and gets nothing while it has more than its part.
        take_all(&mut admission, 1);
    }
    let held = [1, 2].map(|tenant| admission.inflight_of(TenantId(tenant)));
    assert!(held.iter().all(|held| (105..=113).contains(held)), "{held:?}");
    assert!(256 - admission.inflight() >= 36, "the next finds a place");
}

#[test]
fn a_small_server_still_takes_one_request_of_everybody() {
    let mut admission = admission(2);
    fill(&mut admission, 1..2);
    let refused = admission.enter(&of(1), Duration::ZERO);
    assert!(matches!(refused, Err(Refusal::TenantRequests { inflight: 1, .. })));
    fill(&mut admission, 2..3);
}

#[test]
fn a_keys_own_number_of_places_comes_before_the_servers() {
    let mut admission = admission(256);
    let limits = TenantLimits { max_inflight: Some(3), ..LIMITS };
    let mut demand = Demand { limits, ..of(1) };
    (0..3).for_each(|_| admission.enter(&demand, Duration::ZERO).unwrap());
    assert!(admission.enter(&demand, Duration::ZERO).is_err());
    let many = Demand { completions: 4, tenant: TenantId(2), ..demand };
    assert_eq!(admission.enter(&many, Duration::ZERO), Err(Refusal::Never { limit: 3 }));
    demand.limits.max_inflight = Some(200);
    (3..200).for_each(|_| admission.enter(&demand, Duration::ZERO).unwrap());
    assert!(admission.enter(&demand, Duration::ZERO).is_err());
}

fn with_rates(requests: Option<u32>, tokens: Option<u32>, prompt_tokens: u64) -> Demand {
    let limits =
        TenantLimits { requests_per_minute: requests, tokens_per_minute: tokens, ..LIMITS };
    Demand { limits, prompt_tokens, ..of(7) }
}

/// Enters and leaves at once: only the rates matter.
fn pass(admission: &mut Admission, demand: &Demand, now: Duration) -> Result<(), Refusal> {
    admission.enter(demand, now)?;
    admission.leave(demand.tenant, now);
    Ok(())
}

#[test]
fn requests_per_minute_are_counted_until_they_come_back() {
    let mut admission = admission(4);
    let demand = with_rates(Some(3), None, 1);
    (0..3).for_each(|_| pass(&mut admission, &demand, Duration::ZERO).unwrap());
    let refused = pass(&mut admission, &demand, seconds(5)).unwrap_err();
    assert_eq!(refused, Refusal::RequestRate { per_minute: 3, retry_after: seconds(15) });
    assert!(pass(&mut admission, &demand, seconds(20) - NS).is_err());
    pass(&mut admission, &demand, seconds(20)).unwrap();
    let [requests, tokens] = admission.levels(demand.tenant, &demand.limits, seconds(20));
    let empty = BudgetLevel { limit: 3, remaining: 0, reset: seconds(60) };
    assert_eq!((requests, tokens), (Some(empty), None));
}

#[test]
fn answers_that_cost_more_than_was_left_are_paid_back_first() {
    let mut admission = admission(4);
    let demand = with_rates(None, Some(600), 100);
    admission.enter(&demand, Duration::ZERO).unwrap();
    // The prompt was shorter than estimated, and the answer longer than the budget.
    admission.true_up(demand.tenant, 100, 50, Duration::ZERO);
    admission.true_up(demand.tenant, 0, 1150, Duration::ZERO);
    admission.leave(demand.tenant, Duration::ZERO);
    let refused = pass(&mut admission, &demand, Duration::ZERO).unwrap_err();
    assert_eq!(refused, Refusal::TokenRate { per_minute: 600, retry_after: seconds(70) });
}

#[test]
fn a_refused_request_spends_nothing() {
    let mut admission = admission(4);
    let demand = with_rates(Some(1), Some(60), 60);
    pass(&mut admission, &demand, Duration::ZERO).unwrap();
    for second in 0..60 {
        assert!(pass(&mut admission, &demand, seconds(second)).is_err());
    }
    pass(&mut admission, &demand, seconds(60)).unwrap();
}

#[test]
fn tenants_that_use_nothing_are_forgotten() {
    let mut admission = admission(4);
    for tenant in 0..1000 {
        admission.enter(&of(tenant), Duration::ZERO).unwrap();
        admission.leave(TenantId(tenant), Duration::ZERO);
    }
    assert!(admission.tenants.is_empty());
}

proptest! {
    /// After `Retry-After` the same request is admitted; a nanosecond earlier it is not.
    #[test]
    fn retry_after_is_true(
        requests in 1u32..100,
        tokens in 1u32..10_000,
        past in prop::collection::vec((1u64..5000, 0u64..3000, 0u64..20_000_000_000), 1..30),
        prompt_tokens in 1u64..20_000,
    ) {
        let mut admission = admission(1000);
        let mut now = Duration::ZERO;
        for (prompt, answer, pause_ns) in past {
            let demand = with_rates(Some(requests), Some(tokens), prompt);
            if pass(&mut admission, &demand, now).is_ok() {
                admission.true_up(demand.tenant, 0, answer, now);
            }
            now += Duration::from_nanos(pause_ns);
        }
        let demand = with_rates(Some(requests), Some(tokens), prompt_tokens);
        let refusal = match pass(&mut admission.clone(), &demand, now) {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        let (Refusal::RequestRate { retry_after, .. } | Refusal::TokenRate { retry_after, .. }) =
            refusal
        else {
            panic!("{refusal:?}");
        };
        prop_assert!(pass(&mut admission.clone(), &demand, now + retry_after - NS).is_err());
        let told = Duration::from_secs(refusal.retry_after_s().unwrap());
        prop_assert!(told >= retry_after && told < retry_after.max(NS) + seconds(1));
        prop_assert!(pass(&mut admission, &demand, now + told).is_ok());
    }
}
