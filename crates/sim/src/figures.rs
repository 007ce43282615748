//! The figures of a study, as described in its plan.

use crate::channel::LossSchedule;
use crate::chart::{Anchor, Axis, Bar, INK, Labels, Paint, Panel, Svg, TextRole};
use crate::plan::{LegendNames, Metric, Plan, Plot, ScatterPlot, SessionPlot};
use crate::scheme::Scheme;
use crate::study::{Study, with_setting};
use crate::world::{self, Setting};

/// A finished figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// File name with its suffix.
    pub file: String,
    /// The SVG document.
    pub svg: String,
}

const PANEL_WIDTH: f64 = 360.0;
const PANEL_HEIGHT: f64 = 250.0;
const LEFT: f64 = 66.0;
const TOP: f64 = 78.0;
const GUTTER: f64 = 84.0;
const BELOW: f64 = 46.0;
const LEGEND_ROW: f64 = 22.0;
/// Width of a figure with one panel for one session.
const SESSION_WIDTH: f64 = 880.0;
const SESSION_HEIGHT: f64 = 300.0;
/// Width of one group of bars, and minimum width of a figure of bars.
const GROUP_WIDTH: f64 = 90.0;
const LEAST_BARS_WIDTH: f64 = 860.0;
/// Maximum number of groups with names in one row; with more, names use two rows so that they do
/// not overlap.
const GROUPS_IN_ONE_ROW: usize = 6;

/// Draws all plots of `plan`, for separate files.
pub fn draw(plan: &Plan, study: &Study) -> Vec<Figure> {
    draw_on(plan, study, |_| Svg::image())
}

/// Draws all plots of `plan` for an HTML page.
pub fn draw_inline(plan: &Plan, study: &Study) -> Vec<Figure> {
    draw_on(plan, study, |plot| Svg::inline(&format!("{}: {}", plan.title, plot.file())))
}

fn draw_on(plan: &Plan, study: &Study, canvas: impl Fn(&Plot) -> Svg) -> Vec<Figure> {
    let draw_one = |plot: &Plot| {
        let drawing = Drawing { plan, study, svg: canvas(plot) };
        let svg = match plot {
            Plot::Scatter(scatter) => drawing.scatter(scatter),
            Plot::Bars { y, .. } => drawing.bars(y),
            Plot::Lines { x_label, y, log_x, .. } => drawing.lines(x_label, *log_x, y),
            Plot::Session(session) => drawing.session(session),
        };
        Figure { file: format!("{}.svg", plot.file()), svg }
    };
    plan.plot.iter().map(draw_one).collect()
}

/// A figure under construction.
struct Drawing<'a> {
    plan: &'a Plan,
    study: &'a Study,
    svg: Svg,
}

