//! Closes marks left open at the end of an unfinished block, so that it already looks as it will
//! when complete. A wrong guess is corrected once the block is complete.

use super::blocks::open_fence;

/// Returns the block with its last line mended.
pub(super) fn mend(source: &str) -> String {
    let at = source.rfind('\n').map_or(0, |at| at + 1);
    let (before, line) = source.split_at(at);
    let is_fence = |c: char| c == '`' || c == '~';
    if open_fence(before).is_some() {
        // Perhaps the beginning of the fence that closes the block.
        let is_mark = line.trim().chars().all(is_fence);
        return if is_mark { before.to_owned() } else { source.to_owned() };
    }
    if let Some(table) = begun_table(source) {
        return table;
    }
    if open_fence(source).is_some() {
        source.to_owned()
    } else if is_only_a_mark(line) {
        before.to_owned()
    } else {
        before.to_owned() + &closed(line)
    }
}

/// Returns true if the line may still become a list item, a rule, a heading or a fence, or turn the
/// previous line into one.
fn is_only_a_mark(line: &str) -> bool {
    let text = line.trim();
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.chars().all(|c| "-=*_+#~`>".contains(c)) || matches!(number, "" | "." | ")")
}

/// Returns the start of a table with the rule below its head completed, which makes it a table.
fn begun_table(source: &str) -> Option<String> {
    let is_row = |line: &str| line.trim_start().starts_with('|');
    let is_rule = |line: &str| is_row(line) && line.chars().all(|c| "|:- ".contains(c));
    let (mut before, mut head) = split_last_line(source);
    if is_rule(head) && !before.is_empty() {
        (before, head) = split_last_line(before);
    }
    // A row below another one belongs to a table that has its rule.
    if !is_row(head) || is_row(split_last_line(before).1) {
        return None;
    }
    let columns = head.trim().trim_matches('|').split('|').count();
    Some(format!("{before}{}\n|{}", head.trim_end(), "-|".repeat(columns)))
}

/// Splits the text before its last line; a line end at the end of the text is ignored.
fn split_last_line(text: &str) -> (&str, &str) {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    text.split_at(lines.rfind('\n').map_or(0, |at| at + 1))
}

/// A run of the same mark, such as `**`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    character: char,
    len: usize,
}

/// Returns the line with its open emphasis, code and links closed.
fn closed(line: &str) -> String {
    let mut text = without_open_link(line).unwrap_or_else(|| line.to_owned());
    let Some(last) = open_marks(&text).pop() else { return text };
    // A mark with nothing behind it is not shown yet, nor is a part of a closing one.
    text.truncate(text.trim_end_matches(last.character).len());
    let open = open_marks(&text);
    if open.iter().all(|mark| mark.character != '`') {
        // Behind a space no mark closes.
        text.truncate(text.trim_end().len());
    }
    for mark in open.iter().rev() {
        text.extend(std::iter::repeat_n(mark.character, mark.len));
    }
    text
}

/// Returns the text without the brackets of an incomplete link; `None` if there is none.
fn without_open_link(line: &str) -> Option<String> {
    let at = line.rfind('[')?;
    let begins_a_word = line[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric());
    let rest = &line[at + 1..];
    let shown = match rest.split_once(']') {
        None => rest,
        Some((shown, "")) => shown,
        Some((shown, url)) if url.starts_with('(') && !url.contains(')') => shown,
        Some(_) => return None,
    };
    begins_a_word.then(|| format!("{}{shown}", line[..at].trim_end_matches('!')))
}

/// Returns the marks still open at the end of the line, outermost first.
fn open_marks(line: &str) -> Vec<Mark> {
    let characters: Vec<char> = line.chars().collect();
    let (mut open, mut at) = (Vec::<Mark>::new(), 0);
    while at < characters.len() {
        let character = characters[at];
        if character == '\\' {
            at += 2;
            continue;
        }
        if !['*', '_', '~', '`'].contains(&character) {
            at += 1;
            continue;
        }
        let len = characters[at..].iter().take_while(|c| **c == character).count();
        let around =
            (at.checked_sub(1).map(|at| characters[at]), characters.get(at + len).copied());
        at += len;
        if character == '`' {
            match code_end(&characters[at..], len) {
                Some(end) => at += end,
                None => {
                    open.push(Mark { character, len });
                    return open;
                }
            }
        } else {
            note(&mut open, Mark { character, len }, around);
        }
    }
    open
}

/// Returns the distance from an opening run of backticks to the end of the closing run.
fn code_end(rest: &[char], len: usize) -> Option<usize> {
    let mut at = 0;
    while at < rest.len() {
        let run = rest[at..].iter().take_while(|c| **c == '`').count();
        if run == len {
            return Some(at + run);
        }
        at += run.max(1);
    }
    None
}

/// Opens or closes emphasis, depending on the characters around the mark.
fn note(open: &mut Vec<Mark>, mark: Mark, (before, after): (Option<char>, Option<char>)) {
    let is_text = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace());
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    // Names with underscores are no emphasis.
    let within_word =
        mark.character == '_' && is_word(before) && (is_word(after) || after.is_none());
    if within_word || (mark.character == '~' && mark.len != 2) {
        return;
    }
    let mut len = mark.len;
    while is_text(before) && len > 0 {
        let Some(last) = open.last_mut().filter(|last| last.character == mark.character) else {
            break;
        };
        let closed = last.len.min(len);
        last.len -= closed;
        len -= closed;
        if last.len == 0 {
            open.pop();
        }
    }
    let opens = is_text(after) || (after.is_none() && !is_text(before));
    if len > 0 && opens {
        open.push(Mark { len: len.min(3), ..mark });
    }
}
