//! Compares the sampler with a plain reference that sorts everything, and tests its guarantees:
//! determinism after a rebuild, lowest token of equals, one error for one broken row.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// The documented steps, in double precision, with a full sort. Returns the probability of every
/// token, zero for dropped ones.
fn reference(logits: &[f32], how: &Sampling, prompt: &[u32], generated: &[u32]) -> Vec<f64> {
    let mut logits = logits.to_vec();
    let mut seen: HashMap<u32, u32> = prompt.iter().map(|&t| (t, 0)).collect();
    generated.iter().for_each(|&t| *seen.entry(t).or_default() += 1);
    let all = [prompt, generated].concat();
    let latest = &all[all.len().saturating_sub(how.repeat_last_n as usize)..];
    for (&token, &count) in &seen {
        let logit = &mut logits[token as usize];
        let factor = if latest.contains(&token) { how.repetition_penalty } else { 1.0 };
        *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
        *logit -= if count > 0 { how.presence_penalty } else { 0.0 };
        *logit -= how.frequency_penalty * count as f32;
    }
    for &(token, bias) in how.logit_bias.iter() {
        logits[token as usize] += if bias <= -100.0 { f32::NEG_INFINITY } else { bias };
    }
    how.forbidden.iter().for_each(|&t| logits[t as usize] = f32::NEG_INFINITY);

    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let max = f64::from(logits[ranked[0]]);
    let weight = |t: usize| ((f64::from(logits[t]) - max) / f64::from(how.temperature)).exp();
    ranked.retain(|&t| weight(t) > 0.0 && weight(t) >= f64::from(how.min_p));
    if how.top_k > 0 {
        ranked.truncate(how.top_k as usize);
    }
    let all: f64 = ranked.iter().map(|&t| weight(t)).sum();
    let mut sum = 0.0;
    let enough = ranked.iter().position(|&t| {
        sum += weight(t);
        sum >= all * f64::from(how.top_p)
    });
    ranked.truncate(enough.map_or(ranked.len(), |last| last + 1));
    let kept: f64 = ranked.iter().map(|&t| weight(t)).sum();
    let mut probabilities = vec![0.0; logits.len()];
    ranked.iter().for_each(|&t| probabilities[t] = weight(t) / kept);
    probabilities
}

/// Returns the token at `u` of the running sum in token order, and the distance of `u` from its
/// edges.
fn at(probabilities: &[f64], u: f64) -> (u32, f64) {
    let mut sum = 0.0;
    for (token, p) in probabilities.iter().enumerate() {
        if u < sum + p {
            return (token as u32, (u - sum).min(sum + p - u));
        }
        sum += p;
    }
    (probabilities.len() as u32 - 1, 0.0)
}

fn sample(
    how: &Sampling,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
) -> Result<SampledToken, RowError> {
    let mut sampler = Sampler::new(how.clone(), prompt, generated);
    sampler.sample(&mut logits.to_vec(), &mut Scratch::default())
}

fn any_sampling(vocab: u32) -> impl Strategy<Value = Sampling> {
    let token = 0..vocab;
    let filters = (prop_oneof![Just(0u32), 1..60u32], prop_oneof![Just(1.0f32), 0.0..1.0f32]);
    let filters = (filters, prop_oneof![Just(0.0f32), 0.0..0.5f32]);
    let window = prop_oneof![Just(u32::MAX), 0..8u32];
    let penalties = (-2.0f32..2.0, -2.0f32..2.0, 0.5f32..2.0, window);
    let penalties = prop_oneof![Just((0.0, 0.0, 1.0, u32::MAX)), penalties];
    let bias = prop_oneof![Just(-100.0f32), -5.0f32..5.0];
    let bias = prop::collection::vec((token.clone(), bias), 0..4);
    let forbidden = prop::collection::vec(token, 0..3);
    (0.05f32..3.0, filters, penalties, bias, forbidden, any::<u64>()).prop_map(
        |(temperature, ((top_k, top_p), min_p), penalties, logit_bias, forbidden, seed)| {
            let (presence_penalty, frequency_penalty, repetition_penalty, repeat_last_n) =
                penalties;
            Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                presence_penalty,
                frequency_penalty,
                repetition_penalty,
                repeat_last_n,
                seed,
                logit_bias: distinct(logit_bias).into(),
                logprobs: None,
                forbidden,
                grammar: None,
            }
        },
    )
}

