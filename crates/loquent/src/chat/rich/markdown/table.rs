//! Lays out tables as rows of the screen: columns as wide as needed, or as the screen allows.

use pulldown_cmark::Alignment;
use textwrap::core::display_width;

use super::super::row::{Look, Row};

/// Separator between two columns, and its counterpart in the rule below the head.
const SEPARATOR: &str = " │ ";
const CROSSING: &str = "─┼─";
/// Minimum width to which columns are narrowed.
const NARROW_COLUMNS: usize = 6;

/// Maximum number of columns; further ones are left out. No screen shows them, and a table of many
/// could keep a terminal busy.
const MOST_COLUMNS: usize = 64;

/// A table; the first row is its head.
#[derive(Debug, Default)]
pub(super) struct TextTable {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<Row>>,
}

impl TextTable {
    pub(super) fn new(mut alignments: Vec<Alignment>) -> TextTable {
        alignments.truncate(MOST_COLUMNS);
        TextTable { alignments, rows: Vec::new() }
    }

    pub(super) fn begin_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(super) fn push_cell(&mut self, cell: Row) {
        let row = self.rows.last_mut().filter(|row| row.len() < MOST_COLUMNS);
        row.into_iter().for_each(|row| row.push(cell.clone()));
    }

    /// Lays out the table in at most `columns` screen columns, unless it has too many columns
    /// itself.
    pub(super) fn rows(&self, columns: usize) -> Vec<Row> {
        let widths = self.widths(columns);
        let mut rows = Vec::new();
        for (index, cells) in self.rows.iter().enumerate() {
            let wrapped: Vec<Vec<Row>> =
                cells.iter().zip(&widths).map(|(cell, width)| cell.wrap(*width)).collect();
            let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
            rows.extend((0..height).map(|line| self.line(&wrapped, &widths, line)));
            if index == 0 {
                let rule: Vec<_> = widths.iter().map(|width| "─".repeat(*width)).collect();
                rows.push(Row::of(Look::DIM, &rule.join(CROSSING)));
            }
        }
        rows
    }

    /// Returns one screen row of a table row.
    fn line(&self, cells: &[Vec<Row>], widths: &[usize], line: usize) -> Row {
        let mut row = Row::default();
        for (column, width) in widths.iter().enumerate() {
            if column > 0 {
                row.push(Look::DIM, SEPARATOR);
            }
            let cell = cells.get(column).and_then(|rows| rows.get(line)).cloned();
            let cell = cell.unwrap_or_default();
            let missing = width.saturating_sub(cell.width());
            let left = match self.alignments.get(column) {
                Some(Alignment::Right) => missing,
                Some(Alignment::Center) => missing / 2,
                _ => 0,
            };
            row.push(Look::PLAIN, &" ".repeat(left));
            row.append(cell);
            // Not behind the last column: a copy of the text should have no spaces there.
            if column + 1 < widths.len() {
                row.push(Look::PLAIN, &" ".repeat(missing - left));
            }
        }
        row
    }

    fn widths(&self, columns: usize) -> Vec<usize> {
        let count = self.alignments.len();
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| widest_line(&cell.text())).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..count).map(widest).collect();
        let separators = display_width(SEPARATOR) * count.saturating_sub(1);
        let available = columns.saturating_sub(separators);
        // The widest gives way first, so that narrow columns are not wrapped for its sake.
        while widths.iter().sum::<usize>() > available {
            let Some(width) = widths.iter_mut().max().filter(|it| **it > NARROW_COLUMNS) else {
                break;
            };
            *width -= 1;
        }
        widths
    }
}

fn widest_line(text: &str) -> usize {
    text.split('\n').map(display_width).max().unwrap_or(0)
}
