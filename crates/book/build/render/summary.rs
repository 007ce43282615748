//! Reads `docs/SUMMARY.md`, a list of chapters in mdBook's form: headings name parts, items of
//! lists are chapters, indented items belong to the chapter above.

use std::path::{Component, Path};

/// Where the list of chapters is.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Spaces by which a chapter stands under another.
const INDENT: usize = 2;

/// Chapters under one heading.
#[derive(Debug)]
pub struct BookPart {
    /// The heading; empty before the first.
    pub title: String,
    /// Its chapters in order.
    pub chapters: Vec<ListedChapter>,
}

/// A chapter as the list names it.
#[derive(Debug)]
pub struct ListedChapter {
    /// Its title in the list.
    pub title: String,
    /// Its Markdown file, from the root of the tree.
    pub source: String,
    /// How many chapters it stands under.
    pub depth: usize,
}

/// Reads the list.
///
/// # Errors
/// With the line that is neither heading, chapter nor blank.
pub fn parse(text: &str) -> Result<Vec<BookPart>, String> {
    let mut parts = vec![BookPart { title: String::new(), chapters: Vec::new() }];
    // The first heading is the list's own.
    for line in text.lines().skip(1).filter(|line| !line.trim().is_empty()) {
        if let Some(title) = line.strip_prefix("# ") {
            parts.push(BookPart { title: title.trim().to_owned(), chapters: Vec::new() });
            continue;
        }
        let chapter = chapter(line).ok_or_else(|| format!("{}: {line:?}", SUMMARY))?;
        parts.last_mut().expect("there is a first one").chapters.push(chapter);
    }
    parts.retain(|part| !part.chapters.is_empty());
    Ok(parts)
}

/// `- [Title](file.md)`, or the same without the dash.
fn chapter(line: &str) -> Option<ListedChapter> {
    let item = line.trim_start();
    let depth = (line.len() - item.len()) / INDENT;
    let link = item.strip_prefix("- ").unwrap_or(item).strip_prefix('[')?;
    let (title, rest) = link.split_once("](")?;
    let target = rest.trim_end().strip_suffix(')')?;
    let source = normal(&Path::new("docs").join(target))?;
    Some(ListedChapter { title: title.to_owned(), source, depth })
}

/// `path` without `.` and `..`; `None` if it leads out of the tree.
pub fn normal(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}
