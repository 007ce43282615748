//! The charts of the reports, inline in their pages, which contain the style sheet.

use super::{Anchor, Axis, Bar, Labels, Paint, Panel, Svg, TextRole, number, staircase};

const WIDTH: f64 = 530.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
/// Maximum number of points in one line; more cannot be seen at this width.
const MAX_POINTS: usize = 500;
/// Number of colours; further series repeat them.
const COLOURS: usize = 8;
/// Maximum width of a bar; a wider lone bar looks like a block.
const MAX_BAR_WIDTH: f64 = 48.0;
/// Total height of a timeline's bars, and maximum height of one of them.
const TIMELINE_HEIGHT: f64 = 360.0;
const MAX_ROW_HEIGHT: f64 = 9.0;

/// Scale of an x axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Proportional, from 0.
    Linear,
    /// Logarithmic; a value of 0 is drawn at the left edge.
    Log,
}

/// A named line or set of bars; its index in the list selects its colour.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
}

/// Returns the colour of series number `index`, by its class.
pub fn colour(index: usize) -> &'static str {
    ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"][index % COLOURS]
}

/// Shape of the connection between the points of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Straight lines.
    Straight,
    /// Steps, for distributions and counts.
    Steps,
    /// Straight lines over a filled area, for rates.
    Area,
}

/// Returns the empirical distribution of sorted samples as points (value, share at most that).
pub fn cumulative(sorted: &[f64]) -> Vec<(f64, f64)> {
    let step = (sorted.len() / MAX_POINTS).max(1);
    let share = |index: usize| (index + 1) as f64 / sorted.len() as f64;
    let mut points: Vec<(f64, f64)> =
        (0..sorted.len()).step_by(step).map(|index| (sorted[index], share(index))).collect();
    if let Some(&last) = sorted.last() {
        points.push((last, 1.0));
    }
    points
}

fn panel(height: f64, x: Axis, y: Axis) -> Panel {
    Panel { left: LEFT, top: TOP, width: WIDTH - LEFT - RIGHT, height: height - TOP - BOTTOM, x, y }
}

fn x_axis(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
    match scale {
        Scale::Linear => Axis::from_zero_exactly(values.fold(0.0, f64::max)),
        Scale::Log => Axis::log_over(values),
    }
}

fn y_axis(values: impl Iterator<Item = f64>) -> Axis {
    Axis::from_zero_exactly(values.fold(0.0, f64::max))
}

/// Draws lines over common axes.
pub fn lines(title: &str, x: (&str, Scale), y: &str, lines: &[Series], join: Join) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let panel = panel(
        HEIGHT,
        x_axis(x.1, points().map(|point| point.0)),
        y_axis(points().map(|point| point.1)),
    );
    let mut svg = Svg::inline(title);
    panel.draw(&mut svg, Labels { x: x.0, y, x_grid: true, ..Labels::default() });
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.points.is_empty()) {
        let points = match join {
            Join::Steps => staircase(line.points.iter().copied(), 0.0),
            Join::Straight | Join::Area => line.points.clone(),
        };
        let placed: Vec<(f64, f64)> = points.into_iter().map(|(x, y)| panel.at(x, y)).collect();
        let paint = Paint(colour(index));
        if join == Join::Area {
            svg.area(&placed, panel.top + panel.height, paint);
        }
        svg.titled_line(&placed, paint, &line.name);
    }
    svg.finish(WIDTH, HEIGHT)
}

/// Draws groups of bars side by side, one group for each distinct x.
pub fn bars(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let mut groups: Vec<f64> = points().map(|point| point.0).collect();
    groups.sort_by(f64::total_cmp);
    groups.dedup();
    let x = Axis::exact(0.0, groups.len().max(1) as f64, false);
    let panel = panel(HEIGHT, x, y_axis(points().map(|point| point.1)));
    let mut svg = Svg::inline(title);
    panel.draw(&mut svg, Labels { y: y_label, ..Labels::default() });
    for (group, value) in groups.iter().enumerate() {
        let (middle, bottom) = panel.at(group as f64 + 0.5, 0.0);
        let at = (middle, bottom + 17.0);
        svg.text(at, Anchor::Middle, TextRole::Category, &number(*value));
    }
    let (middle, bottom) = (LEFT + panel.width / 2.0, TOP + panel.height);
    svg.text((middle, bottom + 35.0), Anchor::Middle, TextRole::Note, x_label);
    for (place, line) in series.iter().enumerate() {
        for &(x, value) in &line.points {
            let group = groups.partition_point(|&group| group < x);
            let tooltip = format!("{}: {} at {}", line.name, number(value), number(x));
            let paint = Paint(colour(place));
            let bar = Bar { group, place, value, half: 0.0, paint, tooltip: &tooltip };
            panel.grouped_bars(&mut svg, series.len(), MAX_BAR_WIDTH, &[bar]);
        }
    }
    svg.finish(WIDTH, HEIGHT)
}

