//! The scheduler under seeded simulation: whatever joins, leaves, fails, pauses or runs out of
//! cache, every completion is what it would have been alone, and everybody gets a fair share.

mod domains;
mod faults;
mod outages;
mod pauses;
mod random;
mod readers;
mod shares;
mod spare;
mod stored;
mod toy;

use std::time::Duration;

use loquent_infer::request::{Finish, Tag, Work};
use loquent_infer::runner::Batch;
use loquent_infer::scheduler::Limits;
use loquent_infer::speculation::Speculation;
use loquent_infer::token::TokenId;

use toy::*;

#[test]
fn only_waiting_sequences_could_be_next_while_all_others_are_in_flight() {
    let mut bench = Bench::new(ToyRunner::new(10, 400, 96), limits(4)).with_depth(2);
    assert!(!bench.scheduler.only_waiting(), "nobody is there");
    bench.submit(&work(0, [5; 8].to_vec(), 10));
    assert!(bench.scheduler.only_waiting());
    bench.submit_batches();
    assert!(!bench.scheduler.only_waiting(), "nobody waits");
    bench.submit(&work(1, [6; 8].to_vec(), 10));
    assert!(bench.scheduler.only_waiting(), "the first one flies");
    bench.step();
    bench.submit(&work(2, [7; 8].to_vec(), 10));
    assert!(!bench.scheduler.only_waiting(), "the first one could go on");
    bench.run();
}

#[test]
fn a_sequence_that_ends_in_flight_keeps_none_of_its_draft() {
    let mut runner = ToyRunner::new(10, 400, 96);
    (runner.memory, runner.verify_rows) = (1, Some(40));
    let limits = Limits { speculation: Speculation::Fixed(4), ..limits(4) };
    let mut bench = Bench::new(runner, limits).with_depth(2);
    // A text in circles, so that drafts are right.
    bench.submit(&work(0, [5; 20].to_vec(), 40));
    while bench.in_flight.iter().all(|flight| flight.batch.spans[0].draft == 0) {
        bench.step();
        bench.submit_batches();
    }
    bench.cancel(0);
    bench.run();
    assert!(!bench.scheduler.has_work());
}

#[test]
fn suspects_of_a_failed_batch_stay_within_a_full_cache() {
    let mut runner = ToyRunner::new(10, 160, 96);
    runner.memory = 1;
    let mut bench = Bench::new(runner, Limits { prefix_cache: false, ..limits(6) });
    let system: Vec<TokenId> = (3..33).collect();
    let mut tag = 0;
    let mut submit = |bench: &mut Bench, shared: usize, own: &[TokenId], max_tokens, priority| {
        let prompt = [&system[..shared], own].concat();
        bench.submit(&Work { priority, ..work(tag, prompt, max_tokens) });
        tag += 1;
    };
    submit(&mut bench, 12, &[&[5][..], &[3; 10]].concat(), 8, 0);
    submit(&mut bench, 2, &[5, 3, 3, 3, 3], 9, 0);
    submit(&mut bench, 15, &[5, 3, 3], 7, 0);
    bench.step();
    bench.step();
    submit(&mut bench, 21, &[3, POISON], 1, 1);
    submit(&mut bench, 23, &[&[4][..], &[3; 28], &[BAD_ROW]].concat(), 1, 0);
    submit(&mut bench, 10, &[&[5][..], &[3; 9]].concat(), 3, 0);
    submit(&mut bench, 0, &[&[3; 15][..], &[POISON]].concat(), 1, 1);
    submit(&mut bench, 0, &[3, POISON], 1, 1);
    submit(&mut bench, 0, &[3, POISON], 1, 1);
    // The runner asserts that its cache never overflows.
    bench.run();
    assert_eq!(bench.ended.len(), 9);
}

#[test]
fn a_full_cache_puts_back_the_youngest_sequences() {
    let mut runner = ToyRunner::new(10, 70, 60);
    runner.memory = 1;
    let mut bench = Bench::new(runner, Limits { prefix_cache: false, ..limits(4) });
    // Each needs half of the cache and more at its end.
    let works: Vec<Work> = (0..3).map(|tag| circling(tag, 8, 30, 60)).collect();
    works.iter().for_each(|work| bench.submit(work));
    let made = |bench: &Bench, tag| bench.generated.get(&tag).map_or(0, Vec::len);
    let mut ended = Vec::new();
    while ended.len() < works.len() {
        let preempted = bench.scheduler.load().preemptions;
        let before: Vec<usize> = (0..3).map(|tag| made(&bench, tag)).collect();
        bench.step();
        let is_behind = |tag: &u64| made(&bench, *tag) == before[*tag as usize];
        assert!(ended.contains(&0) || before[0] == 0 || !is_behind(&0), "the oldest waits");
        let is_full = bench.scheduler.load().preemptions > preempted;
        let mut begun = (1..3).rev().filter(|&tag| before[tag as usize] > 0);
        let youngest = begun.find(|tag| !ended.contains(tag));
        assert!(!is_full || youngest.is_some_and(|tag| is_behind(&tag)), "another was put back");
        let has_ended = |tag: &u64| bench.ended.contains_key(tag) && !ended.contains(tag);
        let new: Vec<u64> = (0..3).filter(has_ended).collect();
        ended.extend(new);
    }
    assert_eq!(ended, [0, 1, 2]);
    assert!(bench.scheduler.load().preemptions >= 2);
    for (tag, work) in works.iter().enumerate() {
        assert_eq!(bench.generated[&(tag as u64)], alone_with(work, 60, 1).0);
    }
}

