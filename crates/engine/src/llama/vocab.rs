//! A model's vocabulary: text to tokens through llama.cpp, tokens to bytes from a table.
//!
//! Tokens are converted to bytes once per token of every stream, so that is a look-up without a
//! call.

use std::sync::Arc;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};

use super::pieces::Cut;
use super::{LlamaModel, guard, sys};
use loquent_formats::gguf::{Header, Value};

/// Byte strings by token, stored contiguously with the end of each: one allocation instead of
/// 150,000.
#[derive(Debug, Default)]
struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenTable {
    fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.ends.push(self.bytes.len() as u32);
    }

    fn longest(&self) -> Option<usize> {
        (0..self.ends.len()).map(|index| self.item(index).len()).max()
    }

    fn item(&self, index: usize) -> &[u8] {
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start as usize..end as usize]
    }
}

/// The vocabulary of a [`LlamaModel`].
#[derive(Debug)]
pub struct LlamaVocab {
    model: Arc<LlamaModel>,
    pieces: TokenTable,
    names: TokenTable,
    ends: Vec<bool>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    add_bos: bool,
    /// Token at the end of every input of an embedding.
    input_end: Option<TokenId>,
    has_tokenizer: bool,
    /// Rule for cutting prompts before tokenizing.
    cut: Option<Cut>,
    longest_token_bytes: Option<usize>,
}

impl LlamaVocab {
    /// Reads the tables of `model`; takes some milliseconds for 150,000 tokens.
    pub fn new(model: Arc<LlamaModel>) -> Self {
        let vocab = native(&model);
        // SAFETY: `vocab` belongs to the live `model`; plain values out.
        let (size, bos, eos, add_bos, kind) = unsafe {
            (
                sys::llama_vocab_n_tokens(vocab),
                sys::llama_vocab_bos(vocab),
                sys::llama_vocab_eos(vocab),
                sys::llama_vocab_get_add_bos(vocab),
                sys::llama_vocab_type(vocab),
            )
        };
        let has_tokenizer = kind != sys::LLAMA_VOCAB_TYPE_NONE;
        let (mut pieces, mut names) = (TokenTable::default(), TokenTable::default());
        let mut ends = Vec::new();
        for token in 0..if has_tokenizer { size } else { 0 } {
            pieces.push(&piece(vocab, token, false));
            names.push(&piece(vocab, token, true));
            // SAFETY: `token` is below the vocabulary's size.
            ends.push(unsafe { sys::llama_vocab_is_eog(vocab, token) });
        }
        let (bos, eos) = (TokenId::try_from(bos).ok(), TokenId::try_from(eos).ok());
        let cut = cut(model.header());
        let longest_token_bytes = match keeps_all_text(vocab, kind, &pieces, size) {
            true => pieces.longest().max(names.longest()),
            false => None,
        };
        Self {
            model,
            pieces,
            names,
            ends,
            bos,
            eos,
            add_bos,
            input_end: input_end(vocab),
            has_tokenizer,
            cut,
            longest_token_bytes,
        }
    }

    /// The begin-of-sequence token, if the vocabulary has one.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The end-of-sequence token, if the vocabulary has one.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// All tokens that end a generation, in order.
    pub fn end_tokens(&self) -> Vec<TokenId> {
        let ends = self.ends.iter().enumerate().filter(|(_, is_end)| **is_end);
        ends.map(|(token, _)| token as TokenId).collect()
    }

    /// Tokenizes `text`. Long texts are cut first if llama.cpp would recurse through them.
    fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<TokenId>, EncodeError> {
        let Some(cut) = self.cut else { return self.tokenize_piece(text, parse_special) };
        let mut tokens = Vec::new();
        for piece in cut.pieces(text) {
            tokens.append(&mut self.tokenize_piece(piece, parse_special)?);
        }
        Ok(tokens)
    }

    fn tokenize_piece(&self, text: &str, parse_special: bool) -> Result<Vec<TokenId>, EncodeError> {
        // Tokens are seldom more than bytes. If they are, llama.cpp returns the number it needs,
        // negated, and the second round has room for all.
        let mut tokens: Vec<sys::llama_token> = vec![0; text.len() + 8];
        for _ in 0..2 {
            // SAFETY: the model is alive and owns its vocabulary.
            let count =
                unsafe { guard::tokenize(native(&self.model), text, &mut tokens, parse_special) };
            let count = count.map_err(|why| {
                // Names of llama.cpp's source files are nothing for clients.
                tracing::warn!("llama.cpp cannot tokenize a prompt: {why}");
                EncodeError("the model's tokenizer failed on it".into())
            })?;
            if let Ok(count) = usize::try_from(count) {
                tokens.truncate(count);
                return Ok(tokens.into_iter().map(|token| token as TokenId).collect());
            }
            // The number of tokens overflows.
            if count == i32::MIN {
                break;
            }
            tokens.resize(count.unsigned_abs() as usize, 0);
        }
        Err(EncodeError("it has too many tokens".into()))
    }
}

