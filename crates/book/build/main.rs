//! Renders the book and makes the table of its files, each as it is and compressed.

mod render;

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

use render::{Book, RenderedFile};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let book = Book::read(&root)?;
    // The folders too: what appears in them is another page's target.
    for watched in ["docs", "docs/img", "crates/book/theme", "crates/book/build"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    for chapter in book.chapters() {
        println!("cargo:rerun-if-changed={}", root.join(&chapter.source).display());
    }
    let mut table = String::from("&[\n");
    for (number, file) in book.files()?.iter().enumerate() {
        table += &entry(file, &out, number)?;
    }
    table.push(']');
    fs::write(out.join("book_files.rs"), table)?;
    Ok(())
}

/// The table's line for `file`, whose contents go to two files of `out`.
fn entry(file: &RenderedFile, out: &Path, number: usize) -> Result<String, Box<dyn Error>> {
    let (body, gzip) = (out.join(number.to_string()), out.join(format!("{number}.gz")));
    fs::write(&body, &file.contents)?;
    let mut encoder = GzEncoder::new(fs::File::create(&gzip)?, Compression::best());
    encoder.write_all(&file.contents)?;
    encoder.finish()?;
    let mut line = String::new();
    writeln!(
        line,
        "BookFile {{ path: {:?}, content_type: {:?}, is_immutable: {}, etag: {:?}, \
         body: include_bytes!({body:?}), gzip: include_bytes!({gzip:?}) }},",
        file.path,
        file.content_type,
        file.is_immutable,
        format!("W/\"{}\"", render::content_hash(&file.contents)),
    )?;
    Ok(line)
}
