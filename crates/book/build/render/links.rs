//! Meaning of the links of a chapter: another chapter, a file that the book carries, a page of the
//! server, a file of the tree that the book does not have, or something elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::summary::{ListedChapter, normal};

/// Target of a link.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// A path on this server, with its fragment.
    Here(String),
    /// A file that the book has to carry, from the root of the tree.
    Asset(String),
    /// Another site, or a part of the same page.
    Elsewhere(String),
    /// A file of the tree that the book does not carry.
    InTree(String),
    /// Nothing that exists.
    Missing(String),
}

/// Where each chapter is on the server.
pub struct LinkMap {
    root: PathBuf,
    chapters: BTreeMap<String, String>,
}

impl LinkMap {
    pub fn new<'a>(root: &Path, chapters: impl Iterator<Item = &'a ListedChapter>) -> Self {
        let path = |(at, chapter): (usize, &ListedChapter)| {
            let path = if at == 0 { "/docs".to_owned() } else { chapter_path(&chapter.source) };
            (chapter.source.clone(), path)
        };
        Self { root: root.to_owned(), chapters: chapters.enumerate().map(path).collect() }
    }

    /// The path of the chapter in the file `source`.
    pub fn path(&self, source: &str) -> &str {
        &self.chapters[source]
    }

    /// Returns the target of `link` in the file `source`.
    pub fn target(&self, source: &str, link: &str) -> LinkTarget {
        if link.starts_with('#')
            || ["https://", "http://", "mailto:"].iter().any(|scheme| link.starts_with(scheme))
        {
            return LinkTarget::Elsewhere(link.to_owned());
        }
        if link.starts_with('/') {
            return LinkTarget::Here(link.to_owned());
        }
        let (file, fragment) = link.split_once('#').map_or((link, ""), |(file, rest)| (file, rest));
        let folder = Path::new(source).parent().unwrap_or(Path::new(""));
        let Some(file) = normal(&folder.join(file)) else {
            return LinkTarget::Missing(link.to_owned());
        };
        if let Some(path) = self.chapters.get(&file) {
            let hash = if fragment.is_empty() { "" } else { "#" };
            return LinkTarget::Here(format!("{path}{hash}{fragment}"));
        }
        let in_tree = self.root.join(&file);
        match in_tree.exists() {
            false => LinkTarget::Missing(link.to_owned()),
            true if file.starts_with("docs/") && media_type(&file).is_some() => {
                LinkTarget::Asset(file)
            }
            true => LinkTarget::InTree(file),
        }
    }
}

/// Where the chapter in the file `source` is on the server.
fn chapter_path(source: &str) -> String {
    let name = source.strip_suffix(".md").unwrap_or(source);
    format!("/docs/{}", name.strip_prefix("docs/").unwrap_or(name).to_ascii_lowercase())
}

/// Where a file of `docs/` is on the server.
pub fn asset_path(source: &str) -> String {
    format!("/{source}")
}

/// The media type of a file that the book may carry.
pub fn media_type(name: &str) -> Option<&'static str> {
    match Path::new(name).extension()?.to_str()? {
        "css" => Some("text/css; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "json" => Some("application/json"),
        "svg" => Some("image/svg+xml"),
        "png" => Some("image/png"),
        "webp" => Some("image/webp"),
        "service" | "yaml" | "yml" | "toml" | "txt" => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}
