//! Names and paths of models on their way to a terminal.

use std::fmt::Display;

use loquent_proto::printable::printable;

/// A name or a path for people to read: a file's name may hold what would rewrite the screen, or
/// add a line.
pub(super) fn on_one_line(text: impl Display) -> String {
    printable(&text.to_string()).replace('\n', " ")
}
