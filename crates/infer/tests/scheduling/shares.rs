//! Tenants: each gets its share of places and tokens by weight, at once and in the long run.

use std::collections::BTreeMap;

use loquent_infer::request::Work;
use loquent_infer::token::TokenId;
use proptest::prelude::*;

use super::toy::*;

const CONTEXT: usize = 400;

/// Requests of one tenant, with prompts unlike any other's.
#[derive(Clone)]
struct Client {
    tenant: u64,
    weight: u32,
    prompt_tokens: u32,
    max_tokens: u32,
}

impl Client {
    fn work(&self, tag: u64) -> Work {
        let scatter = |n: u32| 3 + ((tag as u32 + 1) * 7919 + n * n * 31 + n) % 9973;
        let prompt: Vec<TokenId> = (0..self.prompt_tokens).map(scatter).collect();
        work_of(self.tenant, self.weight, work(tag, prompt, self.max_tokens))
    }
}

/// Clients that keep so many requests under way each, and what they were served.
struct Crowd {
    bench: Bench,
    clients: Vec<(Client, usize)>,
    /// By tag: the client.
    owner: BTreeMap<u64, usize>,
    next_tag: u64,
}

impl Crowd {
    fn new(places: usize, clients: Vec<(Client, usize)>) -> Self {
        let runner = ToyRunner::new(2 * places as u16 + 12, 40_000, CONTEXT as u32);
        let bench = Bench::new(runner, limits(places));
        Self { bench, clients, owner: BTreeMap::new(), next_tag: 0 }
    }

    fn submit(&mut self, client: usize) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.owner.insert(tag, client);
        self.bench.submit(&self.clients[client].0.work(tag));
        tag
    }

    /// One step, before which every client has its number of requests under way.
    fn step(&mut self) {
        for client in 0..self.clients.len() {
            let live = self.bench.live.iter().filter(|tag| self.owner[tag] == client).count();
            (live..self.clients[client].1).for_each(|_| _ = self.submit(client));
        }
        self.bench.step();
    }

    /// Tokens of prompts and answers computed for each client so far.
    fn served(&self) -> Vec<f64> {
        let mut served = vec![0.0; self.clients.len()];
        for (tag, tokens) in &self.bench.generated {
            let client = self.owner[tag];
            served[client] += f64::from(self.clients[client].0.prompt_tokens) + tokens.len() as f64;
        }
        served
    }

    /// Steps from a request of `client` to its first token.
    fn steps_to_first_token(&mut self, client: usize) -> usize {
        let tag = self.submit(client);
        let steps = (1..).find(|_| {
            self.step();
            self.bench.generated.contains_key(&tag)
        });
        self.bench.cancel(tag);
        steps.unwrap()
    }
}

#[test]
fn a_tenant_with_64_answers_doubles_anothers_time_to_first_token_at_most() {
    let flood = Client { tenant: 1, weight: 1, prompt_tokens: 30, max_tokens: 300 };
    let alone = Crowd::new(16, vec![(flood.clone(), 0)]);
    let beside = Crowd::new(16, vec![(flood, 64)]);
    let p99 = |mut crowd: Crowd| {
        let mut steps = Vec::new();
        for i in 0..100u32 {
            let prompt_tokens = 1 + i * 37 % 120;
            let client = Client { tenant: 2, weight: 1, prompt_tokens, max_tokens: 20 };
            crowd.clients.truncate(1);
            crowd.clients.push((client, 0));
            (0..1 + i % 7).for_each(|_| crowd.step());
            steps.push(crowd.steps_to_first_token(1));
        }
        steps.sort_unstable();
        steps[98]
    };
    let (alone, beside) = (p99(alone), p99(beside));
    println!("time to first token, p99 in steps: {alone} alone, {beside} beside 64 answers");
    assert!(beside <= 2 * alone, "{beside} steps, alone {alone}");
}

#[test]
fn a_tenant_below_its_share_has_a_place_in_the_next_step() {
    let flood = Client { tenant: 1, weight: 1, prompt_tokens: 30, max_tokens: 300 };
    let other = Client { tenant: 2, weight: 1, prompt_tokens: 5, max_tokens: 30 };
    for steps in 1..30 {
        let mut crowd = Crowd::new(4, vec![(flood.clone(), 64), (other.clone(), 0)]);
        (0..steps).for_each(|_| crowd.step());
        assert!(crowd.bench.scheduler.load().waiting > 16, "the batch is full");
        assert_eq!(crowd.steps_to_first_token(1), 1, "after {steps} steps of the others");
    }
}

