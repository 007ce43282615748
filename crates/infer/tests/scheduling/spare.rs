//! Work that takes only what others leave: it stands back, gives way, and loses nothing by that.

use loquent_infer::request::{Tag, Work};
use loquent_infer::runner::Slot;
use loquent_infer::token::TokenId;

use super::toy::*;

const CONTEXT: usize = 200;

/// A completion of spare work that does not end before `max_tokens`.
fn spare_work(tag: u64, prompt_tokens: u32, max_tokens: u32) -> Work {
    lasting(tag, prompt_tokens, max_tokens, |work| spare(work_of(1, 1, work)))
}

fn awaited_work(tag: u64, prompt_tokens: u32, max_tokens: u32) -> Work {
    lasting(tag, prompt_tokens, max_tokens, |work| work_of(2, 1, work))
}

fn lasting(tag: u64, prompt_tokens: u32, most: u32, owned: impl Fn(Work) -> Work) -> Work {
    let prompt =
        |n: u32| (0..prompt_tokens).map(|at| 3 + (7 * tag as u32 + n + at) % 997).collect();
    let works = (0..).map(|n| owned(work(tag, prompt(n * 1000), most)));
    let lasts = |work: &Work| alone(work, CONTEXT).0.len() == most as usize;
    works.take(500).find(lasts).expect("not every answer ends early")
}

/// Takes one step and returns the slots that it computed.
fn step(bench: &mut Bench) -> Vec<Slot> {
    bench.submit_batches();
    let slots = bench.in_flight[0].batch.spans.iter().map(|span| span.slot).collect();
    bench.step();
    slots
}

#[test]
fn it_stands_back_while_a_prompt_of_others_is_computed_and_goes_on_beside_their_answer() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, CONTEXT as u32), limits(4));
    let bulk = [spare_work(0, 4, 20), spare_work(1, 60, 5)];
    bulk.iter().for_each(|work| bench.submit(work));
    assert_eq!(step(&mut bench).len(), 2);
    let chat = awaited_work(2, 40, 6);
    bench.submit(&chat);
    for _ in 0..3 {
        assert!(!bench.generated.contains_key(&2));
        assert_eq!(step(&mut bench).len(), 1, "40 tokens in chunks of 16, and nothing beside");
    }
    assert_eq!(bench.generated[&2].len(), 1);
    assert_eq!(step(&mut bench).len(), 3, "beside its answer both go on");
    bench.run();
    for work in bulk.iter().chain([&chat]) {
        assert_eq!(bench.generated[&work.tag.0], alone(work, CONTEXT).0);
    }
}

#[test]
fn its_place_is_anybodys_and_it_takes_none_from_others() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, CONTEXT as u32), limits(2));
    let bulk: Vec<_> = (0..4).map(|tag| spare_work(tag, 4, 30)).collect();
    bulk.iter().for_each(|work| bench.submit(work));
    assert_eq!(step(&mut bench).len(), 2);
    let chats: Vec<_> = (4..6).map(|tag| awaited_work(tag, 4, 40)).collect();
    chats.iter().for_each(|work| bench.submit(work));
    step(&mut bench);
    assert!(chats.iter().all(|chat| bench.generated[&chat.tag.0].len() == 1), "both at once");
    let before = bench.generated[&0].len() + bench.generated[&1].len();
    (0..38).for_each(|_| _ = step(&mut bench));
    assert_eq!(bench.generated[&0].len() + bench.generated[&1].len(), before, "no place is left");
    bench.run();
    for work in bulk.iter().chain(&chats) {
        assert_eq!(bench.generated[&work.tag.0], alone(work, CONTEXT).0);
    }
}

#[test]
fn nobody_waits_for_a_prefix_that_it_computes() {
    let mut bench = Bench::new(ToyRunner::new(8, 1000, CONTEXT as u32), limits(4));
    let bulk = spare_work(0, 60, 5);
    bench.submit(&bulk);
    bench.step();
    // Behind a long prompt, for which the spare work stands back: 10 steps of 16 tokens.
    let long = awaited_work(1, 150, 2);
    let chat = work_of(2, 1, Work { tag: Tag(2), ..bulk.clone() });
    bench.submit(&long);
    bench.submit(&chat);
    // Half of each step is the older prompt's.
    let steps = (1..).find(|_| {
        bench.step();
        bench.generated.contains_key(&2)
    });
    assert!(steps.unwrap() <= 8, "{steps:?} steps for its own 60 tokens");
    bench.run();
    for work in [&bulk, &long, &chat] {
        assert_eq!(bench.generated[&work.tag.0], alone(work, CONTEXT).0);
    }
}

#[test]
fn what_is_given_up_is_computed_again() {
    let mut runner = ToyRunner::new(8, 1000, CONTEXT as u32);
    runner.gives_up_every = Some(2);
    let mut bench = Bench::new(runner, limits(4));
    let works = [spare_work(0, 40, 20), spare_work(1, 4, 20), awaited_work(2, 30, 8)];
    works.iter().for_each(|work| bench.submit(work));
    bench.run();
    assert!(bench.runner.given_up > 5, "{}", bench.runner.given_up);
    assert_eq!(bench.scheduler.load().preemptions, 0, "nothing was put back for it");
    for work in &works {
        assert_eq!(bench.generated[&work.tag.0], alone(work, CONTEXT).0);
    }
}

#[test]
fn a_batch_with_anybody_elses_token_is_not_spare() {
    let mut runner = ToyRunner::new(8, 1000, CONTEXT as u32);
    runner.gives_up_every = Some(1);
    let mut bench = Bench::new(runner, limits(4));
    let (bulk, chat) = (spare_work(0, 4, 20), awaited_work(1, 4, 10));
    bench.submit(&chat);
    bench.submit(&bulk);
    // Alone the spare work would never be completed.
    while bench.live.contains(&1) {
        bench.step();
    }
    assert_eq!(bench.generated[&1], alone(&chat, CONTEXT).0);
    assert!(bench.generated[&0].len() >= 8, "{:?}", bench.generated[&0]);
    let got: Vec<TokenId> = bench.generated[&0].clone();
    (0..5).for_each(|_| _ = bench.step());
    assert_eq!(bench.generated[&0], got);
}

#[test]
fn others_that_wait_for_its_cells_do_not_stop_it() {
    // Cells for one of both, and no second one can be started before the first is put back.
    let mut bench = Bench::new(ToyRunner::new(4, CONTEXT as u32, CONTEXT as u32), limits(4));
    let (bulk, chat) = (spare_work(0, 120, 60), awaited_work(1, 120, 60));
    bench.submit(&bulk);
    (0..12).for_each(|_| _ = step(&mut bench));
    bench.submit(&chat);
    bench.run();
    for work in [&bulk, &chat] {
        assert_eq!(bench.generated[&work.tag.0], alone(work, CONTEXT).0);
    }
}
