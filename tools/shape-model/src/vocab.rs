//! The tokenizer of a model: copied from a GGUF, or a synthetic one of any size.
//!
//! The synthetic one is a byte-level BPE like GPT-2's: a token for each of the 256 bytes, so that
//! every text can be written, then merges of two and three frequent characters in a fixed order,
//! then three control tokens. On English it makes tokens of two to three bytes, where a trained
//! vocabulary makes four.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use loquent_formats::gguf::{Array, Header, ReadLimits, Value};

/// Characters that merges are made of, the frequent ones first; `Ġ` is a space.
const FREQUENT: &str = "Ġetaoinshrdlcumwfgypbvkxjqz0123456789ETAOINSHRDLCUMWFGYPBVKXJQZ\
                        .,-'\"()/:;_=*<>!?#$%&+@[]{}|~^`";
/// The tokens that end a text and that frame a message, at the end of the vocabulary.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// BERT's control tokens, at the beginning of the vocabulary.
const WORD_PIECE_CONTROL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
/// llama.cpp's numbers for the kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN_TYPE: i32 = 2;
const CONTROL_TYPE: i32 = 3;
/// Frames messages by the control tokens; Qwen's format.
const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
    {{ message['content'] }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A tokenizer as GGUF metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Vocabulary {
    /// The metadata entries whose keys begin with `tokenizer.`.
    pub metadata: Vec<(String, Value)>,
    /// Number of tokens, which the embeddings must have too.
    pub len: u32,
}

/// The tokenizer of another GGUF, such as llama.cpp's `ggml-vocab-*.gguf`.
///
/// # Errors
/// A file that cannot be read as GGUF, or that has no list of tokens.
pub fn copied(path: &Path) -> anyhow::Result<Vocabulary> {
    let header = Header::open(path, ReadLimits::with_arrays())
        .with_context(|| format!("the vocabulary {}", path.display()))?;
    let Some(Value::Array(tokens)) = header.get("tokenizer.ggml.tokens") else {
        bail!("{} holds no vocabulary", path.display());
    };
    let len = u32::try_from(tokens.len).context("too many tokens")?;
    let is_tokenizer = |entry: &(String, Value)| entry.0.starts_with("tokenizer.");
    let metadata = header.metadata.into_iter().filter(is_tokenizer).collect();
    Ok(Vocabulary { metadata, len })
}

/// A synthetic tokenizer of `len` tokens; `pre` names the pre-tokenizer of llama.cpp that splits
/// text into words before merging.
///
/// # Errors
/// Fewer tokens than bytes and control tokens, or more than there are merges for.
pub fn synthetic(len: u32, pre: &str) -> anyhow::Result<Vocabulary> {
    let least = 256 + CONTROL.len() as u32;
    ensure!(len >= least, "a vocabulary has at least {least} tokens, for bytes and control");
    let (merges, merged) = merges((len - least) as usize)?;
    let bytes = (0..=255).map(|byte| byte_symbol(byte).to_string());
    let tokens = bytes.chain(merged).chain(CONTROL.map(str::to_owned));
    let kinds = (0..len).map(|id| if id < len - 3 { NORMAL } else { CONTROL_TYPE });
    let id = |control: u32| Value::u32(len - 3 + control);
    let entries = [
        ("model", Value::string("gpt2")),
        ("pre", Value::string(pre)),
        ("tokens", Value::Array(Array::of_strings(tokens))),
        ("token_type", Value::Array(Array::of_i32(kinds))),
        ("merges", Value::Array(Array::of_strings(merges))),
        ("bos_token_id", id(0)),
        ("eos_token_id", id(2)),
        ("padding_token_id", id(0)),
        ("add_bos_token", Value::Bool(false)),
    ];
    let mut metadata: Vec<_> =
        entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).into();
    metadata.push(("tokenizer.chat_template".to_owned(), Value::string(CHAT_TEMPLATE)));
    Ok(Vocabulary { metadata, len })
}

