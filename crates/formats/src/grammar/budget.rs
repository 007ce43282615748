//! Limit on reasoning: after the limit, only the tokens that end reasoning are allowed.
//!
//! It is a constraint like a grammar's, so that the model sees the end in its context and continues
//! with the answer. If the answer has a grammar, the limit wraps it.

use std::sync::Arc;

use loquent_infer::sampling::{Constraint, Grammar, SharedGrammar};
use loquent_infer::token::{RowError, TokenId};
use loquent_infer::vocab::{Encode, EncodeError, Vocab};

use super::Thinking;
use super::syntax::ThinkTags;

/// Bytes of reasoning kept to find its end.
const TAIL_BYTES: usize = 64;

/// Returns `inner`, or any text, with at most `limit` tokens of reasoning; `inner` alone if answers
/// of this kind have no reasoning to end.
///
/// # Errors
/// If the end of reasoning cannot be tokenized.
pub fn limit_thinking(
    vocab: Arc<dyn Vocab>,
    thinking: Thinking,
    limit: u32,
    inner: Option<SharedGrammar>,
) -> Result<Option<SharedGrammar>, EncodeError> {
    let (tags, begin) = match thinking {
        Thinking::Never | Thinking::Channels => return Ok(inner),
        Thinking::Optional(tags) => (tags, BudgetState::Before(Vec::new())),
        Thinking::Open(tags) => (tags, BudgetState::thinking(0, limit)),
    };
    let end = vocab.encode(tags.ending(), Encode { add_bos: false, parse_special: true })?;
    let budget = ThinkingBudget { vocab, limit, tags, end: end.into(), begin, inner };
    Ok(Some(SharedGrammar(Arc::new(budget))))
}

struct ThinkingBudget {
    vocab: Arc<dyn Vocab>,
    limit: u32,
    tags: ThinkTags,
    /// Tokens that end reasoning.
    end: Arc<[TokenId]>,
    begin: BudgetState,
    inner: Option<SharedGrammar>,
}

