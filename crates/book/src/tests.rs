//! Holds the chapters to each other: what they link to is there, and every page of docs/ is listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::FILES;
use crate::render::{Book, RenderedChapter, SUMMARY};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn chapters() -> Vec<RenderedChapter> {
    Book::read(&root()).unwrap().render().unwrap()
}

#[test]
fn the_binary_holds_the_whole_book() {
    let rendered = Book::read(&root()).unwrap().files().unwrap();
    let rendered = rendered
        .iter()
        .map(|file| (&*file.path, file.content_type, file.is_immutable, &*file.contents));
    let held: Vec<_> = FILES
        .iter()
        .map(|file| (file.path, file.content_type, file.is_immutable, file.body))
        .collect();
    assert!(rendered.eq(held.iter().copied()), "the build script did not run again");
    for path in ["/docs", "/docs/"] {
        assert!(held.iter().any(|file| file.0 == path), "{path}");
    }
}

#[test]
fn every_link_leads_somewhere() {
    let chapters = chapters();
    let mut places: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
    places.extend(["/", "/lab", "/dashboard", "/metrics"].map(str::to_owned));
    for chapter in &chapters {
        let ids = chapter.sections.iter().filter(|it| !it.id.is_empty());
        places.extend(ids.map(|section| format!("{}#{}", chapter.path, section.id)));
    }
    let mut wrong = Vec::new();
    for chapter in &chapters {
        let lost = chapter.here.iter().filter(|link| !places.contains(*link));
        wrong.extend(lost.chain(&chapter.missing).map(|link| (&chapter.source, link)));
    }
    assert!(wrong.is_empty(), "these links lead nowhere: {wrong:#?}");
}

#[test]
fn every_page_of_docs_is_a_chapter() {
    let listed: BTreeSet<String> = chapters().into_iter().map(|it| it.source).collect();
    let names = fs::read_dir(root().join("docs")).unwrap();
    let names = names.map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    let absent: Vec<String> = names
        .filter(|name| name.ends_with(".md") && name != SUMMARY && !listed.contains(name))
        .collect();
    assert!(absent.is_empty(), "{SUMMARY} does not list {absent:?}");
}

#[test]
fn pages_load_nothing_that_a_strict_policy_forbids() {
    for file in FILES.iter().filter(|file| file.content_type.starts_with("text/html")) {
        let html = str::from_utf8(file.body).unwrap();
        for forbidden in ["<script>", "<style", " style=", " onclick=", "javascript:", "src=\"http"]
        {
            assert!(!html.contains(forbidden), "{}: {forbidden}", file.path);
        }
        let named = html.split('"').filter(|it| it.contains("/docs/assets/"));
        for name in named {
            let path = name.trim_start_matches('.').trim_start_matches("/..");
            assert!(FILES.iter().any(|it| it.path == path), "{}: {name}", file.path);
        }
    }
}
