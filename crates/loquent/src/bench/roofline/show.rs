//! The table and the plot of `--roofline`.

use std::fmt::Write;

use loquent_sim::chart::{Anchor, Axis, Bar, Labels, Paint, Panel, Svg, TextRole};

use super::report::{Limits, Operations, Roofline, RooflineRow};
use super::steps::Step;
use super::work::LimitedBy;

/// Size of the plot: two panels side by side.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 390.0;
/// Colours of measured times, of reading and of multiplying.
const MEASURED: Paint<'static> = Paint("c0");
const READING: Paint<'static> = Paint("c1");
const MULTIPLYING: Paint<'static> = Paint("c2");

/// Renders the machine's limits, and a line for each step.
pub(super) fn table(found: &Roofline) -> String {
    let Roofline { model, machine, kernels, threads, limits, .. } = found;
    let words = if *threads == 1 { "thread" } else { "threads" };
    let mut out = format!("{model} on {machine}; {kernels}, {threads} {words}\n\n");
    out.push_str(&limits_of(limits));
    out.push_str("\nstep                     ms   limit ms  limited by   reached   tokens/s\n");
    for row in &found.steps {
        let by = match row.limited_by {
            LimitedBy::Memory => "memory",
            LimitedBy::Multiply => "multiply",
        };
        let (ms, limit_ms, reached) = (row.ms, row.limit_ms, 100.0 * row.reached);
        let (name, rate) = (row.step.to_string(), tokens_per_s(row));
        let _ = writeln!(
            out,
            "{name:<18} {ms:>9.2} {limit_ms:>10.2}  {by:<10} {reached:>7.0} % {rate:>10.1}"
        );
    }
    for row in &found.steps {
        out.push_str(&operations(row).unwrap_or_default());
    }
    if found.incomplete {
        out.push_str("Stopped early: some figures are missing.\n");
    }
    out
}

/// Formats the times of a prompt's operations.
fn operations(row: &RooflineRow) -> Option<String> {
    let Operations { products_ms, products_reached, attention_ms, attention_reached } =
        row.operations?;
    let rest_ms = (row.ms - products_ms - attention_ms).max(0.0);
    Some(format!(
        "{}: products {products_ms:.1} ms ({:.0} % of the 8-bit peak), attention \
         {attention_ms:.1} ms ({:.0} % of the float peak), the rest {rest_ms:.1} ms\n",
        row.step,
        100.0 * products_reached,
        100.0 * attention_reached
    ))
}

fn tokens_per_s(row: &RooflineRow) -> f64 {
    f64::from(row.step.tokens()) / row.ms * 1e3
}

fn limits_of(limits: &Limits) -> String {
    let mut out = format!("memory is read at {:.1} GB/s\n", limits.read_bytes_per_s / 1e9);
    for (name, per_s) in &limits.int8_per_s {
        let _ = writeln!(out, "8-bit products, {name}: {:.0} billion/s", per_s / 1e9);
    }
    if let Some((name, per_s)) = &limits.float_per_s {
        let _ = writeln!(out, "float products, {name}: {:.0} billion/s", per_s / 1e9);
    }
    if limits.int8_per_s.is_empty() {
        out.push_str("products are not measured on this kind of processor\n");
    }
    if limits.has_amx && limits.int8_per_s.iter().all(|(name, _)| *name != "AMX") {
        out.push_str("AMX: there, but Linux does not let it be used\n");
    }
    out
}

/// Plots step times and their limits over rows, and the share of the limit that each step reaches.
pub(super) fn plot(found: &Roofline) -> String {
    let mut svg = Svg::image();
    svg.text((60.0, 26.0), Anchor::Start, TextRole::Title, &found.model);
    let under = format!("{}; {}, threads: {}", found.machine, found.kernels, found.threads);
    svg.text((60.0, 44.0), Anchor::Start, TextRole::Note, &under);
    times(&mut svg, &found.steps);
    shares(&mut svg, &found.steps);
    svg.finish(WIDTH, HEIGHT)
}

/// A line of the first panel.
type Line = (Paint<'static>, &'static str, fn(&RooflineRow) -> f64);

fn times(svg: &mut Svg, steps: &[RooflineRow]) {
    let lines: [Line; 3] = [
        (MEASURED, "measured", |row| row.ms),
        (READING, "to read the weights and the cache", |row| row.limit.read_ms),
        (MULTIPLYING, "to multiply", |row| row.limit.multiply_ms),
    ];
    let points = |value: fn(&RooflineRow) -> f64| -> Vec<(f64, f64)> {
        let point = |row: &RooflineRow| match row.step {
            Step::Decode { rows, .. } => Some((f64::from(rows), value(row))),
            Step::Prompt { .. } => None,
        };
        steps.iter().filter_map(point).collect()
    };
    let all: Vec<(f64, f64)> = lines.iter().flat_map(|line| points(line.2)).collect();
    let panel = Panel {
        left: 60.0,
        top: 118.0,
        width: 340.0,
        height: 210.0,
        x: Axis::log_over(all.iter().map(|point| point.0)),
        y: Axis::log_over(all.iter().map(|point| point.1)),
    };
    let labels = Labels { title: "Time of a decode step", x: "rows", y: "ms", x_grid: false };
    panel.draw(svg, labels);
    for (i, (paint, name, value)) in lines.into_iter().enumerate() {
        let at: Vec<(f64, f64)> = points(value).iter().map(|&(x, y)| panel.at(x, y)).collect();
        svg.titled_line(&at, paint, name);
        at.into_iter().for_each(|point| svg.dot(point, 3.0, paint));
        let key = (60.0 + [0.0, 90.0, 300.0][i], 70.0);
        svg.dot((key.0 + 4.0, key.1 - 4.0), 4.0, paint);
        svg.text((key.0 + 14.0, key.1), Anchor::Start, TextRole::Note, name);
    }
}

