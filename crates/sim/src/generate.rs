//! Generators: the times at which a model emits its tokens, and their text.

use serde::{Deserialize, Serialize};

use crate::rng::Draws;

/// Rhythm of a generator, as written in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Generator {
    /// One token at a time, evenly.
    Constant {
        /// Tokens in one second.
        tokens_per_s: f64,
    },
    /// Groups of tokens at once, with pauses of exponential length between them.
    Bursty {
        /// Mean rate in tokens per second.
        tokens_per_s: f64,
        /// Mean tokens in a group (geometric).
        group: f64,
    },
    /// Gaps measured from a server, repeated from a starting point drawn for each session.
    Measured {
        /// Gaps between tokens in ms.
        gaps_ms: Vec<f64>,
    },
}

impl Generator {
    /// Describes the first parameter that is out of range, if there is one.
    pub fn fault(&self) -> Option<String> {
        let rate = |rate: f64| {
            (!(0.1..=2_000.0).contains(&rate))
                .then(|| format!("tokens_per_s = {rate} is not in 0.1..=2000"))
        };
        match self {
            Self::Constant { tokens_per_s } => rate(*tokens_per_s),
            Self::Bursty { tokens_per_s, group } => rate(*tokens_per_s).or_else(|| {
                (!(1.0..=1_000.0).contains(group))
                    .then(|| format!("group = {group} is not in 1..=1000"))
            }),
            Self::Measured { gaps_ms } => {
                let sane = gaps_ms.iter().all(|gap| (0.0..=60_000.0).contains(gap));
                let moves = gaps_ms.iter().sum::<f64>() > 0.0;
                (!(sane && moves)).then(|| "gaps_ms must hold gaps of 0 to 60000 ms".to_owned())
            }
        }
    }

    /// Returns the generation times in µs, the first at 0, all below `length_us`.
    pub fn times_us(&self, seed: u64, length_us: u64) -> Vec<u64> {
        let mut stream = Draws::new(seed, "generator").stream();
        let length_ms = length_us as f64 / 1e3;
        let mut times_us = Vec::new();
        let mut at_ms = 0.0;
        let mut turn = match self {
            Self::Measured { gaps_ms } => (stream.unit() * gaps_ms.len() as f64) as usize,
            _ => 0,
        };
        while at_ms < length_ms {
            times_us.push((at_ms * 1e3_f64).round() as u64);
            at_ms += match self {
                // Not at_ms += gap: a sum of rounded gaps would drift.
                Self::Constant { tokens_per_s } => {
                    times_us.len() as f64 * 1e3 / tokens_per_s - at_ms
                }
                Self::Bursty { tokens_per_s, group } => {
                    let group_ends = stream.chance(1.0 / group);
                    let pause_ms = stream.exponential(1e3 * group / tokens_per_s);
                    if group_ends { pause_ms } else { 0.0 }
                }
                Self::Measured { gaps_ms } => {
                    turn += 1;
                    gaps_ms[turn % gaps_ms.len()]
                }
            };
        }
        times_us
    }
}

/// Appearance of tokens, as written in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenKind {
    /// Short words of three to six bytes.
    #[default]
    Short,
    /// As long as the bundled model's tokens in its training answers.
    Model,
    /// As long as whole words with the preceding characters, as an unlimited vocabulary would
    /// produce.
    Words,
}

/// Number of tokens of each length, from one byte on, in the answers of `tools/train-tiny/corpus`
/// with the bundled model's tokenizer: `python tools/train-tiny/lengths.py`.
const MODEL_LENGTHS: &[u32] =
    &[2915, 1192, 2014, 2375, 2100, 1545, 1052, 735, 252, 160, 81, 40, 24, 5, 11, 6];
/// Number of words of each length: `lengths.py --words`, without the 17 longer ones.
const WORD_LENGTHS: &[u32] = &[
    47, 424, 1444, 2166, 1831, 1593, 1104, 894, 488, 230, 149, 96, 45, 32, 21, 17, 7, 13, 2, 5, 4,
    1, 4, 1,
];

impl TokenKind {
    /// Appends the `index`th token of a session. It differs from its neighbours, so that the
    /// checkers notice a lost, doubled or swapped token.
    pub fn put(self, seed: u64, index: usize, text: &mut Vec<u8>) {
        match self {
            Self::Short => token_text(seed, index, text),
            Self::Model => put_letters(seed, index, drawn_length(seed, index, MODEL_LENGTHS), text),
            Self::Words => put_letters(seed, index, drawn_length(seed, index, WORD_LENGTHS), text),
        }
    }
}

/// Draws a length with the frequencies in `counts`, which start with those of one byte.
fn drawn_length(seed: u64, index: usize, counts: &[u32]) -> usize {
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let mut rank = Draws::new(seed, "token length").bits(index as u64) % total;
    let within = |&count: &u32| match rank.checked_sub(u64::from(count)) {
        Some(left) => {
            rank = left;
            false
        }
        None => true,
    };
    1 + counts.iter().position(within).expect("the rank is below the total")
}

fn put_letters(seed: u64, index: usize, length: usize, text: &mut Vec<u8>) {
    let mut letters = Draws::new(seed ^ index as u64, "letters").stream();
    text.extend((0..length).map(|_| b'a' + (letters.bits() % 26) as u8));
}

/// Appends the text of the `index`th token of a session: a short word, different for each index, so
/// that the checkers notice a lost, doubled or swapped token.
pub fn token_text(seed: u64, index: usize, text: &mut Vec<u8>) {
    let bits = Draws::new(seed, "text").bits(index as u64);
    let letters = 2 + (bits & 3) as usize;
    text.push(b' ');
    for place in 0..letters {
        text.push(b'a' + ((bits >> (8 + 5 * place)) % 26) as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_rate_has_no_drift() {
        let times_us = Generator::Constant { tokens_per_s: 30.0 }.times_us(1, 30_000_000);
        assert_eq!(times_us.len(), 900);
        assert_eq!(times_us[300], 10_000_000);
    }

    #[test]
    fn lengths_of_tokens_are_as_frequent_as_measured() {
        let mut seen = [0u32; 17];
        let mut text = Vec::new();
        for index in 0..50_000 {
            text.clear();
            TokenKind::Model.put(3, index, &mut text);
            seen[text.len()] += 1;
        }
        let total: u32 = MODEL_LENGTHS.iter().sum();
        for (length, &count) in MODEL_LENGTHS.iter().enumerate() {
            let share = f64::from(seen[length + 1]) / 50_000.0;
            let expected = f64::from(count) / f64::from(total);
            assert!((share - expected).abs() < 0.01, "{length}: {share} for {expected}");
        }
    }

    #[test]
    fn bursty_keeps_its_mean_rate() {
        let generator = Generator::Bursty { tokens_per_s: 20.0, group: 5.0 };
        let tokens = generator.times_us(2, 2_000_000_000).len();
        assert!((36_000..44_000).contains(&tokens), "{tokens}");
    }
}
