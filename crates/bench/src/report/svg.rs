//! Plots as inline SVG, styled by the page's CSS variables so that they follow its theme.

use std::fmt::Write;

use super::number;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;
/// Points of one line; more cannot be seen at this width.
const MAX_POINTS: usize = 500;

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How values of an axis are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Proportional.
    Linear,
    /// By their logarithm; values must be above 0.
    Log,
}

/// One axis of a plot.
#[derive(Debug, Clone)]
struct Axis {
    label: String,
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis that shows all `values`; a linear one begins at 0.
    fn over(label: &str, scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let high = values.clone().fold(0.0, f64::max);
        let (low, high, ticks) = match scale {
            Scale::Linear => linear_ticks(if high > 0.0 { high } else { 1.0 }),
            Scale::Log => {
                let low = values.fold(f64::INFINITY, f64::min);
                log_ticks(
                    if low.is_finite() { low } else { 1.0 },
                    if high > 0.0 { high } else { 1.0 },
                )
            }
        };
        Axis { label: label.to_owned(), scale, low, high, ticks }
    }

    /// Where `value` lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        share.clamp(0.0, 1.0)
    }
}

fn linear_ticks(high: f64) -> (f64, f64, Vec<f64>) {
    let rough = high / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * magnitude);
    let step = steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * magnitude);
    let count = (high / step).ceil().max(1.0);
    (0.0, count * step, (0..=count as usize).map(|i| i as f64 * step).collect())
}

/// Ticks at 1, 2 and 5 of each decade, or at powers of ten over a wide range.
fn log_ticks(low: f64, high: f64) -> (f64, f64, Vec<f64>) {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let last = last.max(first + 1);
    let steps: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> =
        (first..=last).flat_map(|e| steps.iter().map(move |step| step * 10f64.powi(e))).collect();
    let from = all.iter().rposition(|&tick| tick <= low * 1.0001).unwrap_or(0);
    let to =
        all.iter().position(|&tick| tick >= high * 0.9999).unwrap_or(all.len() - 1).max(from + 1);
    let ticks = all[from..=to.min(all.len() - 1)].to_vec();
    (ticks[0], ticks[ticks.len() - 1], ticks)
}

/// A named line or set of bars; its place in the list chooses its colour.
#[derive(Debug, Clone)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points in the order of x.
    pub points: Vec<(f64, f64)>,
}

/// The empirical distribution of sorted samples as points (value, share at most that).
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

/// A tick without the zeros that a column of figures would keep.
fn tick_label(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e7).contains(&value.abs()) {
        return format!("{value:e}");
    }
    // Nine decimals undo the error of multiplying a step such as 0.1.
    format!("{}", (value * 1e9).round() / 1e9)
}

fn x_of(share: f64) -> f64 {
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

fn y_of(share: f64) -> f64 {
    HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
}

fn open(out: &mut String, title: &str, height: f64) {
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escape(title)
    );
}

fn frame(out: &mut String, x: &Axis, y: &Axis) {
    for &tick in &y.ticks {
        let at = y_of(y.place(tick));
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            tick_label(tick)
        );
    }
    x_ticks(out, x, HEIGHT);
    let _ = write!(
        out,
        "<text class=\"axis\" transform=\"translate(13 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        (HEIGHT - BOTTOM + TOP) / 2.0,
        escape(&y.label)
    );
}

fn x_ticks(out: &mut String, x: &Axis, height: f64) {
    for &tick in &x.ticks {
        let at = x_of(x.place(tick));
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            height - BOTTOM,
            height - BOTTOM + 16.0,
            tick_label(tick)
        );
    }
    let _ = write!(
        out,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        x_of(0.5),
        height - 6.0,
        escape(&x.label)
    );
}

/// Lines over common axes; `stepped` for distributions.
pub fn lines(title: &str, x: (&str, Scale), y: &str, lines: &[Line], stepped: bool) -> String {
    let points = lines.iter().flat_map(|line| line.points.iter());
    let positive = |value: &f64| x.1 == Scale::Linear || *value > 0.0;
    let x = Axis::over(x.0, x.1, points.clone().map(|point| point.0).filter(positive));
    let y = Axis::over(y, Scale::Linear, points.map(|point| point.1));
    let mut out = String::new();
    open(&mut out, title, HEIGHT);
    frame(&mut out, &x, &y);
    for (index, line) in lines.iter().enumerate() {
        let mut path = String::new();
        let mut last_y = y_of(0.0);
        for (nth, point) in line.points.iter().enumerate() {
            let (px, py) = (x_of(x.place(point.0)), y_of(y.place(point.1)));
            match (nth, stepped) {
                (0, true) => {
                    let _ = write!(path, "M{px:.1} {last_y:.1}V{py:.1}");
                }
                (0, false) => {
                    let _ = write!(path, "M{px:.1} {py:.1}");
                }
                (_, true) => {
                    let _ = write!(path, "H{px:.1}V{py:.1}");
                }
                (_, false) => {
                    let _ = write!(path, "L{px:.1} {py:.1}");
                }
            }
            last_y = py;
        }
        let _ = write!(
            out,
            "<path class=\"line c{}\" d=\"{path}\"><title>{}</title></path>",
            index % 8,
            escape(&line.name)
        );
    }
    out.push_str("</svg>");
    out
}

