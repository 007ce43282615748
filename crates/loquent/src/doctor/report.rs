//! Displays findings: on a terminal as they arrive, for programs as one JSON object.

use std::io::{IsTerminal, Write, stdout};

use loquent_proto::printable::printable;
use serde_json::{Value, json};
use textwrap::Options;

use super::diagnosis::{Diagnosis, Severity};

/// Version of the JSON format; increases when members change their meaning or are removed.
const FORM: u32 = 1;
/// Maximum columns at which lines are wrapped on wider terminals.
const MAX_COLUMNS: usize = 100;
/// Columns before a finding: its severity and the check's name.
const INDENT: &str = "                     ";

/// Findings so far.
pub(super) struct Sheet {
    as_json: bool,
    with_colour: bool,
    columns: usize,
    diagnoses: Vec<Diagnosis>,
}

impl Sheet {
    /// Creates an empty sheet for standard output.
    pub(super) fn new(as_json: bool) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let columns = terminal_size::terminal_size().map(|(width, _)| width.0.into());
        Self {
            as_json,
            with_colour: stdout().is_terminal() && !no_colour,
            columns: columns.unwrap_or(MAX_COLUMNS).clamp(40, MAX_COLUMNS),
            diagnoses: Vec::new(),
        }
    }

    /// Adds a finding, and shows it unless the output is JSON. Its texts may quote a server.
    pub(super) fn note(&mut self, mut diagnosis: Diagnosis) {
        diagnosis.what = printable(&diagnosis.what).replace(['\n', '\t'], " ");
        diagnosis.advice = diagnosis.advice.map(|text| printable(&text).into_owned());
        if !self.as_json {
            print(&self.lines(&diagnosis));
        }
        self.diagnoses.push(diagnosis);
    }

    /// Shows the end of the sheet; returns true if nothing failed.
    pub(super) fn finish(self) -> bool {
        let worst = self.diagnoses.iter().map(|one| one.severity).max();
        match self.as_json {
            true => print(&format!("{:#}\n", self.json())),
            false => print(&self.summary()),
        }
        worst != Some(Severity::Failure)
    }

    fn lines(&self, diagnosis: &Diagnosis) -> String {
        let Diagnosis { check, severity, what, advice } = diagnosis;
        let word = format!("{:4}", severity.word());
        let head = format!("  {}  {check:<11}  ", self.coloured(*severity, &word));
        let wrap = |text: &str, mark: &'static str| {
            let room = Options::new(self.columns - INDENT.len())
                .subsequent_indent(if mark.is_empty() { "" } else { "  " });
            textwrap::wrap(&format!("{mark}{text}"), room).join(&format!("\n{INDENT}"))
        };
        let mut lines = format!("{head}{}\n", wrap(what, ""));
        if let Some(advice) = advice {
            lines += &format!("{INDENT}{}\n", wrap(advice, "→ "));
        }
        lines
    }

    fn coloured(&self, severity: Severity, word: &str) -> String {
        let code = match severity {
            Severity::Fine => "32",
            Severity::Skipped => "2",
            Severity::Warning => "33",
            Severity::Failure => "31;1",
        };
        if self.with_colour { format!("\u{1b}[{code}m{word}\u{1b}[0m") } else { word.to_owned() }
    }

    fn summary(&self) -> String {
        let count = |severity| self.diagnoses.iter().filter(|one| one.severity == severity).count();
        let some = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        match (count(Severity::Failure), count(Severity::Warning)) {
            (0, 0) => "Nothing to complain about.\n".to_owned(),
            (failures, warnings) => {
                format!("{}, {}.\n", some(failures, "failure"), some(warnings, "warning"))
            }
        }
    }

    fn json(&self) -> Value {
        let worst = self.diagnoses.iter().map(|one| one.severity).max();
        let checks: Vec<_> = self
            .diagnoses
            .iter()
            .map(|one| {
                let (check, verdict) = (one.check, one.severity.word());
                json!({ "check": check, "verdict": verdict, "found": one.what, "advice": one.advice })
            })
            .collect();
        json!({
            "form": FORM,
            "version": env!("CARGO_PKG_VERSION"),
            "verdict": worst.unwrap_or(Severity::Fine).word(),
            "checks": checks,
        })
    }
}

/// Prints to standard output. Ignores errors: a reader that closed it wants no more.
fn print(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        Sheet { as_json: true, with_colour: false, columns: 60, diagnoses: Vec::new() }
    }

    #[test]
    fn lines_are_wrapped_under_their_column() {
        let text = "word ".repeat(20);
        let lines = sheet().lines(&Diagnosis::warning("memory", text.trim(), "do this"));
        assert!(lines.starts_with("  warn  memory       word"), "{lines}");
        assert!(lines.lines().skip(1).all(|line| line.starts_with(INDENT)), "{lines}");
        assert!(lines.lines().all(|line| line.chars().count() <= 60), "{lines}");
        assert!(lines.ends_with("→ do this\n"), "{lines}");
    }

    #[test]
    fn json_has_every_finding_and_the_worst() {
        let mut sheet = sheet();
        sheet.note(Diagnosis::fine("clock", "right"));
        sheet.note(Diagnosis::failure("udp", "evil\u{1b}[2J\nserver", "open it"));
        let json = sheet.json();
        assert_eq!(json["verdict"], "fail");
        assert_eq!(json["checks"][0]["verdict"], "ok");
        assert_eq!(json["checks"][1]["found"], "evil[2J server");
        assert!(!sheet.finish());
    }

    #[test]
    fn warnings_are_no_failure() {
        let mut sheet = sheet();
        sheet.note(Diagnosis::warning("gpu", "unused", "build for it"));
        assert_eq!(sheet.summary(), "0 failures, 1 warning.\n");
        assert!(sheet.finish());
    }
}
