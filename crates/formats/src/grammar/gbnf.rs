//! Converts GBNF, the grammars of llama.cpp, to llguidance's dialect of Lark.
//!
//! GBNF has only characters; Lark has terminals, which a lexer finds, and rules over them.
//! Non-recursive parts become terminals, as long as possible; the rest become rules. If a text can
//! be cut into terminals in several ways, the lexer takes the longest: a converted grammar never
//! allows more than the original, and may allow less in such places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::control_tags::string;
use super::{GrammarError, MAX_GRAMMAR_BYTES};

/// Maximum rules: each round of naming them goes through all.
const MAX_RULES: usize = 500;
/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;

type Sequence = Vec<GbnfItem>;

/// A symbol and its number of repetitions.
#[derive(Debug, Clone)]
struct GbnfItem {
    symbol: GbnfSymbol,
    /// Minimum and maximum; once if absent.
    repeat: Option<(u32, Option<u32>)>,
}

#[derive(Debug, Clone)]
enum GbnfSymbol {
    Literal(String),
    /// A regular expression for one character.
    Class(String),
    Rule(String),
    Group(Vec<Sequence>),
}

/// Converts the grammar `text` to Lark.
///
/// # Errors
/// [`GrammarError::Schema`] with the line of text that is not GBNF, or cannot be converted.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    if text.len() > MAX_GRAMMAR_BYTES {
        return Err(GrammarError::TooLarge);
    }
    let rules = GbnfParser { text, at: 0, depth: 0 }.rules()?;
    let wrong = |why: String| GrammarError::Schema(format!("the grammar {why}"));
    if rules.len() > MAX_RULES {
        return Err(wrong(format!("has more than {MAX_RULES} rules")));
    }
    if !rules.contains_key("root") {
        return Err(wrong("has no rule 'root'".into()));
    }
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, body) in &rules {
        let used = uses.entry(name).or_default();
        body.iter().for_each(|sequence| collect_uses(sequence, used));
        if let Some(missing) = used.iter().find(|name| !rules.contains_key(**name)) {
            let missing: String = missing.chars().take(64).collect();
            return Err(wrong(format!("refers to a rule '{missing}', which it does not define")));
        }
    }
    let names = LarkNames::of(&uses);
    let mut lark = format!("start: {}\n", names.of_rule("root"));
    let mut writer = LarkWriter { names, terminals: String::new(), count: 0 };
    for (name, body) in &rules {
        let is_terminal = writer.names.is_terminal(name);
        let right = writer.alternatives(body, is_terminal);
        let _ = writeln!(lark, "{}: {right}", writer.names.of_rule(name));
    }
    Ok(lark + &writer.terminals)
}

fn collect_uses<'a>(sequence: &'a [GbnfItem], used: &mut BTreeSet<&'a str>) {
    for item in sequence {
        match &item.symbol {
            GbnfSymbol::Rule(name) => drop(used.insert(name)),
            GbnfSymbol::Group(all) => all.iter().for_each(|sequence| collect_uses(sequence, used)),
            GbnfSymbol::Literal(_) | GbnfSymbol::Class(_) => {}
        }
    }
}

/// Names of the rules in Lark, where capitals make a terminal.
struct LarkNames(BTreeMap<String, String>);

impl LarkNames {
    /// Names all rules. A rule is a terminal if all rules that it uses are, recursively.
    fn of(uses: &BTreeMap<&str, BTreeSet<&str>>) -> Self {
        let mut terminals: BTreeSet<&str> = BTreeSet::new();
        // Rules in a cycle never have all theirs among them, and so stay rules.
        loop {
            let is_new = |name: &&&str| {
                !terminals.contains(**name) && uses[**name].iter().all(|it| terminals.contains(it))
            };
            let more: Vec<&str> = uses.keys().filter(is_new).copied().collect();
            if more.is_empty() {
                break;
            }
            terminals.extend(more);
        }
        // Numbered: GBNF's names may have '-', which Lark's may not, or be a word that Lark knows.
        let name = |(at, name): (usize, &&str)| {
            let kind = if terminals.contains(*name) { "T" } else { "r" };
            ((*name).to_owned(), format!("{kind}{at}"))
        };
        Self(uses.keys().enumerate().map(name).collect())
    }

    fn of_rule(&self, name: &str) -> &str {
        &self.0[name]
    }

    fn is_terminal(&self, name: &str) -> bool {
        self.0[name].starts_with('T')
    }
}

struct LarkWriter {
    names: LarkNames,
    /// Terminals extracted from parts of rules.
    terminals: String,
    count: usize,
}