/// Groups of bars side by side, one group per distinct x.
pub fn bars(title: &str, x_label: &str, y_label: &str, series: &[Line]) -> String {
    let mut places: Vec<f64> =
        series.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let tops = series.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let y = Axis::over(y_label, Scale::Linear, tops);
    let none =
        Axis { label: x_label.into(), scale: Scale::Linear, low: 0.0, high: 1.0, ticks: vec![] };
    let mut out = String::new();
    open(&mut out, title, HEIGHT);
    frame(&mut out, &none, &y);
    let slot = (WIDTH - LEFT - RIGHT) / places.len().max(1) as f64;
    let bar = (slot * 0.8 / series.len().max(1) as f64).min(48.0);
    for (place, value) in places.iter().enumerate() {
        let middle = LEFT + (place as f64 + 0.5) * slot;
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 16.0,
            number(*value)
        );
        for (index, line) in series.iter().enumerate() {
            let Some(point) = line.points.iter().find(|point| point.0 == *value) else {
                continue;
            };
            let left = middle + (index as f64 - series.len() as f64 / 2.0) * bar;
            let top = y_of(y.place(point.1));
            let _ = write!(
                out,
                "<rect class=\"bar c{}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                 <title>{}: {} at {}</title></rect>",
                index % 8,
                (bar - 1.0).max(0.5),
                HEIGHT - BOTTOM - top,
                escape(&line.name),
                number(point.1),
                number(*value)
            );
        }
    }
    out.push_str("</svg>");
    out
}

/// One request of a timeline, in seconds since the run's start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Scheduled send.
    pub due_s: f64,
    /// First text, where there was any.
    pub first_s: Option<f64>,
    /// End.
    pub end_s: f64,
    /// Whether it finished.
    pub finished: bool,
    /// Whether it was one of the measured requests.
    pub measured: bool,
}

/// Requests as horizontal bars: waiting, then streaming.
pub fn timeline(title: &str, spans: &[Span]) -> String {
    let row = (360.0 / spans.len().max(1) as f64).clamp(1.0, 9.0);
    let height = TOP + row * spans.len() as f64 + BOTTOM;
    let x =
        Axis::over("seconds since the start", Scale::Linear, spans.iter().map(|span| span.end_s));
    let mut out = String::new();
    open(&mut out, title, height);
    x_ticks(&mut out, &x, height);
    for (index, span) in spans.iter().enumerate() {
        let top = TOP + index as f64 * row;
        let mut piece = |class: &str, from: f64, to: f64| {
            let (left, right) = (x_of(x.place(from)), x_of(x.place(to)));
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                (right - left).max(0.4),
                (row - if row > 3.0 { 1.0 } else { 0.0 }).max(0.8)
            );
        };
        let streaming = match (span.finished, span.measured) {
            (false, _) => "failed",
            (true, true) => "streaming",
            (true, false) => "beside",
        };
        piece("waiting", span.due_s, span.first_s.unwrap_or(span.end_s));
        if let Some(first) = span.first_s {
            piece(streaming, first, span.end_s);
        } else if !span.finished {
            piece("failed", span.end_s, span.end_s);
        }
    }
    out.push_str("</svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_cover_the_values() {
        for high in [0.001, 0.9, 1.0, 7.3, 64.0, 12345.6] {
            let (low, top, ticks) = linear_ticks(high);
            assert!(
                low == 0.0 && top >= high && (2..=7).contains(&ticks.len()),
                "{high}: {ticks:?}"
            );
        }
        for (low, high) in [(1.0, 1.0), (0.003, 4000.0), (27.0, 33.0), (10.0, 100.0)] {
            let (from, to, ticks) = log_ticks(low, high);
            assert!(from <= low && to >= high && ticks.len() >= 2, "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn tick_labels_are_short() {
        let shown = [0.0, 0.1 * 3.0, 1.0, 2500.0, 1e-4, 1e9].map(tick_label);
        assert_eq!(shown, ["0", "0.3", "1", "2500", "1e-4", "1e9"]);
    }

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
        let empty = Line { name: "<a>".into(), points: vec![] };
        let lone = Line { name: "b".into(), points: vec![(0.0, 0.0)] };
        for plot in [
            lines("t", ("x", Scale::Log), "y", &[empty.clone(), lone.clone()], true),
            bars("t", "x", "y", &[empty, lone]),
            timeline("t", &[]),
        ] {
            assert!(plot.starts_with("<svg") && plot.ends_with("</svg>"));
            assert!(!plot.contains("NaN") && !plot.contains("inf") && !plot.contains("<a>"));
        }
    }
}
