//! SVG elements: shapes and text, coloured by their own style sheet or by that of the surrounding
//! page.

use std::fmt::Write;

/// Colours and fonts of all charts.
pub(super) const CHART_STYLE: &str = include_str!("chart.css");

/// Escapes text for SVG and HTML, attributes included.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn point_list(points: &[(f64, f64)]) -> String {
    let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    list.join(" ")
}

/// Location of a drawing's style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StyleSheetSource {
    /// In the image file itself, which also has its own background.
    File,
    /// In the head of the HTML page.
    Page,
}

/// The colour of a shape: the name of a series, which is a class of the style sheet, such as `c0`
/// or `tcp-1`. The style sheet defines each for light, dark and print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint<'a>(pub &'a str);

/// Colour of axes and text.
pub const INK: Paint<'static> = Paint("ink");

impl Paint<'_> {
    fn fill(self) -> String {
        format!(r#"class="mark {}""#, self.0)
    }

    fn stroke(self, width: f64) -> String {
        format!(r#"class="stroke {}" stroke-width="{width}""#, self.0)
    }
}

/// Anchor of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The first character.
    Start,
    /// Half of the width.
    Middle,
    /// The last character.
    End,
}

/// Role of a text, which determines its size and colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextRole {
    /// Title of an image.
    Title,
    /// Title of one panel.
    PanelTitle,
    /// Name of a series in a legend.
    Name,
    /// Name of a group of bars.
    Category,
    /// Remark below a title, or label of an axis.
    Note,
    /// Value at a tick.
    Tick,
}

impl TextRole {
    /// Returns the class in the style sheet.
    fn class(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::PanelTitle => "panel-title",
            Self::Name => "name",
            Self::Category => "category",
            Self::Note => "note",
            Self::Tick => "tick",
        }
    }
}

/// A drawing under construction. Coordinates have one decimal: the same data gives the same bytes.
#[derive(Debug)]
pub struct Svg {
    place: StyleSheetSource,
    label: String,
    body: String,
}

impl Svg {
    /// Creates a drawing for a separate file.
    pub fn image() -> Self {
        Self { place: StyleSheetSource::File, label: String::new(), body: String::new() }
    }

    /// Creates a drawing for an HTML page, coloured by its style sheet; screen readers read
    /// `label`.
    pub fn inline(label: &str) -> Self {
        Self { place: StyleSheetSource::Page, label: label.to_owned(), body: String::new() }
    }

