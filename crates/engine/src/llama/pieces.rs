//! Cuts prompts before llama.cpp splits them with `std::regex`.
//!
//! llama.cpp has a hand-written splitter for some pre-tokenizers and uses `std::regex` for the
//! others. That one recurses for every character of a match, so that a prompt of one long word
//! overflows any stack, and some patterns take quadratic time. For those pre-tokenizers a prompt is
//! first cut into pieces, at ends of words if possible. Tokens can differ from those of the whole
//! prompt only if a word is longer than a piece.

/// Maximum characters of a piece. Chosen by measurement: pieces of this size fit a stack of 2 MiB
/// with every pattern of this llama.cpp, and compiling the patterns for each piece, some
/// milliseconds, still takes less time than matching them.
const PIECE_CHARS: usize = 4096;
/// Maximum digits in a row for `superbpe`, whose pattern looks ahead to the end of the digits from
/// each of them. A multiple of three, since it groups digits by three.
const SUPERBPE_DIGITS: usize = 96;

/// Pre-tokenizers (`tokenizer.ggml.pre`) whose patterns this llama.cpp matches with hand-written
/// code, in linear time and without recursion. A name missing here costs only time.
const WRITTEN_BY_HAND: [&str; 38] = [
    "a.x-4.0",
    "dbrx",
    "deepseek-r1-qwen",
    "f2llmv2",
    "falcon-h1",
    "falcon3",
    "gemma4",
    "gigachat",
    "glm4",
    "glm5",
    "gpt-2",
    "granite-docling",
    "grok-2",
    "hunyuan",
    "jais",
    "jina-de",
    "jina-es",
    "jina-v2-de",
    "jina-v2-es",
    "jina-v5-nano",
    "kimi-k2",
    "kormo",
    "laguna",
    "lfm2",
    "llama-bpe",
    "llama-v3",
    "llama3",
    "mellum",
    "midm-2.0",
    "modern-bert",
    "mpt",
    "olmo",
    "phi-2",
    "pixtral",
    "qwen2",
    "qwen35",
    "smaug-bpe",
    "stablelm2",
];

/// Rule for cutting prompts for a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    chars: usize,
    /// Maximum digits in a row.
    digits: usize,
}

impl Cut {
    /// Returns the rule for the pre-tokenizer `pre` (`tokenizer.ggml.pre`) of a vocabulary of kind
    /// `model` (`tokenizer.ggml.model`); `None` if llama.cpp takes prompts whole.
    pub(super) fn of(model: &str, pre: &str) -> Option<Self> {
        // SentencePiece, WordPiece, unigram and RWKV vocabularies do not split by patterns.
        let has_patterns = !matches!(model, "llama" | "bert" | "t5" | "rwkv" | "plamo2");
        let digits = if pre == "superbpe" { SUPERBPE_DIGITS } else { PIECE_CHARS };
        (has_patterns && WRITTEN_BY_HAND.binary_search(&pre).is_err())
            .then_some(Self { chars: PIECE_CHARS, digits })
    }

    /// Returns the pieces of `text`, in order; nearly always the whole.
    pub(super) fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let (piece, after) = rest.split_at(self.piece_len(rest)?);
            rest = after;
            Some(piece)
        })
    }

    /// Bytes of the first piece of `text`; `None` if it is empty.
    fn piece_len(self, text: &str) -> Option<usize> {
        let (mut word_end, mut digits, mut before) = (None, 0, ' ');
        for (n, (at, char)) in text.char_indices().enumerate() {
            digits = if char.is_ascii_digit() { digits + 1 } else { 0 };
            if digits > self.digits {
                return Some(at);
            }
            if n == self.chars {
                return Some(word_end.unwrap_or(at));
            }
            // Before a space between two words: no pattern but one (exaone-moe) matches across it.
            let next = text[at..].chars().nth(1).unwrap_or(' ');
            if char == ' ' && !before.is_whitespace() && !next.is_whitespace() {
                word_end = Some(at);
            }
            before = char;
        }
        (!text.is_empty()).then_some(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_at_ends_of_words() {
        let prose = "Some words, and more. ".repeat(1000);
        let cut: Vec<&str> = Cut::of("gpt2", "tekken").unwrap().pieces(&prose).collect();
        assert_eq!(cut.concat(), prose);
        assert!(cut.len() > 4 && cut.len() < 8, "{} pieces", cut.len());
        assert!(cut[1..].iter().all(|piece| piece.starts_with(' ') && !piece.starts_with("  ")));
    }

    #[test]
    fn no_piece_is_longer_than_the_bound() {
        for (pre, char, bound) in [
            ("tekken", "a", PIECE_CHARS),
            ("tekken", " ", PIECE_CHARS),
            ("default", "é", PIECE_CHARS),
            ("bloom", "1", PIECE_CHARS),
            ("superbpe", "1", SUPERBPE_DIGITS),
        ] {
            let text = char.repeat(50_000);
            let cut: Vec<&str> = Cut::of("gpt2", pre).unwrap().pieces(&text).collect();
            assert_eq!(cut.concat(), text);
            assert_eq!(cut.iter().map(|piece| piece.chars().count()).max(), Some(bound));
        }
    }

    #[test]
    fn short_texts_and_splitters_written_by_hand_are_left_alone() {
        let cut = Cut::of("gpt2", "tekken").unwrap();
        assert_eq!(cut.pieces("").next(), None);
        assert_eq!(cut.pieces("short").collect::<Vec<_>>(), ["short"]);
        assert!(WRITTEN_BY_HAND.is_sorted());
        assert!(WRITTEN_BY_HAND.iter().all(|pre| Cut::of("gpt2", pre).is_none()));
        assert_eq!(Cut::of("llama", "default"), None);
    }
}
