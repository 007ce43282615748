//! The figure of a plan of QoE: a panel for each case, with mean QoE by number of readers.

use super::plan::{Contender, QoePlan, QoePolicy};
use super::study::Curve;
use crate::chart::{Anchor, Axis, INK, Labels, Paint, Panel, Svg, TextRole};
use crate::scheme::Scheme;

const PANEL_WIDTH: f64 = 400.0;
const PANEL_HEIGHT: f64 = 220.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 84.0;
const GUTTER: f64 = 66.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 84.0;
const COLUMNS: usize = 2;
/// Lowest QoE shown.
const LOWEST: f64 = 0.8;

/// Draws the curves of `plan`.
pub fn draw(plan: &QoePlan, curves: &[Curve]) -> String {
    let mut svg = Svg::image();
    svg.text((LEFT, 26.0), Anchor::Start, TextRole::Title, &plan.title);
    let note = format!("simulated; {}; dashed: over TCP", plan.machine.name);
    svg.text((LEFT, 46.0), Anchor::Start, TextRole::Note, &note);
    for case in 0..plan.case.len() {
        let curves: Vec<&Curve> = curves.iter().filter(|curve| curve.case == case).collect();
        draw_case(&mut svg, plan, case, &curves);
    }
    let rows = plan.case.len().div_ceil(COLUMNS);
    let bottom = TOP + ROW_HEIGHT * rows as f64 - 16.0;
    for (place, contender) in plan.contender.iter().enumerate() {
        let left = LEFT + 180.0 * place as f64;
        let (paint, dash) = style(contender);
        svg.polyline(&[(left, bottom - 4.0), (left + 22.0, bottom - 4.0)], paint, 2.0, dash);
        svg.text((left + 28.0, bottom), Anchor::Start, TextRole::Name, &contender.name);
    }
    let columns = (PANEL_WIDTH + GUTTER) * COLUMNS.min(plan.case.len()) as f64;
    svg.finish((LEFT + columns).max(LEFT + 180.0 * plan.contender.len() as f64), bottom + 16.0)
}

fn draw_case(svg: &mut Svg, plan: &QoePlan, case: usize, curves: &[&Curve]) {
    let of_all = curves.iter().flat_map(|curve| &curve.points);
    let most = of_all.map(|point| point.readers).max().unwrap_or(1) as f64;
    let (column, row) = (case % COLUMNS, case / COLUMNS);
    let panel = Panel {
        left: LEFT + column as f64 * (PANEL_WIDTH + GUTTER),
        top: TOP + row as f64 * ROW_HEIGHT,
        width: PANEL_WIDTH,
        height: PANEL_HEIGHT,
        x: Axis::from_zero_exactly(most),
        y: Axis::exact(LOWEST, 1.0, false),
    };
    let title = &plan.case[case].name;
    panel.draw(svg, Labels { title, x: "readers", y: "mean QoE", ..Labels::default() });
    svg.line(panel.at(0.0, plan.qoe), panel.at(most, plan.qoe), INK, 0.8);
    for curve in curves {
        let (paint, dash) = style(&plan.contender[curve.contender]);
        let points: Vec<(f64, f64)> = shown(curve);
        let placed: Vec<(f64, f64)> = points.iter().map(|&(x, y)| panel.at(x, y)).collect();
        svg.polyline(&placed, paint, 2.0, dash);
    }
}

/// Returns the points of a curve, the last one moved to where the curve leaves the panel.
fn shown(curve: &Curve) -> Vec<(f64, f64)> {
    let all = || curve.points.iter().map(|point| (point.readers as f64, point.summary.mean_qoe));
    let mut shown: Vec<(f64, f64)> = all().take_while(|point| point.1 >= LOWEST).collect();
    if let (Some(&(x, y)), Some((below_x, below_y))) = (shown.last(), all().nth(shown.len())) {
        let part = (y - LOWEST) / (y - below_y);
        shown.push((x + (below_x - x) * part, LOWEST));
    }
    shown
}

fn style(contender: &Contender) -> (Paint<'static>, &'static str) {
    let colour = match contender.policy {
        QoePolicy::FirstCome => "tcp-1",
        QoePolicy::Andes => "eloquent-1",
        QoePolicy::ByNeed => "loquent-1",
    };
    let dash = match contender.send {
        Scheme::Tcp { .. } => "5 4",
        _ => "",
    };
    (Paint(colour), dash)
}