fn shares(svg: &mut Svg, steps: &[RooflineRow]) {
    let panel = Panel {
        left: 480.0,
        top: 118.0,
        width: 350.0,
        height: 210.0,
        x: Axis::exact(0.0, steps.len().max(1) as f64, false),
        y: Axis::exact(0.0, 100.0, false),
    };
    let title = "Share of the limit that is reached";
    panel.draw(svg, Labels { title, y: "%", ..Labels::default() });
    for (group, row) in steps.iter().enumerate() {
        let percent = 100.0 * row.reached;
        let tooltip = format!("{}: {percent:.0} %", row.step);
        let paint = match row.limited_by {
            LimitedBy::Memory => READING,
            LimitedBy::Multiply => MULTIPLYING,
        };
        // Above 100 where the machine did better while the engine ran than while it was measured.
        let value = percent.clamp(0.0, 100.0);
        let bar = Bar { group, place: 0, value, half: 0.0, paint, tooltip: &tooltip };
        panel.grouped_bars(svg, 1, 30.0, &[bar]);
        let (middle, bottom) = panel.at(group as f64 + 0.5, 0.0);
        let (name, kind) = match row.step {
            Step::Decode { rows, .. } => (rows.to_string(), "row"),
            Step::Prompt { tokens } => (tokens.to_string(), "prompt"),
        };
        svg.text((middle, bottom + 17.0), Anchor::Middle, TextRole::Category, &name);
        svg.text((middle, bottom + 31.0), Anchor::Middle, TextRole::Note, kind);
    }
}

#[cfg(test)]
mod tests {
    //! Checks that table and plot match the numbers.
    use super::super::work::StepLimit;
    use super::*;

    fn row(step: Step, ms: f64, (read_ms, multiply_ms): (f64, f64)) -> RooflineRow {
        let limit = StepLimit { read_ms, multiply_ms };
        let (limit_ms, limited_by) = (limit.ms(), limit.by());
        let operations = matches!(step, Step::Prompt { .. }).then_some(Operations {
            products_ms: 0.5 * ms,
            products_reached: 0.25,
            attention_ms: 0.125 * ms,
            attention_reached: 0.5,
        });
        RooflineRow { step, ms, limit_ms, limited_by, limit, reached: limit_ms / ms, operations }
    }

    fn found(steps: Vec<RooflineRow>) -> Roofline {
        let int8_per_s = vec![("AVX-512 VNNI", 9.5e11)];
        let float_per_s = Some(("AVX-512", 2e11));
        let limits = Limits { read_bytes_per_s: 2.5e10, int8_per_s, float_per_s, has_amx: true };
        Roofline {
            model: "a < b".to_owned(),
            machine: "m".to_owned(),
            kernels: "k".to_owned(),
            threads: 2,
            limits,
            incomplete: steps.is_empty(),
            steps,
        }
    }

    #[test]
    fn each_step_has_its_limit_and_share() {
        let decode = Step::Decode { rows: 16, past: 64 };
        let prompt = Step::Prompt { tokens: 512 };
        let steps = vec![row(decode, 40.0, (15.0, 10.0)), row(prompt, 1000.0, (15.0, 250.0))];
        let shown = table(&found(steps));
        for part in ["25.0 GB/s", "AVX-512 VNNI: 950 billion/s", "AMX", "2 threads"] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        let fields = |name: &str| -> Vec<String> {
            let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
            line[name.len()..].split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(fields("decode, 16 rows"), ["40.00", "15.00", "memory", "38", "%", "400.0"]);
        assert_eq!(fields("prompt of 512"), ["1000.00", "250.00", "multiply", "25", "%", "512.0"]);
        let spent = "prompt of 512: products 500.0 ms (25 % of the 8-bit peak), attention 125.0 ms \
                     (50 % of the float peak), the rest 375.0 ms";
        assert!(shown.contains(spent), "{shown}");
        assert!(!shown.contains("missing"));
        assert!(table(&found(vec![])).contains("missing"));
    }

    #[test]
    fn the_plot_has_a_bar_for_each_step_and_a_dot_for_each_time() {
        let decode = Step::Decode { rows: 1, past: 64 };
        let prompt = Step::Prompt { tokens: 512 };
        // A share above 1 stays inside its panel.
        let steps = vec![row(decode, 10.0, (15.0, 1.0)), row(prompt, 1000.0, (15.0, 250.0))];
        let drawn = plot(&found(steps));
        assert!(drawn.contains("a &lt; b") && drawn.contains("decode, 1 row: 150 %"), "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 3 + 3);
        let empty = plot(&found(vec![]));
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
