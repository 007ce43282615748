//! The pictures of a study.

use crate::channel::Weather;
use crate::plan::{Legend, Metric, Plan, Plot};
use crate::scheme::Scheme;
use crate::study::{Study, with_setting};
use crate::svg::{Anchor, Axis, INK, Panel, SOFT, Svg};
use crate::world::{self, Setting};

/// A finished picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
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

/// Draws all plots of `plan`.
pub fn draw(plan: &Plan, study: &Study) -> Vec<Picture> {
    let draw_one = |plot: &Plot| match plot {
        Plot::Scatter { file, x, y, join, legend } => {
            picture(file, scatter(plan, study, (*x, *y), join, *legend))
        }
        Plot::Bars { file, y } => picture(file, bars(plan, study, y)),
        Plot::Lines { file, x_label, y, log_x } => {
            picture(file, lines(plan, study, (x_label, *log_x), y))
        }
        Plot::Course { file, case, session, window_s, schemes } => {
            picture(file, course(plan, case, *session, *window_s, schemes))
        }
    };
    plan.plot.iter().map(draw_one).collect()
}

fn picture(file: &str, svg: String) -> Picture {
    Picture { file: format!("{file}.svg"), svg }
}

/// A scheme's colour and dash; the same in every picture.
fn style(plan: &Plan, scheme: usize) -> (&'static str, &'static str) {
    let send = &plan.scheme[scheme].send;
    let before = plan.scheme[..scheme]
        .iter()
        .filter(|entry| std::mem::discriminant(&entry.send) == std::mem::discriminant(send))
        .count();
    let shades: &[&str] = match send {
        Scheme::Tcp => &["#c0392b", "#e08277", "#7d2318"],
        Scheme::Duplication { .. } => &["#e69f00", "#cc8400", "#b36b00", "#995200"],
        Scheme::Eloquent { .. } => &["#2f6fb7", "#7db0e3", "#1b4370"],
        Scheme::Ours { .. } => &["#1a7f4b", "#62b88a", "#0d4a2a", "#9bd3b5"],
        Scheme::Oracle { .. } => &["#57606a", "#8c959f", "#32383f"],
    };
    let dash = match send {
        Scheme::Oracle { .. } => "5 4",
        _ => "",
    };
    (shades[before % shades.len()], dash)
}

/// The bound has no cost to be drawn.
fn has(plan: &Plan, scheme: usize, metric: Metric) -> bool {
    let cost = matches!(metric, Metric::WireKb | Metric::AckKb | Metric::Redundancy);
    !(cost && matches!(plan.scheme[scheme].send, Scheme::Oracle { .. }))
}

