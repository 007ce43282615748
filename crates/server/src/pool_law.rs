//! The law of all pools: whatever one greedy tenant takes, an honest one gets its share at once.

use std::time::Duration;

use loquent_infer::admission::Bounds;
use loquent_infer::share::PoolKind;
use loquent_infer::turns::{JobKind, Turns};

use loquent_resumable::{MUTE_LIMIT, ResumableAnswers, ResumableLimits};
use loquent_serving::admission::{AdmissionGate, PendingPrompts};
use loquent_serving::clock::Clock;
use loquent_serving::entropy::Entropy;
use loquent_serving::identity::Identity;
use loquent_serving::identity::token::{TokenMint, TokenWish};
use loquent_serving::memory::{MemoryCharge, RequestMemory, SMALL_BYTES};
use loquent_serving::metrics::Metrics;
use loquent_serving::obfuscation::ObfuscationDefault;

const GREEDY: u8 = 1;
const HONEST: u8 = 2;
/// More than any pool of this test has.
const MANY: usize = 100_000;

fn identity(host: u8) -> Identity {
    Identity::of_address([10, 0, 0, host].into())
}

/// Lets the greedy tenant take from a pool until it gets no more, and returns true if the honest
/// one then gets something at once. The match has a row for each kind of pool.
async fn honest_gets_its_share(kind: PoolKind) -> bool {
    match kind {
        PoolKind::QueuedTokens => queued_tokens(),
        PoolKind::WaitingPrompts => waiting_prompts(),
        PoolKind::SmallBodies => bodies(SMALL_BYTES - 1).await,
        PoolKind::LargeBodies => bodies(SMALL_BYTES + 1).await,
        PoolKind::KeptAnswers => kept_answers(),
        PoolKind::CountedTokens => counted_tokens(),
    }
}

fn queued_tokens() -> bool {
    let bounds = Bounds {
        max_inflight_requests: MANY,
        max_inflight_per_tenant: None,
        max_queued_tokens: 1000,
    };
    let gate = AdmissionGate::new(bounds, Clock::start(), PendingPrompts::default());
    let mut held = Vec::new();
    let mut enqueue = |host, tokens| {
        let mut permits = gate.enter(&identity(host), 1, 1).expect("there are places");
        let queued = permits.iter_mut().all(|permit| permit.enqueue(tokens).is_ok());
        held.push(permits);
        queued
    };
    for tokens in [300, 10, 1] {
        assert!((0..MANY).any(|_| !enqueue(GREEDY, tokens)), "the pool is bounded");
    }
    enqueue(HONEST, 2)
}

fn waiting_prompts() -> bool {
    let mut turns = Turns::new(2, 1000);
    let mut push = |host| turns.push(identity(host).scheduled(), JobKind::Long, host).is_ok();
    assert!((0..MANY).any(|_| !push(GREEDY)), "the pool is bounded");
    let (_running, _) = turns.take().expect("a job waits");
    let pushed = turns.push(identity(HONEST).scheduled(), JobKind::Short, HONEST).is_ok();
    pushed && turns.take().is_some_and(|(_, host)| host == HONEST)
}

async fn bodies(bytes: usize) -> bool {
    let memory = RequestMemory::new(16 << 20);
    let mut held = Vec::new();
    loop {
        let mut charge = MemoryCharge::of(&identity(GREEDY));
        if memory.take(&mut charge, bytes).await.is_err() {
            break;
        }
        held.push(charge);
        assert!(held.len() < MANY, "the pool is bounded");
    }
    let mut honest = MemoryCharge::of(&identity(HONEST));
    let taken = tokio::time::timeout(Duration::ZERO, memory.take(&mut honest, bytes)).await;
    taken.is_ok_and(|taken| taken.is_ok())
}

fn kept_answers() -> bool {
    let limits = ResumableLimits {
        log_bytes: 64 * 1024,
        unacked_bytes: 1024,
        kept_bytes: 8 << 20,
        answers_per_key: MANY,
        grace: Duration::ZERO,
        stall_limit: Duration::ZERO,
        mute_limit: MUTE_LIMIT,
        token_time: None,
    };
    let (clock, metrics) = (Clock::start(), std::sync::Arc::new(Metrics::new()));
    let (padding, entropy) = (ObfuscationDefault::default(), Entropy::system());
    let answers = ResumableAnswers::new(limits, padding, clock, metrics, entropy);
    let mut held = Vec::new();
    while let Ok(reservation) = answers.reserve(identity(GREEDY).tenant, 0) {
        held.push(reservation);
        assert!(held.len() < MANY, "the pool is bounded");
    }
    answers.reserve(identity(HONEST).tenant, 0).is_ok()
}

fn counted_tokens() -> bool {
    let mint = TokenMint::default();
    let wish = TokenWish { life: Duration::from_secs(60), max_requests: Some(1), reader: None };
    let count = |host: u8| {
        let made = mint.mint(&[host; 32], &wish, 1000);
        let token = mint.read(made.text.as_bytes()).expect("its own");
        mint.count(&token, 1000).is_ok()
    };
    assert!((0..MANY).any(|_| !count(GREEDY)), "the pool is bounded");
    count(HONEST)
}

#[tokio::test(start_paused = true)]
async fn a_greedy_tenant_leaves_an_honest_one_its_share_of_every_pool() {
    for kind in [
        PoolKind::QueuedTokens,
        PoolKind::WaitingPrompts,
        PoolKind::SmallBodies,
        PoolKind::LargeBodies,
        PoolKind::KeptAnswers,
        PoolKind::CountedTokens,
    ] {
        assert!(honest_gets_its_share(kind).await, "{kind:?}");
    }
}