impl Drawing<'_> {
    fn schemes(&self) -> std::ops::Range<usize> {
        0..self.plan.scheme.len()
    }

    fn scheme_called(&self, label: &str) -> Option<usize> {
        self.plan.scheme.iter().position(|entry| entry.label() == label)
    }

    /// Returns the largest result of `of` over the means of `metric` in `cases`, each with its
    /// confidence interval.
    fn highest(
        &self,
        metric: Metric,
        cases: impl Iterator<Item = usize>,
        of: fn((f64, f64)) -> f64,
    ) -> f64 {
        let of_case = |case| self.schemes().map(move |scheme| (case, scheme));
        let means =
            cases.flat_map(of_case).map(|(case, scheme)| self.study.mean(case, scheme, metric));
        means.map(of).fold(0.0, f64::max)
    }

    fn all_cases(&self) -> std::ops::Range<usize> {
        0..self.plan.case.len()
    }

    fn heading(&mut self) {
        let note = format!(
            "mean of {} seeded sessions of {} s; whiskers: 95 % interval",
            self.plan.sessions, self.plan.seconds
        );
        let plan = self.plan;
        self.title(&plan.title, &note);
    }

    fn title(&mut self, title: &str, note: &str) {
        self.svg.text((20.0, 30.0), Anchor::Start, TextRole::Title, title);
        self.svg.text((20.0, 48.0), Anchor::Start, TextRole::Note, note);
    }

    /// Draws the names of `schemes` in rows; returns the height used.
    fn legend(&mut self, schemes: &[usize], top: f64, width: f64) -> f64 {
        let (mut x, mut y) = (LEFT, top);
        for &scheme in schemes {
            let label = self.plan.scheme[scheme].label();
            // No font is at hand to measure text with: 7 px is more than its mean width.
            let needed = 44.0 + 7.0 * label.chars().count() as f64;
            if x + needed > width && x > LEFT {
                x = LEFT;
                y += LEGEND_ROW;
            }
            let (colour, dash) = style(self.plan, scheme);
            let sample = [(x, y - 4.0), (x + 22.0, y - 4.0)];
            self.svg.polyline(&sample, Paint(colour), 3.0, dash);
            self.svg.text((x + 28.0, y), Anchor::Start, TextRole::Name, &label);
            x += needed;
        }
        y - top + LEGEND_ROW
    }

    fn scatter(mut self, plot: &ScatterPlot) -> String {
        self.heading();
        let axis =
            |metric| Axis::from_zero(self.highest(metric, self.all_cases(), |(mean, _)| mean));
        let (x_axis, y_axis) = (axis(plot.x), axis(plot.y));
        for case in self.all_cases() {
            let panel = panel(case, x_axis, y_axis);
            let title = &self.plan.case[case].name;
            let labels = Labels { title, x: plot.x.axis(), y: plot.y.axis(), x_grid: false };
            panel.draw(&mut self.svg, labels);
            for names in &plot.join {
                self.joining_line(plot, &panel, case, names);
            }
            for scheme in self.schemes() {
                self.scatter_point(plot, &panel, case, scheme);
            }
        }
        let (width, bottom) = extent(self.plan.case.len());
        let used = self.legend(&self.scatter_legend(plot), bottom + 20.0, width);
        self.svg.finish(width, bottom + used + 12.0)
    }

    /// Returns one colour for a joined line: its points are one scheme in several settings.
    fn scatter_colour(&self, plot: &ScatterPlot, scheme: usize) -> &'static str {
        let label = self.plan.scheme[scheme].label();
        let line = plot.join.iter().find(|names| names.contains(&label));
        let first = line.and_then(|names| self.scheme_called(names.first()?));
        style(self.plan, first.unwrap_or(scheme)).0
    }

    fn joining_line(&mut self, plot: &ScatterPlot, panel: &Panel, case: usize, names: &[String]) {
        let schemes: Vec<usize> =
            names.iter().filter_map(|name| self.scheme_called(name)).collect();
        let mean = |scheme, metric| self.study.mean(case, scheme, metric).0;
        let place = |&scheme: &usize| panel.at(mean(scheme, plot.x), mean(scheme, plot.y));
        let mut points: Vec<(f64, f64)> = schemes.iter().map(place).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let paint = schemes.first().map_or(INK, |&one| Paint(self.scatter_colour(plot, one)));
        self.svg.polyline(&points, paint, 1.5, "2 3");
    }

    fn scatter_point(&mut self, plot: &ScatterPlot, panel: &Panel, case: usize, scheme: usize) {
        let paint = Paint(self.scatter_colour(plot, scheme));
        let (at_x, _) = self.study.mean(case, scheme, plot.x);
        let (at_y, half) = self.study.mean(case, scheme, plot.y);
        let dash = style(self.plan, scheme).1;
        if !dash.is_empty() {
            // A bound has no cost to be placed by: it is drawn across.
            let (left, y) = panel.at(0.0, at_y);
            self.svg.polyline(&[(left, y), (left + panel.width, y)], paint, 1.5, dash);
            return;
        }
        panel.whisker(&mut self.svg, at_x, (at_y, half), paint);
        self.svg.dot(panel.at(at_x, at_y), 5.5, paint);
    }

    fn scatter_legend(&self, plot: &ScatterPlot) -> Vec<usize> {
        let later = plot.join.iter().flat_map(|names| names.iter().skip(1));
        let hidden: Vec<usize> = match plot.legend {
            LegendNames::All => Vec::new(),
            LegendNames::Joined => later.filter_map(|name| self.scheme_called(name)).collect(),
        };
        self.schemes().filter(|scheme| !hidden.contains(scheme)).collect()
    }

    fn bars(mut self, metrics: &[Metric]) -> String {
        self.heading();
        let cases = self.plan.case.len();
        let width = (LEFT + GROUP_WIDTH * cases as f64).max(LEAST_BARS_WIDTH);
        let row = PANEL_HEIGHT + 62.0;
        for (place, &metric) in metrics.iter().enumerate() {
            let panel = Panel {
                left: LEFT,
                top: TOP + place as f64 * row,
                width: width - LEFT - 24.0,
                height: PANEL_HEIGHT,
                x: Axis::exact(0.0, cases as f64, false),
                y: Axis::from_zero(
                    self.highest(metric, self.all_cases(), |(mean, half)| mean + half),
                ),
            };
            panel.draw(&mut self.svg, Labels { y: metric.axis(), ..Labels::default() });
            self.bars_of(metric, &panel);
            self.group_names(&panel);
        }
        let bottom = TOP + metrics.len() as f64 * row - 20.0;
        let all: Vec<usize> = self.schemes().collect();
        let used = self.legend(&all, bottom + 8.0, width);
        self.svg.finish(width, bottom + used + 6.0)
    }

    fn bars_of(&mut self, metric: Metric, panel: &Panel) {
        let mut bars = Vec::new();
        for group in self.all_cases() {
            for place in self.schemes().filter(|&scheme| has(self.plan, scheme, metric)) {
                let (value, half) = self.study.mean(group, place, metric);
                let paint = Paint(style(self.plan, place).0);
                bars.push(Bar { group, place, value, half, paint, tooltip: "" });
            }
        }
        panel.grouped_bars(&mut self.svg, self.plan.scheme.len(), f64::INFINITY, &bars);
    }

    fn group_names(&mut self, panel: &Panel) {
        for (case, what) in self.plan.case.iter().enumerate() {
            let (x, floor) = panel.at(case as f64 + 0.5, 0.0);
            let rows = if self.plan.case.len() > GROUPS_IN_ONE_ROW { 2 } else { 1 };
            let at = (x, floor + 17.0 + 15.0 * (case % rows) as f64);
            self.svg.text(at, Anchor::Middle, TextRole::Category, &what.name);
        }
    }

    fn lines(mut self, label: &str, log_x: bool, metrics: &[Metric]) -> String {
        self.heading();
        let at = |(case, what): (usize, &crate::plan::Case)| Some((case, what.at?));
        let placed: Vec<(usize, f64)> = self.plan.case.iter().enumerate().filter_map(at).collect();
        let low = placed.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = placed.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
        let (width, bottom) = extent(metrics.len());
        if low >= high {
            return self.svg.finish(width, bottom);
        }
        for (place, &metric) in metrics.iter().enumerate() {
            let cases = placed.iter().map(|p| p.0);
            let highest = self.highest(metric, cases, |(mean, _)| mean);
            let panel = panel(place, Axis::exact(low, high, log_x), Axis::from_zero(highest));
            panel.draw(&mut self.svg, Labels { x: label, y: metric.axis(), ..Labels::default() });
            for scheme in self.schemes().filter(|&scheme| has(self.plan, scheme, metric)) {
                self.line_of(metric, scheme, &panel, &placed);
            }
        }
        let all: Vec<usize> = self.schemes().collect();
        let used = self.legend(&all, bottom + 20.0, width);
        self.svg.finish(width, bottom + used + 12.0)
    }

    fn line_of(&mut self, metric: Metric, scheme: usize, panel: &Panel, placed: &[(usize, f64)]) {
        let (colour, dash) = style(self.plan, scheme);
        let paint = Paint(colour);
        let means: Vec<(f64, (f64, f64))> =
            placed.iter().map(|&(case, at)| (at, self.study.mean(case, scheme, metric))).collect();
        let points: Vec<_> = means.iter().map(|&(at, (mean, _))| panel.at(at, mean)).collect();
        self.svg.polyline(&points, paint, 2.0, dash);
        for (&(at, mean), &point) in means.iter().zip(&points) {
            panel.whisker(&mut self.svg, at, mean, paint);
            self.svg.dot(point, 3.6, paint);
        }
    }

    fn session(mut self, plot: &SessionPlot) -> String {
        let case = self.plan.case.iter().find(|case| case.name == plot.case);
        let case = case.expect("plans are checked");
        self.title(
            &format!("One session, {}", case.name),
            "shaded: what was sent then to arrive now met the channel's lossy state",
        );
        let named = |scheme: &usize| {
            plot.schemes.is_empty() || plot.schemes.contains(&self.plan.scheme[*scheme].label())
        };
        let chosen: Vec<usize> = self.schemes().filter(named).collect();
        for (place, &scheme) in chosen.iter().enumerate() {
            with_setting(self.plan, case, &self.plan.scheme[scheme], plot.session, |setting| {
                self.session_line(plot, scheme, setting, place == 0);
            });
        }
        let bottom = TOP + SESSION_HEIGHT + BELOW;
        let used = self.legend(&chosen, bottom + 16.0, SESSION_WIDTH);
        self.svg.finish(SESSION_WIDTH, bottom + used + 8.0)
    }

    fn session_line(
        &mut self,
        plot: &SessionPlot,
        scheme: usize,
        setting: &Setting<'_>,
        is_first: bool,
    ) {
        let (from_s, to_s) = plot.window_s;
        let trace = world::run(&self.plan.scheme[scheme].send, setting);
        let by = |at_s: f64| trace.generated_us.partition_point(|&t| t as f64 <= at_s * 1e6) as f64;
        // Tokens that are on their way when the window begins belong to the picture.
        let (low, high) = (by(from_s - 0.6), by(to_s));
        let panel = Panel {
            left: LEFT,
            top: TOP,
            width: SESSION_WIDTH - LEFT - 24.0,
            height: SESSION_HEIGHT,
            x: Axis::exact(from_s, to_s, false),
            y: Axis::exact(low, high.max(low + 1.0), false),
        };
        if is_first {
            shade(&mut self.svg, &panel, setting, plot.window_s);
            let labels = Labels { x: "time (s)", y: "tokens shown", ..Labels::default() };
            panel.draw(&mut self.svg, labels);
        }
        let (colour, dash) = style(self.plan, scheme);
        let steps = token_steps(&trace.shown_us, plot.window_s, (low, high));
        let points: Vec<_> = steps.into_iter().map(|(x, y)| panel.at(x, y)).collect();
        self.svg.polyline(&points, Paint(colour), 2.0, dash);
    }
}

