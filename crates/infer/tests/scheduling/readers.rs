//! Readers with text in hand: they make room for others, run dry no sooner for it, and nobody else
//! gets less than an equal share.

use std::time::Duration;

use loquent_infer::budget::ItlTarget;
use loquent_infer::request::Work;
use loquent_infer::scheduler::Limits;
use loquent_infer::token::TokenId;
use proptest::prelude::*;

use super::toy::*;

const CONTEXT: usize = 400;
/// Ten tokens a second.
const TOKEN_MS: u64 = 100;
/// Steps in which rows are counted.
const STEPS: usize = 200;

/// A request whose answer has at least `least` tokens, unlike any other tag's.
fn long_answer(tag: u64, prompt_tokens: usize, least: usize) -> Work {
    let variants = (0..).map(|variant: TokenId| {
        let own = [3 + tag as TokenId, 100 + variant];
        let prompt = own.iter().copied().cycle().take(prompt_tokens).collect();
        work(tag, prompt, 300)
    });
    variants.into_iter().find(|work| alone(work, CONTEXT).0.len() >= least).unwrap()
}

fn bench(places: usize) -> Bench {
    Bench::new(ToyRunner::new(2 * places as u16 + 2, 8_000, CONTEXT as u32), limits(places))
}

fn tokens(bench: &Bench, tag: u64) -> usize {
    bench.generated.get(&tag).map_or(0, Vec::len)
}

/// A reader as it is in truth: it begins with the first token and takes [`TOKEN_MS`] for each.
#[derive(Clone, Copy, Default)]
struct TrueReader {
    tokens: usize,
    dry_at: Duration,
    stalled: Duration,
}

impl TrueReader {
    /// `tokens` were there by `now`.
    fn note(&mut self, now: Duration, tokens: usize) {
        for _ in self.tokens..tokens {
            if self.tokens > 0 {
                self.stalled += now.saturating_sub(self.dry_at);
            }
            self.dry_at = self.dry_at.max(now) + Duration::from_millis(TOKEN_MS);
            self.tokens += 1;
        }
    }
}

#[test]
fn a_newcomer_takes_the_place_of_a_reader_with_text_in_hand_who_never_runs_dry() {
    let mut bench = bench(1);
    bench.submit(&long_answer(0, 4, 60));
    let mut reader = TrueReader::default();
    let step = |bench: &mut Bench, reader: &mut TrueReader| {
        bench.step();
        reader.note(bench.now, tokens(bench, 0));
    };
    step(&mut bench, &mut reader);
    bench.note_reader(0, Some((TOKEN_MS, TOKEN_MS)));
    // A step takes 11 ms, so that three seconds of text are there soon.
    while reader.dry_at < bench.now + Duration::from_secs(3) {
        step(&mut bench, &mut reader);
    }
    bench.submit(&long_answer(1, 4, 60));
    step(&mut bench, &mut reader);
    assert_eq!(tokens(&bench, 1), 1, "it has its first token in one step");
    assert_eq!(bench.scheduler.load().resting, 1);
    while bench.live.len() == 2 {
        step(&mut bench, &mut reader);
    }
    assert_eq!(reader.stalled, Duration::ZERO);
    let preemptions = bench.scheduler.load().preemptions;
    assert_eq!(preemptions, 0, "it goes on with the KV that it had");
    bench.run();
    for tag in 0..2 {
        assert_eq!(bench.generated[&tag], alone(&long_answer(tag, 4, 60), CONTEXT).0);
    }
}

#[test]
fn while_nobody_waits_nobody_rests() {
    let mut bench = bench(4);
    (0..4).for_each(|tag| bench.submit(&long_answer(tag, 4, 60)));
    bench.step();
    (0..4).for_each(|tag| bench.note_reader(tag, Some((60_000, TOKEN_MS))));
    for _ in 0..40 {
        bench.submit_batches();
        assert_eq!(bench.in_flight[0].batch.spans.len(), 4, "a full batch costs least");
        bench.step();
    }
}