    /// Draws a straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), paint: Paint<'_>, width: f64) {
        self.write_line(from, to, &paint.stroke(width));
    }

    /// Draws a line of the grid behind the data.
    pub(super) fn grid_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.write_line(from, to, r#"class="grid""#);
    }

    /// Draws an axis, or a tick on it.
    pub(super) fn axis_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.write_line(from, to, r#"class="axis""#);
    }

    fn write_line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {attributes}/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    /// Draws a line through all points; `dash` as in SVG, empty for a solid line.
    pub fn polyline(&mut self, points: &[(f64, f64)], paint: Paint<'_>, width: f64, dash: &str) {
        let (list, stroke) = (point_list(points), paint.stroke(width));
        let _ = writeln!(
            self.body,
            r#"<polyline points="{list}" {stroke} stroke-dasharray="{dash}"/>"#
        );
    }

    /// Draws a line through all points, with a tooltip.
    pub fn titled_line(&mut self, points: &[(f64, f64)], paint: Paint<'_>, tooltip: &str) {
        let (list, stroke) = (point_list(points), paint.stroke(2.0));
        let _ = writeln!(
            self.body,
            r#"<polyline points="{list}" {stroke}><title>{}</title></polyline>"#,
            escape(tooltip)
        );
    }

    /// Fills the area between a line through all points and the height `floor`.
    pub fn area(&mut self, points: &[(f64, f64)], floor: f64, paint: Paint<'_>) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let corners = [&[(first.0, floor)], points, &[(last.0, floor)]].concat();
        let _ = writeln!(
            self.body,
            r#"<polygon points="{}" class="area {}"/>"#,
            point_list(&corners),
            paint.0
        );
    }

    /// Draws a filled circle with a rim in the background colour.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, paint: Paint<'_>) {
        let _ = writeln!(
            self.body,
            r#"<circle cx="{:.1}" cy="{:.1}" r="{radius}" class="dot mark {}"/>"#,
            at.0, at.1, paint.0
        );
    }

    /// Draws a filled rectangle, given its upper left corner; `tooltip` may be empty.
    pub fn rectangle(&mut self, at: (f64, f64), size: (f64, f64), paint: Paint<'_>, tooltip: &str) {
        let end = match tooltip {
            "" => "/>".to_owned(),
            text => format!("><title>{}</title></rect>", escape(text)),
        };
        let _ = writeln!(
            self.body,
            r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" {}{end}"#,
            at.0,
            at.1,
            size.0,
            size.1,
            paint.fill()
        );
    }

    /// Draws one line of text.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, role: TextRole, text: &str) {
        self.write_text(at, anchor, role, "", text);
    }

    /// Draws text that reads upwards, for y axes.
    pub(super) fn upward_text(&mut self, at: (f64, f64), text: &str) {
        let turned = format!(r#" transform="rotate(-90 {:.1} {:.1})""#, at.0, at.1);
        self.write_text(at, Anchor::Middle, TextRole::Note, &turned, text);
    }

    fn write_text(
        &mut self,
        at: (f64, f64),
        anchor: Anchor,
        role: TextRole,
        more: &str,
        text: &str,
    ) {
        if text.is_empty() {
            return;
        }
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}" class="{}"{more}>{}</text>"#,
            at.0,
            at.1,
            role.class(),
            escape(text)
        );
    }

    /// Returns the finished element or, for an image, the whole document. One unit is one pixel
    /// everywhere, so that text has the same size in all charts.
    pub fn finish(self, width: f64, height: f64) -> String {
        let Self { place, label, body } = self;
        let size = format!(
            r#"viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}""#
        );
        match place {
            StyleSheetSource::File => format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" {size}>\n<style>\n{CHART_STYLE}</style>\n\
                 <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
            ),
            StyleSheetSource::Page => {
                let label = escape(&label);
                format!("<svg {size} role=\"img\" aria-label=\"{label}\">\n{body}</svg>")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::image();
        svg.text((0.0, 0.0), Anchor::Start, TextRole::Name, "a < b & \"c\"");
        assert!(svg.finish(10.0, 10.0).contains("a &lt; b &amp; &quot;c&quot;"));
        let inline = Svg::inline("\"x\"").finish(10.0, 10.0);
        assert!(inline.contains("aria-label=\"&quot;x&quot;\""), "{inline}");
    }

    #[test]
    fn a_page_has_the_style_sheet_once_and_an_image_its_own() {
        let draw = |mut svg: Svg| {
            svg.rectangle((1.0, 2.0), (3.0, 4.0), Paint("c1"), "tip");
            svg.text((0.0, 0.0), Anchor::End, TextRole::Tick, "7");
            svg.finish(10.0, 10.0)
        };
        let page = draw(Svg::inline("x"));
        assert!(page.contains("class=\"mark c1\"><title>tip</title>"), "{page}");
        assert!(page.contains("class=\"tick\"") && !page.contains("<style>"), "{page}");
        let image = draw(Svg::image());
        assert!(image.contains("class=\"mark c1\"") && image.contains("--c1: #"), "{image}");
        assert!(image.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn text_has_one_size_in_all_charts() {
        for (width, height) in [(640.0, 260.0), (880.0, 400.0)] {
            let svg = Svg::inline("x").finish(width, height);
            let natural = format!("viewBox=\"0 0 {width} {height}\" width=\"{width}\"");
            assert!(svg.contains(&natural), "{svg}");
        }
        assert!(
            !Svg::image().finish(1.0, 1.0).contains("font-size=\""),
            "sizes are in the style sheet"
        );
    }

    #[test]
    fn every_colour_has_a_dark_one() {
        let (light, dark) = CHART_STYLE.split_once("prefers-color-scheme: dark").unwrap();
        let names = light.split_whitespace().filter(|word| word.starts_with("--"));
        for name in names {
            assert!(dark.contains(&format!("{name} #")), "{name}");
        }
    }
}
