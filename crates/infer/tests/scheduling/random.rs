//! Random requests, ends, pauses, faults and losses of the engine: each text is what it would have
//! been alone.

use std::collections::BTreeSet;

use loquent_infer::request::{Finish, Work};
use loquent_infer::scheduler::{Limits, MOST_LOSSES};
use loquent_infer::speculation::Speculation;
use loquent_infer::token::TokenId;
use proptest::prelude::*;

use super::toy::*;

#[derive(Debug, Clone)]
enum Act {
    Submit {
        shared: usize,
        own: Vec<TokenId>,
        max_tokens: u32,
        priority: i32,
        tenant: u64,
        domain: u64,
    },
    Cancel(u64),
    Pause(u64),
    Resume(u64),
    /// A reader's time in hand and its time for a token, in ms; `None` is not known any more.
    Reader(u64, Option<(u64, u64)>),
    Step(u8),
    /// The engine is lost.
    Lose,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let own = prop::collection::vec(3..40u32, 1..30);
    let submit = (0..30usize, own, 1..40u32, 0..3i32, 0..4u64, 0..2u64).prop_map(
        |(shared, mut own, max_tokens, priority, tenant, domain)| {
            // A few requests are broken, each in its own way.
            match own[0] {
                3 => own.push(POISON),
                4 => own.push(BAD_ROW),
                _ => {}
            }
            Act::Submit { shared, own, max_tokens, priority, tenant, domain }
        },
    );
    let act = prop_oneof![
        4 => submit,
        2 => (0..40u64).prop_map(Act::Cancel),
        2 => (0..40u64).prop_map(Act::Pause),
        1 => (0..40u64).prop_map(Act::Resume),
        3 => (0..40u64, prop::option::weighted(0.8, (0..4_000u64, 10..400u64)))
            .prop_map(|(tag, reader)| Act::Reader(tag, reader)),
        4 => (1..6u8).prop_map(Act::Step),
        1 => Just(Act::Lose),
    ];
    prop::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_completion_is_what_it_would_be_alone(
        acts in acts(),
        batch_size in 1..9usize,
        kv_cells in prop::sample::select(vec![96u32, 160, 400]),
        full_every in prop::option::of(3..20u64),
        prefix_cache: bool,
        depth in 1..5usize,
        speculation in speculation(),
        memory in prop::sample::select(vec![1, 2, 3, usize::MAX]),
        verify_rows in prop::option::of(1..40u32),
        shares_prefix in prop::bool::weighted(0.8),
        slots in prop::sample::select(vec![3u16, 10]),
        forgets_every in prop::option::weighted(0.3, 1..4u64),
        gives_up_every in prop::option::of(2..5u64),
    ) {
        let mut runner = ToyRunner::new(slots, kv_cells, 96);
        runner.gives_up_every = gives_up_every;
        runner.capacity.shares_prefix = shares_prefix;
        runner.forgets_every = forgets_every.filter(|_| memory < usize::MAX);
        // Rejected drafts are cut off, which such models cannot.
        let can_cut = shares_prefix && runner.forgets_every.is_none();
        let verify_rows = verify_rows.filter(|_| can_cut);
        (runner.full_every, runner.memory, runner.verify_rows) = (full_every, memory, verify_rows);
        let limits = Limits { prefix_cache, speculation, ..limits(batch_size) };
        let mut bench = Bench::new(runner, limits).with_depth(depth);
        let system: Vec<TokenId> = (3..33).collect();
        let mut submitted = Vec::new();
        let mut dropped = BTreeSet::new();
        let mut known_readers = false;
        for act in acts {
            match act {
                Act::Submit { shared, own, max_tokens, priority, tenant, domain } => {
                    let prompt = [&system[..shared], &own].concat();
                    let work = Work { priority, ..work(submitted.len() as u64, prompt, max_tokens) };
                    let work = work_of(tenant, 1 + tenant as u32, work_in(domain, work));
                    let work = if tenant == 3 { spare(work) } else { work };
                    bench.submit(&work);
                    submitted.push(work);
                }
                Act::Cancel(tag) => {
                    bench.cancel(tag);
                    dropped.insert(tag);
                }
                Act::Pause(tag) => bench.pause(tag),
                Act::Resume(tag) => bench.resume(tag),
                Act::Reader(tag, reader) => {
                    known_readers = true;
                    bench.note_reader(tag, reader);
                }
                Act::Step(times) => (0..times).for_each(|_| { bench.step(); }),
                Act::Lose => { bench.lose(); }
            }
        }
        bench.run();
        for work in &submitted {
            let tag = work.tag.0;
            let generated = bench.generated.get(&tag).cloned().unwrap_or_default();
            let broken = work.prompt.iter().any(|token| [POISON, BAD_ROW].contains(token));
            let (expected, finish) = if broken { Default::default() } else { alone_or(work, memory) };
            let is_hard_hit = bench.losses.get(&tag).is_some_and(|&losses| losses >= MOST_LOSSES);
            let failed = matches!(bench.ended.get(&tag), Some(Finish::Failed(_)));
            if dropped.contains(&tag) && !bench.ended.contains_key(&tag) || is_hard_hit && failed {
                prop_assert!(expected.starts_with(&generated));
            } else if broken {
                let failed = matches!(bench.ended.get(&tag), Some(Finish::Failed(_)));
                prop_assert!(failed, "{:?}", bench.ended.get(&tag));
                prop_assert!(generated.is_empty());
            } else {
                prop_assert_eq!(&generated, &expected);
                prop_assert_eq!(bench.ended.get(&tag), finish.as_ref());
            }
        }
        // In the place of one that rests, a prompt may be computed beside full rows.
        let most = if known_readers { usize::from(slots) } else { batch_size };
        prop_assert!(bench.runner.most_rows <= most);
    }
}

fn alone_or(work: &Work, memory: usize) -> (Vec<TokenId>, Option<Finish>) {
    let (tokens, finish) = alone_with(work, 96, memory);
    (tokens, Some(finish))
}

fn speculation() -> impl Strategy<Value = Speculation> {
    prop_oneof![
        Just(Speculation::Off),
        Just(Speculation::Auto),
        (0..20u32).prop_map(Speculation::Fixed),
    ]
}
