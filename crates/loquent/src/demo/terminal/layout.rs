//! Two columns as lines of text: titles, the text received, and statistics.

use std::time::Duration;

use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use super::super::news::LaneCounts;
use super::column::{ColumnState, Stalls};

/// Separator of the columns.
const BETWEEN: &str = " │ ";
/// Minimum and maximum width of a column: below, words do not fit; above, lines are hard to read.
const MIN_COLUMN: usize = 16;
const MAX_COLUMN: usize = 72;
/// Time represented by one character of the weather strip, in ms.
pub const STRIP_STEP_MS: u64 = 100;

/// Style of a piece of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStyle {
    /// Default style.
    Plain,
    /// Headings.
    Bold,
    /// Less important text.
    Dim,
    /// Bad values.
    Red,
    /// Good values.
    Green,
}

/// A piece of a line with its style.
pub type Piece = (TextStyle, String);
/// A line of the screen.
pub type Line = Vec<Piece>;

/// Contents of one column.
#[derive(Debug, Clone)]
pub struct ColumnView {
    /// Title of the column.
    pub title: &'static str,
    /// All text that has arrived.
    pub text: String,
    /// State of the answer.
    pub state: ColumnState,
    /// Duration of the current stall, if there is one.
    pub still: Option<Duration>,
    /// The stalls so far.
    pub stalls: Stalls,
    /// Packet counts so far.
    pub counts: LaneCounts,
}

/// Returns the width of each column on a screen of `columns`.
pub fn column_width(columns: usize) -> usize {
    (columns.saturating_sub(display_width(BETWEEN)) / 2).clamp(MIN_COLUMN, MAX_COLUMN)
}

/// Lays out both columns with the last `rows` rows of text, or all rows if there is no limit.
pub fn columns(views: &[ColumnView; 2], width: usize, rows: Option<usize>) -> Vec<Line> {
    let mut lines = vec![pair(
        views.each_ref().map(|view| vec![(TextStyle::Bold, fitting(view.title, width))]),
        width,
    )];
    lines.push(vec![(TextStyle::Dim, format!("{0}─┼─{0}", "─".repeat(width)))]);
    let texts = views.each_ref().map(|view| wrapped(&view.text, width));
    let needed = texts.iter().map(Vec::len).max().unwrap_or(0);
    let shown = rows.unwrap_or(needed);
    let texts = texts.map(|rows| rows[rows.len().saturating_sub(shown)..].to_vec());
    for row in 0..shown {
        let cell = |rows: &Vec<String>| {
            rows.get(row).map(|text| (TextStyle::Plain, text.clone())).into_iter().collect()
        };
        lines.push(pair(texts.each_ref().map(cell), width));
    }
    lines.push(vec![(TextStyle::Dim, format!("{0}─┼─{0}", "─".repeat(width)))]);
    for fact in [state, stalls, packets] {
        lines.push(pair(
            views.each_ref().map(|view| {
                let (paint, text) = fact(view);
                vec![(paint, fitting(&text, width))]
            }),
            width,
        ));
    }
    lines
}

fn state(view: &ColumnView) -> Piece {
    match (&view.state, view.still) {
        (_, Some(still)) => (TextStyle::Red, format!("■ stands still, {}", seconds(still))),
        (ColumnState::Waiting, _) => (TextStyle::Dim, "□ waits for the first token".into()),
        (ColumnState::Streaming, _) => (TextStyle::Green, "▶ streams".into()),
        (ColumnState::Complete(after), _) => {
            (TextStyle::Plain, format!("✓ complete after {}", seconds(*after)))
        }
        (ColumnState::Failed(why), _) => (TextStyle::Red, format!("✗ {why}")),
    }
}

fn stalls(view: &ColumnView) -> Piece {
    let Stalls { count, total, longest } = view.stalls;
    match count {
        0 => (TextStyle::Green, "stalls: none".into()),
        _ => {
            let (total, longest) = (seconds(total), seconds(longest));
            (TextStyle::Red, format!("stalls: {count}, {total} in all, {longest} at most"))
        }
    }
}

fn packets(view: &ColumnView) -> Piece {
    let LaneCounts { packets, bytes, lost } = view.counts;
    let kilobytes = bytes as f64 / 1e3;
    (TextStyle::Dim, format!("{packets} packets, {lost} lost, {kilobytes:.1} kB"))
}

