//! The page around a chapter: head, list of chapters, list of its sections, the way on.

use std::fmt::Write as _;

use super::chapter::{ROOT, RenderedChapter, escape};
use super::summary::BookPart;

/// Paths of what every page loads.
pub struct Assets {
    pub style: String,
    /// Runs before the first paint.
    pub boot: String,
    pub script: String,
    pub search: String,
}

/// The page of the chapter number `at`, for the place `path` on the server.
pub fn page(
    parts: &[BookPart],
    chapters: &[RenderedChapter],
    at: usize,
    assets: &Assets,
    path: &str,
) -> String {
    let chapter = &chapters[at];
    let mut page = String::new();
    page += &head(chapter, at == 0, assets);
    page += HEADER;
    page += "<div class=\"columns\">\n";
    page += &contents(parts, chapters, at);
    write!(page, "<main id=\"main\"><article>\n{}</article>\n", chapter.html).expect("memory");
    page += &ways_on(chapters, at);
    page += "</main>\n";
    page += &on_this_page(chapter);
    page += "</div>\n</body>\n</html>\n";
    page.replace(ROOT, way_to_root(path))
}

/// The relative way from the page at `path` to the server's root. Relative, so that the book works
/// behind a proxy that puts the server below a path of its own.
fn way_to_root(path: &str) -> &'static str {
    match path.matches('/').count() {
        1 => ".",
        2 => "..",
        3 => "../..",
        _ => unreachable!("{path}: chapters stand at most one folder deep"),
    }
}

fn head(chapter: &RenderedChapter, is_first: bool, assets: &Assets) -> String {
    let title = match is_first {
        true => "Loquent’s book".to_owned(),
        false => format!("{} · Loquent’s book", escape(&chapter.title)),
    };
    let Assets { style, boot, script, search } = assets;
    format!(
        "<!doctype html>\n<html lang=\"en\" data-root=\"{ROOT}\" data-search=\"{ROOT}{search}\">\n<head>\n\
         <meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n\
         <link rel=\"icon\" href=\"{ROOT}/favicon.svg\">\n\
         <script src=\"{ROOT}{boot}\"></script>\n\
         <link rel=\"stylesheet\" href=\"{ROOT}{style}\">\n\
         <script src=\"{ROOT}{script}\" defer></script>\n\
         </head>\n<body>\n"
    )
}

/// `\u{e000}` is [`ROOT`].
const HEADER: &str = "<a class=\"skip\" href=\"#main\">Skip to the chapter</a>\n\
    <header class=\"page-header\">\n\
    <button class=\"menu\" type=\"button\" aria-controls=\"chapters\" aria-expanded=\"false\">Chapters</button>\n\
    <a class=\"brand\" href=\"\u{e000}/docs\"><img src=\"\u{e000}/favicon.svg\" alt=\"\" width=\"20\" height=\"20\"> \
    <span>Loquent’s book</span></a>\n\
    <div class=\"search\" role=\"search\"><input type=\"search\" placeholder=\"Search\" aria-label=\"Search the book\" \
    aria-controls=\"found\" autocomplete=\"off\" spellcheck=\"false\"><ul id=\"found\" hidden></ul></div>\n\
    <nav class=\"pages\" aria-label=\"Pages\"><a href=\"\u{e000}/\">Chat</a> <a href=\"\u{e000}/lab\">Laboratory</a> \
    <a href=\"\u{e000}/dashboard\">Dashboard</a></nav>\n\
    <button class=\"theme\" type=\"button\" hidden></button>\n\
    </header>\n";

/// The list of all chapters.
fn contents(parts: &[BookPart], chapters: &[RenderedChapter], at: usize) -> String {
    let mut list =
        String::from("<nav id=\"chapters\" class=\"chapters\" aria-label=\"Chapters\">\n");
    let mut rendered = chapters.iter();
    for part in parts {
        if !part.title.is_empty() {
            writeln!(list, "<h2>{}</h2>", escape(&part.title)).expect("memory");
        }
        list += "<ul>\n";
        for (listed, chapter) in part.chapters.iter().zip(&mut rendered) {
            let current =
                if chapter.path == chapters[at].path { " aria-current=\"page\"" } else { "" };
            let (depth, path, title) = (listed.depth, escape(&chapter.path), escape(&listed.title));
            writeln!(
                list,
                "<li class=\"depth-{depth}\"><a href=\"{ROOT}{path}\"{current}>{title}</a></li>"
            )
            .expect("memory");
        }
        list += "</ul>\n";
    }
    list + "</nav>\n"
}

/// Links to the chapters before and after.
fn ways_on(chapters: &[RenderedChapter], at: usize) -> String {
    let link = |at: Option<usize>, class: &str, before: &str, after: &str| {
        at.and_then(|at| chapters.get(at)).map_or_else(String::new, |chapter| {
            let (path, title) = (escape(&chapter.path), escape(&chapter.title));
            format!("<a class=\"{class}\" rel=\"{class}\" href=\"{ROOT}{path}\">{before}{title}{after}</a>\n")
        })
    };
    format!(
        "<nav class=\"ways-on\" aria-label=\"Further chapters\">\n{}{}</nav>\n",
        link(at.checked_sub(1), "prev", "← ", ""),
        link(Some(at + 1), "next", "", " →"),
    )
}

/// The chapter's sections, if there are some.
fn on_this_page(chapter: &RenderedChapter) -> String {
    let sections: Vec<_> =
        chapter.sections.iter().filter(|it| it.level == 2 || it.level == 3).collect();
    if sections.len() < 2 {
        return "<div class=\"sections\"></div>\n".to_owned();
    }
    let mut list = String::from(
        "<nav class=\"sections\" aria-label=\"On this page\">\n<h2>On this page</h2>\n<ul>\n",
    );
    for section in sections {
        let (level, id, title) = (section.level, &section.id, escape(&section.title));
        writeln!(list, "<li class=\"level-{level}\"><a href=\"#{id}\">{title}</a></li>")
            .expect("memory");
    }
    list + "</ul>\n</nav>\n"
}