/// One request of a timeline, in seconds since the run's start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimelineRow {
    /// Scheduled send.
    pub due_s: f64,
    /// First text, if any arrived.
    pub first_s: Option<f64>,
    /// End of the answer, or the time of the failure.
    pub end_s: f64,
    /// True if it finished.
    pub finished: bool,
    /// True if it was one of the measured requests.
    pub measured: bool,
}

/// Draws requests as horizontal bars: waiting, then streaming.
pub fn timeline(title: &str, rows: &[TimelineRow]) -> String {
    let row_height = (TIMELINE_HEIGHT / rows.len().max(1) as f64).clamp(1.0, MAX_ROW_HEIGHT);
    let height = TOP + row_height * rows.len() as f64 + BOTTOM;
    let x = x_axis(Scale::Linear, rows.iter().map(|row| row.end_s));
    let panel = panel(height, x, Axis::exact(0.0, 1.0, false));
    let mut svg = Svg::inline(title);
    let labels = Labels { x: "seconds since the start", x_grid: true, ..Labels::default() };
    panel.draw_x(&mut svg, labels);
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + index as f64 * row_height;
        // A line of white separates rows that are high enough to spare one.
        let thick = (row_height - if row_height > 3.0 { 1.0 } else { 0.0 }).max(0.8);
        let mut piece = |class: &str, from_s: f64, to_s: f64| {
            let (left, right) = (panel.at(from_s, 0.0).0, panel.at(to_s, 0.0).0);
            let size = ((right - left).max(0.4), thick);
            svg.rectangle((left, top), size, Paint(class), "");
        };
        piece("waiting", row.due_s, row.first_s.unwrap_or(row.end_s));
        let streaming = match (row.finished, row.measured) {
            (false, _) => "failed",
            (true, true) => "streaming",
            (true, false) => "beside",
        };
        if let Some(first_s) = row.first_s {
            piece(streaming, first_s, row.end_s);
        } else if !row.finished {
            piece("failed", row.end_s, row.end_s);
        }
    }
    svg.finish(WIDTH, height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_end_at_one() {
        let sorted: Vec<f64> = (0..10_000).map(f64::from).collect();
        let points = cumulative(&sorted);
        assert!(points.len() <= MAX_POINTS + 2);
        assert_eq!(points.last(), Some(&(9999.0, 1.0)));
        assert_eq!(cumulative(&[]), []);
    }

    #[test]
    fn plots_of_nothing_are_still_plots() {
        let empty = Series { name: "<a>".into(), points: vec![] };
        let lone = Series { name: "b".into(), points: vec![(0.0, 0.0)] };
        for plot in [
            lines("t", ("x", Scale::Log), "y", &[empty.clone(), lone.clone()], Join::Area),
            bars("t", "x", "y", &[empty, lone]),
            timeline("t", &[]),
        ] {
            assert!(plot.starts_with("<svg") && plot.ends_with("</svg>"));
            assert!(!plot.contains("NaN") && !plot.contains("inf") && !plot.contains("<a>"));
        }
    }

    #[test]
    fn the_same_data_gives_the_same_bytes() {
        let series =
            [Series { name: "a & b".into(), points: vec![(1.0, 0.25), (7.5, 0.5), (80.0, 1.0)] }];
        let draw = || lines("t", ("ms", Scale::Log), "share", &series, Join::Steps);
        assert_eq!(draw(), draw());
        assert!(draw().contains("<title>a &amp; b</title>"), "{}", draw());
        assert!(draw().contains("class=\"stroke c0\""));
    }
}