/// Returns the first bias of each token.
fn distinct(mut bias: Vec<(u32, f32)>) -> Vec<(u32, f32)> {
    bias.sort_by_key(|&(token, _)| token);
    bias.dedup_by_key(|&mut (token, _)| token);
    bias
}

const VOCAB: u32 = 700;

fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let spread = prop_oneof![Just(0.2f32), Just(2.0), Just(8.0)];
    (spread, prop::collection::vec(-1.0f32..1.0, VOCAB as usize), any::<bool>()).prop_map(
        |(spread, row, ties)| {
            let scaled = row.into_iter().map(|x| x * spread);
            // No negative zero: it ranks below zero, and a penalty of nothing makes it one.
            scaled.map(|x| if ties { x.round() + 0.0 } else { x }).collect()
        },
    )
}

proptest! {
    #[test]
    fn equals_the_reference(
        logits in any_logits(),
        how in any_sampling(VOCAB),
        prompt in prop::collection::vec(0..VOCAB, 0..40),
        generated in prop::collection::vec(0..VOCAB, 0..40),
    ) {
        let probabilities = reference(&logits, &how, &prompt, &generated);
        let u = random::uniform(how.seed, generated.len() as u64);
        let (token, margin) = at(&probabilities, u);
        let choice = sample(&how, &logits, &prompt, &generated).unwrap();
        // Weights are single precision here: at an edge the neighbour may be chosen, and
        // a filter may keep or drop the token at its own edge, which moves all others.
        if choice.token != token {
            let near_edges = [0.9999f32, 1.0001].map(|f| {
                let mut near = how.clone();
                near.top_p = if how.top_p < 1.0 { (how.top_p * f).min(1.0) } else { 1.0 };
                near.min_p = how.min_p * f;
                let near = reference(&logits, &near, &prompt, &generated);
                at(&near, u).0 == choice.token
            });
            prop_assert!(margin < 1e-5 || near_edges.contains(&true),
                "{} instead of {token}, margin {margin}", choice.token);
        }
    }

    #[test]
    fn greedy_is_the_first_maximum(logits in any_logits(), how in any_sampling(VOCAB)) {
        let how = Sampling { temperature: 0.0, ..how };
        let mut biased = logits.clone();
        for &(t, bias) in how.logit_bias.iter() {
            biased[t as usize] += if bias <= -100.0 { f32::NEG_INFINITY } else { bias };
        }
        how.forbidden.iter().for_each(|&t| biased[t as usize] = f32::NEG_INFINITY);
        let max = biased.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = biased.iter().position(|&l| l == max).unwrap() as u32;
        prop_assert_eq!(sample(&how, &logits, &[], &[]).unwrap().token, first);
    }

    #[test]
    fn rebuilt_samplers_go_on_alike(how in any_sampling(VOCAB), logits in any_logits(), cut in 0usize..12) {
        let mut scratch = Scratch::default();
        let mut run = |mut sampler: Sampler, steps: usize| -> Vec<u32> {
            let mut rotated = logits.clone();
            (0..steps).map(|_| {
                rotated.rotate_left(7);
                sampler.sample(&mut rotated.clone(), &mut scratch).unwrap().token
            }).collect()
        };
        let whole = run(Sampler::new(how.clone(), &[1, 2], &[]), 12);
        let rebuilt = Sampler::new(how, &[1, 2], &whole[..cut]);
        let mut rotated = logits.clone();
        rotated.rotate_left(7 * cut);
        let mut sampler = rebuilt;
        for &expected in &whole[cut..] {
            rotated.rotate_left(7);
            let choice = sampler.sample(&mut rotated.clone(), &mut scratch).unwrap();
            prop_assert_eq!(choice.token, expected);
        }
    }

    #[test]
    fn logprobs_are_of_the_unmodified_logits(logits in any_logits(), how in any_sampling(VOCAB), k in 0u8..20) {
        let how = Sampling { logprobs: Some(k), ..how };
        let choice = sample(&how, &logits, &[], &[]).unwrap();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mass: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let logprob = |t: u32| f64::from(logits[t as usize] - max) - mass.ln();
        let got = choice.logprobs.unwrap();
        prop_assert!((f64::from(got.chosen) - logprob(choice.token)).abs() < 1e-4);
        let mut ranked: Vec<u32> = (0..VOCAB).collect();
        ranked.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        prop_assert_eq!(got.top.len(), usize::from(k));
        for (&(token, value), &expected) in got.top.iter().zip(&ranked) {
            prop_assert_eq!(token, expected);
            prop_assert!((f64::from(value) - logprob(token)).abs() < 1e-4);
        }
    }
}

