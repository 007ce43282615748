//! The integration tests of a crate are the modules of one binary; a file that no binary names would
//! never run.

use std::fs;
use std::path::Path;

use crate::sources::{parents, root, sources};

/// Whether the binary whose file says `main`, or the manifest, names this file or folder of `tests/`.
fn is_named(place: &Path, main: &str, manifest: &str) -> bool {
    let name = place.file_stem().unwrap().to_str().unwrap();
    let is_module = |line: &str| line.trim_start_matches("pub ") == format!("mod {name};");
    main.lines().any(is_module) || manifest.contains(&format!("tests/{name}/"))
}

/// The files and folders of a crate's `tests/` that no test binary has.
fn left_out(krate: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(krate.join("Cargo.toml")).unwrap();
    let Ok(main) = fs::read_to_string(krate.join("tests/main.rs")) else { return Vec::new() };
    assert!(manifest.contains("autotests = false"), "{} builds files twice", krate.display());
    let entries = fs::read_dir(krate.join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let has_tests = |place: &Path| {
        let root = |name| place.join(name).exists();
        place.extension().is_some_and(|end| end == "rs") || root("mod.rs") || root("main.rs")
    };
    let tests = entries.filter(|place| has_tests(place) && !place.ends_with("main.rs"));
    let missing = tests.filter(|place| !is_named(place, &main, &manifest));
    missing.map(|place| place.display().to_string()).collect()
}

#[test]
fn every_test_file_belongs_to_a_binary() {
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let missing: Vec<_> = crates.flat_map(|krate| left_out(&krate.unwrap().path())).collect();
    assert!(missing.is_empty(), "name these in `tests/main.rs`: {missing:#?}");
}

#[test]
fn a_file_that_no_binary_names_is_noticed() {
    let main = "mod one;\nmod two;\n";
    for (place, expected) in [("one.rs", true), ("two", true), ("three.rs", false), ("four", false)]
    {
        assert_eq!(is_named(Path::new(place), main, ""), expected, "{place}");
    }
    assert!(is_named(Path::new("costs"), main, "path = \"tests/costs/main.rs\""));
}

/// The files of `files`, as (path, text), that are modules of no other file. Cargo finds the roots:
/// the files directly in `tests`, `examples` and `benches`, and those named after what they are.
fn orphans(files: &[(String, String)]) -> Vec<&str> {
    let declares = |parent: &str, module: &str| {
        let text = files.iter().find(|(place, _)| place == parent).map(|(_, text)| text);
        text.is_some_and(|text| text.lines().any(|line| declared(line) == Some(module)))
    };
    let is_module = |place: &str| {
        let (folder, file) = place.rsplit_once('/').expect("files lie in folders");
        let name = file.strip_suffix(".rs").expect("Rust");
        let is_root = ["lib", "main", "build", "mod"].contains(&name)
            || ["tests", "examples", "benches"].iter().any(|root| folder.ends_with(root));
        let included = format!("{file}\"]");
        is_root
            || parents(place).iter().any(|parent| declares(parent, name))
            || files.iter().any(|(_, text)| text.contains("#[path") && text.contains(&included))
    };
    files.iter().map(|(place, _)| place.as_str()).filter(|place| !is_module(place)).collect()
}

/// The module that a line declares, such as `pub(super) mod name;`.
fn declared(line: &str) -> Option<&str> {
    let (before, name) = line.trim().strip_suffix(';')?.rsplit_once("mod ")?;
    (before.is_empty() || before.starts_with("pub")).then_some(name)
}

#[test]
fn every_file_is_a_module_of_its_crate() {
    let files = sources();
    let orphans = orphans(&files);
    assert!(orphans.is_empty(), "no file declares these, so nothing in them runs: {orphans:#?}");
}

#[test]
fn a_file_that_no_file_declares_is_noticed() {
    let file = |place: &str, text: &str| (place.to_owned(), text.to_owned());
    let files = [
        file("crates/a/src/lib.rs", "mod one;\npub mod two;\n// mod three;\n"),
        file("crates/a/src/one.rs", "#[cfg(test)]\nmod tests;\n"),
        file("crates/a/src/one/tests.rs", ""),
        file("crates/a/src/two.rs", "#[path = \"../other.rs\"]\nmod other;\n"),
        file("crates/a/other.rs", ""),
        file("crates/a/src/three.rs", ""),
        file("crates/a/tests/whole.rs", ""),
    ];
    assert_eq!(orphans(&files), ["crates/a/src/three.rs"]);
}
