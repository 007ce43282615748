//! The tables and the plot of `loquent tune`.

use std::fmt::Write;

use loquent_sim::chart::{Anchor, Axis, Labels, Paint, Panel, Svg, TextRole};

use super::search::{Found, Speed};
use crate::profile::StepTime;

/// A step's cost jumps where a further row costs this many times the average row before it. Chosen
/// by hand, to mark jumps that are visible in the plot.
const JUMP: f64 = 1.6;
/// Minimum factor by which larger batches must raise the total speed to be worth their latency.
const LEAST_GAIN: f64 = 1.05;

/// Formats a table of all trials with their speeds and gains over the first one.
pub fn trials(found: &Found) -> String {
    let mut out = String::new();
    let heading = ["tried", "1 stream", "full batch", "prompts", "against the first"];
    let _ = writeln!(
        out,
        "{:<22} {:>10} {:>11} {:>10}   {}",
        heading[0], heading[1], heading[2], heading[3], heading[4]
    );
    for trial in &found.trials {
        let mark = if trial == &found.best { "  <- taken" } else { "" };
        let _ =
            writeln!(out, "{}{mark}", speed_line(&trial.what, &trial.speed, &found.first.speed));
    }
    out.push_str("(tokens/s)\n");
    out
}

/// Formats one line: a speed, and its parts of `base`.
fn speed_line(what: &str, speed: &Speed, base: &Speed) -> String {
    format!(
        "{what:<22} {:>10.1} {:>11.1} {:>10.0}   x{:.2} x{:.2} x{:.2}",
        speed.alone,
        speed.full,
        speed.prefill,
        speed.alone / base.alone,
        speed.full / base.full,
        speed.prefill / base.prefill
    )
}

/// Formats a table of the trials beside a busy program; nothing if there are none.
pub fn beside(found: &Found) -> String {
    if found.beside.is_empty() {
        return String::new();
    }
    let mut out = String::from("Beside one busy program, against none:\n");
    for (trial, busy) in &found.beside {
        let mark = if trial == &found.best { "  <- taken" } else { "" };
        let _ = writeln!(out, "{}{mark}", speed_line(&trial.what, busy, &trial.speed));
    }
    out.push('\n');
    out
}

/// Formats a table of step times by batch size, with the cost of each further row.
pub fn steps(steps: &[StepTime]) -> String {
    let jumps = jumps(steps);
    let mut out = String::from(" rows   ms/step   tokens/s   ms per further row\n");
    for (i, step) in steps.iter().enumerate() {
        let rate = f64::from(step.rows) / step.ms * 1e3;
        let _ = write!(out, "{:>5} {:>9.2} {rate:>10.1}", step.rows, step.ms);
        if let Some(cost) = i.checked_sub(1).map(|before| row_cost(&steps[before], step)) {
            let _ = write!(out, " {cost:>20.2}");
        }
        out.push_str(if jumps.contains(&step.rows) { "  <- jump\n" } else { "\n" });
    }
    if let Some(rows) = worthwhile(steps) {
        let _ = writeln!(out, "Beyond {rows} rows a larger batch gains less than 5 %.");
    }
    out
}

fn row_cost(before: &StepTime, after: &StepTime) -> f64 {
    (after.ms - before.ms) / f64::from(after.rows - before.rows)
}

/// Returns the batch sizes from which on a row costs far more than the rows before (`JUMP`).
pub fn jumps(steps: &[StepTime]) -> Vec<u16> {
    let Some(first) = steps.first() else {
        return Vec::new();
    };
    // The first pair only sets the scale: a jump needs an average before it.
    let after_two = steps.windows(2).skip(1);
    let is_jump = |pair: &&[StepTime]| {
        let usual = row_cost(first, &pair[0]);
        usual > 0.0 && row_cost(&pair[0], &pair[1]) > JUMP * usual
    };
    after_two.filter(is_jump).map(|pair| pair[1].rows).collect()
}

/// Returns the smallest batch size that no larger one beats by `LEAST_GAIN` in tokens per second.
pub fn worthwhile(steps: &[StepTime]) -> Option<u16> {
    let rate = |step: &StepTime| f64::from(step.rows) / step.ms;
    let best = steps.iter().map(rate).reduce(f64::max)?;
    steps.iter().find(|step| rate(step) * LEAST_GAIN >= best).map(|step| step.rows)
}

/// Plots step time and tokens/s over batch size, as an SVG.
pub fn plot(title: &str, machine: &str, steps: &[StepTime]) -> String {
    let mut svg = Svg::image();
    svg.text((60.0, 26.0), Anchor::Start, TextRole::Title, title);
    svg.text((60.0, 44.0), Anchor::Start, TextRole::Note, machine);
    let rates: Vec<(f64, f64)> = steps
        .iter()
        .map(|step| (f64::from(step.rows), f64::from(step.rows) / step.ms * 1e3))
        .collect();
    let times: Vec<(f64, f64)> = steps.iter().map(|step| (f64::from(step.rows), step.ms)).collect();
    panel(&mut svg, 60.0, "Time of a step", "ms", &times);
    panel(&mut svg, 460.0, "All sequences together", "tokens/s", &rates);
    svg.finish(820.0, 370.0)
}

fn panel(svg: &mut Svg, left: f64, title: &str, unit: &str, points: &[(f64, f64)]) {
    let most = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).fold(1e-6, f64::max);
    let panel = Panel {
        left,
        top: 90.0,
        width: 320.0,
        height: 220.0,
        x: Axis::from_zero(most(|p| p.0)),
        y: Axis::from_zero(most(|p| p.1)),
    };
    let labels = Labels { title, x: "sequences in the batch", y: unit, x_grid: false };
    panel.draw(svg, labels);
    let at: Vec<(f64, f64)> = points.iter().map(|&(x, y)| panel.at(x, y)).collect();
    let blue = Paint("c0");
    svg.polyline(&at, blue, 2.0, "");
    at.into_iter().for_each(|point| svg.dot(point, 3.5, blue));
}

#[cfg(test)]
mod tests {
    //! Checks that the tables match the numbers.
    use super::*;

    fn curve(points: &[(u16, f64)]) -> Vec<StepTime> {
        points.iter().map(|&(rows, ms)| StepTime { rows, ms }).collect()
    }

    #[test]
    fn jumps_stand_out() {
        let even = curve(&[(1, 10.0), (2, 11.0), (4, 13.0), (8, 17.0)]);
        assert!(jumps(&even).is_empty());
        let jumping = curve(&[(1, 10.0), (2, 11.0), (4, 13.0), (8, 37.0), (16, 45.0)]);
        assert_eq!(jumps(&jumping), [8]);
        assert!(steps(&jumping).lines().nth(4).unwrap().ends_with("jump"));
        assert!(jumps(&[]).is_empty());
    }

    #[test]
    fn larger_batches_stop_paying() {
        let flat = curve(&[(1, 10.0), (8, 20.0), (16, 39.0), (32, 78.0)]);
        assert_eq!(worthwhile(&flat), Some(8));
        assert_eq!(worthwhile(&[]), None);
    }

    #[test]
    fn the_plot_has_a_dot_for_each_figure() {
        let drawn = plot("a < b", "m", &curve(&[(1, 10.0), (8, 20.0), (16, 39.0)]));
        assert_eq!(drawn.matches("<circle").count(), 6);
        assert!(drawn.contains("a &lt; b") && !drawn.contains("NaN"));
        assert!(!plot("empty", "m", &[]).contains("NaN"));
    }
}
