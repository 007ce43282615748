//! Renders one chapter: Markdown into HTML without scripts, styles or foreign content, its sections
//! for the search, and what its links lead to.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

use super::links::{LinkMap, LinkTarget, asset_path};
use super::summary::ListedChapter;

/// Stands in a chapter's HTML for the way to the server's root, which depends on the page's path.
pub const ROOT: &str = "\u{e000}";

/// A chapter as HTML.
pub struct RenderedChapter {
    /// Its title in the list of chapters.
    pub title: String,
    /// Its Markdown file, from the root of the tree.
    pub source: String,
    /// Where it is on the server.
    pub path: String,
    /// Content of the page; links into the server begin with [`ROOT`].
    pub html: String,
    /// Its headings with the text below each.
    pub sections: Vec<ChapterSection>,
    /// Files of the tree that it shows or offers.
    pub assets: BTreeSet<String>,
    /// Paths and fragments on this server that it links to.
    pub here: Vec<String>,
    /// Links that lead nowhere.
    pub missing: Vec<String>,
}

/// A heading and the text below it.
pub struct ChapterSection {
    /// Fragment by which links name it; empty for the text before the first heading.
    pub id: String,
    /// 1 for the page's title.
    pub level: usize,
    pub title: String,
    pub text: String,
}

/// Renders the chapter `listed`, whose Markdown is `text`.
pub fn render(listed: &ListedChapter, text: &str, links: &LinkMap) -> RenderedChapter {
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    let mut writer = ChapterWriter {
        links,
        used_ids: BTreeMap::new(),
        out: Vec::new(),
        open_links: Vec::new(),
        chapter: RenderedChapter {
            title: listed.title.clone(),
            source: listed.source.clone(),
            path: links.path(&listed.source).to_owned(),
            html: String::new(),
            sections: Vec::new(),
            assets: BTreeSet::new(),
            here: Vec::new(),
            missing: Vec::new(),
        },
    };
    writer.write(&mut Parser::new_ext(text, options));
    html::push_html(&mut writer.chapter.html, writer.out.into_iter());
    writer.chapter
}

struct ChapterWriter<'a> {
    links: &'a LinkMap,
    /// How often each fragment was wanted.
    used_ids: BTreeMap<String, usize>,
    out: Vec<Event<'a>>,
    /// The ends of the links that are open.
    open_links: Vec<&'static str>,
    chapter: RenderedChapter,
}

impl<'a> ChapterWriter<'a> {
    fn write(&mut self, events: &mut impl Iterator<Item = Event<'a>>) {
        while let Some(event) = events.next() {
            match event {
                Event::Start(Tag::Heading { level, .. }) => self.heading(level, events),
                Event::Start(Tag::CodeBlock(kind)) => self.code_block(&kind, events),
                Event::Start(Tag::Image { dest_url, .. }) => self.image(&dest_url, events),
                event => self.plain(event),
            }
        }
    }

