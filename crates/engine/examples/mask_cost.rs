//! Prints how long the masks of hostile schemas take over a vocabulary of 150,000 tokens: what a
//! client can make the engine's grammar threads compute.
//!
//! `cargo run --release -p loquent-engine --example mask_cost`

use std::time::{Duration, Instant};

use loquent_formats::grammar::{AnswerForm, AnswerShape, Compiler};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};
use serde_json::{Value, json};

/// All bytes, then words of letters, digits and signs, then an end token.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn new(size: usize) -> Self {
        let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let (letters, mut state) = (b"etaoinshrdlu ETAOINS0123456789\"{}[]:,._-", 1u64);
        while words.len() < size - 1 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize
            };
            let length = 2 + next() % 10;
            words.push((0..length).map(|_| letters[next() % letters.len()]).collect());
        }
        words.push(Vec::new());
        Self(words)
    }
}

impl Vocab for Words {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, _: &str, _: Encode) -> Result<Vec<TokenId>, EncodeError> {
        Err(EncodeError("this vocabulary only decodes".into()))
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        &self.0[token as usize]
    }

    fn name(&self, token: TokenId) -> &[u8] {
        self.piece(token)
    }

    fn is_end(&self, token: TokenId) -> bool {
        token as usize == self.0.len() - 1
    }
}

fn schemas() -> Vec<(&'static str, Value)> {
    let string = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let many: Vec<String> = (0..2000).map(|i| format!("choice number {i}")).collect();
    let fields: serde_json::Map<String, Value> =
        (0..200).map(|i| (format!("field{i}"), json!({"type": "string"}))).collect();
    vec![
        ("any JSON object", json!({"type": "object"})),
        ("a string", json!({"type": "string"})),
        ("a long bounded string", json!({"type": "string", "maxLength": 20000})),
        ("nested repetition", string("^([a-z]{0,60} ?){0,60}$")),
        ("an exponential automaton", string("^[a-z ]*a[a-z ]{14}$")),
        ("many alternatives", string("^(e|et|eta|etao|[a-z]{3,9}|.{2,30}x)*$")),
        ("2000 constants", json!({"enum": many})),
        ("200 optional fields", json!({"type": "object", "properties": fields})),
    ]
}

fn main() {
    let compiler = Compiler::new(&Words::new(150_000)).expect("a vocabulary");
    println!("{:28} {:>10} {:>10} {:>10}", "schema", "compile", "mean mask", "worst mask");
    for (name, schema) in schemas() {
        let started = Instant::now();
        let shape = AnswerShape { form: Some(AnswerForm::Json(schema)), ..AnswerShape::default() };
        let grammar = match compiler.compile(&shape) {
            Ok(grammar) => grammar,
            Err(error) => {
                println!("{name:28} {:>10.1?} refused: {error}", started.elapsed());
                continue;
            }
        };
        let compiled = started.elapsed();
        let mut masks = Vec::new();
        for seed in 0..8u64 {
            masks.extend(follow(grammar.0.start(&[]), seed));
        }
        let worst = masks.iter().max().copied().unwrap_or_default();
        let mean = masks.iter().sum::<Duration>() / masks.len().max(1) as u32;
        println!("{name:28} {compiled:>10.1?} {mean:>10.1?} {worst:>10.1?}");
    }
}

/// Times of the masks of a random answer of up to 100 tokens.
fn follow(
    mut constraint: Box<dyn loquent_infer::sampling::Constraint>,
    seed: u64,
) -> Vec<Duration> {
    let (mut times, mut state) = (Vec::new(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..100 {
        let started = Instant::now();
        let mask = constraint.allowed().map(<[u32]>::to_vec);
        times.push(started.elapsed());
        // Too slow, or the end of the schema.
        let Ok(mask) = mask else { break };
        let bits = mask.iter().enumerate().flat_map(|(word, bits)| {
            (0..32).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word as u32 * 32 + bit)
        });
        let allowed: Vec<TokenId> = bits.collect();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let Some(&token) = allowed.get((state >> 33) as usize % allowed.len().max(1)) else {
            break;
        };
        constraint.accept(token);
    }
    times
}
