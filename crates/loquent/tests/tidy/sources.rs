//! The workspace's Rust files as the checks read them: text, and syntax without its tests.

use std::fs;
use std::path::{Path, PathBuf};

use syn::visit_mut::{self, VisitMut};

/// Folders and files whose code never reaches a user.
const TEST_PLACES: &[&str] = &["/tests/", "/tests.rs", "/examples/", "/src/fuzz.rs"];

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file below `folders` whose name ends in `suffix`: its path from the root, and its text.
pub fn files(folders: &[&str], suffix: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut pending: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let ours = !["target", "node_modules", "out"].contains(&name.as_str());
            if path.is_dir() && ours && !name.starts_with('.') {
                pending.push(path);
            } else if name.ends_with(suffix) && path.is_file() {
                let place = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push((place, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// All Rust files.
pub fn sources() -> Vec<(String, String)> {
    let found = files(&["crates", "tools"], ".rs");
    assert!(found.len() > 200, "the sources were not found");
    found
}

/// The Rust files that are built into the product.
pub fn product() -> Vec<(String, String)> {
    let tests = |place: &str| TEST_PLACES.iter().any(|part| place.contains(part));
    sources().into_iter().filter(|(place, _)| !tests(place)).collect()
}

/// A file's syntax without modules and functions that only tests compile.
pub fn syntax(place: &str, text: &str) -> syn::File {
    let mut file = syn::parse_file(text).unwrap_or_else(|error| panic!("{place}: {error}"));
    WithoutTests.visit_file_mut(&mut file);
    file
}

/// The files that may declare the file at `place` as a module.
pub fn parents(place: &str) -> Vec<String> {
    let (folder, _) = place.rsplit_once('/').expect("files lie in folders");
    let beside = ["mod", "main", "lib"].map(|parent| format!("{folder}/{parent}.rs"));
    beside.into_iter().chain([format!("{folder}.rs")]).collect()
}

/// A file without the tests at its end.
pub fn before_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

/// The lines of a file before its tests that are not blank.
pub fn lines_before_tests(text: &str) -> impl Iterator<Item = &str> {
    before_tests(text).lines().map(str::trim).filter(|line| !line.is_empty())
}

struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_test(item));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !is_test(item));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }
}

fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Fn(function) => &function.attrs,
        syn::Item::Mod(module) => &module.attrs,
        syn::Item::Use(import) => &import.attrs,
        syn::Item::Struct(one) => &one.attrs,
        syn::Item::Impl(one) => &one.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list().map(|list| list.tokens.to_string());
        // Those for loom stand behind the others of their file.
        let is_test = |list: String| list == "test" || list.starts_with("all (test ,");
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && list.is_ok_and(is_test))
    })
}