impl LarkWriter {
    fn alternatives(&mut self, all: &[Sequence], in_terminal: bool) -> String {
        let all: Vec<String> = all.iter().map(|one| self.sequence(one, in_terminal)).collect();
        all.join(" | ")
    }

    fn sequence(&mut self, items: &[GbnfItem], in_terminal: bool) -> String {
        if items.is_empty() {
            return "\"\"".to_owned();
        }
        let mut parts = Vec::new();
        let mut rest = items;
        while let Some(first) = rest.first() {
            let run = match in_terminal {
                true => 0, // all of it is; to count it for each item would be quadratic
                false => rest.iter().take_while(|item| self.is_terminal(item)).count(),
            };
            if run == 0 {
                parts.push(self.item(first, in_terminal));
                rest = &rest[1..];
                continue;
            }
            // Together, so that the lexer has no choice of where to cut them.
            let (together, after) = rest.split_at(run);
            let right = self.sequence(together, true);
            let name = format!("P{}", self.count);
            self.count += 1;
            let _ = writeln!(self.terminals, "{name}: {right}");
            parts.push(name);
            rest = after;
        }
        parts.join(" ")
    }

    fn is_terminal(&self, item: &GbnfItem) -> bool {
        match &item.symbol {
            GbnfSymbol::Literal(_) | GbnfSymbol::Class(_) => true,
            GbnfSymbol::Rule(name) => self.names.is_terminal(name),
            GbnfSymbol::Group(all) => all.iter().flatten().all(|item| self.is_terminal(item)),
        }
    }

    fn item(&mut self, item: &GbnfItem, in_terminal: bool) -> String {
        let mut text = match &item.symbol {
            GbnfSymbol::Literal(text) => string(text),
            GbnfSymbol::Class(regex) => format!("/{regex}/"),
            GbnfSymbol::Rule(name) => self.names.of_rule(name).to_owned(),
            GbnfSymbol::Group(all) => format!("({})", self.alternatives(all, in_terminal)),
        };
        match item.repeat {
            None => {}
            Some((0, None)) => text.push('*'),
            Some((1, None)) => text.push('+'),
            Some((0, Some(1))) => text.push('?'),
            Some((least, None)) => drop(write!(text, "{{{least},}}")),
            Some((least, Some(most))) => drop(write!(text, "{{{least},{most}}}")),
        }
        text
    }
}

