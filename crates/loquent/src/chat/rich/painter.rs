//! Keeps the last rows of the screen up to date by rewriting only the changes.
//!
//! The rows of a text that is still arriving change at their end: mostly a row becomes longer, and
//! sometimes a word moves to the next one, a table widens or a mark turns out to mean something
//! else. Unchanged text is not written again, to avoid flicker.

use std::fmt::Write;

use super::row::{Canvas, Row};

/// Rows of a text that may still change. The cursor is at the end of the last one.
#[derive(Debug, Default)]
pub(super) struct Painter {
    rows: Vec<Row>,
    /// Width of the screen when they were written.
    columns: usize,
}

impl Painter {
    /// Appends to `out` the terminal output that replaces the previous rows with these.
    pub(super) fn paint(&mut self, rows: Vec<Row>, canvas: Canvas, out: &mut String) {
        let resized = canvas.columns != self.columns;
        let same = self.rows.iter().zip(&rows).take_while(|(old, new)| old == new);
        let same = if resized { 0 } else { same.count() };
        // The row to write from, and what is written of it.
        let (from, first) = if same == self.rows.len() {
            if same > 0 && rows.len() > same {
                out.push('\n');
            }
            (same, rows.get(same).cloned())
        } else {
            match rows.get(same).and_then(|row| row.after(&self.rows[same])) {
                Some(rest) if same + 1 == self.rows.len() && !resized => (same, Some(rest)),
                _ => {
                    let from = self.go_back(same.min(rows.len().saturating_sub(1)), canvas, out);
                    (from, rows.get(from).cloned())
                }
            }
        };
        let later = rows.iter().skip(from + 1);
        for (index, row) in first.iter().chain(later).enumerate() {
            if index > 0 {
                out.push('\n');
            }
            row.put(canvas.colour, out);
        }
        (self.rows, self.columns) = (rows, canvas.columns);
    }

    /// Moves the cursor to the start of row `from`, or of the first one that is still on the
    /// screen, and erases from there. Returns the row.
    fn go_back(&self, from: usize, canvas: Canvas, out: &mut String) -> usize {
        // A resized terminal has broken the rows anew.
        let heights = self.rows.iter().map(|row| row.height(canvas.columns));
        let heights: Vec<_> = heights.collect();
        let mut from = from;
        let mut up = heights[from..].iter().sum::<usize>() - 1;
        while up >= canvas.rows && from + 1 < heights.len() {
            up -= heights[from];
            from += 1;
        }
        out.push('\r');
        if up > 0 {
            let _ = write!(out, "\x1b[{up}A");
        }
        *out += "\x1b[J";
        from
    }

    /// Ends the rows: they stay, and the cursor moves to the line below.
    pub(super) fn commit(&mut self, out: &mut String) {
        if !self.rows.is_empty() {
            out.push('\n');
        }
        self.rows.clear();
    }
}

#[cfg(test)]
mod tests {
    //! Checks that an emulated terminal shows the last painted rows, whatever it showed before.
    use proptest::prelude::*;

    use super::super::row::Look;
    use std::num::NonZero;

    use super::*;

    const CANVAS: Canvas = Canvas { columns: 10, rows: 8, colour: true };

    struct Emulated(vt100::Parser);

    impl Emulated {
        fn new() -> Emulated {
            let size = |cells: usize| NonZero::new(cells as u16).unwrap();
            Emulated(vt100::Parser::new(size(CANVAS.rows), size(CANVAS.columns), 100))
        }

        /// Receives output as a terminal driver would pass it on.
        fn receive(&mut self, output: &str) {
            self.0.process(output.replace('\n', "\r\n").as_bytes());
        }

        fn rows(&self) -> Vec<String> {
            let rows = self.0.screen().rows(0, CANVAS.columns as u16);
            rows.map(|row| row.trim_end().to_owned()).collect()
        }
    }

    fn plain(rows: &[&str]) -> Vec<Row> {
        rows.iter().map(|text| Row::of(Look::PLAIN, text)).collect()
    }

    #[test]
    fn what_stays_is_not_written_again() {
        let mut painter = Painter::default();
        let mut painted = |rows: &[&str]| {
            let mut out = String::new();
            painter.paint(plain(rows), CANVAS, &mut out);
            out
        };
        assert_eq!(painted(&["one"]), "one");
        assert_eq!(painted(&["one tw"]), " tw");
        assert_eq!(painted(&["one tw", "o"]), "\no");
        assert_eq!(painted(&["one", "two"]), "\r\x1b[1A\x1b[Jone\ntwo");
        assert_eq!(painted(&["one", "two"]), "");
        assert_eq!(painted(&["one"]), "\r\x1b[1A\x1b[Jone");
        assert_eq!(painted(&[]), "\r\x1b[J");
        assert_eq!(painted(&["new"]), "new");
    }

    #[test]
    fn rows_that_have_left_the_screen_stay_as_they_were() {
        let (mut painter, mut terminal) = (Painter::default(), Emulated::new());
        let mut show = |first: &str| {
            let texts: Vec<_> = (0..12).map(|row| format!("{first}{row}")).collect();
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            let mut out = String::new();
            painter.paint(plain(&texts), CANVAS, &mut out);
            terminal.receive(&out);
            terminal.rows()
        };
        show("a");
        let expected: Vec<_> = (4..12).map(|row| format!("b{row}")).collect();
        assert_eq!(show("b"), expected);
    }

    proptest! {
        #[test]
        fn the_screen_shows_the_last_rows(
            steps in prop::collection::vec(
                prop::collection::vec("[a-c日]{0,10}( [a-c]{0,10})?", 0..4), 1..12),
        ) {
            let (mut painter, mut terminal) = (Painter::default(), Emulated::new());
            for step in &steps {
                let texts: Vec<_> = step.iter().map(String::as_str).collect();
                let rows = plain(&texts);
                let mut out = String::new();
                painter.paint(rows.clone(), CANVAS, &mut out);
                terminal.receive(&out);
                let height: usize = rows.iter().map(|row| row.height(CANVAS.columns)).sum();
                prop_assume!(height <= CANVAS.rows);
                let mut fresh = Emulated::new();
                fresh.receive(&texts.join("\n"));
                prop_assert_eq!(terminal.rows(), fresh.rows());
            }
        }
    }
}