/// A synthetic word-piece tokenizer of `len` tokens, as BERT's: control tokens, then letters and
/// two and three, each as the beginning of a word and as its continuation.
///
/// # Errors
/// Fewer tokens than control tokens and letters, or more than there are pieces for.
pub fn word_pieces(len: u32) -> anyhow::Result<Vocabulary> {
    let letters: Vec<char> = FREQUENT.chars().skip(1).filter(|c| !c.is_uppercase()).collect();
    let single = letters.iter().map(char::to_string);
    let pair = letters.iter().flat_map(|a| letters.iter().map(move |b| format!("{a}{b}")));
    // U+2581 marks the beginning of a word.
    let triple = pair.clone().flat_map(|ab| letters.iter().map(move |c| format!("{ab}{c}")));
    let pieces =
        single.chain(pair).chain(triple).flat_map(|piece| [format!("\u{2581}{piece}"), piece]);
    let control = WORD_PIECE_CONTROL.map(str::to_owned).into_iter();
    let tokens: Vec<String> = control.chain(pieces).take(len as usize).collect();
    let least = WORD_PIECE_CONTROL.len() + 2 * letters.len();
    ensure!(len as usize >= least, "a vocabulary of word pieces has at least {least} tokens");
    ensure!(tokens.len() == len as usize, "it has at most {} tokens", tokens.len());
    let kinds = (0..len as usize).map(|id| match id {
        1 => UNKNOWN_TYPE,
        id if id < WORD_PIECE_CONTROL.len() => CONTROL_TYPE,
        _ => NORMAL,
    });
    let entries = [
        ("model", Value::string("bert")),
        ("pre", Value::string("jina-v2-en")),
        ("tokens", Value::Array(Array::of_strings(tokens))),
        ("token_type", Value::Array(Array::of_i32(kinds))),
        ("token_type_count", Value::u32(2)),
        ("padding_token_id", Value::u32(0)),
        ("unknown_token_id", Value::u32(1)),
        ("bos_token_id", Value::u32(2)),
        // Spelt so in GGUF files.
        ("seperator_token_id", Value::u32(3)),
        ("eos_token_id", Value::u32(3)),
        ("mask_token_id", Value::u32(4)),
    ];
    let metadata = entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).into();
    Ok(Vocabulary { metadata, len })
}

/// The character that represents a byte in a byte-level BPE (GPT-2's table): printable bytes
/// represent themselves, the others become the characters from U+0100 on, in order.
fn byte_symbol(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let earlier = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(0x100 + earlier).expect("below U+0200, all numbers are characters")
}

/// The first `count` merges and the tokens they make: all pairs, then all pairs with a third
/// character behind; both by the sum of the characters' ranks, so that frequent ones come first.
fn merges(count: usize) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let symbols: Vec<char> = FREQUENT.chars().collect();
    // A space only begins a token: a pre-tokenizer never leaves one elsewhere in a word.
    let inner = &symbols[1..];
    let by_rank = |left: &[String], right: &[char]| {
        let mut places: Vec<(usize, usize)> =
            (0..left.len()).flat_map(|l| (0..right.len()).map(move |r| (l, r))).collect();
        places.sort_by_key(|(l, r)| l + r);
        places.into_iter().map(|(l, r)| (left[l].clone(), right[r])).collect::<Vec<_>>()
    };
    let singles: Vec<String> = symbols.iter().map(char::to_string).collect();
    let pairs = by_rank(&singles, inner);
    let joined: Vec<String> = pairs.iter().map(|(left, right)| format!("{left}{right}")).collect();
    let triples = if count > pairs.len() { by_rank(&joined, inner) } else { Vec::new() };
    let all = pairs.len() + triples.len();
    ensure!(count <= all, "a synthetic vocabulary has at most {} tokens", all + 259);
    let chosen = || pairs.iter().chain(&triples).take(count);
    let merges = chosen().map(|(left, right)| format!("{left} {right}")).collect();
    Ok((merges, chosen().map(|(left, right)| format!("{left}{right}")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn strings(vocabulary: &Vocabulary, key: &str) -> Vec<String> {
        let entry = vocabulary.metadata.iter().find(|(name, _)| name.ends_with(key));
        let Some((_, Value::Array(array))) = entry else { panic!("no array {key}") };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        array.strings().into_iter().map(text).collect()
    }

    #[test]
    fn tokens_are_distinct_and_as_many_as_asked() {
        for len in [259, 1000, 50_257, 151_936] {
            let vocabulary = synthetic(len, "gpt-2").unwrap();
            let tokens = strings(&vocabulary, "tokens");
            assert_eq!(tokens.len(), len as usize);
            assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), len as usize);
            assert_eq!(tokens[len as usize - 1], "<|im_end|>");
        }
        assert!(synthetic(258, "gpt-2").is_err());
        assert!(synthetic(10_000_000, "gpt-2").is_err());
    }

    #[test]
    fn every_merge_joins_two_tokens_that_come_before_it() {
        let vocabulary = synthetic(20_000, "gpt-2").unwrap();
        let tokens = strings(&vocabulary, "tokens");
        let mut known: HashSet<String> = tokens[..256].iter().cloned().collect();
        for (merge, token) in strings(&vocabulary, "merges").iter().zip(&tokens[256..]) {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(known.contains(left) && known.contains(right), "{merge}");
            assert_eq!(&format!("{left}{right}"), token);
            known.insert(token.clone());
        }
    }

    #[test]
    fn bytes_have_gpt2s_symbols() {
        let symbols: HashSet<char> = (0..=255).map(byte_symbol).collect();
        assert_eq!(symbols.len(), 256);
        let pairs = [(b'a', 'a'), (b' ', 'Ġ'), (b'\n', 'Ċ'), (0x00, 'Ā'), (0xad, 'Ń'), (0xff, 'ÿ')];
        for (byte, symbol) in pairs {
            assert_eq!(byte_symbol(byte), symbol);
        }
    }
}
