//! Formats names and paths of models for a terminal.

use std::fmt::Display;

use loquent_proto::printable::printable;

/// Returns a name or a path for display: a file's name may contain characters that would overwrite
/// the screen or add a line.
pub(super) fn on_one_line(text: impl Display) -> String {
    printable(&text.to_string()).replace('\n', " ")
}