/// Formats a time in seconds.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Returns the weather of the last `width` steps up to `now_ms`, with storms highlighted.
pub fn strip(storms: &[(u64, u64)], now_ms: Option<u64>, width: usize) -> Line {
    let Some(now_ms) = now_ms else { return vec![(TextStyle::Dim, "calm".into())] };
    let mut line: Line = Vec::new();
    let last = now_ms / STRIP_STEP_MS;
    for step in (last + 1).saturating_sub(width as u64)..=last {
        let (from_ms, to_ms) = (step * STRIP_STEP_MS, (step + 1) * STRIP_STEP_MS);
        let stormy = storms.iter().any(|&(from, to)| from < to_ms && to > from_ms);
        let (paint, mark) = if stormy { (TextStyle::Red, '█') } else { (TextStyle::Dim, '▁') };
        match line.last_mut() {
            Some(piece) if piece.0 == paint => piece.1.push(mark),
            _ => line.push((paint, mark.into())),
        }
    }
    line
}

/// Joins two cells side by side, the left one padded to its width.
fn pair([left, right]: [Line; 2], width: usize) -> Line {
    let used: usize = left.iter().map(|(_, text)| display_width(text)).sum();
    let mut line = left;
    line.push((TextStyle::Plain, " ".repeat(width.saturating_sub(used))));
    line.push((TextStyle::Dim, BETWEEN.into()));
    line.extend(right);
    line
}

/// Cuts `line` to `width`: a terminal would continue in the next row.
pub fn cut(line: Line, width: usize) -> Line {
    let mut left = width;
    let mut cut = Line::new();
    for (paint, text) in line {
        let text = fitting(&text, left);
        left -= display_width(&text);
        cut.push((paint, text));
    }
    cut
}

/// Returns the part of `text` that fits.
fn fitting(text: &str, width: usize) -> String {
    let mut fitting = String::new();
    for char in text.chars() {
        fitting.push(char);
        if display_width(&fitting) > width {
            fitting.pop();
            break;
        }
    }
    fitting
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let options = Options::new(width)
        .word_separator(WordSeparator::UnicodeBreakProperties)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    let text = text.replace('\t', "    ");
    textwrap::wrap(&text, options).into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(line: &Line) -> String {
        line.iter().map(|(_, text)| text.as_str()).collect()
    }

    fn view(text: &str, state: ColumnState) -> ColumnView {
        ColumnView {
            title: "TCP",
            text: text.into(),
            state,
            still: None,
            stalls: Stalls::default(),
            counts: LaneCounts { packets: 12, bytes: 3_400, lost: 2 },
        }
    }

    #[test]
    fn columns_stand_side_by_side_and_show_the_end_of_the_text() {
        let long = "one two three four five six seven eight nine ten eleven twelve";
        let mut late = view(long, ColumnState::Streaming);
        late.still = Some(Duration::from_millis(1_250));
        let done = view("short", ColumnState::Complete(Duration::from_secs(4)));
        let lines = columns(&[late, done], 20, Some(2));
        let lines: Vec<_> = lines.iter().map(plain).collect();
        assert_eq!(lines[0], "TCP                  │ TCP");
        assert_eq!(lines[2], "nine ten eleven      │ short");
        assert_eq!(lines[3], "twelve               │ ");
        assert_eq!(lines[5], "■ stands still, 1.2  │ ✓ complete after 4.0");
        assert_eq!(lines[6], "stalls: none         │ stalls: none");
        assert_eq!(lines[7], "12 packets, 2 lost,  │ 12 packets, 2 lost, ");
        assert_eq!(lines.len(), 8);
    }

    #[test]
    fn a_line_ends_at_the_edge_of_the_screen() {
        let line =
            || vec![(TextStyle::Bold, "one".to_owned()), (TextStyle::Dim, " two 日本".to_owned())];
        assert_eq!(plain(&cut(line(), 9)), "one two ");
        assert_eq!(plain(&cut(line(), 2)), "on");
        assert_eq!(plain(&cut(line(), 80)), "one two 日本");
    }

    #[test]
    fn the_strip_shows_storms_where_they_were() {
        let storms = [(150, 320), (900, 1_000)];
        let text = |now_ms, width| plain(&strip(&storms, Some(now_ms), width));
        assert_eq!(text(450, 10), "▁███▁");
        assert_eq!(text(1_050, 4), "▁▁█▁");
        assert_eq!(plain(&strip(&storms, None, 10)), "calm");
    }

    #[test]
    fn columns_are_neither_too_narrow_nor_too_wide() {
        assert_eq!(column_width(80), 38);
        assert_eq!(column_width(3), MIN_COLUMN);
        assert_eq!(column_width(400), MAX_COLUMN);
    }
}
