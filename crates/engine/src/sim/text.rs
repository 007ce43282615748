//! Text of the simulated engine: a pure function of prompt and index.

use std::sync::Arc;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;

use super::DEFAULT_LENGTH;
use loquent_infer::sim_vocab::{END_OF_TEXT, FIRST_WORD, SimVocab, WORDS};

/// Tokens per sentence: words, a punctuation mark, then words or an emoji's four bytes.
const SENTENCE: u64 = 16;
/// Position of the punctuation mark in a sentence.
const MARK_AT: u64 = 11;

const MARKS: [u8; 4] = *b".,;.";
const EMOJI: [[u8; 4]; 4] =
    [*b"\xf0\x9f\x8c\x8a", *b"\xf0\x9f\x9a\x80", *b"\xf0\x9f\x93\xa1", *b"\xf0\x9f\x8e\xb5"];

/// The answer to one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SimText {
    seed: u64,
    /// Text that the prompt asks for, if any.
    script: Option<Arc<[TokenId]>>,
    /// Tokens before the end token.
    pub(super) length: u64,
}

impl SimText {
    /// Returns the answer to `prompt`: its script, its length, and the seed of everything else.
    pub(super) fn to(prompt: &[TokenId]) -> Self {
        // FNV-1a spreads poorly in its high bits, so every use mixes the seed again.
        let seed = prompt
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
            });
        let script = asked_text(prompt);
        let said = script.as_ref().map(|script| script.len() as u64);
        let length = said.or_else(|| asked_length(prompt)).unwrap_or(DEFAULT_LENGTH);
        Self { seed, script, length }
    }

    /// Token at index `i` of the answer.
    pub(super) fn token(&self, i: u64) -> TokenId {
        if let Some(&token) = self.script.as_ref().and_then(|script| script.get(i as usize)) {
            return token;
        }
        // A token is computed without those before it, so a preempted sequence costs nothing more.
        let (sentence, place) = (i / SENTENCE, i % SENTENCE);
        let dice = mix(self.seed ^ mix(sentence));
        match place {
            MARK_AT => MARKS[(dice % 4) as usize].into(),
            // Four tokens of one byte each: the detokenizer has to hold three of them back.
            12..SENTENCE if dice.is_multiple_of(8) => {
                let emoji = EMOJI[(dice >> 8) as usize % EMOJI.len()];
                emoji[(place - 12) as usize].into()
            }
            _ => FIRST_WORD + (mix(dice ^ place) % WORDS.len() as u64) as TokenId,
        }
    }
}

/// Returns the tokens after the last `say=` up to the next special token or, if the prompt ends
/// with the beginning of such an answer, the rest of it.
fn asked_text(prompt: &[TokenId]) -> Option<Arc<[TokenId]>> {
    let marker = b"say=".map(TokenId::from);
    let at = prompt.windows(marker.len()).rposition(|window| window == marker)?;
    let text = &prompt[at + marker.len()..];
    let special = |&token: &TokenId| (END_OF_TEXT..FIRST_WORD).contains(&token);
    let (text, behind) = text.split_at(text.iter().position(special).unwrap_or(text.len()));
    let begun = behind.iter().rposition(special).map_or(&[][..], |at| &behind[at + 1..]);
    let begun = begun.strip_prefix(&b"assistant\n".map(TokenId::from)).unwrap_or_default();
    Some(text.strip_prefix(begun).unwrap_or(text).into())
}

/// Returns the N of the last `tokens=N` in the prompt's text.
fn asked_length(prompt: &[TokenId]) -> Option<u64> {
    let text: Vec<u8> = prompt.iter().flat_map(|&token| SimVocab.piece(token)).copied().collect();
    let text = String::from_utf8_lossy(&text);
    let (_, after) = text.rsplit_once("tokens=")?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().ok()
}

/// A bijection that spreads bits (the finisher of MurmurHash3).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x = (x ^ (x >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    //! Answers are text, differ by prompt, and are as long as asked.
    use loquent_infer::vocab::Encode;

    use super::*;

    fn prompt(text: &str) -> Vec<TokenId> {
        SimVocab.encode(text, Encode { add_bos: false, parse_special: false }).unwrap()
    }

    #[test]
    fn answers_are_utf8_with_split_characters() {
        let answer = SimText::to(&prompt("hello"));
        let tokens: Vec<TokenId> = (0..3200).map(|i| answer.token(i)).collect();
        let text: Vec<u8> = tokens.iter().flat_map(|&t| SimVocab.piece(t)).copied().collect();
        let text = String::from_utf8(text).expect("whole sentences are UTF-8");
        assert!(text.chars().any(|c| c.len_utf8() == 4), "no emoji in {text}");
        assert_ne!(answer, SimText::to(&prompt("hallo")));
    }

    #[test]
    fn a_script_is_repeated_word_for_word() {
        let how = Encode { add_bos: false, parse_special: true };
        let asked = "say=no<|im_end|>Please say={\"a\": \"é the\"}<|im_end|>\n<|im_start|>";
        let answer = SimText::to(&SimVocab.encode(asked, how).unwrap());
        let said: Vec<u8> =
            (0..answer.length).flat_map(|i| SimVocab.piece(answer.token(i)).to_vec()).collect();
        assert_eq!(String::from_utf8(said).unwrap(), "{\"a\": \"é the\"}");
    }

    #[test]
    fn a_script_that_has_begun_goes_on() {
        let how = Encode { add_bos: false, parse_special: true };
        let asked = "<|im_start|>user\nsay=one two é<|im_end|>\n<|im_start|>assistant\n";
        let said = |begun: &str| {
            let answer = SimText::to(&SimVocab.encode(&format!("{asked}{begun}"), how).unwrap());
            let said = (0..answer.length).flat_map(|i| SimVocab.piece(answer.token(i)).to_vec());
            String::from_utf8(said.collect()).unwrap()
        };
        assert_eq!([said(""), said("one two"), said("two")], ["one two é", " é", "one two é"]);
    }

    #[test]
    fn length_is_as_asked() {
        for (text, length) in [
            ("say tokens=7, please", 7),
            ("tokens=1 tokens=20", 20),
            ("tokens=", 10_000),
            ("", 10_000),
        ] {
            assert_eq!(SimText::to(&prompt(text)).length, length, "{text}");
        }
    }
}