#[test]
fn a_repetition_penalty_with_a_window_leaves_older_tokens_alone() {
    let prompt = [vec![1], vec![2; 64]].concat();
    // Token 1 leads by 5 %, and the penalty is twice that.
    let logits = [2.0, 2.1, -1.0];
    let token = |repeat_last_n, generated: &[u32]| {
        let how = Sampling { repetition_penalty: 1.1, repeat_last_n, ..Sampling::default() };
        sample(&how, &logits, &prompt, generated).unwrap().token
    };
    assert_eq!([u32::MAX, 65, 64, 0].map(|window| token(window, &[])), [0, 0, 1, 1]);
    assert_eq!([2, 1].map(|window| token(window, &[1, 2])), [0, 1]);
}

#[test]
fn log_probabilities_without_alternatives_collect_no_candidates() {
    let mut scratch = Scratch::default();
    let mut sampler = Sampler::new(Sampling { logprobs: Some(0), ..Sampling::default() }, &[], &[]);
    let choice = sampler.sample(&mut [0.5; 100_000], &mut scratch).unwrap();
    assert!(choice.logprobs.unwrap().top.is_empty());
    assert_eq!(scratch.candidates.capacity(), 0);
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..600).map(|i| ((i * 37) % 100) as f32 / 25.0).collect();
    for how in [
        Sampling { temperature: 1.0, ..Sampling::default() },
        Sampling { temperature: 0.7, top_k: 20, ..Sampling::default() },
        Sampling { temperature: 1.3, top_p: 0.6, ..Sampling::default() },
        Sampling { temperature: 1.0, min_p: 0.3, ..Sampling::default() },
    ] {
        let expected = reference(&logits, &how, &[], &[]);
        let draws = 60_000;
        let (mut counts, mut scratch) = (vec![0u32; logits.len()], Scratch::default());
        let mut sampler = Sampler::new(Sampling { seed: 7, ..how.clone() }, &[], &[]);
        for _ in 0..draws {
            let choice = sampler.sample(&mut logits.clone(), &mut scratch).unwrap();
            counts[choice.token as usize] += 1;
        }
        for (token, &p) in expected.iter().enumerate() {
            let mean = p * f64::from(draws);
            let off = (f64::from(counts[token]) - mean).abs();
            assert!(off <= 5.0 * mean.sqrt() + 1e-9, "token {token}: {} of {mean}", counts[token]);
        }
    }
}