#[test]
fn who_loses_ground_gets_shorter_steps() {
    let mut bench = bench(4);
    (0..4).for_each(|tag| bench.submit(&long_answer(tag, 4, 60)));
    // A step of four rows takes 70 ms.
    bench.slowness = 5;
    (0..8).for_each(|_| _ = bench.step());
    (0..3).for_each(|tag| bench.note_reader(tag, Some((60_000, TOKEN_MS))));
    bench.note_reader(3, Some((0, TOKEN_MS)));
    bench.submit_batches();
    assert_eq!(bench.in_flight[0].batch.spans.len(), 4, "the fourth keeps up");
    bench.step();
    bench.note_reader(3, Some((0, 50)));
    bench.submit_batches();
    assert_eq!(bench.in_flight[0].batch.spans.len(), 1, "the others can wait");
}

#[test]
fn prompts_get_the_time_that_readers_have() {
    // What the second prompt takes, in steps, beside an answer whose reader has this in hand.
    let steps = |hand: Option<u64>| {
        let itl_target = ItlTarget::relative(1.4);
        let limits = Limits { prefill_max_tokens: 60, itl_target, ..limits(4) };
        let mut bench = Bench::new(ToyRunner::new(10, 8_000, CONTEXT as u32), limits);
        bench.submit(&long_answer(0, 4, 60));
        (0..3).for_each(|_| _ = bench.step());
        bench.submit(&long_answer(1, 300, 1));
        let mut count = 0;
        while tokens(&bench, 1) == 0 {
            bench.note_reader(0, hand.map(|ms| (ms, TOKEN_MS)));
            bench.step();
            count += 1;
        }
        (count, tokens(&bench, 0))
    };
    let (usual, _) = steps(None);
    let (known, answered) = steps(Some(150));
    assert!(known * 2 < usual, "{known} steps for {usual}");
    assert!(answered > 3, "its reader has too little to rest");
    let (rested, answered) = steps(Some(5_000));
    assert!(rested <= known && answered <= 5, "{rested} steps, {answered} tokens");
}

/// Rows that each unknown reader's sequence gets in [`STEPS`], if it has a place, beside sequences
/// of `known` readers that were resting until they had too little in hand.
fn rows_of_unknown(bench: &mut Bench, known: u64, unknown: u64, token_ms: u64) -> Vec<usize> {
    bench.runner.memory = 1;
    (0..known).for_each(|tag| bench.submit(&circling(tag, 4, 300, CONTEXT)));
    (0..10).for_each(|_| _ = bench.step());
    (0..known).for_each(|tag| bench.note_reader(tag, Some((1_500, token_ms))));
    let all = known..known + unknown;
    all.clone().for_each(|tag| bench.submit(&circling(tag, 4, 300, CONTEXT)));
    (0..5).for_each(|_| _ = bench.step());
    // Who has no place waits for one, as ever.
    let placed: Vec<u64> = all.filter(|tag| bench.admitted.contains_key(tag)).collect();
    let before: Vec<usize> = placed.iter().map(|&tag| tokens(bench, tag)).collect();
    (0..STEPS).for_each(|_| _ = bench.step());
    placed.iter().zip(before).map(|(&tag, before)| tokens(bench, tag) - before).collect()
}

#[test]
fn sequences_that_share_rows_take_turns_in_full() {
    // A reader of 50 tokens a second does not rest for long: there are four for three rows.
    let mut bench = bench(3);
    let rows = rows_of_unknown(&mut bench, 1, 3, 20);
    let (least, most) = (rows.iter().min().unwrap(), rows.iter().max().unwrap());
    assert!(rows.len() == 3 && *most < STEPS && most - least <= 1, "{rows:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Known readers and unknown ones, more than there are places: all come to their ends, and one
    /// of whom nothing is known gets at least its equal share of rows.
    #[test]
    fn nobody_starves_and_an_unknown_reader_has_its_equal_share(
        places in 1..5usize,
        known in 1..5u64,
        unknown in 1..5u64,
        token_ms in 20..200u64,
    ) {
        let mut bench = bench(places);
        let share = (places as f64 / (known + unknown) as f64).min(1.0);
        // One for the rounding of turns.
        let due = (share * STEPS as f64).floor() as usize - 1;
        for served in rows_of_unknown(&mut bench, known, unknown, token_ms) {
            prop_assert!(served >= due, "{served} of {due}");
        }
        bench.run();
        prop_assert_eq!(bench.ended.len() as u64, known + unknown);
    }
}