impl Grammar for ThinkingBudget {
    fn start(&self, generated: &[TokenId]) -> Box<dyn Constraint> {
        let words = self.vocab.size().div_ceil(32);
        let mut limited = LimitedThinking {
            vocab: self.vocab.clone(),
            limit: self.limit,
            tags: self.tags,
            end: self.end.clone(),
            state: self.begin.clone(),
            inner: self.inner.as_ref().map(|inner| inner.0.start(generated)),
            mask: vec![u32::MAX; words],
            any: true,
        };
        // A sequence that is recomputed goes on within what is left of its budget.
        generated.iter().for_each(|&token| limited.note(token));
        Box::new(limited)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BudgetState {
    /// Reasoning may begin; holds the text so far.
    Before(Vec<u8>),
    /// Tokens left; the end of the text so far.
    Thinking { left: u32, tail: Vec<u8> },
    /// Number of tokens of the end already written.
    Ending(usize),
    /// The answer.
    Done,
}

impl BudgetState {
    fn thinking(used: u32, limit: u32) -> Self {
        match limit.saturating_sub(used) {
            0 => Self::Ending(0),
            left => Self::Thinking { left, tail: Vec::new() },
        }
    }
}

struct LimitedThinking {
    vocab: Arc<dyn Vocab>,
    limit: u32,
    tags: ThinkTags,
    end: Arc<[TokenId]>,
    state: BudgetState,
    inner: Option<Box<dyn Constraint>>,
    mask: Vec<u32>,
    /// True if the mask allows every token.
    any: bool,
}

impl LimitedThinking {
    fn note(&mut self, token: TokenId) {
        // The tags are control tokens in some vocabularies: those have a name and no text.
        let text = match self.vocab.piece(token) {
            [] => self.vocab.name(token),
            piece => piece,
        };
        let [think, think_end] = self.tags.pair();
        match &mut self.state {
            BudgetState::Before(before) => {
                before.extend_from_slice(text);
                let begun = before.trim_ascii_start();
                if begun.starts_with(think.as_bytes()) {
                    self.state = BudgetState::thinking(0, self.limit);
                } else if !think.as_bytes().starts_with(begun) {
                    self.state = BudgetState::Done;
                }
            }
            BudgetState::Thinking { left, tail } => {
                *left = left.saturating_sub(1);
                tail.extend_from_slice(text);
                if tail.windows(think_end.len()).any(|window| window == think_end.as_bytes()) {
                    self.state = BudgetState::Done;
                } else if *left == 0 && !ends_inside_character(tail) {
                    self.state = BudgetState::Ending(0);
                } else {
                    // The tag may come in several tokens, but not in more bytes than these.
                    tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
                }
            }
            BudgetState::Ending(written) => {
                let written = *written + 1;
                let is_over = written >= self.end.len();
                self.state = if is_over { BudgetState::Done } else { BudgetState::Ending(written) };
            }
            BudgetState::Done => {}
        }
    }

    /// Returns the token of the end that must come next.
    fn forced(&self) -> Option<TokenId> {
        match self.state {
            BudgetState::Ending(written) => self.end.get(written).copied(),
            _ => None,
        }
    }

    fn allow_only(&mut self, token: TokenId) {
        self.mask.fill(0);
        if let Some(word) = self.mask.get_mut(token as usize / 32) {
            *word = 1 << (token % 32);
        }
        self.any = false;
    }

    fn allow_any(&mut self) {
        if !self.any {
            self.mask.fill(u32::MAX);
            self.any = true;
        }
    }
}

impl Constraint for LimitedThinking {
    fn is_ready(&mut self) -> bool {
        self.inner.as_mut().is_none_or(|inner| inner.is_ready())
    }

    fn allowed(&mut self) -> Result<&[u32], RowError> {
        let mut forced = self.forced();
        if let (Some(token), Some(inner)) = (forced, &mut self.inner) {
            let word = inner.allowed()?.get(token as usize / 32).copied().unwrap_or(0);
            // A grammar that has gone on to the answer already needs no end of reasoning.
            if word >> (token % 32) & 1 == 0 {
                (self.state, forced) = (BudgetState::Done, None);
            }
        }
        // Asked twice, since a mask returned from above would stay borrowed on every path.
        if forced.is_none() && self.inner.is_some() {
            return self.inner.as_mut().map_or(Ok(&[]), |inner| inner.allowed());
        }
        match forced {
            Some(token) => self.allow_only(token),
            None => self.allow_any(),
        }
        Ok(&self.mask)
    }

    fn accept(&mut self, token: TokenId) {
        if let Some(inner) = &mut self.inner {
            inner.accept(token);
        }
        self.note(token);
    }
}

/// Returns true if `text` ends inside a character: any other text after it would break the
/// character.
fn ends_inside_character(text: &[u8]) -> bool {
    let last = &text[text.len().saturating_sub(3)..];
    (0..last.len()).any(|at| {
        let error = std::str::from_utf8(&last[at..]).err();
        error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use loquent_infer::sim_vocab::SimVocab;

    const OPEN: Thinking = Thinking::Open(ThinkTags::Angle);
    const OPTIONAL: Thinking = Thinking::Optional(ThinkTags::Angle);
    const END: &str = ThinkTags::Angle.ending();

    /// Output of a model that would reason forever, with `say` as its answer.
    fn write(thinking: Thinking, limit: u32, say: &[u8]) -> String {
        let grammar = limit_thinking(Arc::new(SimVocab), thinking, limit, None).unwrap().unwrap();
        let mut constraint = grammar.0.start(&[]);
        let (mut text, mut generated) = (Vec::new(), Vec::new());
        for &liked in say {
            let allowed = constraint.allowed().unwrap();
            let is_allowed = |token: usize| allowed[token / 32] >> (token % 32) & 1 == 1;
            let token = match is_allowed(liked.into()) {
                true => TokenId::from(liked),
                false => (0..256).find(|&token| is_allowed(token)).unwrap() as TokenId,
            };
            constraint.accept(token);
            text.push(token as u8);
            generated.push(token);
            // A sequence that is recomputed goes on where it was.
            let mut again = grammar.0.start(&generated);
            assert_eq!(again.allowed().unwrap(), constraint.allowed().unwrap());
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn reasoning_ends_at_its_budget() {
        let forever = [b'x'; 30];
        assert_eq!(write(OPEN, 5, &forever), format!("xxxxx{END}{}", "x".repeat(14)));
        assert_eq!(write(OPEN, 0, &forever), format!("{END}{}", "x".repeat(19)));
        let begun = [b"<think>".as_slice(), &forever].concat();
        assert_eq!(write(OPTIONAL, 2, &begun), format!("<think>xx{END}{}", "x".repeat(17)));
        let square = Thinking::Optional(ThinkTags::Square);
        let begun = [b"[THINK]".as_slice(), &forever].concat();
        assert_eq!(write(square, 2, &begun), format!("[THINK]xx[/THINK]{}", "x".repeat(20)));
    }

    #[test]
    fn shorter_reasoning_and_answers_without_any_are_left_alone() {
        let short = b"ab</think>\n\nA long answer that nothing cuts off.";
        assert_eq!(write(OPEN, 12, short).as_bytes(), short);
        let none = b"<thin ice> and a long answer behind it";
        assert_eq!(write(OPTIONAL, 2, none).as_bytes(), none);
    }

    #[test]
    fn characters_are_finished_first() {
        let text = write(OPEN, 2, "x🌊🌊🌊🌊🌊".as_bytes());
        assert!(text.starts_with(&format!("x🌊{END}")), "{text}");
    }
}