    /// Events that need no look ahead.
    fn plain(&mut self, event: Event<'a>) {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => self.open_link(&dest_url),
            Event::End(TagEnd::Link) => {
                let end = self.open_links.pop().expect("a link ends that began");
                self.raw(end.to_owned());
            }
            Event::Start(Tag::Table(columns)) => {
                // Wide tables scroll within themselves, by the keyboard too.
                self.raw("<div class=\"table\" tabindex=\"0\">".to_owned());
                self.out.push(Event::Start(Tag::Table(columns)));
            }
            Event::End(TagEnd::Table) => {
                self.out.push(Event::End(TagEnd::Table));
                self.raw("</div>\n".to_owned());
            }
            // Comments speak to authors; anything else is shown rather than obeyed.
            Event::Html(text) | Event::InlineHtml(text) if text.starts_with("<!--") => drop(text),
            Event::Html(text) | Event::InlineHtml(text) => self.out.push(Event::Text(text)),
            Event::Text(text) => {
                self.note(&text);
                self.out.push(Event::Text(text));
            }
            Event::Code(text) => {
                self.note(&text);
                self.out.push(Event::Code(text));
            }
            event => {
                if matches!(event, Event::SoftBreak | Event::End(_)) {
                    self.note(" ");
                }
                self.out.push(event);
            }
        }
    }

    fn raw(&mut self, html: String) {
        self.out.push(Event::InlineHtml(html.into()));
    }

    /// Adds to what the search finds under the last heading.
    fn note(&mut self, text: &str) {
        if self.chapter.sections.is_empty() {
            self.begin_section(String::new(), 1, String::new());
        }
        let section = self.chapter.sections.last_mut().expect("one was begun");
        section.text.push_str(text);
    }

    fn begin_section(&mut self, id: String, level: usize, title: String) {
        self.chapter.sections.push(ChapterSection { id, level, title, text: String::new() });
    }

    fn heading(&mut self, level: HeadingLevel, events: &mut impl Iterator<Item = Event<'a>>) {
        let inner = until(events, |end| matches!(end, TagEnd::Heading(_)));
        let title = plain_text(&inner);
        let id = self.fresh_id(&title);
        let level = level as usize;
        self.begin_section(id.clone(), level, title);
        self.raw(format!("<h{level} id=\"{id}\">"));
        for event in inner {
            self.plain(event);
        }
        // The title is the section's name already.
        self.chapter.sections.last_mut().expect("it was begun").text.clear();
        let anchor = format!(
            " <a class=\"anchor\" href=\"#{id}\" aria-label=\"Link to this section\">#</a></h{level}>\n"
        );
        self.raw(anchor);
    }

    /// A fragment for the heading `title`, as code hosts make them.
    fn fresh_id(&mut self, title: &str) -> String {
        let base = slug(title);
        let uses = self.used_ids.entry(base.clone()).or_default();
        let id = if *uses == 0 { base.clone() } else { format!("{base}-{uses}") };
        *uses += 1;
        id
    }

    fn code_block(
        &mut self,
        kind: &CodeBlockKind<'_>,
        events: &mut impl Iterator<Item = Event<'a>>,
    ) {
        let code = plain_text(&until(events, |end| matches!(end, TagEnd::CodeBlock)));
        let language = match kind {
            CodeBlockKind::Fenced(info) => info.split_whitespace().next().unwrap_or("text"),
            CodeBlockKind::Indented => "text",
        };
        self.note(&code);
        let label = match language {
            "sh" => {
                " <span class=\"tested\" title=\"The tests run this as it stands\">tested</span>"
            }
            "console" => " <span class=\"untested\">not run by the tests</span>",
            _ => "",
        };
        self.raw(format!(
            "<div class=\"code\" data-language=\"{0}\"><div class=\"code-head\"><span>{0}</span>{label}\
             </div><pre tabindex=\"0\"><code>{1}</code></pre></div>\n",
            escape(language),
            coloured(language, &code),
        ));
    }

    fn image(&mut self, link: &str, events: &mut impl Iterator<Item = Event<'a>>) {
        let alt = plain_text(&until(events, |end| matches!(end, TagEnd::Image)));
        match self.links.target(&self.chapter.source, link) {
            LinkTarget::Asset(file) => {
                let path = asset_path(&file);
                self.chapter.assets.insert(file);
                let (path, alt) = (escape(&path), escape(&alt));
                self.raw(format!("<img src=\"{ROOT}{path}\" alt=\"{alt}\" loading=\"lazy\">"));
            }
            // The book loads nothing from elsewhere.
            _ => self.chapter.missing.push(link.to_owned()),
        }
    }

    fn open_link(&mut self, link: &str) {
        let target = self.links.target(&self.chapter.source, link);
        let (start, end) = match target {
            LinkTarget::Here(path) => {
                let start = format!("<a href=\"{ROOT}{}\">", escape(&path));
                self.chapter.here.push(path);
                (start, "</a>")
            }
            LinkTarget::Asset(file) => {
                let start = format!("<a href=\"{ROOT}{}\">", escape(&asset_path(&file)));
                self.chapter.assets.insert(file);
                (start, "</a>")
            }
            LinkTarget::Elsewhere(url) => {
                if let Some(fragment) = url.strip_prefix('#') {
                    self.chapter.here.push(format!("{}#{fragment}", self.chapter.path));
                }
                (format!("<a href=\"{}\" rel=\"noreferrer\">", escape(&url)), "</a>")
            }
            LinkTarget::InTree(file) => {
                let start =
                    format!("<span class=\"in-tree\" title=\"{} in the sources\">", escape(&file));
                (start, "</span>")
            }
            LinkTarget::Missing(link) => {
                self.chapter.missing.push(link);
                ("<span>".to_owned(), "</span>")
            }
        };
        self.raw(start);
        self.open_links.push(end);
    }
}

/// The events up to the end that `is_end` knows, which is taken as well.
fn until<'a>(
    events: &mut impl Iterator<Item = Event<'a>>,
    is_end: impl Fn(&TagEnd) -> bool,
) -> Vec<Event<'a>> {
    events.take_while(|event| !matches!(event, Event::End(end) if is_end(end))).collect()
}