/// One request on a runner whose text goes in circles: the steps it took.
fn steps_of(work: &Work, speculation: Speculation) -> u64 {
    let mut runner = ToyRunner::new(4, 2000, 1000);
    (runner.memory, runner.verify_rows) = (2, Some(16));
    let mut bench = Bench::new(runner, Limits { speculation, ..limits(2) });
    bench.submit(work);
    bench.run();
    let (expected, finish) = alone_with(work, 1000, 2);
    assert_eq!((&bench.generated[&0], &bench.ended[&0]), (&expected, &finish));
    let load = bench.scheduler.load();
    assert_eq!(load.accepted_tokens, expected.len() as u64 - bench.runner.calls);
    assert!(load.draft_tokens >= load.accepted_tokens);
    bench.runner.calls
}

#[test]
fn a_text_in_circles_takes_few_steps_and_is_the_same() {
    // A prompt whose answer circles rather than ends.
    let circling = (3..50).map(|token| work(0, vec![token, token + 1], 200));
    let work = circling.into_iter().find(|work| alone_with(work, 1000, 2).0.len() == 200).unwrap();
    assert_eq!(steps_of(&work, Speculation::Off), 200);
    let fixed = steps_of(&work, Speculation::Fixed(8));
    assert!(fixed < 200 / 3, "{fixed} steps");
    let auto = steps_of(&work, Speculation::Auto);
    assert!(auto < 200 / 3, "{auto} steps");
}

#[test]
fn nothing_is_drafted_while_prompts_want_the_time() {
    let mut runner = ToyRunner::new(4, 2000, 1000);
    (runner.memory, runner.verify_rows) = (1, Some(16));
    let limits = Limits { speculation: Speculation::Fixed(4), ..limits(1) };
    let mut bench = Bench::new(runner, limits);
    bench.submit(&work(0, vec![10, 11, 10, 11], 50));
    bench.submit(&work(1, vec![12], 2));
    (0..10).for_each(|_| _ = bench.step());
    assert_eq!(bench.scheduler.load().draft_tokens, 0, "another one waits");
}

#[test]
fn requests_join_and_leave_between_steps() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 200), limits(4));
    bench.submit(&work(0, vec![10, 11, 12], 30));
    bench.step();
    let before = bench.generated[&0].len();
    bench.submit(&work(1, vec![20, 21], 30));
    let step = bench.step();
    assert_eq!(step.rows, 2, "the second request is computed together with the first");
    assert_eq!(bench.generated[&0].len(), before + 1);
    assert_eq!(bench.generated[&1].len(), 1);
}

#[test]
fn a_long_prompt_starves_neither_decode_nor_a_short_prompt() {
    let mut bench = Bench::new(ToyRunner::new(8, 4000, 2000), limits(4));
    bench.submit(&work(0, vec![10], 100));
    bench.step();
    bench.submit(&work(1, (0..1000).map(|n| 3 + n % 40).collect(), 5));
    bench.step();
    bench.submit(&work(2, (0..8).map(|n| 30 + n).collect(), 5));
    let before = bench.generated[&0].len();
    for _ in 0..2 {
        bench.step();
    }
    assert_eq!(bench.generated[&0].len(), before + 2, "decode advances in every step");
    assert!(bench.generated.contains_key(&2), "the short prompt passes the long one");
    assert!(!bench.generated.contains_key(&1));
}

#[test]
fn equal_prompts_are_computed_once() {
    let limits = Limits { prefill_max_tokens: 64, ..limits(16) };
    let mut bench = Bench::new(ToyRunner::new(32, 4000, 2000), limits);
    let prompt: Vec<TokenId> = (3..63).collect();
    for tag in 0..16 {
        bench.submit(&work(tag, prompt.clone(), 4));
    }
    let mut computed = 0;
    while bench.generated.len() < 16 {
        let step = bench.step();
        computed += step.prefill_tokens;
    }
    assert_eq!(computed, 60, "one prompt's prefill serves all sixteen");
    assert_eq!(bench.scheduler.load().prefix_hits, 15 * 59);
}

