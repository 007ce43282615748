//! A static file of the server.

/// A file in the binary that anyone may read, with or without a key.
#[derive(Debug, Clone, Copy)]
pub struct PageFile {
    /// Path on the server.
    pub path: &'static str,
    /// Media type.
    pub content_type: &'static str,
    /// True if the name contains a hash of the contents.
    pub is_immutable: bool,
    /// Entity tag: the same for both bodies, and therefore weak.
    pub etag: &'static str,
    /// Contents.
    pub body: &'static [u8],
    /// Contents, compressed with gzip.
    pub gzip: &'static [u8],
}
