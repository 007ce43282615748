//! The history of a run: a line for each event, and a fingerprint of all that the store was asked.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Events in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorldHistory {
    lines: Vec<String>,
    /// Fingerprint of everything noted, also of what has no line.
    fingerprint: u64,
}

impl WorldHistory {
    /// Adds a line.
    pub fn tell(&mut self, at_ms: u64, line: &str) {
        self.note(&(at_ms, line));
        self.lines.push(format!("{:>3}.{:03} {line}", at_ms / 1000, at_ms % 1000));
    }

    /// Adds an event to the fingerprint alone.
    pub fn note(&mut self, event: &impl Hash) {
        let mut hasher = DefaultHasher::new();
        (self.fingerprint, event).hash(&mut hasher);
        self.fingerprint = hasher.finish();
    }

    /// Returns the lines, one below the other.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            writeln!(text, "{line}").expect("a string takes all");
        }
        text
    }

    /// Returns the fingerprint.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
