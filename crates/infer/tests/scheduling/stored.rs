//! Prompts whose beginning comes from a store: nothing of them is computed meanwhile, others go on,
//! and whatever is wrong with a part, the answer is the one that it would have been.

use loquent_infer::request::{RestoreOrder, Work};
use loquent_infer::runner::{Batch, Runner, SavedSpan, Slot};
use loquent_infer::scheduler::{RestoreError, StoreTraffic};
use loquent_infer::token::TokenId;

use super::toy::*;

/// Tokens in a part.
const PART: u32 = 40;

fn prompt() -> Vec<TokenId> {
    (0..200).map(|n| 3 + n % 47).collect()
}

fn bench() -> Bench {
    Bench::new(ToyRunner::new(8, 2000, 500), limits(4))
}

/// The parts of the prompt as a runner saves them.
fn parts() -> Vec<SavedSpan> {
    let mut bench = bench();
    bench.submit(&work(9, prompt(), 1));
    bench.run();
    let mut traffic = StoreTraffic::of(&mut bench.scheduler);
    let slot = traffic.next_kept().expect("its keys and values are kept");
    assert_eq!(traffic.kept(slot).unwrap().1, prompt());
    assert_eq!(traffic.next_kept(), None);
    let span = |start| bench.runner.save(slot, start..start + PART).unwrap();
    (0..200).step_by(PART as usize).map(span).collect()
}

/// Submits the prompt, of which `stored_tokens` are said to be stored, and returns its order.
fn ordered(bench: &mut Bench, tag: u64, stored_tokens: u32) -> Option<RestoreOrder> {
    bench.submit(&Work { stored_tokens, ..work(tag, prompt(), 20) });
    let mut batch = Batch::default();
    bench.scheduler.plan(bench.now, &mut bench.runner, &mut batch);
    let mut orders = StoreTraffic::of(&mut bench.scheduler).take_orders();
    assert!(orders.is_empty() || batch.is_empty(), "it waits for its order");
    orders.pop()
}

fn restore(bench: &mut Bench, order: &RestoreOrder, part: &SavedSpan) -> Result<u32, RestoreError> {
    StoreTraffic::of(&mut bench.scheduler).restore(&mut bench.runner, order.id, part)
}

fn end(bench: &mut Bench, order: &RestoreOrder) {
    StoreTraffic::of(&mut bench.scheduler).end(order.id);
}

/// The answer when nothing is stored.
fn expected() -> Vec<TokenId> {
    alone(&work(0, prompt(), 20), 500).0
}

#[test]
fn a_restored_prompt_gives_the_answer_of_a_computed_one() {
    let mut bench = bench();
    let order = ordered(&mut bench, 0, 200).expect("it is worth it");
    assert_eq!((order.tokens.len(), order.cached), (200, 0));
    let restored: Vec<_> =
        parts().iter().map(|part| restore(&mut bench, &order, part).unwrap()).collect();
    assert_eq!(restored, [40, 40, 40, 40, 39], "the last token is computed for its logits");
    end(&mut bench, &order);
    let calls = bench.runner.calls;
    bench.step();
    assert_eq!(bench.generated[&0].len(), 1, "one step computes the rest");
    assert_eq!(bench.runner.calls, calls + 1);
    bench.run();
    assert_eq!(bench.generated[&0], expected());
    assert_eq!(bench.admitted[&0].cached_tokens, 199);
    assert_eq!(bench.scheduler.load().prefix_hits, 199);
}

#[test]
fn others_go_on_while_a_prompt_is_restored() {
    let mut bench = bench();
    let order = ordered(&mut bench, 0, 200).unwrap();
    let other = work(1, vec![5; 30], 20);
    bench.submit(&other);
    // So that the bench does not expect it to be computed.
    bench.paused.insert(0, bench.planned);
    (0..40).for_each(|_| _ = bench.step());
    bench.paused.clear();
    assert_eq!(bench.generated[&1], alone(&other, 500).0);
    assert!(!bench.generated.contains_key(&0));
    assert!(!StoreTraffic::of(&mut bench.scheduler).others_run());
    end(&mut bench, &order);
    bench.run();
    assert_eq!(bench.generated[&0], expected(), "without a single part it is computed");
}

#[test]
fn what_is_wrong_with_a_part_costs_time_only() {
    let parts = parts();
    let damaged = SavedSpan { state: vec![1], ..parts[1].clone() };
    for (bad, error) in [(&parts[2], RestoreError::Gap), (&damaged, unusable())] {
        let mut bench = bench();
        let order = ordered(&mut bench, 0, 200).unwrap();
        assert_eq!(restore(&mut bench, &order, &parts[0]), Ok(PART));
        assert_eq!(restore(&mut bench, &order, &parts[0]), Ok(0), "it is there already");
        assert_eq!(restore(&mut bench, &order, bad), Err(error));
        end(&mut bench, &order);
        assert_eq!(restore(&mut bench, &order, &parts[1]), Ok(0), "the order is over");
        bench.run();
        assert_eq!(bench.generated[&0], expected());
        assert_eq!(bench.admitted[&0].cached_tokens, PART);
    }
}

fn unusable() -> RestoreError {
    RestoreError::Unusable("damaged".into())
}

#[test]
fn parts_of_a_sequence_that_left_are_ignored() {
    let mut bench = bench();
    let order = ordered(&mut bench, 0, 200).unwrap();
    assert_eq!(restore(&mut bench, &order, &parts()[0]), Ok(PART));
    bench.cancel(0);
    assert_eq!(restore(&mut bench, &order, &parts()[1]), Ok(0));
    end(&mut bench, &order);
    assert_eq!(bench.runner.used_cells(), PART as usize, "what was restored is a prefix");
    bench.submit(&work(1, prompt(), 20));
    bench.run();
    assert_eq!(bench.generated[&1], expected());
}

#[test]
fn the_cache_in_memory_comes_first() {
    let mut bench = bench();
    bench.submit(&work(9, prompt()[..150].to_vec(), 1));
    bench.run();
    assert_eq!(ordered(&mut bench, 0, 200), None, "a few tokens are computed as fast");
    let mut bench = self::bench();
    bench.submit(&work(9, prompt()[..50].to_vec(), 1));
    bench.run();
    let order = ordered(&mut bench, 0, 200).unwrap();
    assert_eq!(order.cached, 50);
    assert_eq!(restore(&mut bench, &order, &parts()[1]), Ok(30), "10 of it are there");
    end(&mut bench, &order);
    bench.run();
    assert_eq!(bench.generated[&0], expected());
    assert_eq!(bench.admitted[&0].cached_tokens, 80);
}

#[test]
fn a_slot_that_a_sequence_uses_is_not_saved() {
    let mut bench = bench();
    bench.submit(&work(0, prompt(), 1));
    bench.run();
    bench.submit(&work(1, vec![9; 30], 20));
    bench.step();
    let mut traffic = StoreTraffic::of(&mut bench.scheduler);
    let kept = traffic.next_kept().unwrap();
    let used = (0..8).map(Slot).filter(|&slot| traffic.kept(slot).is_some());
    assert_eq!(used.collect::<Vec<_>>(), [kept]);
}