#[test]
fn the_next_turn_of_a_chat_starts_from_the_last() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2));
    let first = work(0, (3..40).collect(), 10);
    bench.submit(&first);
    bench.run();
    let mut prompt = first.prompt.clone();
    prompt.extend(&bench.generated[&0]);
    prompt.extend([45, 46]);
    let computed = prompt.len() as u64 - 3; // the last generated token was never computed
    bench.submit(&work(1, prompt, 10));
    bench.run();
    assert_eq!(bench.scheduler.load().prefix_hits, computed);
}

#[test]
fn lower_priority_numbers_go_first_and_equals_in_order() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(1));
    for (tag, priority) in [(0, 5), (1, 0), (2, 5), (3, -1)] {
        bench.submit(&Work { priority, ..work(tag, vec![10 + tag as TokenId], 1) });
    }
    let mut ends = Vec::new();
    while bench.scheduler.has_work() {
        ends.extend(bench.step().events.iter().filter(|e| e.finish.is_some()).map(|e| e.tag.0));
    }
    assert_eq!(ends, [3, 1, 0, 2]);
}

#[test]
fn cancelling_frees_the_cache_at_once() {
    let mut bench = Bench::new(ToyRunner::new(4, 500, 500), limits(2));
    bench.submit(&work(0, (3..40).collect(), 100));
    bench.step();
    assert!(bench.runner.used_cells() > 0);
    bench.cancel(0);
    assert!(!bench.scheduler.has_work());
    // It needs every cell.
    let whole = work(1, vec![60; 499], 1);
    bench.submit(&whole);
    assert_eq!(bench.step().prefill_tokens, 16, "it starts in the next step");
    bench.run();
    assert_eq!(bench.generated[&1], alone(&whole, 500).0);
}

#[test]
fn a_prompt_whose_client_gave_up_goes_on_where_it_was_when_it_is_sent_again() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2));
    let prompt: Vec<TokenId> = (3..63).collect();
    for tag in 0..3 {
        bench.submit(&work(tag, prompt.clone(), 4));
        assert_eq!(bench.step().prefill_tokens, 16);
        bench.cancel(tag);
    }
    let last = work(3, prompt, 4);
    bench.submit(&last);
    assert_eq!(bench.step().prefill_tokens, 60 - 3 * 16);
    assert_eq!(bench.scheduler.load().prefix_hits, 16 + 32 + 48);
    bench.run();
    assert_eq!(bench.generated[&3], alone(&last, 500).0);
}

#[test]
fn a_paused_sequence_keeps_its_cache_and_computes_nothing() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2));
    let paused = work(0, vec![10, 11, 12], 6);
    bench.submit(&paused);
    bench.step();
    bench.pause(0);
    bench.submit(&work(1, vec![20, 21], 6));
    while !bench.ended.contains_key(&1) {
        bench.step();
    }
    assert_eq!(bench.generated[&0].len(), 1);
    let mut batch = Batch::default();
    bench.scheduler.plan(bench.now, &mut bench.runner, &mut batch);
    assert!(batch.is_empty(), "nothing runs while all are paused");
    bench.resume(0);
    bench.run();
    assert_eq!(bench.generated[&0], alone(&paused, 500).0);
}

#[test]
fn a_completion_that_waits_too_long_expires_and_a_running_one_does_not() {
    let limits = Limits { queue_timeout: Some(Duration::from_secs(2)), ..limits(1) };
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits);
    bench.submit(&work(0, vec![10], 400));
    bench.step();
    bench.submit(&work(1, vec![20], 4));
    bench.now += Duration::from_secs(1);
    assert!(bench.scheduler.give_up(bench.now).is_empty());
    bench.now += Duration::from_secs(1);
    let expired = bench.scheduler.give_up(bench.now);
    let tags: Vec<_> = expired.iter().map(|event| (event.tag, event.finish.clone())).collect();
    assert_eq!(tags, [(Tag(1), Some(Finish::Expired))]);
}

#[test]
fn batches_in_flight_share_the_decoding_sequences() {
    let mut bench = Bench::new(ToyRunner::new(8, 4000, 2000), limits(8)).with_depth(2);
    for tag in 0..8 {
        bench.submit(&work(tag, vec![10 + tag as TokenId], 50));
    }
    for _ in 0..4 {
        bench.step();
    }
    bench.submit_batches();
    let rows: Vec<usize> = bench.in_flight.iter().map(|flight| flight.batch.spans.len()).collect();
    assert_eq!(rows, [4, 4]);
}

#[test]
fn a_sequence_cancelled_in_flight_ends_with_its_batch() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 500), limits(2)).with_depth(2);
    bench.submit(&work(0, (3..40).collect(), 100));
    bench.submit_batches();
    bench.cancel(0);
    assert!(bench.scheduler.has_work(), "its batch is still out");
    let step = bench.step();
    assert!(step.events.is_empty(), "no event is reported");
    assert!(!bench.scheduler.has_work());
    assert_eq!(bench.runner.used_cells(), 16, "what the batch computed is a prefix");
}
