//! The documentation as a book: every chapter that `docs/SUMMARY.md` lists, rendered to HTML when
//! this crate is built, with all that its pages load. Nothing is rendered or compressed at run
//! time. The result is not committed: every change of a chapter would be in the history twice, and
//! rendering takes less time than compiling this crate's neighbours.

/// One file of the book, as a server sends it.
#[derive(Debug, Clone, Copy)]
pub struct BookFile {
    /// Its path on the server: `/docs`, `/docs/apis`, `/docs/assets/…`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its name holds a hash of its contents.
    pub is_immutable: bool,
    /// A weak entity tag: the same for both bodies.
    pub etag: &'static str,
    /// Its contents.
    pub body: &'static [u8],
    /// Its contents, compressed.
    pub gzip: &'static [u8],
}

/// All files of the book.
pub static FILES: &[BookFile] = include!(concat!(env!("OUT_DIR"), "/book_files.rs"));

// The renderer runs in the build script, which Cargo does not test.
#[cfg(test)]
#[path = "../build/render/mod.rs"]
mod render;

#[cfg(test)]
mod tests;
