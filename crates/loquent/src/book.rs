//! The book at `/docs`: provides its files to the server, which serves them like its own pages.

use loquent_server::PageFile;

/// Returns the book's files.
pub(crate) fn pages() -> Vec<PageFile> {
    let page = |file: &loquent_book::BookFile| PageFile {
        path: file.path,
        content_type: file.content_type,
        is_immutable: file.is_immutable,
        etag: file.etag,
        body: file.body,
        gzip: file.gzip,
    };
    loquent_book::FILES.iter().map(page).collect()
}
