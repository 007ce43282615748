//! The model's reasoning while it arrives: its last rows below the elapsed time.

use std::time::Duration;

use super::row::{Canvas, Look, Row};

/// Maximum rows of reasoning on the screen at once, so that all of them can be folded away.
const SHOWN_ROWS: usize = 6;
/// Maximum bytes of reasoning kept for the screen.
const KEPT_BYTES: usize = 4 << 10;

/// The end of the reasoning so far.
#[derive(Debug, Default)]
pub(super) struct Thoughts {
    tail: String,
}

impl Thoughts {
    /// Adds a further piece. If all of it is to stay on the screen, returns the complete lines and
    /// keeps only the last one.
    pub(super) fn push(&mut self, text: &str, stays: bool) -> Vec<String> {
        self.tail += text;
        if stays {
            let at = self.tail.rfind('\n').map_or(0, |at| at + 1);
            let whole: String = self.tail.drain(..at).collect();
            return whole.lines().map(str::to_owned).collect();
        }
        if self.tail.len() > 2 * KEPT_BYTES {
            let mut from = self.tail.len() - KEPT_BYTES;
            while !self.tail.is_char_boundary(from) {
                from += 1;
            }
            self.tail.drain(..from);
        }
        Vec::new()
    }

    /// Returns the received part of the last line, or of all lines.
    pub(super) fn tail(&self) -> &str {
        &self.tail
    }

    /// Returns the last rows, with the time above them.
    pub(super) fn rows(&self, spent: Duration, canvas: Canvas) -> Vec<Row> {
        let mut rows = vec![Row::of(Look::DIM, &format!("Thinking… {} s", spent.as_secs()))];
        let shown = SHOWN_ROWS.min(canvas.rows.saturating_sub(2));
        let columns = canvas.columns.saturating_sub(2).max(1);
        let wrapped = Row::of(Look::DIM, self.tail.trim()).wrap(columns);
        let wrapped: Vec<_> = wrapped.into_iter().filter(|row| !row.is_empty()).collect();
        for text in &wrapped[wrapped.len().saturating_sub(shown)..] {
            let mut row = Row::of(Look::DIM, "│ ");
            row.append(text.clone());
            rows.push(row);
        }
        rows
    }
}

/// Lays out a line of reasoning that stays on the screen.
pub(super) fn full_rows(line: &str, canvas: Canvas) -> Vec<Row> {
    Row::of(Look::DIM, line).wrap(canvas.columns)
}

/// Returns the line that stays on the screen after the model has finished reasoning.
pub(in crate::chat) fn duration_line(spent: Duration) -> String {
    match spent.as_secs_f64() {
        short if short < 0.95 => "Thought for less than a second".to_owned(),
        seconds if seconds < 60.0 => format!("Thought for {seconds:.0} s"),
        seconds => {
            format!("Thought for {:.0} min {:.0} s", (seconds / 60.0).floor(), seconds % 60.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rows_are_shown() {
        let canvas = Canvas { columns: 12, rows: 24, colour: true };
        let mut thoughts = Thoughts::default();
        (0..KEPT_BYTES).for_each(|number| {
            thoughts.push(&format!("word {number}\n\n"), false);
        });
        let rows: Vec<_> = thoughts.rows(Duration::from_secs(3), canvas);
        let rows: Vec<_> = rows.iter().map(Row::text).collect();
        assert_eq!(rows.len(), 1 + SHOWN_ROWS);
        assert_eq!((rows[0].as_str(), rows[6].as_str()), ("Thinking… 3 s", "│ word 4095"));
    }

    #[test]
    fn durations_are_said_in_words() {
        let lines = [0.2, 1.2, 59.4, 61.0].map(|s| duration_line(Duration::from_secs_f64(s)));
        assert_eq!(lines[0], "Thought for less than a second");
        assert_eq!(lines[1..], ["Thought for 1 s", "Thought for 59 s", "Thought for 1 min 1 s"]);
    }
}
