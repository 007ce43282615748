//! The engine is lost with all it held: every answer goes on where it stopped, and only what loses
//! it again and again fails.

use std::time::Duration;

use loquent_infer::request::Finish;
use loquent_infer::scheduler::MOST_LOSSES;
use loquent_infer::token::TokenId;

use super::toy::*;

#[test]
fn answers_go_on_where_the_lost_engine_left_them() {
    for depth in [1, 2] {
        let mut bench = Bench::new(ToyRunner::new(8, 1000, 500), limits(2)).with_depth(depth);
        let works: Vec<_> =
            (0..5).map(|tag| work(tag, vec![10 + tag as TokenId, 50], 100)).collect();
        works.iter().for_each(|work| bench.submit(work));
        for _ in 0..30 {
            bench.step();
            bench.step();
            assert!(bench.lose().events.is_empty(), "nobody is told of an end");
        }
        bench.run();
        for work in &works {
            assert_eq!(bench.generated[&work.tag.0], alone(work, 500).0, "depth {depth}");
        }
    }
}

#[test]
fn what_loses_the_engine_again_and_again_fails_alone() {
    for depth in [1, 3] {
        let mut runner = ToyRunner::new(8, 1000, 200);
        runner.is_mortal = true;
        let mut bench = Bench::new(runner, limits(8)).with_depth(depth);
        let mut works: Vec<_> =
            (0..4).map(|tag| work(tag, vec![10 + tag as TokenId, 60], 20)).collect();
        works[2].prompt.insert(1, POISON);
        works.iter().for_each(|work| bench.submit(work));
        bench.run();
        assert!(matches!(bench.ended[&2], Finish::Failed(_)), "{:?}", bench.ended[&2]);
        for tag in [0, 1, 3] {
            assert_eq!(bench.generated[&tag], alone(&works[tag as usize], 200).0, "depth {depth}");
        }
    }
}

#[test]
fn one_more_loss_than_is_borne_without_a_token_ends_an_answer() {
    let mut bench = Bench::new(ToyRunner::new(4, 1000, 200), limits(2));
    let work = work(0, vec![10, 11], 50);
    bench.submit(&work);
    bench.step();
    for _ in 1..MOST_LOSSES {
        assert!(bench.lose().events.is_empty());
    }
    bench.step();
    for _ in 1..MOST_LOSSES {
        assert!(bench.lose().events.is_empty(), "the token between them made it good");
    }
    assert_eq!(bench.lose().events.len(), 1);
    assert!(matches!(bench.ended[&0], Finish::Failed(_)));
}

#[test]
fn an_engine_that_does_not_come_back_fails_all_and_leaves_nothing() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 200), limits(2));
    (0..4).for_each(|tag| bench.submit(&work(tag, vec![10 + tag as TokenId, 60], 20)));
    bench.step();
    bench.lose();
    let ended = bench.scheduler.abandon(Duration::from_secs(60), &mut bench.runner, "gone");
    let mut tags: Vec<u64> = ended.iter().map(|event| event.tag.0).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3]);
    assert!(ended.iter().all(|event| event.finish == Some(Finish::Abandoned("gone".into()))));
    assert!(!bench.scheduler.has_work());
    // What comes later finds a scheduler in order.
    bench.live.clear();
    bench.submit(&work(9, vec![10, 11], 5));
    bench.run();
    assert_eq!(bench.generated[&9], alone(&work(9, vec![10, 11], 5), 200).0);
}