fn plain_text(events: &[Event<'_>]) -> String {
    let text = |event: &Event<'_>| match event {
        Event::Text(text) | Event::Code(text) => text.to_string(),
        Event::SoftBreak | Event::HardBreak => " ".to_owned(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

/// `Title, of a kind` as `title-of-a-kind`.
fn slug(title: &str) -> String {
    let keep = |it: char| match it {
        ' ' => Some('-'),
        it if it.is_alphanumeric() || it == '-' || it == '_' => Some(it.to_ascii_lowercase()),
        _ => None,
    };
    title.trim().chars().filter_map(keep).collect()
}

/// Code as HTML; comments of shells and files of settings stand back.
fn coloured(language: &str, code: &str) -> String {
    let has_comments = ["sh", "console", "toml", "yaml", "ini", "python", "nginx", "caddy"];
    if !has_comments.contains(&language) {
        return escape(code);
    }
    let mut html = String::new();
    for line in code.split_inclusive('\n') {
        let (before, comment) = split_comment(line);
        html += &escape(before);
        if !comment.is_empty() {
            html += &format!("<span class=\"comment\">{}</span>", escape(comment));
        }
    }
    html
}

/// A line and its comment, which begins at a `#` that stands at the start or behind a space and
/// not inside quotes.
fn split_comment(line: &str) -> (&str, &str) {
    let mut quote = None;
    let mut before = ' ';
    for (at, it) in line.char_indices() {
        match (quote, it) {
            (None, '#') if before.is_whitespace() => return line.split_at(at),
            (None, '"' | '\'') => quote = Some(it),
            (Some(open), it) if it == open => quote = None,
            _ => {}
        }
        before = it;
    }
    (line, "")
}

/// `text` for HTML, between tags or quoted in one.
pub fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            it => html.push(it),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn rendered(text: &str) -> RenderedChapter {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let chapter = |source: &str| ListedChapter {
            title: "A title".to_owned(),
            source: source.to_owned(),
            depth: 0,
        };
        let listed = [chapter("docs/get-started.md"), chapter("docs/keys.md")];
        let links = LinkMap::new(&root, listed.iter());
        render(&listed[1], text, &links)
    }

    #[test]
    fn html_is_shown_and_not_obeyed() {
        let html = rendered("a <b onclick=x>c</b>\n\n<script>d()</script>\n\n<!-- e -->").html;
        assert!(html.contains("&lt;b onclick=x&gt;"), "{html}");
        assert!(html.contains("&lt;script&gt;"), "{html}");
        assert!(!html.contains("<script") && !html.contains("<b ") && !html.contains(" e "));
    }

    #[test]
    fn links_lead_to_chapters_files_other_places_or_nowhere() {
        let chapter = rendered(
            "[a](get-started.md#ask) [b](/lab) [c](https://a.example/?b&c) [d](../Cargo.toml) \
             [e](loquent.service) [f](nothing.md) [g](../../outside.md) [h](#here)",
        );
        let html = &chapter.html;
        for link in ["/docs#ask\"", "/lab\"", "/docs/loquent.service\""] {
            assert!(html.contains(&format!("<a href=\"{ROOT}{link}")), "{link} in {html}");
        }
        assert!(html.contains("<a href=\"https://a.example/?b&amp;c\" rel=\"noreferrer\">c</a>"));
        assert!(html.contains("<span class=\"in-tree\" title=\"Cargo.toml in the sources\">d"));
        assert_eq!(chapter.missing, ["nothing.md", "../../outside.md"]);
        assert_eq!(chapter.here, ["/docs#ask", "/lab", "/docs/keys#here"]);
    }

    #[test]
    fn equal_headings_get_fragments_of_their_own() {
        let chapter = rendered("# One, `two` & three\n\n## Limits\n\n## Limits\n\ntext");
        let ids: Vec<_> = chapter.sections.iter().map(|it| &*it.id).collect();
        assert_eq!(ids, ["one-two--three", "limits", "limits-1"]);
        assert_eq!(chapter.sections[2].text.trim(), "text");
    }

    #[test]
    fn comments_begin_at_a_hash_outside_of_quotes() {
        for (line, comment) in
            [("a # b", "# b"), ("# a", "# a"), ("a#b", ""), ("'a # b'", ""), ("\"#\" # c", "# c")]
        {
            assert_eq!(split_comment(line).1, comment, "{line}");
        }
    }
}