/// Returns a scheme's colour, by its class, and its dash; the same in every figure.
fn style(plan: &Plan, scheme: usize) -> (&'static str, &'static str) {
    let send = &plan.scheme[scheme].send;
    let before = plan.scheme[..scheme]
        .iter()
        .filter(|entry| std::mem::discriminant(&entry.send) == std::mem::discriminant(send))
        .count();
    let shades: &[&str] = match send {
        Scheme::Tcp { .. } => &["tcp-1", "tcp-2", "tcp-3"],
        Scheme::Duplication { .. } => {
            &["duplication-1", "duplication-2", "duplication-3", "duplication-4"]
        }
        Scheme::Eloquent { .. } => &["eloquent-1", "eloquent-2", "eloquent-3"],
        Scheme::Loquent { .. } => &["loquent-1", "loquent-2", "loquent-3", "loquent-4"],
        Scheme::Oracle { .. } => &["oracle-1", "oracle-2", "oracle-3"],
    };
    let dash = match send {
        Scheme::Oracle { .. } => "5 4",
        _ => "",
    };
    (shades[before % shades.len()], dash)
}

/// Returns true if a scheme has this metric: the oracle sends nothing, so it has no cost.
fn has(plan: &Plan, scheme: usize, metric: Metric) -> bool {
    let cost = matches!(metric, Metric::WireKb | Metric::AckKb | Metric::Redundancy);
    !(cost && matches!(plan.scheme[scheme].send, Scheme::Oracle { .. }))
}