struct GbnfParser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl GbnfParser<'_> {
    fn rules(mut self) -> Result<BTreeMap<String, Vec<Sequence>>, GrammarError> {
        let mut rules = BTreeMap::new();
        self.skip(true);
        while self.peek().is_some() {
            let name = self.name().ok_or_else(|| self.error("a rule's name is expected"))?;
            self.skip(false);
            if !self.take("::=") {
                return Err(self.error("'::=' is expected"));
            }
            self.skip(true);
            let body = self.alternatives(false)?;
            if rules.insert(name, body).is_some() {
                return Err(self.error("a rule is defined twice"));
            }
            if !matches!(self.peek(), None | Some('\n' | '\r')) {
                return Err(self.error("the end of the rule is expected"));
            }
            self.skip(true);
        }
        Ok(rules)
    }

    fn alternatives(&mut self, is_nested: bool) -> Result<Vec<Sequence>, GrammarError> {
        let mut all = vec![self.sequence(is_nested)?];
        while self.take("|") {
            self.skip(true);
            all.push(self.sequence(is_nested)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Sequence, GrammarError> {
        let mut items: Sequence = Vec::new();
        loop {
            self.skip(is_nested);
            if let Some(repeat) = self.repeat()? {
                let last = items.last_mut();
                let last = last.ok_or_else(|| self.error("nothing is repeated here"))?;
                // Each would be one more group for all that recurses, and none counts as one.
                if last.repeat.replace(repeat).is_some() {
                    return Err(self.error("what is repeated twice needs brackets"));
                }
                continue;
            }
            match self.symbol()? {
                Some(symbol) => items.push(GbnfItem { symbol, repeat: None }),
                None => return Ok(items),
            }
        }
    }

    fn symbol(&mut self) -> Result<Option<GbnfSymbol>, GrammarError> {
        Ok(Some(match self.peek() {
            Some('"') => GbnfSymbol::Literal(self.literal()?),
            Some('[') => GbnfSymbol::Class(self.class()?),
            Some('.') => {
                self.bump();
                // A dot alone leaves out line breaks in Lark, not in GBNF.
                GbnfSymbol::Class(r"(.|\n)".to_owned())
            }
            Some('(') => GbnfSymbol::Group(self.group()?),
            Some('<' | '!') => return Err(self.error("tokens cannot be named")),
            _ => return Ok(self.name().map(GbnfSymbol::Rule)),
        }))
    }

    fn group(&mut self) -> Result<Vec<Sequence>, GrammarError> {
        self.bump();
        self.depth += 1;
        // Parser and writer recurse into groups.
        if self.depth > MAX_DEPTH {
            return Err(self.error("groups are nested too deeply"));
        }
        let all = self.alternatives(true)?;
        self.depth -= 1;
        if self.take(")") { Ok(all) } else { Err(self.error("')' is expected")) }
    }

    /// Parses an operator that repeats the preceding symbol.
    fn repeat(&mut self) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        let repeat = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted().map(Some),
            _ => return Ok(None),
        };
        self.bump();
        Ok(Some(repeat))
    }

    /// `{3}`, `{3,}`, `{3,5}` or `{,5}`.
    fn counted(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let rest = &self.text[self.at + 1..];
        let wrong = || self.error("a number of repetitions is expected");
        let (inside, _) = rest.split_once('}').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let counts = match inside.split_once(',') {
            None => (number(inside)?, Some(number(inside)?)),
            Some((least, most)) => {
                let least = if least.trim().is_empty() { 0 } else { number(least)? };
                (least, if most.trim().is_empty() { None } else { Some(number(most)?) })
            }
        };
        if counts.1.is_some_and(|most| most < counts.0) {
            return Err(wrong());
        }
        self.at += inside.len() + 2;
        Ok(counts)
    }

    fn literal(&mut self) -> Result<String, GrammarError> {
        self.bump();
        let mut text = String::new();
        loop {
            match self.character()? {
                ('"', false) => return Ok(text),
                (c, _) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<String, GrammarError> {
        self.bump();
        let mut regex = if self.take("^") { "[^".to_owned() } else { "[".to_owned() };
        let begin = regex.len();
        loop {
            let first = match self.character()? {
                (']', false) => break,
                (c, _) => c,
            };
            // By its number: no character of the client's means anything to the regex engine.
            let _ = write!(regex, "\\x{{{:x}}}", u32::from(first));
            let ahead = self.text[self.at..].strip_prefix('-');
            // A '-' right before the end stands for itself.
            if ahead.is_some_and(|ahead| !ahead.starts_with(']')) {
                self.bump();
                let (last, _) = self.character()?;
                if last < first {
                    return Err(self.error("a range ends before it begins"));
                }
                let _ = write!(regex, "-\\x{{{:x}}}", u32::from(last));
            }
        }
        match (regex.len() > begin, regex.as_str()) {
            (true, _) => Ok(regex + "]"),
            (false, "[^") => Ok(r"(.|\n)".to_owned()),
            (false, _) => Err(self.error("a class has no characters")),
        }
    }

    /// Returns the next character inside a literal or class, and whether it was escaped.
    fn character(&mut self) -> Result<(char, bool), GrammarError> {
        let open = "a literal or class has no end";
        let c = self.bump().ok_or_else(|| self.error(open))?;
        if c != '\\' {
            return Ok((c, false));
        }
        let escaped = self.bump().ok_or_else(|| self.error(open))?;
        let c = match escaped {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'x' => self.hex(2)?,
            'u' => self.hex(4)?,
            'U' => self.hex(8)?,
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => escaped,
            _ => return Err(self.error("an escape is unknown")),
        };
        Ok((c, true))
    }

    fn hex(&mut self, digits: usize) -> Result<char, GrammarError> {
        // No index: the escape may be cut off by the text's end, or end inside a character.
        let code = self.text.get(self.at..self.at + digits);
        let code = code.filter(|code| code.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        let c = code.and_then(char::from_u32);
        let c = c.ok_or_else(|| self.error("an escape is no character"))?;
        self.at += digits;
        Ok(c)
    }

    fn name(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let rest = &self.text[self.at..];
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += len;
        (len > 0).then(|| rest[..len].to_owned())
    }

    /// Skips blanks and comments; line breaks end a rule.
    fn skip(&mut self, line_breaks: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => drop(self.bump()),
                '\n' | '\r' if line_breaks => drop(self.bump()),
                '#' => {
                    // Not over the line break, which may be what ends the rule.
                    let rest = &self.text[self.at..];
                    self.at += rest.find('\n').unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn error(&self, why: &str) -> GrammarError {
        let line = self.text[..self.at].matches('\n').count() + 1;
        GrammarError::Schema(format!("line {line} of the grammar: {why}"))
    }
}
