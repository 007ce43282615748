//! A small SVG writer: shapes, text, and panels with axes.
//!
//! Written here because the same plan must give the same bytes, and because the plots are read in
//! a repository's pages, where a plotting library's defaults are hard to read.

use std::fmt::Write;

/// Colour of axes and text.
pub const INK: &str = "#24292f";
/// Colour of secondary text.
pub const SOFT: &str = "#6e7781";
const GRID: &str = "#e6e9ed";

/// A drawing under construction.
#[derive(Debug, Default)]
pub struct Svg {
    body: String,
}

/// Where a text is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its start.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

impl Svg {
    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="{width}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through all points; `dash` as in SVG, empty for none.
    pub fn polyline(&mut self, points: &[(f64, f64)], colour: &str, width: f64, dash: &str) {
        let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}" stroke-linejoin="round"/>"#,
            list.join(" ")
        );
    }

    /// A filled circle with a white rim.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, colour: &str) {
        let _ = writeln!(
            self.body,
            r##"<circle cx="{:.1}" cy="{:.1}" r="{radius}" fill="{colour}" stroke="#fff" stroke-width="1.2"/>"##,
            at.0, at.1
        );
    }

    /// A filled rectangle from its upper left corner.
    pub fn bar(&mut self, at: (f64, f64), size: (f64, f64), colour: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
            at.0, at.1, size.0, size.1
        );
    }

    /// A line of text.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}" {style}>{}</text>"#,
            at.0,
            at.1,
            escape(text)
        );
    }

    /// Text that reads upwards, for y axes.
    pub fn upward_text(&mut self, at: (f64, f64), text: &str) {
        let turn = format!(r#"transform="rotate(-90 {:.1} {:.1})" fill="{SOFT}""#, at.0, at.1);
        self.text(at, Anchor::Middle, &turn, text);
    }

    /// The finished document.
    pub fn finish(self, width: f64, height: f64) -> String {
        format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0} {h:.0}" "#,
                r#"width="{w:.0}" height="{h:.0}" font-family="system-ui, 'Segoe UI', "#,
                r#"'DejaVu Sans', sans-serif" font-size="12">"#,
                "\n",
                r##"<rect width="100%" height="100%" fill="#fff"/>"##,
                "\n{body}</svg>\n"
            ),
            w = width,
            h = height,
            body = self.body
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// An axis: which values it spans and how they are spaced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// From zero to a round number above `highest`.
    pub fn from_zero(highest: f64) -> Self {
        let step = tick_step(highest.max(1e-6));
        Self { low: 0.0, high: (highest.max(1e-6) * 1.04 / step).ceil() * step, log: false }
    }

    /// Exactly from `low` to `high`.
    pub fn exact(low: f64, high: f64, log: bool) -> Self {
        assert!(low < high && (!log || low > 0.0), "an axis spans something");
        Self { low, high, log }
    }

    /// Where `value` lies between 0 and 1.
    fn place(self, value: f64) -> f64 {
        if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    fn ticks(self) -> Vec<f64> {
        if self.log {
            let decades = -2..6;
            let all = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(d)));
            return all.filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v)).collect();
        }
        let step = tick_step(self.high - self.low);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// A round step that gives four to eight ticks.
fn tick_step(span: f64) -> f64 {
    let decade = 10f64.powf((span / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps.iter().find(|m| span / (*m * decade) <= 6.5);
    fits.unwrap_or(&10.0) * decade
}

fn tick_text(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A rectangle with two axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panel {
    /// Left edge of the plotting area.
    pub left: f64,
    /// Upper edge.
    pub top: f64,
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
}

impl Panel {
    /// Where a pair of values lies on the drawing.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.x.place(x) * self.width, self.top + (1.0 - self.y.place(y)) * self.height)
    }

    /// Draws grid, ticks and labels. No x ticks if `x_label` is empty.
    pub fn draw(&self, svg: &mut Svg, title: &str, x_label: &str, y_label: &str) {
        let soft = format!(r#"fill="{SOFT}" font-size="11""#);
        let (bottom, right) = (self.top + self.height, self.left + self.width);
        for tick in self.y.ticks() {
            let (_, y) = self.at(self.x.low, tick);
            svg.line((self.left, y), (right, y), GRID, 1.0);
            svg.text((self.left - 6.0, y + 4.0), Anchor::End, &soft, &tick_text(tick));
        }
        if !x_label.is_empty() {
            for tick in self.x.ticks() {
                let (x, _) = self.at(tick, self.y.low);
                svg.line((x, bottom), (x, bottom + 4.0), SOFT, 1.0);
                svg.text((x, bottom + 17.0), Anchor::Middle, &soft, &tick_text(tick));
            }
            let middle = self.left + self.width / 2.0;
            let style = format!(r#"fill="{SOFT}""#);
            svg.text((middle, bottom + 35.0), Anchor::Middle, &style, x_label);
        }
        svg.line((self.left, bottom), (right, bottom), SOFT, 1.0);
        svg.upward_text((self.left - 42.0, self.top + self.height / 2.0), y_label);
        let style = format!(r#"fill="{INK}" font-weight="600""#);
        svg.text((self.left, self.top - 10.0), Anchor::Start, &style, title);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for highest in [0.03, 0.5, 0.72, 3.4, 11.0, 950.0] {
            let ticks = Axis::from_zero(highest).ticks();
            assert!((4..=9).contains(&ticks.len()), "{highest}: {ticks:?}");
        }
        let log = Axis::exact(10.0, 100.0, true).ticks();
        assert_eq!(log, [10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::default();
        svg.text((0.0, 0.0), Anchor::Start, "", "a < b & c");
        assert!(svg.finish(10.0, 10.0).contains("a &lt; b &amp; c"));
    }
}