impl Vocab for LlamaVocab {
    fn size(&self) -> usize {
        self.model.info().vocab_size as usize
    }

    fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError> {
        if !self.has_tokenizer {
            return Err(EncodeError("the model's file has no tokenizer".into()));
        }
        let mut tokens = self.tokenize(text, how.parse_special)?;
        // Not left to llama.cpp: its flag would append an end token too, where the model has one.
        if let (true, true, Some(bos)) = (how.add_bos, self.add_bos, self.bos) {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    fn encode_input(&self, text: &str) -> Result<Vec<TokenId>, EncodeError> {
        let mut tokens = self.encode(text, Encode { add_bos: true, parse_special: false })?;
        tokens.extend(self.input_end);
        Ok(tokens)
    }

    fn input_end(&self) -> Option<TokenId> {
        self.input_end
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        self.pieces.item(token as usize)
    }

    fn name(&self, token: TokenId) -> &[u8] {
        self.names.item(token as usize)
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.ends.get(token as usize).copied().unwrap_or(false)
    }

    fn longest_token_bytes(&self) -> Option<usize> {
        self.longest_token_bytes
    }
}

/// Returns true if every byte of a text is in one of its tokens. Not so if words or characters may
/// become one unknown token, or if special tokens swallow the white space beside them.
fn keeps_all_text(
    vocab: *const sys::llama_vocab,
    kind: sys::llama_vocab_type,
    pieces: &TokenTable,
    size: i32,
) -> bool {
    const STRIPS: sys::llama_token_attr =
        sys::LLAMA_TOKEN_ATTR_LSTRIP | sys::LLAMA_TOKEN_ATTR_RSTRIP;
    if kind != sys::LLAMA_VOCAB_TYPE_BPE && kind != sys::LLAMA_VOCAB_TYPE_SPM {
        return false;
    }
    // SAFETY: `token` is below the vocabulary's size.
    let strips = |token| unsafe { sys::llama_vocab_get_attr(vocab, token) } & STRIPS != 0;
    let mut known = [false; 256];
    for index in 0..pieces.ends.len() {
        if let &[byte] = pieces.item(index) {
            known[usize::from(byte)] = true;
        }
    }
    // Bytes that UTF-8 does not have need no token.
    let in_text = |byte: u8| !matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    (0..=255).filter(|&byte| in_text(byte)).all(|byte| known[usize::from(byte)])
        && !(0..size).any(strips)
}

/// Returns the token that the model expects after an input, according to the file: a separator or
/// the end of the text.
fn input_end(vocab: *const sys::llama_vocab) -> Option<TokenId> {
    // SAFETY: `vocab` belongs to a live model; plain values out, negative for none.
    let token = unsafe {
        if sys::llama_vocab_get_add_sep(vocab) {
            sys::llama_vocab_sep(vocab)
        } else if sys::llama_vocab_get_add_eos(vocab) {
            sys::llama_vocab_eos(vocab)
        } else {
            return None;
        }
    };
    TokenId::try_from(token).ok()
}

fn cut(header: &Header) -> Option<Cut> {
    let text = |key: &str| header.get(key).and_then(Value::as_str).unwrap_or_default();
    Cut::of(text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"))
}

fn native(model: &LlamaModel) -> *const sys::llama_vocab {
    // SAFETY: the model is alive and owns its vocabulary.
    unsafe { sys::llama_model_get_vocab(model.as_ptr()) }
}

fn piece(vocab: *const sys::llama_vocab, token: sys::llama_token, special: bool) -> Vec<u8> {
    let mut buf = vec![0u8; 64];
    loop {
        let room = i32::try_from(buf.len()).unwrap_or(i32::MAX);
        // SAFETY: `buf` has `room` bytes, `token` is below the vocabulary's size.
        let len = unsafe {
            sys::llama_token_to_piece(vocab, token, buf.as_mut_ptr().cast(), room, 0, special)
        };
        match usize::try_from(len) {
            Ok(len) => {
                buf.truncate(len);
                return buf;
            }
            Err(_) => buf.resize(len.unsigned_abs() as usize, 0),
        }
    }
}
