//! What one cache domain computed helps no other, and tells no other that it was computed.

use loquent_infer::token::TokenId;

use super::toy::*;

fn prompt(len: u32) -> Vec<TokenId> {
    (3..3 + len).collect()
}

#[test]
fn another_domains_prefix_is_neither_used_nor_told() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 500), limits(4));
    bench.submit(&work_in(1, work(0, prompt(40), 4)));
    bench.run();
    bench.submit(&work_in(2, work(1, prompt(40), 4)));
    bench.run();
    assert_eq!(bench.admitted[&1].cached_tokens, 0, "it would tell what the other asked");
    bench.submit(&work_in(1, work(2, prompt(40), 4)));
    bench.run();
    assert_eq!(bench.admitted[&2].cached_tokens, 39, "its own domain's it is told and given");
}

#[test]
fn nobody_waits_for_a_prefix_of_another_domain() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 500), limits(4));
    bench.submit(&work_in(1, work(0, prompt(60), 4)));
    bench.step();
    bench.submit(&work_in(2, work(1, prompt(60), 4)));
    bench.step();
    assert_eq!(bench.scheduler.load().waiting, 0, "waiting would tell that the other asks it");
}

#[test]
fn an_answer_that_ends_drops_no_prefix_of_another_domain() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, 500), limits(4));
    bench.submit(&work_in(1, work(0, prompt(20), 1)));
    bench.run();
    bench.submit(&work_in(2, work(1, prompt(40), 1)));
    bench.run();
    bench.submit(&work_in(1, work(2, prompt(40), 1)));
    bench.run();
    assert_eq!(bench.admitted[&2].cached_tokens, 20);
}

#[test]
fn a_prompt_that_waits_for_anothers_prefix_is_searched_once() {
    let mut bench = Bench::new(ToyRunner::new(32, 20_000, 3000), limits(16));
    for tag in 0..16 {
        bench.submit(&work(tag, (0..2000).map(|n| 3 + n % 47).collect(), 1));
    }
    (0..100).for_each(|_| _ = bench.step());
    let load = bench.scheduler.load();
    assert_eq!((load.running, load.waiting), (1, 15), "they wait for the first one's prompt");
    assert!(load.prefix_searches <= 32, "{} searches in 100 steps", load.prefix_searches);
    bench.run();
    assert!(bench.scheduler.load().prefix_hits >= 15 * 1900);
}

#[test]
fn a_prompt_without_cells_is_searched_again_only_when_some_became_free() {
    let mut runner = ToyRunner::new(8, 300, 300);
    runner.memory = 1;
    let mut bench = Bench::new(runner, limits(4));
    bench.submit(&circling(0, 100, 150, 300));
    bench.step();
    bench.submit(&work(1, (0..200).map(|n| 3 + n % 31).collect(), 1));
    (0..100).for_each(|_| _ = bench.step());
    let load = bench.scheduler.load();
    assert_eq!((load.running, load.waiting), (1, 1), "no room for both");
    assert!(load.prefix_searches <= 4, "{} searches in 100 steps", load.prefix_searches);
    bench.run();
    assert!(bench.ended.contains_key(&1));
}
