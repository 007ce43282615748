//! Charts as SVG, for image files and for the pages of reports (also in this module): panels with
//! axes, lines, grouped bars, whiskers. All reports of the program use them.
//!
//! A custom implementation because `plotters`, which was tried, lacks features that these charts
//! need: the colours of the surrounding page (light and dark), centred names of bar groups, and
//! positions finer than a pixel.

mod axis;
pub mod kinds;
mod number;
mod page;
mod svg;

pub use self::axis::Axis;
pub use self::number::number;
pub use self::page::ReportPage;
pub use self::svg::{Anchor, INK, Paint, Svg, TextRole, escape};

/// Share of a group's width that its bars take; the rest separates the groups.
const GROUP_SHARE: f64 = 0.8;

/// A rectangle with two axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panel {
    /// Left edge of the plotting area.
    pub left: f64,
    /// Upper edge of the plotting area.
    pub top: f64,
    /// Width of the plotting area.
    pub width: f64,
    /// Height of the plotting area.
    pub height: f64,
    /// The axis from left to right.
    pub x: Axis,
    /// The axis from bottom to top.
    pub y: Axis,
}

/// Texts around a panel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels<'a> {
    /// Text above the panel.
    pub title: &'a str,
    /// Text below it, with ticks; neither if empty.
    pub x: &'a str,
    /// Text at its left side.
    pub y: &'a str,
    /// True to draw x ticks as lines across the panel.
    pub x_grid: bool,
}

/// One bar of a chart of grouped bars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar<'a> {
    /// Index of its group, from 0.
    pub group: usize,
    /// Index in the group, from 0.
    pub place: usize,
    /// Height.
    pub value: f64,
    /// Half of the confidence interval around `value`; no whisker if 0.
    pub half: f64,
    /// Colour.
    pub paint: Paint<'a>,
    /// Tooltip; may be empty.
    pub tooltip: &'a str,
}

impl Panel {
    /// Returns the position of a pair of values on the drawing.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.x.place(x) * self.width, self.top + (1.0 - self.y.place(y)) * self.height)
    }

    /// Draws grid, ticks and labels.
    pub fn draw(&self, svg: &mut Svg, labels: Labels<'_>) {
        let (bottom, right) = (self.top + self.height, self.left + self.width);
        for tick in self.y.ticks() {
            let (_, y) = self.at(self.x.low, tick);
            svg.grid_line((self.left, y), (right, y));
            let at = (self.left - 6.0, y + 4.0);
            svg.text(at, Anchor::End, TextRole::Tick, &axis::tick_text(tick));
        }
        if !labels.x.is_empty() {
            self.draw_x(svg, labels);
        }
        svg.axis_line((self.left, bottom), (right, bottom));
        svg.upward_text((self.left - 42.0, self.top + self.height / 2.0), labels.y);
        let above = (self.left, self.top - 10.0);
        svg.text(above, Anchor::Start, TextRole::PanelTitle, labels.title);
    }

    /// Draws the ticks and the label of the x axis.
    pub fn draw_x(&self, svg: &mut Svg, labels: Labels<'_>) {
        let bottom = self.top + self.height;
        for tick in self.x.ticks() {
            let (x, _) = self.at(tick, self.y.low);
            if labels.x_grid {
                svg.grid_line((x, self.top), (x, bottom));
            } else {
                svg.axis_line((x, bottom), (x, bottom + 4.0));
            }
            let label = axis::tick_text(tick);
            svg.text((x, bottom + 17.0), Anchor::Middle, TextRole::Tick, &label);
        }
        let middle = self.left + self.width / 2.0;
        svg.text((middle, bottom + 35.0), Anchor::Middle, TextRole::Note, labels.x);
    }

    /// Draws a confidence interval around `mean`, cut off at 0.
    pub fn whisker(&self, svg: &mut Svg, x: f64, (mean, half): (f64, f64), paint: Paint<'_>) {
        let low = self.at(x, (mean - half).max(0.0));
        let high = self.at(x, mean + half);
        svg.line(low, high, paint, 1.2);
    }

    /// Draws bars side by side in groups of `places`, each at most `max_width` wide. The x axis
    /// must run from 0 to the number of groups.
    pub fn grouped_bars(&self, svg: &mut Svg, places: usize, max_width: f64, bars: &[Bar<'_>]) {
        let (group_left, _) = self.at(0.0, 0.0);
        let group_width = self.at(1.0, 0.0).0 - group_left;
        let width = (group_width * GROUP_SHARE / places.max(1) as f64).min(max_width);
        let margin = (group_width - width * places as f64) / 2.0;
        for bar in bars {
            let (start, top) = self.at(bar.group as f64, bar.value);
            let (_, floor) = self.at(0.0, 0.0);
            let left = start + margin + width * bar.place as f64;
            // The gap keeps neighbours apart, but a narrow bar must stay visible.
            let size = ((width - 1.5).max(1.0), floor - top);
            svg.rectangle((left, top), size, bar.paint, bar.tooltip);
            if bar.half > 0.0 {
                let middle =
                    bar.group as f64 + (margin + width * (bar.place as f64 + 0.5)) / group_width;
                self.whisker(svg, middle, (bar.value, bar.half), INK);
            }
        }
    }
}

/// Returns the corners of a staircase through `points`, starting at height `floor`.
pub fn staircase(points: impl IntoIterator<Item = (f64, f64)>, floor: f64) -> Vec<(f64, f64)> {
    let mut level = floor;
    let mut corners = Vec::new();
    for (x, y) in points {
        corners.push((x, level));
        corners.push((x, y));
        level = y;
    }
    corners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        Panel {
            left: 50.0,
            top: 10.0,
            width: 200.0,
            height: 100.0,
            x: Axis::exact(0.0, 2.0, false),
            y: Axis::exact(0.0, 1.0, false),
        }
    }

    #[test]
    fn bars_stand_in_the_middle_of_their_group() {
        let bar =
            |place| Bar { group: 1, place, value: 0.5, half: 0.0, paint: Paint("c0"), tooltip: "" };
        let mut svg = Svg::inline("t");
        panel().grouped_bars(&mut svg, 2, 20.0, &[bar(0), bar(1)]);
        let drawn = svg.finish(300.0, 150.0);
        // The group spans 150 to 250, and two bars of 20 its middle.
        for left in ["x=\"180.0\"", "x=\"200.0\""] {
            assert!(drawn.contains(left), "{left} in {drawn}");
        }
        assert!(drawn.contains("y=\"60.0\"") && drawn.contains("height=\"50.0\""), "{drawn}");
    }

    #[test]
    fn a_whisker_ends_at_zero() {
        let mut svg = Svg::image();
        panel().whisker(&mut svg, 1.0, (0.1, 0.4), INK);
        assert!(svg.finish(300.0, 150.0).contains(r#"y1="110.0" x2="150.0" y2="60.0""#));
    }

    #[test]
    fn a_staircase_has_two_corners_for_each_step() {
        let corners = staircase([(1.0, 2.0), (3.0, 4.0)], 0.0);
        assert_eq!(corners, [(1.0, 0.0), (1.0, 2.0), (3.0, 2.0), (3.0, 4.0)]);
        assert!(staircase([], 0.0).is_empty());
    }
}
