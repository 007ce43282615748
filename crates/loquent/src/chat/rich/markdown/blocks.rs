//! Splits Markdown text that is still arriving into blocks.

/// Maximum bytes of text that are parsed again with every piece. A longer block is shown in parts.
const LONGEST_BLOCK_BYTES: usize = 8 << 10;

/// Maximum length of a fence line that is repeated above the rest of its code block.
const LONGEST_FENCE_BYTES: usize = 64;

/// A block, or the part of it that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::chat::rich) struct Block {
    /// Markdown source.
    pub(super) source: String,
    /// True if it continues a block that was too long to be shown at once.
    pub(in crate::chat::rich) goes_on: bool,
    /// True if the block is complete.
    pub(super) is_complete: bool,
}

/// A text split into blocks.
#[derive(Debug, Default)]
pub(in crate::chat::rich) struct Blocks {
    /// Blocks that have not been taken, followed by the last block.
    rest: String,
    goes_on: bool,
}

impl Blocks {
    pub(in crate::chat::rich) fn push(&mut self, piece: &str) {
        self.rest += piece;
    }

    /// Returns the next complete block; `None` if only the last one is left.
    pub(in crate::chat::rich) fn next_complete(&mut self) -> Option<Block> {
        let scan = scan(&self.rest);
        if let Some(end) = scan.end {
            return Some(self.take(end, String::new(), false));
        }
        if self.rest.len() <= LONGEST_BLOCK_BYTES {
            return None;
        }
        // The rest of a block of code is code as well.
        let fence = scan.fence.filter(|fence| fence.line.len() <= LONGEST_FENCE_BYTES);
        let opening = fence.map(|fence| fence.line.to_owned()).unwrap_or_default();
        // A line that is too long by itself is cut where it ends for now.
        let end = self.rest.rfind('\n').map(|at| at + 1).filter(|end| *end > opening.len());
        Some(self.take(end.unwrap_or(self.rest.len()), opening, true))
    }

    /// Returns the part of the last block that has arrived.
    pub(in crate::chat::rich) fn last(&self) -> Block {
        Block { source: self.rest.clone(), goes_on: self.goes_on, is_complete: false }
    }

    /// Returns the last block at the end of the text.
    pub(in crate::chat::rich) fn finish(&mut self) -> Block {
        self.take(self.rest.len(), String::new(), false)
    }

    fn take(&mut self, end: usize, opening: String, next_goes_on: bool) -> Block {
        let rest = opening + &self.rest[end..];
        let mut source = std::mem::replace(&mut self.rest, rest);
        source.truncate(end);
        let goes_on = std::mem::replace(&mut self.goes_on, next_goes_on);
        Block { source, goes_on, is_complete: true }
    }
}

/// A fence that has opened a code block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence<'a> {
    mark: char,
    len: usize,
    /// The whole line of the fence.
    line: &'a str,
}

impl<'a> Fence<'a> {
    fn opened_by(line: &'a str) -> Option<Fence<'a>> {
        let text = line.trim_start();
        let mark = text.chars().next().filter(|c| ['`', '~'].contains(c))?;
        let info = text.trim_start_matches(mark);
        let len = text.len() - info.len();
        // Backticks behind those of a fence make it code within a line.
        let is_fence = len >= 3 && !(mark == '`' && info.contains('`'));
        is_fence.then_some(Fence { mark, len, line })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        let text = line.trim();
        text.len() >= self.len && text.chars().all(|c| c == self.mark)
    }
}

/// Result of scanning the start of a text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scan<'a> {
    /// End of the first block, if another one follows.
    end: Option<usize>,
    /// The fence still open at the end of the text.
    fence: Option<Fence<'a>>,
}

/// Returns the fence still open at the end of `text`.
pub(super) fn open_fence(text: &str) -> Option<Fence<'_>> {
    scan_lines(text, |_| false).fence
}

fn scan(text: &str) -> Scan<'_> {
    scan_lines(text, |line| !line.starts_with(char::is_whitespace))
}

/// Finds the first line after a blank one, a heading or a code block for which `begins` returns
/// true. An indented line belongs to the list item before it.
fn scan_lines(text: &str, begins: impl Fn(&str) -> bool) -> Scan<'_> {
    let (mut fence, mut at, mut may_end) = (None::<Fence<'_>>, 0, false);
    for line in text.split_inclusive('\n') {
        let is_whole = line.ends_with('\n');
        if fence.is_none() && may_end && at > 0 && begins(line) {
            return Scan { end: Some(at), fence };
        }
        if let Some(open) = fence {
            if is_whole && open.is_closed_by(line) {
                (fence, may_end) = (None, !line.starts_with(char::is_whitespace));
            }
        } else {
            fence = Fence::opened_by(line);
            let is_heading = is_whole && line.starts_with('#');
            may_end = line.trim().is_empty() || is_heading;
        }
        at += line.len();
    }
    Scan { end: None, fence }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sources of all blocks of a text that arrives in pieces of `len` characters.
    fn blocks(text: &str, len: usize) -> Vec<String> {
        let (mut blocks, mut sources) = (Blocks::default(), Vec::new());
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(len) {
            blocks.push(&piece.iter().collect::<String>());
            while let Some(block) = blocks.next_complete() {
                sources.push(block.source);
            }
        }
        sources.push(blocks.finish().source);
        sources
    }

    #[test]
    fn blocks_are_the_same_however_the_text_arrives() {
        let text = "# T\nintro\nmore\n\n- a\n\n  b\n- c\n\n```\nx\n\ny\n```\nend\n";
        let expected =
            ["# T\n", "intro\nmore\n\n", "- a\n\n  b\n- c\n\n", "```\nx\n\ny\n```\n", "end\n"];
        for len in [1, 2, 3, 7, 100] {
            assert_eq!(blocks(text, len), expected, "in pieces of {len}");
        }
    }

    #[test]
    fn no_line_is_too_long() {
        for text in ["x", "```x", "```\nx", "- x"] {
            let text = text.to_owned() + &"y".repeat(5 * LONGEST_BLOCK_BYTES);
            let parts = blocks(&text, 1000);
            assert!(parts.iter().all(|part| part.len() < 2 * LONGEST_BLOCK_BYTES));
            let found = parts.concat().matches('y').count();
            assert_eq!(found, text.matches('y').count());
        }
    }

    #[test]
    fn a_long_block_of_code_stays_code() {
        let line = "x = 1\n";
        let text = format!("```py\n{}", line.repeat(2 * LONGEST_BLOCK_BYTES / line.len()));
        let parts = blocks(&text, 1000);
        assert!(parts.len() > 1 && parts.iter().all(|part| part.starts_with("```py\nx")));
        let lines = parts.iter().flat_map(|part| part.lines());
        assert_eq!(lines.filter(|line| *line == "x = 1").count(), text.lines().count() - 1);
    }
}
