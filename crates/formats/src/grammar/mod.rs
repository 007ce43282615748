//! Grammars: JSON schemas, grammars in requests and tool calls as constraints on sampling, with
//! llguidance.
//!
//! A [`Compiler`] holds the vocabulary as a trie, once per model. Grammars are limited in bytes
//! here, and in steps, states and size by llguidance; a schema beyond these limits, or with
//! keywords that cannot be enforced, is rejected. Masks are computed on separate threads while the
//! engine decodes: see `pending.rs`.

mod bounds;
mod budget;
mod calls;
mod control_tags;
mod gbnf;
mod json_rule;
mod lark;
mod panics;
mod pending;
mod refused;
mod syntax;
mod worker;

pub use budget::limit_thinking;
pub use syntax::{CallSyntax, ThinkTags};

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use loquent_infer::sampling::{Constraint, Grammar, SharedGrammar};
use loquent_infer::token::TokenId;
use loquent_infer::vocab::Vocab;
use serde_json::Value;

use control_tags::ControlTags;
use panics::quietly;
use pending::{Pending, Position};
use refused::RefusedGrammars;
use worker::{Lane, Workers};

/// Maximum bytes of a grammar, all its schemas together, as text.
pub const MAX_GRAMMAR_BYTES: usize = 128 * 1024;

/// Work that compiling one grammar may take, in nodes of llguidance's regular expressions: some
/// tenths of a second. Compiling cannot be interrupted, so that this is its deadline. It is far
/// more than a schema of [`MAX_GRAMMAR_BYTES`] needs.
const COMPILE_FUEL: u64 = 400_000;

/// Reason why no grammar could be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema is invalid, too complex, or has keywords that cannot be enforced.
    #[error("{0}")]
    Schema(String),
    /// The text exceeds [`MAX_GRAMMAR_BYTES`].
    #[error("it exceeds {MAX_GRAMMAR_BYTES} bytes")]
    TooLarge,
    /// The model's vocabulary cannot be used with grammars.
    #[error("this model's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
}

/// The parts of a tool's definition that its grammar needs.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolShape {
    /// Name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// JSON schema of the arguments.
    pub parameters: Value,
}

/// Required form of an answer's text.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerForm {
    /// JSON that fits this schema.
    Json(Value),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text of this grammar, in llguidance's dialect of Lark.
    Lark(String),
    /// A text of this grammar, in GBNF.
    Gbnf(String),
}

/// Form that an answer must have, reasoning and calls included.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnswerShape {
    /// Form of the answer proper. If there are tools too, an answer has either this form or calls.
    pub form: Option<AnswerForm>,
    /// Calls of these tools; empty for none.
    pub tools: Vec<ToolShape>,
    /// Format in which the model writes calls.
    pub syntax: Option<CallSyntax>,
    /// True if more than one call is allowed.
    pub parallel: bool,
    /// Reasoning before the answer.
    pub thinking: Thinking,
}

/// Reasoning before the answer proper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// The answer has no reasoning.
    #[default]
    Never,
    /// The answer may begin with reasoning between these tags.
    Optional(ThinkTags),
    /// The prompt ended with the opening one of these tags.
    Open(ThinkTags),
    /// Reasoning is a separate message, in another channel than the answer (gpt-oss).
    Channels,
}

/// Compiles grammars for one vocabulary.
pub struct Compiler {
    factory: ParserFactory,
    workers: Workers,
    tags: ControlTags,
    refused: Mutex<RefusedGrammars>,
}

impl Compiler {
    /// Creates the compiler for `vocab`; takes some hundred milliseconds for 150,000 tokens.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if no token ends a generation, or if no thread can be started.
    pub fn new(vocab: &dyn Vocab) -> Result<Self, GrammarError> {
        let tokens = 0..vocab.size() as TokenId;
        let ends: Vec<TokenId> = tokens.clone().filter(|&token| vocab.is_end(token)).collect();
        let none = || GrammarError::Vocabulary("it has no end token".into());
        let first = *ends.first().ok_or_else(none)?;
        let info = TokRxInfo::new(vocab.size() as u32, first);
        let words: Vec<Vec<u8>> = tokens.map(|token| vocab.piece(token).to_vec()).collect();
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let failed = |error: String| GrammarError::Vocabulary(error);
        let mut factory = ParserFactory::new_simple(&(Arc::new(ApproximateTokEnv::new(trie)) as _))
            .map_err(|error| failed(error.to_string()))?;
        factory.quiet();
        // Verbose errors quote the whole grammar, which is the server's text, not the user's.
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().initial_lexer_fuel = COMPILE_FUEL;
        panics::install(&factory);
        let workers = Workers::start().map_err(|error| failed(error.to_string()))?;
        Ok(Self { factory, workers, tags: ControlTags::of(vocab), refused: Mutex::default() })
    }

    /// Compiles the grammar of `shape`. One that was refused is refused again at once.
    ///
    /// # Errors
    /// [`GrammarError::Schema`] or [`GrammarError::TooLarge`].
    pub fn compile(&self, shape: &AnswerShape) -> Result<SharedGrammar, GrammarError> {
        let grammar = lark::write(shape, &self.tags)?;
        let texts = grammar.grammars.iter().filter_map(|part| part.lark_grammar.as_ref());
        if texts.map(String::len).sum::<usize>() > MAX_GRAMMAR_BYTES {
            return Err(GrammarError::TooLarge);
        }
        let refused = || self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = refused::digest_of(&grammar);
        if let Some(reason) = digest.and_then(|it| refused().reason(&it).map(str::to_owned)) {
            return Err(GrammarError::Schema(reason));
        }
        let wrong = |error: String| {
            let reason = first_line(&error);
            if let Some(digest) = digest {
                refused().note(digest, reason.clone());
            }
            GrammarError::Schema(reason)
        };
        let parser = quietly(|| self.factory.create_parser(grammar));
        let mut matcher = Matcher::new(Ok(parser.map_err(|error| wrong(error.to_string()))?));
        // The first mask shows whether the grammar stays within the limits at all: an error now is
        // the request's, later it would end an answer.
        let mask = quietly(|| matcher.compute_mask()).map_err(|error| wrong(error.to_string()))?;
        let first = Arc::new(Mutex::new(Position { matcher, mask: Ok(mask) }));
        let (lane, workers) = (Arc::default(), self.workers.clone());
        Ok(SharedGrammar(Arc::new(Compiled { first, lane, workers })))
    }
}

fn first_line(error: &str) -> String {
    let line = error.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown");
    let line: String = line.chars().take(300).collect();
    match line.strip_prefix("panic: ") {
        Some(what) => format!("llguidance cannot compile it ({what})"),
        None => line,
    }
}

struct Compiled {
    /// Matcher in its first state, with its mask; cloned for each completion.
    first: Arc<Mutex<Position>>,
    lane: Arc<Lane>,
    workers: Workers,
}

impl Grammar for Compiled {
    fn start(&self, generated: &[TokenId]) -> Box<dyn Constraint> {
        let (workers, lane) = (self.workers.clone(), self.lane.clone());
        Box::new(Pending::start(workers, lane, self.first.clone(), generated.to_vec()))
    }
}

#[cfg(test)]
mod tests;