#[test]
fn tokens_are_shared_by_weight() {
    for (prompt_tokens, max_tokens) in [(5, 300), (40, 10)] {
        let client =
            |weight: u32| Client { tenant: weight.into(), weight, prompt_tokens, max_tokens };
        let crowd = [1, 2, 4].map(|weight| (client(weight), 30));
        let mut crowd = Crowd::new(16, crowd.to_vec());
        (0..4000).for_each(|_| crowd.step());
        let served = crowd.served();
        let part = served.iter().sum::<f64>() / 7.0;
        println!("served {served:?}, displaced {}", crowd.bench.scheduler.load().displacements);
        for (served, weight) in served.into_iter().zip([1.0, 2.0, 4.0]) {
            let error = served / (part * weight) - 1.0;
            assert!(error.abs() <= 0.05, "weight {weight}: {:.1} %", 100.0 * error);
        }
    }
}

#[test]
fn more_tenants_than_places_take_turns() {
    let client = |tenant| Client { tenant, weight: 1, prompt_tokens: 8, max_tokens: 300 };
    let mut crowd = Crowd::new(2, (0..7).map(|tenant| (client(tenant), 2)).collect());
    (0..6000).for_each(|_| crowd.step());
    let served = crowd.served();
    let part = served.iter().sum::<f64>() / 7.0;
    for one in &served {
        assert!((one / part - 1.0).abs() <= 0.15, "{served:?}");
    }
}

#[test]
fn a_place_does_not_swing_to_and_fro() {
    // Answers that do not end, in one place for two, of which one weighs four times the other.
    let mut runner = ToyRunner::new(4, 2000, CONTEXT as u32);
    runner.memory = 1;
    let mut bench = Bench::new(runner, limits(1));
    let answer = |tag: u64| circling(tag, 8, 350, CONTEXT);
    let works = [work_of(1, 1, answer(0)), work_of(2, 4, answer(1))];
    works.iter().for_each(|work| bench.submit(work));
    bench.run();
    for work in &works {
        let text = alone_with(work, CONTEXT, 1).0;
        assert_eq!(bench.generated[&work.tag.0], text, "the same text");
    }
    let load = bench.scheduler.load();
    assert!((2..12).contains(&load.displacements), "{}", load.displacements);
    assert_eq!(load.prefix_queries, 16, "what was put back kept its KV");
}

#[test]
fn a_lone_tenant_is_never_displaced_and_keeps_its_order() {
    let mut bench = Bench::new(ToyRunner::new(8, 4000, 400), limits(2));
    for tag in 0..20 {
        bench.submit(&Client { tenant: 9, weight: 3, prompt_tokens: 20, max_tokens: 40 }.work(tag));
    }
    bench.run();
    assert_eq!(bench.scheduler.load().displacements, 0);
    let mut entered: Vec<_> = bench.admitted.iter().map(|(tag, at)| (at.at, *tag)).collect();
    entered.sort_unstable();
    assert!(entered.windows(2).all(|pair| pair[0].1 < pair[1].1), "{entered:?}");
}

#[test]
fn of_one_tenant_the_lowest_priority_is_preempted_first() {
    // Two answers of 60 tokens outgrow 96 cells. The second is more urgent.
    let mut runner = ToyRunner::new(4, 96, 96);
    runner.memory = 1;
    let mut bench = Bench::new(runner, limits(2));
    let long = |tag, priority| Work { priority, ..circling(tag, 8, 60, 96) };
    let works = [long(0, 5), long(1, 0)];
    works.iter().for_each(|work| bench.submit(work));
    while bench.scheduler.load().preemptions == 0 {
        bench.step();
    }
    let urgent = bench.generated[&1].len();
    bench.step();
    assert_eq!(bench.generated[&1].len(), urgent + 1, "the urgent one goes on");
    bench.run();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whoever they are, tenants that always want more are served alike by weight.
    #[test]
    fn nobody_starves(
        places in 1..6usize,
        weights in prop::collection::vec(1..5u32, 2..7),
        prompt_tokens in 1..20u32,
        depth in 1..3usize,
    ) {
        // As many answers as there are places: whoever has fewer cannot use a larger share.
        let client = |(tenant, &weight): (usize, &u32)| {
            (Client { tenant: tenant as u64, weight, prompt_tokens, max_tokens: 300 }, 6)
        };
        let mut crowd = Crowd::new(places, weights.iter().enumerate().map(client).collect());
        crowd.bench = crowd.bench.with_depth(depth);
        (0..3000).for_each(|_| crowd.step());
        let per_weight: Vec<f64> =
            crowd.served().iter().zip(&weights).map(|(served, &weight)| served / f64::from(weight)).collect();
        let most = per_weight.iter().copied().fold(0.0, f64::max);
        let least = per_weight.iter().copied().fold(f64::MAX, f64::min);
        // The bound does not depend on how long this goes on: a few quanta and an answer.
        prop_assert!(most - least < 300.0, "{:?} by weights {:?}", per_weight, weights);
    }
}
