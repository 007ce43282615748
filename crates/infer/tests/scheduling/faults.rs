//! Whatever comes in or comes back from the engine: the one at fault fails, and nothing panics.

use std::time::Duration;

use loquent_infer::request::{Finish, Tag};
use loquent_infer::runner::Slot;
use loquent_infer::token::TokenId;

use super::toy::*;

#[test]
fn an_empty_or_too_long_prompt_fails_alone() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 100), limits(2));
    let good = work(0, vec![10, 11], 5);
    bench.submit(&good);
    bench.scheduler.submit(Duration::ZERO, work(1, Vec::new(), 5));
    bench.scheduler.submit(Duration::ZERO, work(2, vec![5; 100], 5));
    assert!(bench.scheduler.has_work());
    let events = bench.scheduler.give_up(Duration::ZERO);
    let tags: Vec<_> = events.iter().map(|event| event.tag).collect();
    assert_eq!(tags, [Tag(1), Tag(2)]);
    assert!(events.iter().all(|event| matches!(event.finish, Some(Finish::Failed(_)))));
    assert!(bench.scheduler.give_up(Duration::ZERO).is_empty(), "reported once");
    bench.submit(&work(3, vec![5; 99], 5));
    bench.run();
    assert_eq!(bench.generated[&0], alone(&good, 100).0);
    assert_eq!(bench.generated[&3].len(), 1, "the longest prompt leaves room for one token");
}

#[test]
fn a_sequence_whose_row_is_left_out_fails_and_its_neighbours_go_on() {
    for depth in [1, 2] {
        let mut bench = Bench::new(ToyRunner::new(8, 1000, 100), limits(4)).with_depth(depth);
        let works: Vec<_> =
            (0..3).map(|tag| work(tag, vec![10 + tag as TokenId, 60], 20)).collect();
        works.iter().for_each(|work| bench.submit(work));
        bench.runner.silent = Some(Slot(1));
        bench.step();
        bench.run();
        assert!(matches!(bench.ended[&1], Finish::Failed(_)), "{:?}", bench.ended[&1]);
        for tag in [0, 2] {
            assert_eq!(bench.generated[&tag], alone(&works[tag as usize], 100).0);
        }
    }
}

#[test]
fn where_the_past_cannot_be_cut_a_failed_batch_starts_over() {
    let mut runner = ToyRunner::new(8, 1000, 200);
    runner.capacity.shares_prefix = false;
    let mut bench = Bench::new(runner, limits(4));
    let long: Vec<TokenId> = (0..60).map(|n| 5 + n % 40).collect();
    let works = [work(0, vec![10, 11], 30), work(1, long.clone(), 30)];
    bench.submit(&works[0]);
    bench.step();
    bench.step();
    // The last of several chunks fails, together with the other's next token.
    bench.submit(&work(2, [&long[..40], &[POISON]].concat(), 30));
    bench.submit(&works[1]);
    bench.run();
    assert!(matches!(bench.ended[&2], Finish::Failed(_)));
    for work in &works {
        assert_eq!(bench.generated[&work.tag.0], alone(work, 200).0);
    }
}

#[test]
fn constraints_that_allow_nothing_are_the_requests_fault() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 100), limits(2));
    let good = work(0, vec![10, 11], 5);
    bench.submit(&good);
    bench.submit(&work(1, vec![10, FORBIDDEN], 5));
    bench.submit(&work(2, vec![10, BAD_ROW], 5));
    bench.run();
    assert!(matches!(bench.ended[&1], Finish::Unsatisfiable(_)), "{:?}", bench.ended[&1]);
    assert!(matches!(bench.ended[&2], Finish::Failed(_)), "{:?}", bench.ended[&2]);
    assert_eq!(bench.ended[&0], Finish::Length);
}
