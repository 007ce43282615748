//! The parts of the Internet-Draft that tests write: each stands between two comments.

use std::fmt::Write;

use loquent_proto::Delta;
use loquent_proto::wire::FieldReader;

use super::vector_file::{is_update, spec};

/// Columns of a line in a figure.
const COLUMNS: usize = 66;
/// Bytes in a line of a dump.
const DUMP_BYTES: usize = 12;
/// Columns of a dump's bytes, indentation included.
const DUMP_COLUMNS: usize = 34;

/// Asserts that the part of the draft that the test file `owner` writes is `text`.
pub fn check_part(owner: &str, text: &str) {
    let path = spec("draft-loquent-delivery.md");
    let draft = std::fs::read_to_string(&path).expect("the draft exists");
    let (start, end) =
        (format!("<!-- {owner} writes what follows -->\n\n"), format!("\n<!-- so far {owner} -->"));
    let (before, rest) = draft.split_once(&start).expect("the draft has a place for it");
    let (found, after) = rest.split_once(&end).expect("the place has an end");
    if is_update() {
        let new = format!("{before}{start}{text}{end}{after}");
        std::fs::write(&path, new).expect("the draft is writable");
    } else {
        assert!(found == text, "the draft differs: see the header of this test");
    }
}

/// Writes bytes and beside them what they are.
pub struct Dump<'a> {
    out: &'a mut String,
    indent: usize,
}

impl<'a> Dump<'a> {
    /// A dump that is appended to `out`.
    pub const fn new(out: &'a mut String) -> Self {
        Self { out, indent: 0 }
    }

    /// Who sends something, when, on what, and why.
    pub fn title(&mut self, at_ms: u64, from: &str, on: &str, means: &str) {
        let title = format!("{at_ms} ms, {from}, {on}:");
        let _ = match title.len() + means.len() < COLUMNS {
            true => writeln!(self.out, "{title} {means}"),
            false => writeln!(self.out, "{title}\n  {means}"),
        };
        self.indent = 2;
    }

    /// Something that has no bytes.
    pub fn note(&mut self, what: &str) {
        let _ = writeln!(self.out, "{:1$}{what}", "", self.indent);
    }

    /// What `inner` writes stands further to the right.
    pub fn indented(&mut self, inner: impl FnOnce(&mut Self)) {
        self.indent += 2;
        inner(self);
        self.indent -= 2;
    }

    /// The first `len` of `bytes`; returns the others.
    pub fn bytes<'b>(&mut self, bytes: &'b [u8], len: usize, what: &str) -> &'b [u8] {
        let (bytes, rest) = bytes.split_at(len);
        for (at, line) in bytes.chunks(DUMP_BYTES).enumerate() {
            self.line(line, if at == 0 { what } else { "" });
        }
        rest
    }

    /// An integer (D-1.1) at the front of `bytes`; returns it and what follows it.
    pub fn int<'b>(&mut self, bytes: &'b [u8], what: &str) -> (u64, &'b [u8]) {
        let mut reader = FieldReader::new(bytes);
        let value = reader.int().expect("an integer");
        let len = bytes.len() - reader.rest().len();
        (value, self.bytes(bytes, len, &format!("{what}: {value}")))
    }

    /// ASCII text, which stands beside its bytes.
    pub fn text(&mut self, bytes: &[u8]) {
        for line in bytes.chunks(DUMP_BYTES) {
            let text = std::str::from_utf8(line).expect("ASCII");
            self.line(line, &format!("|{text}|"));
        }
    }

    fn line(&mut self, bytes: &[u8], what: &str) {
        let pair = |pair: &[u8]| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let digits = bytes.chunks(2).map(pair).collect::<Vec<_>>().join(" ");
        let line = format!("{:1$}{digits}", "", self.indent);
        let line = format!("{line:<DUMP_COLUMNS$} {what}");
        let _ = writeln!(self.out, "{}", line.trim_end());
    }
}

/// A line that fits a figure, folded with backslashes (RFC 8792, section 7).
pub fn folded(line: &str) -> String {
    let (mut out, mut columns) = (String::new(), 0);
    for char in line.chars() {
        if columns == COLUMNS - 1 {
            out.push_str("\\\n");
            columns = 0;
        }
        out.push(char);
        columns += 1;
    }
    out
}

/// What the draft calls the record of a delta.
pub const fn record_name(delta: &Delta) -> &'static str {
    match delta {
        Delta::Open { .. } => "open",
        Delta::Text { .. } => "text",
        Delta::Reasoning { .. } => "reasoning",
        Delta::ToolCall { .. } => "tool call",
        Delta::Logprobs { .. } => "logprobs",
        Delta::Finish { .. } => "finish",
        Delta::Usage { .. } => "usage",
        Delta::Error { .. } => "error",
        Delta::Other { .. } => "other",
        Delta::Progress(_) => "progress",
        Delta::Pause { .. } => "pause",
        Delta::Done => "done",
    }
}