fn heading(svg: &mut Svg, plan: &Plan) {
    let style = format!(r#"fill="{INK}" font-size="16" font-weight="600""#);
    svg.text((20.0, 30.0), Anchor::Start, &style, &plan.title);
    let note = format!(
        "mean of {} seeded sessions of {} s; whiskers: 95 % interval",
        plan.sessions, plan.seconds
    );
    svg.text((20.0, 48.0), Anchor::Start, &format!(r#"fill="{SOFT}""#), &note);
}

/// Draws names in rows; returns the height used.
fn legend(svg: &mut Svg, plan: &Plan, schemes: &[usize], top: f64, width: f64) -> f64 {
    let (mut x, mut y) = (LEFT, top);
    for &scheme in schemes {
        let label = plan.scheme[scheme].label();
        let needed = 44.0 + 7.0 * label.chars().count() as f64;
        if x + needed > width && x > LEFT {
            x = LEFT;
            y += LEGEND_ROW;
        }
        let (colour, dash) = style(plan, scheme);
        svg.polyline(&[(x, y - 4.0), (x + 22.0, y - 4.0)], colour, 3.0, dash);
        svg.text((x + 28.0, y), Anchor::Start, &format!(r#"fill="{INK}""#), &label);
        x += needed;
    }
    y - top + LEGEND_ROW
}

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

/// Width of a picture of so many panels and the lower end of its last row.
fn extent(panels: usize) -> (f64, f64) {
    let columns = panels.clamp(1, 2) as f64;
    let rows = panels.div_ceil(2).max(1) as f64;
    (
        LEFT + columns * PANEL_WIDTH + (columns - 1.0) * GUTTER + 30.0,
        TOP + rows * (PANEL_HEIGHT + BELOW + 44.0) - 44.0,
    )
}

fn whisker(svg: &mut Svg, panel: &Panel, x: f64, (mean, half): (f64, f64), colour: &str) {
    let low = panel.at(x, (mean - half).max(0.0));
    let high = panel.at(x, mean + half);
    svg.line(low, high, colour, 1.2);
}

fn scatter(
    plan: &Plan,
    study: &Study,
    (x, y): (Metric, Metric),
    join: &[Vec<String>],
    named: Legend,
) -> String {
    let mut svg = Svg::default();
    heading(&mut svg, plan);
    let mut schemes: Vec<usize> = (0..plan.scheme.len()).collect();
    let highest = |metric: Metric| {
        let cells = (0..plan.case.len()).flat_map(|c| schemes.iter().map(move |&s| (c, s)));
        cells.map(|(case, scheme)| study.mean(case, scheme, metric).0).fold(0.0, f64::max)
    };
    // One colour for a line that is joined: its points are one scheme in several settings.
    let colour = |scheme: usize| {
        let label = plan.scheme[scheme].label();
        let line = join.iter().find(|names| names.contains(&label));
        let first = line.and_then(|names| {
            plan.scheme.iter().position(|entry| names.first() == Some(&entry.label()))
        });
        style(plan, first.unwrap_or(scheme)).0
    };
    let (x_axis, y_axis) = (Axis::from_zero(highest(x)), Axis::from_zero(highest(y)));
    for (case, what) in plan.case.iter().enumerate() {
        let panel = panel(case, x_axis, y_axis);
        panel.draw(&mut svg, &what.name, x.axis(), y.axis());
        let point = |scheme: usize| {
            let mean = |metric| study.mean(case, scheme, metric).0;
            (mean(x), mean(y))
        };
        for names in join {
            let joined = names.iter().filter_map(|name| {
                let scheme = plan.scheme.iter().position(|entry| entry.label() == *name)?;
                let (x, y) = point(scheme);
                Some((panel.at(x, y), colour(scheme)))
            });
            let (mut points, colours): (Vec<_>, Vec<_>) = joined.unzip();
            points.sort_by(|a: &(f64, f64), b| a.0.total_cmp(&b.0));
            svg.polyline(&points, colours.first().unwrap_or(&INK), 1.5, "2 3");
        }
        for scheme in 0..plan.scheme.len() {
            let dash = style(plan, scheme).1;
            let colour = colour(scheme);
            let (at_x, at_y) = point(scheme);
            if !dash.is_empty() {
                // A bound has no cost to be placed by: it is drawn across.
                let (left, y) = panel.at(0.0, at_y);
                svg.polyline(&[(left, y), (left + panel.width, y)], colour, 1.5, dash);
                continue;
            }
            whisker(&mut svg, &panel, at_x, study.mean(case, scheme, y), colour);
            svg.dot(panel.at(at_x, at_y), 5.5, colour);
        }
    }
    let (width, bottom) = extent(plan.case.len());
    if named == Legend::Joined {
        let later: Vec<&String> = join.iter().flat_map(|names| names.iter().skip(1)).collect();
        schemes.retain(|&scheme| !later.contains(&&plan.scheme[scheme].label()));
    }
    let used = legend(&mut svg, plan, &schemes, bottom + 20.0, width);
    svg.finish(width, bottom + used + 12.0)
}

fn bars(plan: &Plan, study: &Study, metrics: &[Metric]) -> String {
    let mut svg = Svg::default();
    heading(&mut svg, plan);
    let (cases, schemes) = (plan.case.len(), plan.scheme.len());
    let width = (LEFT + 90.0 * cases as f64).max(860.0);
    let row = PANEL_HEIGHT + 62.0;
    for (place, &metric) in metrics.iter().enumerate() {
        let highest = (0..cases)
            .flat_map(|case| (0..schemes).map(move |scheme| (case, scheme)))
            .map(|(case, scheme)| {
                let (mean, half) = study.mean(case, scheme, metric);
                mean + half
            })
            .fold(0.0, f64::max);
        let panel = Panel {
            left: LEFT,
            top: TOP + place as f64 * row,
            width: width - LEFT - 24.0,
            height: PANEL_HEIGHT,
            x: Axis::exact(0.0, cases as f64, false),
            y: Axis::from_zero(highest),
        };
        panel.draw(&mut svg, "", "", metric.axis());
        let thick = panel.width / cases as f64 * 0.8 / schemes as f64;
        for (case, what) in plan.case.iter().enumerate() {
            for scheme in (0..schemes).filter(|&scheme| has(plan, scheme, metric)) {
                let (mean, half) = study.mean(case, scheme, metric);
                let left = case as f64 + 0.1 + 0.8 * scheme as f64 / schemes as f64;
                let (x, y) = panel.at(left, mean);
                let (_, floor) = panel.at(left, 0.0);
                let colour = style(plan, scheme).0;
                svg.bar((x, y), ((thick - 1.5).max(1.0), floor - y), colour);
                let middle = left + 0.4 / schemes as f64;
                whisker(&mut svg, &panel, middle, (mean, half), INK);
            }
            let (x, floor) = panel.at(case as f64 + 0.5, 0.0);
            let stagger = if cases > 6 { (case % 2) as f64 * 15.0 } else { 0.0 };
            let soft = format!(r#"fill="{INK}" font-size="11""#);
            svg.text((x, floor + 17.0 + stagger), Anchor::Middle, &soft, &what.name);
        }
    }
    let bottom = TOP + metrics.len() as f64 * row - 20.0;
    let all: Vec<usize> = (0..schemes).collect();
    let used = legend(&mut svg, plan, &all, bottom + 8.0, width);
    svg.finish(width, bottom + used + 6.0)
}

fn lines(plan: &Plan, study: &Study, (label, log_x): (&str, bool), metrics: &[Metric]) -> String {
    let mut svg = Svg::default();
    heading(&mut svg, plan);
    let placed: Vec<(usize, f64)> =
        plan.case.iter().enumerate().filter_map(|(case, what)| Some((case, what.at?))).collect();
    let low = placed.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = placed.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let (width, bottom) = extent(metrics.len());
    if low >= high {
        return svg.finish(width, bottom);
    }
    for (place, &metric) in metrics.iter().enumerate() {
        let highest = placed
            .iter()
            .flat_map(|&(case, _)| (0..plan.scheme.len()).map(move |scheme| (case, scheme)))
            .map(|(case, scheme)| study.mean(case, scheme, metric).0)
            .fold(0.0, f64::max);
        let panel = panel(place, Axis::exact(low, high, log_x), Axis::from_zero(highest));
        panel.draw(&mut svg, "", label, metric.axis());
        for scheme in (0..plan.scheme.len()).filter(|&scheme| has(plan, scheme, metric)) {
            let (colour, dash) = style(plan, scheme);
            let points: Vec<_> = placed
                .iter()
                .map(|&(case, at)| panel.at(at, study.mean(case, scheme, metric).0))
                .collect();
            svg.polyline(&points, colour, 2.0, dash);
            for (&(case, at), &point) in placed.iter().zip(&points) {
                whisker(&mut svg, &panel, at, study.mean(case, scheme, metric), colour);
                svg.dot(point, 3.6, colour);
            }
        }
    }
    let all: Vec<usize> = (0..plan.scheme.len()).collect();
    let used = legend(&mut svg, plan, &all, bottom + 20.0, width);
    svg.finish(width, bottom + used + 12.0)
}

fn course(plan: &Plan, case: &str, session: u32, window_s: (f64, f64), only: &[String]) -> String {
    let case = plan.case.iter().find(|c| c.name == case);
    let case = case.expect("plans are checked");
    let chosen: Vec<usize> = (0..plan.scheme.len())
        .filter(|&scheme| only.is_empty() || only.contains(&plan.scheme[scheme].label()))
        .collect();
    let (width, height) = (880.0, 300.0);
    let mut svg = Svg::default();
    let strong = format!(r#"fill="{INK}" font-size="16" font-weight="600""#);
    let title = format!("One session, {}", case.name);
    svg.text((20.0, 30.0), Anchor::Start, &strong, &title);
    let note = "shaded: what was sent then to arrive now met the channel's lossy state";
    svg.text((20.0, 48.0), Anchor::Start, &format!(r#"fill="{SOFT}""#), note);
    for (place, &scheme) in chosen.iter().enumerate() {
        with_setting(plan, case, &plan.scheme[scheme], session, |setting| {
            let course = world::run(&plan.scheme[scheme].send, setting);
            let by = |at_s: f64| course.generated_us.partition_point(|&t| t as f64 <= at_s * 1e6);
            let (low, high) = (by(window_s.0 - 0.6) as f64, by(window_s.1) as f64);
            let panel = Panel {
                left: LEFT,
                top: TOP,
                width: width - LEFT - 24.0,
                height,
                x: Axis::exact(window_s.0, window_s.1, false),
                y: Axis::exact(low, high.max(low + 1.0), false),
            };
            if place == 0 {
                shade(&mut svg, &panel, setting, window_s);
                panel.draw(&mut svg, "", "time (s)", "tokens shown");
            }
            let (colour, dash) = style(plan, scheme);
            let steps = staircase(&course.shown_us, window_s, (low, high));
            let points: Vec<_> = steps.into_iter().map(|(x, y)| panel.at(x, y)).collect();
            svg.polyline(&points, colour, 2.0, dash);
        });
    }
    let bottom = TOP + height + BELOW;
    let used = legend(&mut svg, plan, &chosen, bottom + 16.0, width);
    svg.finish(width, bottom + used + 8.0)
}

/// Shades the times at which packets that are lost now would have arrived.
fn shade(svg: &mut Svg, panel: &Panel, setting: &Setting<'_>, (from_s, to_s): (f64, f64)) {
    let horizon_us = setting.length_us + world::AFTERMATH_US;
    let weather = Weather::new(&setting.link.channel, setting.seed, horizon_us);
    let late_s = setting.link.rtt_ms / 2e3;
    let step_s = 0.01;
    let mut start: Option<f64> = None;
    let mut at_s = from_s;
    while at_s <= to_s {
        let sent_s = at_s - late_s;
        let lossy = sent_s >= 0.0 && at_s < to_s && weather.loss((sent_s * 1e6) as u64) > 0.5;
        match (lossy, start) {
            (true, None) => start = Some(at_s),
            (false, Some(since)) => {
                let (x, _) = panel.at(since, 0.0);
                let (end, _) = panel.at(at_s, 0.0);
                svg.bar((x, panel.top), (end - x, panel.height), "#f3e3e1");
                start = None;
            }
            _ => {}
        }
        at_s += step_s;
    }
}

/// How many tokens are shown over time, as corners of a staircase.
fn staircase(
    ready_us: &[u64],
    (from_s, to_s): (f64, f64),
    (low, high): (f64, f64),
) -> Vec<(f64, f64)> {
    let shown_at = |at_s: f64| ready_us.partition_point(|&t| t as f64 <= at_s * 1e6) as f64;
    let mut level = shown_at(from_s);
    let mut corners = vec![(from_s, level.clamp(low, high))];
    for &ready in ready_us {
        let at_s = ready as f64 / 1e6;
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
