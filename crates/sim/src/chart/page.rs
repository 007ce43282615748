//! Reports as self-contained HTML pages: no script, no font, nothing from the network. Print uses
//! light colours, whatever the screen uses.

use std::fmt::Write;

use super::svg::{CHART_STYLE, escape};

const PAGE_STYLE: &str = include_str!("page.css");
/// Content security policy of a page: loads nothing. Its styles are inline.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A page under construction.
#[derive(Debug)]
pub struct ReportPage(String);

/// A name in a legend, with the class of its colour.
pub type LegendEntry<'a> = (&'a str, &'a str);

impl ReportPage {
    /// Creates a page that starts with `title`.
    pub fn new(title: &str) -> Self {
        Self(format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"content-security-policy\" content=\"{POLICY}\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>{0}</title><style>{CHART_STYLE}{PAGE_STYLE}</style></head><body><main>\
             <h1>{0}</h1>",
            escape(title)
        ))
    }

    /// Adds the configuration of the run: names and values, in one paragraph.
    pub fn config<'a>(&mut self, fields: impl Iterator<Item = (&'a str, String)>) {
        self.html("<p class=\"config\">");
        for (name, value) in fields {
            let _ = write!(self.0, "<span>{} <b>{}</b></span> ", escape(name), escape(&value));
        }
        self.html("</p>");
    }

    /// Adds the heading of a section.
    pub fn heading(&mut self, text: &str) {
        let _ = write!(self.0, "<h2>{}</h2>", escape(text));
    }

    /// Adds a paragraph of `class`.
    pub fn paragraph(&mut self, class: &str, text: &str) {
        let _ = write!(self.0, "<p class=\"{class}\">{}</p>", escape(text));
    }

    /// Adds a legend for the colours of the next charts.
    pub fn legend<'a>(&mut self, entries: impl Iterator<Item = LegendEntry<'a>>) {
        self.html("<p class=\"legend\">");
        for (class, name) in entries {
            let _ = write!(self.0, "<span><i class=\"{class}\"></i>{}</span>", escape(name));
        }
        self.html("</p>");
    }

    /// Places the charts that `draw` adds side by side.
    pub fn plots(&mut self, draw: impl FnOnce(&mut Self)) {
        self.html("<div class=\"plots\">");
        draw(self);
        self.html("</div>");
    }

    /// Adds a chart with its caption, which starts with `title`.
    pub fn figure(&mut self, title: &str, caption: &str, svg: &str) {
        let _ = write!(
            self.0,
            "<figure><figcaption><b>{}</b> {}</figcaption>{svg}</figure>",
            escape(title),
            escape(caption)
        );
    }

    /// Adds preformatted text, such as a table for a terminal.
    pub fn terminal(&mut self, text: &str) {
        let _ = write!(self.0, "<div class=\"scroll\"><pre>{}</pre></div>", escape(text));
    }

    /// Adds HTML without escaping.
    pub fn html(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// Returns the whole page.
    pub fn finish(self) -> String {
        self.0 + "</main></body></html>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_loads_nothing_and_quotes_what_it_shows() {
        let mut page = ReportPage::new("a <b> & c");
        page.config([("model", "<script>".to_owned())].into_iter());
        page.legend([("c0", "<one>")].into_iter());
        page.plots(|page| page.figure("t", "c", "<svg></svg>"));
        page.terminal("1 < 2");
        let html = page.finish();
        assert!(html.contains("<title>a &lt;b&gt; &amp; c</title>"), "{html}");
        assert!(!html.contains("<script") && !html.contains("<one>") && html.contains("1 &lt; 2"));
        for foreign in ["http:", "https:", "//", "@import", "url("] {
            assert!(!html.contains(foreign), "{foreign}");
        }
    }
}