#[test]
fn broken_rows_are_told_from_forbidden_ones() {
    let greedy = Sampling::default();
    let forbids_all = Sampling { forbidden: vec![0, 1, 2], ..Sampling::default() };
    let inf = f32::INFINITY;
    for row in [[f32::NAN, 1.0, 2.0], [1.0, inf, 2.0], [-inf; 3], [f32::NAN; 3]] {
        for how in [&greedy, &forbids_all] {
            let error = sample(how, &row, &[], &[]).unwrap_err();
            assert_eq!(error, RowError::NonFiniteLogits, "{row:?}");
        }
    }
    for row in [[1.0, 2.0, 3.0], [1.0, -inf, -inf]] {
        let error = sample(&forbids_all, &row, &[], &[]).unwrap_err();
        assert_eq!(error, RowError::NothingAllowed, "{row:?}");
    }
    assert_eq!(sample(&greedy, &[], &[], &[]), Err(RowError::NonFiniteLogits));
}

#[test]
fn tokens_outside_the_vocabulary_are_ignored() {
    let how = Sampling {
        presence_penalty: 1.0,
        logit_bias: [(900, 5.0)].into(),
        forbidden: vec![901],
        ..Sampling::default()
    };
    assert_eq!(sample(&how, &[0.0, 1.0], &[902], &[903]).unwrap().token, 1);
}

#[test]
fn extreme_parameters_still_choose() {
    let logits: Vec<f32> = (0..1000).map(|i| (i % 10) as f32).collect();
    for temperature in [1e-5, 1e-3, 100.0] {
        for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (1, 1.0, 0.0), (0, 0.0, 0.0), (0, 1.0, 1.0)] {
            let how = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
            let token = sample(&how, &logits, &[], &[]).unwrap().token;
            if top_k == 1 || top_p == 0.0 {
                assert_eq!(token, 9, "{how:?}");
            }
        }
    }
}

/// Allows the tokens of one list at each position.
#[derive(Clone)]
struct Places {
    masks: Vec<Vec<u32>>,
    at: usize,
}

impl Places {
    fn shared(places: &[&[u32]]) -> SharedGrammar {
        let mask = |tokens: &&[u32]| {
            let mut words = vec![0u32; 2];
            tokens.iter().for_each(|token| words[*token as usize / 32] |= 1 << (token % 32));
            words
        };
        SharedGrammar(std::sync::Arc::new(Self { masks: places.iter().map(mask).collect(), at: 0 }))
    }
}

impl Grammar for Places {
    fn start(&self, generated: &[TokenId]) -> Box<dyn Constraint> {
        Box::new(Self { at: generated.len(), ..self.clone() })
    }
}

impl Constraint for Places {
    fn allowed(&mut self) -> Result<&[u32], RowError> {
        let ended = || RowError::Constraint("the end".into());
        self.masks.get(self.at).map(Vec::as_slice).ok_or_else(ended)
    }

    fn accept(&mut self, _token: TokenId) {
        self.at += 1;
    }
}

#[test]
fn only_what_the_grammar_allows_is_chosen() {
    // The best token is never allowed, and token 64 has no bit.
    let row = || (0..65).map(|token| token as f32).collect::<Vec<f32>>();
    let grammar = Some(Places::shared(&[&[3, 40], &[63, 5], &[], &[1]]));
    let how = Sampling { grammar, logprobs: Some(1), ..Sampling::default() };
    let mut scratch = Scratch::default();
    let mut sampler = Sampler::new(how.clone(), &[], &[]);
    let first = sampler.sample(&mut row(), &mut scratch).unwrap();
    assert_eq!((first.token, first.logprobs.unwrap().top[0].0), (40, 64));
    let mut broken = row();
    broken[64] = f32::NAN;
    assert_eq!(sampler.sample(&mut broken, &mut scratch), Err(RowError::NonFiniteLogits));
    assert_eq!(sampler.sample(&mut row(), &mut scratch).unwrap().token, 63);
    assert_eq!(sampler.sample(&mut row(), &mut scratch), Err(RowError::NothingAllowed));
    let mut anew = Sampler::new(how, &[], &[40, 63, 0]);
    assert_eq!(anew.sample(&mut row(), &mut scratch).unwrap().token, 1);
    let over = anew.sample(&mut row(), &mut scratch);
    assert!(matches!(over, Err(RowError::Constraint(_))), "{over:?}");
}
