//! Limits on grammars in requests. llguidance bounds the cost of a grammar, but compiles it
//! recursively: nesting, and chains of rules, must fit a thread's stack.

use super::GrammarError;

/// Maximum nesting of brackets.
const MAX_DEPTH: usize = 64;
/// Maximum number of brackets.
const MAX_BRACKETS: usize = 8192;
/// Maximum number of rules and terminals.
const MAX_RULES: usize = 1000;

/// Checks a grammar in Lark.
///
/// # Errors
/// [`GrammarError::Schema`] if the grammar is nested too deeply, or has too many rules.
pub(super) fn check(lark: &str) -> Result<(), GrammarError> {
    let (mut depth, mut brackets, mut rules) = (0_usize, 0, 0);
    let mut rest = lark.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // A comment, or a regular expression.
            '#' => skip_line(&mut rest),
            '/' if rest.peek() == Some(&'/') => skip_line(&mut rest),
            '"' | '/' => skip_quoted(&mut rest, c),
            '(' | '[' | '{' => (depth, brackets) = (depth + 1, brackets + 1),
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ':' => rules += 1,
            _ => {}
        }
        if depth > MAX_DEPTH || brackets > MAX_BRACKETS {
            return Err(GrammarError::Schema(format!(
                "the grammar has more than {MAX_BRACKETS} brackets, or more than {MAX_DEPTH} inside \
                 each other"
            )));
        }
    }
    match rules {
        ..=MAX_RULES => Ok(()),
        _ => Err(GrammarError::Schema(format!("the grammar has more than {MAX_RULES} rules"))),
    }
}

fn skip_line(rest: &mut impl Iterator<Item = char>) {
    rest.find(|&c| c == '\n');
}

fn skip_quoted(rest: &mut impl Iterator<Item = char>, end: char) {
    while let Some(c) = rest.next() {
        match c {
            '\\' => drop(rest.next()),
            // Neither goes over the end of a line: what looks like one is something else.
            _ if c == end || c == '\n' => return,
            _ => {}
        }
    }
}
