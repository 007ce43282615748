//! Renders the Markdown of the tree into the book's files: `summary` reads which chapters there
//! are, `chapter` renders one, `links` finds what its links mean, `layout` puts the page around it.

mod chapter;
mod layout;
mod links;
mod summary;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde_json::json;

pub use chapter::RenderedChapter;
use layout::Assets;
use links::{LinkMap, media_type};
pub use summary::{BookPart, ListedChapter, SUMMARY};

/// The OpenAPI file, which has a well-known place on the server as well.
const OPENAPI: (&str, &str) = ("docs/openapi.json", "/openapi.json");

/// The book before it is rendered.
pub struct Book {
    root: PathBuf,
    parts: Vec<BookPart>,
}

/// A file that the server is to send.
pub struct RenderedFile {
    pub path: String,
    pub content_type: &'static str,
    pub is_immutable: bool,
    pub contents: Vec<u8>,
}

impl Book {
    /// Reads the list of chapters in the tree at `root`.
    ///
    /// # Errors
    /// When the list cannot be read or understood; the message names the line.
    pub fn read(root: &Path) -> Result<Self, Box<dyn Error>> {
        let parts = summary::parse(&read(&root.join(SUMMARY))?)?;
        Ok(Self { root: root.to_owned(), parts })
    }

    /// All chapters in their order.
    pub fn chapters(&self) -> impl Iterator<Item = &ListedChapter> {
        self.parts.iter().flat_map(|part| &part.chapters)
    }

    /// The chapters, rendered; in the order of [`Self::chapters`].
    ///
    /// # Errors
    /// When a chapter cannot be read.
    pub fn render(&self) -> Result<Vec<RenderedChapter>, Box<dyn Error>> {
        let links = LinkMap::new(&self.root, self.chapters());
        self.chapters()
            .map(|listed| {
                let text = read(&self.root.join(&listed.source))?;
                Ok(chapter::render(listed, &text, &links))
            })
            .collect()
    }

    /// Everything that the server sends for the book.
    ///
    /// # Errors
    /// When a chapter, or a file that one shows, cannot be read.
    pub fn files(&self) -> Result<Vec<RenderedFile>, Box<dyn Error>> {
        let chapters = self.render()?;
        let (assets, mut files) = self.theme(&chapters)?;
        for (at, chapter) in chapters.iter().enumerate() {
            let page = |path: &str| RenderedFile {
                path: path.to_owned(),
                content_type: "text/html; charset=utf-8",
                is_immutable: false,
                contents: layout::page(&self.parts, &chapters, at, &assets, path).into_bytes(),
            };
            files.push(page(&chapter.path));
            if at == 0 {
                // The first chapter's links have to work with and without the slash.
                files.push(page(&format!("{}/", chapter.path)));
            }
        }
        let shown: BTreeSet<&String> = chapters.iter().flat_map(|it| &it.assets).collect();
        for source in shown {
            files.push(self.asset(source, &links::asset_path(source))?);
        }
        let (source, path) = OPENAPI;
        if self.root.join(source).is_file() {
            files.push(self.asset(source, path)?);
        }
        Ok(files)
    }

    /// A file of the tree that is sent as it is.
    fn asset(&self, source: &str, path: &str) -> Result<RenderedFile, Box<dyn Error>> {
        let content_type = media_type(source).ok_or(format!("{source}: of no known type"))?;
        let contents = fs::read(self.root.join(source))?;
        Ok(RenderedFile { path: path.to_owned(), content_type, is_immutable: false, contents })
    }

    /// Style, scripts and the search index, under names that change with their contents.
    fn theme(
        &self,
        chapters: &[RenderedChapter],
    ) -> Result<(Assets, Vec<RenderedFile>), Box<dyn Error>> {
        let mut files = Vec::new();
        let mut add = |name: &str, ending: &str, contents: Vec<u8>| {
            let path = format!("/docs/assets/{name}-{}.{ending}", content_hash(&contents));
            let content_type = media_type(&path).expect("a type of the theme");
            files.push(RenderedFile {
                path: path.clone(),
                content_type,
                is_immutable: true,
                contents,
            });
            path
        };
        let theme = |name: &str| fs::read(self.root.join("crates/book/theme").join(name));
        let assets = Assets {
            style: add("book", "css", theme("book.css")?),
            boot: add("boot", "js", theme("boot.js")?),
            script: add("book", "js", theme("book.js")?),
            search: add("search", "json", search_index(chapters).into_bytes()),
        };
        Ok((assets, files))
    }
}

/// Index of the search: the place, the title and the text of each section.
fn search_index(chapters: &[RenderedChapter]) -> String {
    let sections = chapters.iter().flat_map(|chapter| {
        chapter.sections.iter().map(move |section| {
            let place = match section.id.is_empty() {
                true => chapter.path.clone(),
                false => format!("{}#{}", chapter.path, section.id),
            };
            json!([place, chapter.title, section.title, section.text.trim()])
        })
    });
    json!(sections.collect::<Vec<_>>()).to_string()
}

/// A short name for `contents`. It need not resist anybody, as all contents are ours.
pub fn content_hash(contents: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}
