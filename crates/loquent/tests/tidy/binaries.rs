//! The integration tests of a crate are the modules of one binary; a file that no binary names would
//! never run.

use std::fs;
use std::path::Path;

use crate::sources::root;

/// Whether the binary whose file says `main`, or the manifest, names this file or folder of `tests/`.
fn is_named(place: &Path, main: &str, manifest: &str) -> bool {
    let name = place.file_stem().unwrap().to_str().unwrap();
    let is_module = |line: &str| line.trim_start_matches("pub ") == format!("mod {name};");
    let below = format!("\"{name}/");
    main.lines().any(is_module)
        || main.contains(&below)
        || manifest.contains(&format!("tests/{name}/"))
}

/// The files and folders of a crate's `tests/` that no test binary has.
fn left_out(krate: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(krate.join("Cargo.toml")).unwrap();
    let Ok(main) = fs::read_to_string(krate.join("tests/main.rs")) else { return Vec::new() };
    assert!(manifest.contains("autotests = false"), "{} builds files twice", krate.display());
    let entries = fs::read_dir(krate.join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let has_tests = |place: &Path| {
        place.extension().is_some_and(|end| end == "rs") || place.join("main.rs").exists()
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
    let main = "mod one;\n#[path = \"two/main.rs\"]\nmod two;\n";
    for (place, expected) in [("one.rs", true), ("two", true), ("three.rs", false), ("four", false)]
    {
        assert_eq!(is_named(Path::new(place), main, ""), expected, "{place}");
    }
    assert!(is_named(Path::new("costs"), main, "path = \"tests/costs/main.rs\""));
}
