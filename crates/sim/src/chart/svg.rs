//! SVG elements: shapes and text, coloured by themselves or by the page around them.

use std::fmt::Write;

/// Colour of axes and text in an image of its own.
pub const INK: &str = "#24292f";
const SOFT: &str = "#6e7781";
const GRID: &str = "#e6e9ed";

/// Escapes text for SVG and HTML, attributes included.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn point_list(points: &[(f64, f64)]) -> String {
    let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    list.join(" ")
}

/// Where a drawing gets its colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Theme {
    /// An image file: every colour is in the file, on a white ground.
    Image,
    /// Inline in an HTML page, whose style sheet colours the classes `grid`, `tick` and `axis`,
    /// in its light and its dark theme.
    Page,
}

/// The colour of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint<'a> {
    /// A colour, such as `#1a7f4b`.
    Colour(&'a str),
    /// Classes of the page's style sheet, which sets fill, stroke and stroke width.
    Class(&'a str),
}

impl Paint<'_> {
    fn fill(self) -> String {
        match self {
            Self::Colour(colour) => format!(r#"fill="{colour}""#),
            Self::Class(class) => format!(r#"class="{class}""#),
        }
    }

    fn stroke(self, width: f64) -> String {
        match self {
            Self::Colour(colour) => format!(r#"stroke="{colour}" stroke-width="{width}""#),
            Self::Class(class) => format!(r#"class="{class}""#),
        }
    }
}

/// Where a text is anchored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At its first character.
    Start,
    /// At half its width.
    Middle,
    /// At its last character.
    End,
}

/// The role of a text, which decides its size and colour.
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
    fn attributes(self, theme: Theme) -> String {
        match (theme, self) {
            (Theme::Page, Self::Tick | Self::Category) => r#"class="tick""#.to_owned(),
            (Theme::Page, _) => r#"class="axis""#.to_owned(),
            (Theme::Image, Self::Title) => {
                format!(r#"fill="{INK}" font-size="16" font-weight="600""#)
            }
            (Theme::Image, Self::PanelTitle) => format!(r#"fill="{INK}" font-weight="600""#),
            (Theme::Image, Self::Name) => format!(r#"fill="{INK}""#),
            (Theme::Image, Self::Category) => format!(r#"fill="{INK}" font-size="11""#),
            (Theme::Image, Self::Note) => format!(r#"fill="{SOFT}""#),
            (Theme::Image, Self::Tick) => format!(r#"fill="{SOFT}" font-size="11""#),
        }
    }
}

/// A drawing under construction. Coordinates have one decimal: the same data gives the same bytes.
#[derive(Debug)]
pub struct Svg {
    theme: Theme,
    label: String,
    body: String,
}

impl Svg {
    /// A drawing for a file of its own.
    pub fn image() -> Self {
        Self { theme: Theme::Image, label: String::new(), body: String::new() }
    }

    /// A drawing inside an HTML page, coloured by its style sheet; screen readers read `label`.
    pub fn inline(label: &str) -> Self {
        Self { theme: Theme::Page, label: label.to_owned(), body: String::new() }
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), paint: Paint<'_>, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {}/>"#,
            from.0,
            from.1,
            to.0,
            to.1,
            paint.stroke(width)
        );
    }

    /// A line of the grid behind the data.
    pub(super) fn grid_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, self.frame_paint(GRID), 1.0);
    }

    /// An axis, or a tick on it.
    pub(super) fn axis_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, self.frame_paint(SOFT), 1.0);
    }

    fn frame_paint(&self, colour: &'static str) -> Paint<'static> {
        match self.theme {
            Theme::Image => Paint::Colour(colour),
            Theme::Page => Paint::Class("grid"),
        }
    }

    /// A line through all points; `dash` as in SVG, empty for a solid line.
    pub fn polyline(&mut self, points: &[(f64, f64)], paint: Paint<'_>, width: f64, dash: &str) {
        let (list, stroke) = (point_list(points), paint.stroke(width));
        let _ = writeln!(
            self.body,
            r#"<polyline points="{list}" fill="none" {stroke} stroke-dasharray="{dash}" stroke-linejoin="round"/>"#
        );
    }

    /// A line through all points, coloured by classes, with a tooltip.
    pub fn titled_line(&mut self, points: &[(f64, f64)], classes: &str, tooltip: &str) {
        let list = point_list(points);
        let _ = writeln!(
            self.body,
            r#"<polyline points="{list}" class="{classes}"><title>{}</title></polyline>"#,
            escape(tooltip)
        );
    }

    /// A filled circle with a white rim.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, paint: Paint<'_>) {
        let _ = writeln!(
            self.body,
            r##"<circle cx="{:.1}" cy="{:.1}" r="{radius}" {} stroke="#fff" stroke-width="1.2"/>"##,
            at.0,
            at.1,
            paint.fill()
        );
    }

    /// A filled rectangle from its upper left corner; `tooltip` may be empty.
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

    /// One line of text.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, role: TextRole, text: &str) {
        let attributes = role.attributes(self.theme);
        self.write_text(at, anchor, &attributes, text);
    }

    /// Text that reads upwards, for y axes.
    pub(super) fn upward_text(&mut self, at: (f64, f64), text: &str) {
        let note = TextRole::Note.attributes(self.theme);
        let turned = format!(r#"transform="rotate(-90 {:.1} {:.1})" {note}"#, at.0, at.1);
        self.write_text(at, Anchor::Middle, &turned, text);
    }

    fn write_text(&mut self, at: (f64, f64), anchor: Anchor, attributes: &str, text: &str) {
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
            r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}" {attributes}>{}</text>"#,
            at.0,
            at.1,
            escape(text)
        );
    }

    /// The finished element, and for an image the whole document.
    pub fn finish(self, width: f64, height: f64) -> String {
        let Self { theme, label, body } = self;
        match theme {
            Theme::Image => format!(
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
                body = body
            ),
            Theme::Page => format!(
                "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n\
                 {body}</svg>",
                escape(&label)
            ),
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
    fn a_page_colours_by_class_and_an_image_by_itself() {
        let draw = |mut svg: Svg, paint| {
            svg.rectangle((1.0, 2.0), (3.0, 4.0), paint, "tip");
            svg.text((0.0, 0.0), Anchor::End, TextRole::Tick, "7");
            svg.finish(10.0, 10.0)
        };
        let page = draw(Svg::inline("x"), Paint::Class("bar c1"));
        assert!(page.contains("class=\"bar c1\"><title>tip</title>"), "{page}");
        assert!(page.contains("class=\"tick\"") && !page.contains('#'), "{page}");
        let image = draw(Svg::image(), Paint::Colour("#123456"));
        assert!(image.contains("fill=\"#123456\"") && !image.contains("class="), "{image}");
    }
}