/// Returns panel number `index` of a figure with two columns.
fn panel(index: usize, x: Axis, y: Axis) -> Panel {
    let (column, row) = ((index % 2) as f64, (index / 2) as f64);
    Panel {
        left: LEFT + column * (PANEL_WIDTH + GUTTER),
        top: TOP + row * (PANEL_HEIGHT + BELOW + 44.0),
        width: PANEL_WIDTH,
        height: PANEL_HEIGHT,
        x,
        y,
    }
}

/// Returns the width of a figure of `panels` panels, and the lower end of its last row.
fn extent(panels: usize) -> (f64, f64) {
    let columns = panels.clamp(1, 2) as f64;
    let rows = panels.div_ceil(2).max(1) as f64;
    (
        LEFT + columns * PANEL_WIDTH + (columns - 1.0) * GUTTER + 30.0,
        TOP + rows * (PANEL_HEIGHT + BELOW + 44.0) - 44.0,
    )
}

/// Shades the times at which packets that are lost would have arrived.
fn shade(svg: &mut Svg, panel: &Panel, setting: &Setting<'_>, (from_s, to_s): (f64, f64)) {
    let horizon_us = setting.length_us + world::AFTERMATH_US;
    let schedule = LossSchedule::new(&setting.link.channel, setting.seed, horizon_us);
    let late_s = setting.link.rtt_ms / 2e3;
    let step_s = 0.01;
    let mut start: Option<f64> = None;
    let mut at_s = from_s;
    while at_s <= to_s {
        let sent_s = at_s - late_s;
        let lossy = sent_s >= 0.0 && at_s < to_s && schedule.loss((sent_s * 1e6) as u64) > 0.5;
        match (lossy, start) {
            (true, None) => start = Some(at_s),
            (false, Some(since)) => {
                let (x, _) = panel.at(since, 0.0);
                let (end, _) = panel.at(at_s, 0.0);
                let size = (end - x, panel.height);
                svg.rectangle((x, panel.top), size, Paint("lossy"), "");
                start = None;
            }
            _ => {}
        }
        at_s += step_s;
    }
}

/// Returns the number of tokens shown over time, as corners of a staircase.
fn token_steps(
    shown_us: &[u64],
    (from_s, to_s): (f64, f64),
    (low, high): (f64, f64),
) -> Vec<(f64, f64)> {
    let shown_at = |at_s: f64| shown_us.partition_point(|&t| t as f64 <= at_s * 1e6) as f64;
    let mut level = shown_at(from_s);
    let mut corners = vec![(from_s, level.clamp(low, high))];
    for &shown in shown_us {
        let at_s = shown as f64 / 1e6;
        if at_s <= from_s || at_s > to_s {
            continue;
        }
        corners.push((at_s, level.clamp(low, high)));
        level = shown_at(at_s);
        corners.push((at_s, level.clamp(low, high)));
    }
    corners.push((to_s, level.clamp(low, high)));
    corners
}
