//! The figure of a burst plan: a panel for each machine and, for each prompt length, a group of
//! bars, one for each policy and one for the bound.

use super::row::BurstRow;
use crate::chart::{Anchor, Axis, Bar, Labels, Paint, Panel, Svg, TextRole};

const PANEL_WIDTH: f64 = 400.0;
const PANEL_HEIGHT: f64 = 250.0;
const LEFT: f64 = 58.0;
const TOP: f64 = 84.0;
const GUTTER: f64 = 62.0;
/// The bars of a group: their names, and the classes of their colours.
const BARS: [(&str, &str); 3] = [
    ("first come, first served", "tcp-1"),
    ("by need", "loquent-1"),
    ("no order of service exceeds", "oracle-1"),
];

/// Draws the rows of the table, which are in the order of `machines`.
pub fn draw(title: &str, machines: &[&str], rows: &[BurstRow<'_>]) -> String {
    let mut svg = Svg::image();
    svg.text((LEFT, 26.0), Anchor::Start, TextRole::Title, title);
    let note = "largest burst, readers, by tokens of a prompt";
    svg.text((LEFT, 46.0), Anchor::Start, TextRole::Note, note);
    for (place, machine) in machines.iter().enumerate() {
        let of_machine: Vec<&BurstRow<'_>> =
            rows.iter().filter(|row| row.machine == *machine).collect();
        panel(&mut svg, place, machine, &of_machine);
    }
    let bottom = TOP + PANEL_HEIGHT + 44.0;
    for (place, (name, class)) in BARS.iter().enumerate() {
        let left = LEFT + 210.0 * place as f64;
        svg.rectangle((left, bottom - 9.0), (10.0, 10.0), Paint(class), "");
        svg.text((left + 16.0, bottom), Anchor::Start, TextRole::Name, name);
    }
    let width = LEFT + (PANEL_WIDTH + GUTTER) * machines.len() as f64;
    svg.finish(width, bottom + 16.0)
}

fn panel(svg: &mut Svg, place: usize, title: &str, rows: &[&BurstRow<'_>]) {
    let highest = rows.iter().flat_map(|row| row.values()).fold(0.0, f64::max);
    let panel = Panel {
        left: LEFT + place as f64 * (PANEL_WIDTH + GUTTER),
        top: TOP,
        width: PANEL_WIDTH,
        height: PANEL_HEIGHT,
        x: Axis::exact(0.0, rows.len() as f64, false),
        y: Axis::from_zero(highest),
    };
    panel.draw(svg, Labels { title, y: "readers", ..Labels::default() });
    for (group, row) in rows.iter().enumerate() {
        for (place, (value, (name, class))) in row.values().into_iter().zip(BARS).enumerate() {
            let tooltip = format!("{name}: {value}");
            let bar =
                Bar { group, place, value, half: 0.0, paint: Paint(class), tooltip: &tooltip };
            panel.grouped_bars(svg, BARS.len(), f64::INFINITY, &[bar]);
        }
        let (x, floor) = panel.at(group as f64 + 0.5, 0.0);
        let name = row.prompt_tokens.to_string();
        svg.text((x, floor + 17.0), Anchor::Middle, TextRole::Category, &name);
    }
}
