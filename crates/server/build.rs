//! Makes the table of the pages' files: everything in `web/page`, as it is and compressed, so that
//! the server neither compresses at run time nor keeps a list by hand.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    let pages = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../web/page");
    let pages = pages.canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", pages.display());
    let mut files = Vec::new();
    collect(&pages, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (number, file) in files.iter().enumerate() {
        table += &entry(&pages, file, &out.join(format!("{number}.gz")))?;
    }
    table.push(']');
    fs::write(out.join("page_files.rs"), table)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// The table's line for `file`, whose compressed contents go to `gzip`.
fn entry(pages: &Path, file: &Path, gzip: &Path) -> Result<String, Box<dyn Error>> {
    let contents = fs::read(file)?;
    let mut encoder = GzEncoder::new(fs::File::create(gzip)?, Compression::best());
    encoder.write_all(&contents)?;
    encoder.finish()?;
    let name = file.strip_prefix(pages)?.to_str().ok_or("a name that is no text")?;
    let name = name.replace('\\', "/");
    let mut line = String::new();
    writeln!(
        line,
        "PageFile {{ path: {:?}, content_type: {:?}, is_immutable: {}, etag: {:?}, \
         body: include_bytes!({file:?}), gzip: include_bytes!({gzip:?}) }},",
        route(&name),
        content_type(file)?,
        name.starts_with("assets/"),
        etag(&contents),
    )?;
    Ok(line)
}

/// `index.html` is `/`, other pages have no ending.
fn route(name: &str) -> String {
    match name.strip_suffix(".html") {
        Some("index") => "/".to_owned(),
        Some(page) => format!("/{page}"),
        None => format!("/{name}"),
    }
}

fn content_type(file: &Path) -> Result<&'static str, String> {
    match file.extension().and_then(OsStr::to_str) {
        Some("css") => Ok("text/css; charset=utf-8"),
        Some("html") => Ok("text/html; charset=utf-8"),
        Some("js") => Ok("text/javascript; charset=utf-8"),
        Some("svg") => Ok("image/svg+xml"),
        Some("txt") => Ok("text/plain; charset=utf-8"),
        Some("woff2") => Ok("font/woff2"),
        _ => Err(format!("{}: no content type is known", file.display())),
    }
}

/// A weak one: the file is the same whether it travels compressed or not. The hash need not resist
/// anybody, as all contents are ours.
fn etag(contents: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    format!("W/\"{:016x}\"", hasher.finish())
}
