//! Slow readers: a paused sequence computes nothing and keeps nobody out.

use std::time::Duration;

use loquent_infer::request::{Finish, Tag, Work};
use loquent_infer::scheduler::Limits;
use loquent_infer::token::TokenId;

use super::toy::*;

/// A request whose answer has at least 40 tokens, unlike any other tag's.
fn long_answer(tag: u64, context: usize) -> Work {
    let prompt = |variant: TokenId| vec![3 + tag as TokenId, 100 + variant];
    let works = (0..).map(|variant| work(tag, prompt(variant), 60));
    works.into_iter().find(|work| alone(work, context).0.len() >= 40).unwrap()
}

#[test]
fn sixteen_stopped_readers_do_not_keep_the_seventeenth_out() {
    let mut bench = Bench::new(ToyRunner::new(32, 4000, 200), limits(16));
    let paused: Vec<Work> = (0..16).map(|tag| long_answer(tag, 200)).collect();
    paused.iter().for_each(|work| bench.submit(work));
    bench.step();
    (0..16).for_each(|tag| bench.pause(tag));
    let other = long_answer(16, 200);
    bench.submit(&other);
    bench.step();
    assert_eq!(bench.generated[&16].len(), 1, "it has its first token in one step");
    let prefilled: u32 = (0..80).map(|_| bench.step().prefill_tokens).sum();
    assert_eq!(bench.generated[&16], alone(&other, 200).0);
    let queries = bench.scheduler.load().prefix_queries;
    bench.run();
    for work in &paused {
        assert_eq!(bench.generated[&work.tag.0], alone(work, 200).0);
    }
    assert_eq!(prefilled, 0);
    assert_eq!(bench.scheduler.load().prefix_queries, queries, "they go on with the KV they had");
}

#[test]
fn a_paused_sequence_loses_its_cells_before_a_running_one_does() {
    // Room for one answer and a little.
    let mut bench = Bench::new(ToyRunner::new(8, 100, 96), limits(4));
    let (slow, fast) = (long_answer(0, 96), long_answer(1, 96));
    bench.submit(&slow);
    (0..30).for_each(|_| _ = bench.step());
    bench.pause(0);
    bench.submit(&work(2, (3..63).collect(), 1));
    bench.submit(&fast);
    while !(bench.ended.contains_key(&1) && bench.ended.contains_key(&2)) {
        bench.step();
    }
    assert_eq!(bench.generated[&0].len(), 30);
    bench.run();
    for work in [&slow, &fast] {
        assert_eq!(bench.generated[&work.tag.0], alone(work, 96).0, "computed again as it was");
    }
}

#[test]
fn a_paused_sequence_that_was_preempted_stays_out() {
    let mut runner = ToyRunner::new(8, 1000, 96);
    runner.full_every = Some(2);
    let mut bench = Bench::new(runner, limits(4));
    bench.submit(&long_answer(0, 96));
    bench.submit(&long_answer(1, 96));
    while bench.scheduler.load().preemptions == 0 {
        bench.step();
    }
    // The second was put back; its reader has stopped meanwhile.
    bench.pause(1);
    bench.runner.full_every = None;
    let before = bench.generated.get(&1).map_or(0, Vec::len);
    (0..10).for_each(|_| _ = bench.step());
    let load = bench.scheduler.load();
    assert_eq!((load.running, load.waiting), (1, 1), "it is not computed anew for nobody");
    assert_eq!(bench.generated.get(&1).map_or(0, Vec::len), before);
    bench.run();
    assert_eq!(bench.generated[&1], alone(&long_answer(1, 96), 96).0);
}

#[test]
fn nobody_waits_for_the_prefix_of_a_paused_prompt() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 300), limits(4));
    let prompt: Vec<TokenId> = (3..103).collect();
    bench.submit(&work(0, prompt.clone(), 5));
    bench.step();
    bench.submit(&work(1, prompt, 5));
    bench.step();
    assert_eq!(bench.scheduler.load().waiting, 1, "it waits for the first one's prompt");
    bench.pause(0);
    while !bench.ended.contains_key(&1) {
        bench.step();
    }
}

#[test]
fn the_queue_timeout_fires_while_all_are_paused() {
    let limits = Limits { queue_timeout: Some(Duration::from_secs(2)), ..limits(1) };
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits).with_depth(2);
    assert_eq!(bench.scheduler.next_expiry(), None, "nobody waits");
    bench.submit(&long_answer(0, 500));
    bench.submit_batches();
    // Its batch is still out, so that its place is not free, and its reader has stopped.
    bench.pause(0);
    bench.now = Duration::from_secs(1);
    bench.submit(&work(1, vec![20], 4));
    let expiry = bench.scheduler.next_expiry();
    assert_eq!(expiry, Some(Duration::from_secs(3)), "a loop that waits knows when to wake up");
    assert!(bench.scheduler.give_up(Duration::from_millis(2999)).is_empty());
    let expired = bench.scheduler.give_up(Duration::from_secs(3));
    let tags: Vec<_> = expired.iter().map(|event| (event.tag, event.finish.clone())).collect();
    assert_eq!(tags, [(Tag(1), Some(Finish::Expired))]);
    assert_eq!(bench.scheduler.next_expiry(), None, "one that has begun never expires");
}

#[test]
fn an_end_keeps_what_a_put_back_sequence_computed() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 200), limits(1));
    bench.submit(&long_answer(0, 200));
    (0..10).for_each(|_| _ = bench.step());
    bench.pause(0);
    bench.submit(&work(1, vec![60], 30));
    bench.step();
    let held = bench.scheduler.load().kv_used_cells;
    bench.cancel(0);
    assert_eq!((bench.scheduler.load().kv_used_cells, bench.scheduler.load().waiting), (held, 0));
    bench.run();
}
