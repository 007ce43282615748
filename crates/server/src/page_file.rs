//! A file that the server hands out as it is.

/// A file that the binary holds and anybody may read, with or without a key.
#[derive(Debug, Clone, Copy)]
pub struct PageFile {
    /// Its path on the server.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its name holds a hash of its contents.
    pub is_immutable: bool,
    /// The same for both bodies, and therefore a weak one.
    pub etag: &'static str,
    /// Its contents.
    pub body: &'static [u8],
    /// Its contents, compressed.
    pub gzip: &'static [u8],
}
