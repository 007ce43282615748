//! What Loquent is built from and with: one oldest compiler said everywhere, a corpus for each
//! fuzz target.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::sources::{files, product, root};

fn read(place: &str) -> String {
    fs::read_to_string(root().join(place)).unwrap_or_else(|error| panic!("{place}: {error}"))
}

/// `1.91`, or `1.88.0`, as numbers.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|part| part.parse().unwrap()).collect()
}

/// The packages of this platform's build, from Cargo itself.
fn packages() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let found = cargo.arg(host).current_dir(root()).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let Value::Object(mut found) = serde_json::from_slice(&found.stdout).unwrap() else {
        panic!("no object")
    };
    match found.remove("packages") {
        Some(Value::Array(packages)) => packages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_oldest_compiler_is_what_the_dependencies_need_and_is_said_alike() {
    let packages = packages();
    let needs = packages.iter().filter(|package| !package["source"].is_null()).filter_map(|it| {
        Some((version(it["rust_version"].as_str()?), it["name"].as_str()?.to_owned()))
    });
    let (most, by) = needs.max().unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let said = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(version(said) >= most, "rust-version is {said}, but {by} needs {most:?}");
    for (place, words) in [
        ("README.md", format!("Rust ({said} or newer)")),
        ("docs/building.md", format!("Rust {said} or newer")),
        ("docs/install.md", format!("Rust {said} or newer")),
        ("tools/setup", format!("Rust {said} or newer")),
        (".github/workflows/ci.yml", format!("RUSTUP_TOOLCHAIN: \"{said}\"")),
    ] {
        let text = read(place);
        assert!(text.contains(&words), "{place} does not say {words:?}");
        // Nor another one beside it.
        let (before, after) = words.split_once(said).unwrap();
        for rest in text.split(before).skip(1) {
            let other = rest.split(after).next().unwrap();
            let is_version = other.starts_with("1.") && other.len() < 8;
            assert!(!is_version || other == said, "{place}: {before}{other}{after}");
        }
    }
}

#[test]
fn one_compiler_is_pinned_and_is_no_older_than_the_oldest() {
    let pinned: toml::Table = read("rust-toolchain.toml").parse().unwrap();
    let pinned = version(pinned["toolchain"]["channel"].as_str().unwrap());
    assert_eq!(pinned.len(), 3, "a whole version, such as 1.95.0: lints change with each");
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(pinned >= version(oldest), "{pinned:?} is older than {oldest}");
    let container: Value = serde_json::from_str(&read(".devcontainer/devcontainer.json")).unwrap();
    let image = container["image"].as_str().unwrap();
    let [major, minor, patch] = pinned[..] else { unreachable!() };
    let named = format!("rust:{major}.{minor}.{patch}-");
    assert!(image.starts_with(&named), "the dev container is {image}, not {named}…");
}

/// The jobs and the actions' steps of all workflows: `uses` of other repositories name a commit.
#[test]
fn workflows_run_actions_by_their_commit() {
    let mut found = 0;
    for (place, text) in files(&[".github"], ".yml") {
        for line in text.lines().map(|line| line.trim_start().trim_start_matches("- ")) {
            let Some(action) = line.strip_prefix("uses: ") else { continue };
            if action.starts_with("./") {
                continue;
            }
            let (reference, comment) = action.split_once(" # ").unwrap_or((action, ""));
            let commit = reference.rsplit('@').next().unwrap();
            let is_commit = commit.len() == 40 && commit.bytes().all(|it| it.is_ascii_hexdigit());
            assert!(is_commit && comment.starts_with('v'), "{place}: {action}");
            found += 1;
        }
    }
    assert!(found > 8, "{found} actions were found");
}

#[test]
fn workflows_and_templates_run_targets_of_the_makefile() {
    let makefile = read("Makefile");
    let mut found = 0;
    for (place, text) in files(&[".github"], "") {
        let calls = ["run: make ", "`make "].into_iter().flat_map(|call| text.split(call).skip(1));
        for call in calls {
            let end = call.find(|it: char| !it.is_ascii_lowercase() && it != '-');
            let target = &call[..end.unwrap_or(call.len())];
            let is_there = makefile.contains(&format!("\n{target}:"));
            assert!(is_there, "{place} runs `make {target}`, which the Makefile lacks");
            found += 1;
        }
    }
    assert!(found > 5, "{found} calls of make were found");
}

#[test]
fn every_fuzz_target_has_a_small_corpus_and_every_corpus_a_target() {
    const MOST_FILE_BYTES: u64 = 32 << 10;
    const MOST_FILES: usize = 64;
    let mut targets = BTreeSet::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let file = entry.unwrap().path().join("src/fuzz.rs");
        let text = fs::read_to_string(file).unwrap_or_default();
        let names = text.split("Target { name: \"").skip(1).map(|rest| rest.split('"').next());
        targets.extend(names.map(|name| name.unwrap().to_owned()));
    }
    assert!(targets.len() > 20, "{targets:?}");
    let mut folders = BTreeSet::new();
    for folder in fs::read_dir(root().join("fuzz/corpus")).unwrap() {
        let folder = folder.unwrap();
        folders.insert(folder.file_name().into_string().unwrap());
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
        assert!(files.len() <= MOST_FILES, "{:?} has {} files", folder.path(), files.len());
        for file in files {
            let bytes = file.metadata().unwrap().len();
            assert!(bytes <= MOST_FILE_BYTES, "{:?} has {bytes} B", file.path());
        }
    }
    assert_eq!(targets, folders);
}

#[test]
fn the_product_has_no_fuzz_targets() {
    for (place, text) in product() {
        let compiled = text.contains("pub mod fuzz;");
        let guarded = text.contains("#[cfg(any(test, fuzzing))]\npub mod fuzz;");
        assert!(!compiled || guarded, "{place} compiles its fuzz targets into the product");
    }
}

#[test]
fn what_is_released_together_has_one_version() {
    let client = fs::read_to_string(root().join("web/client/package.json")).unwrap();
    let client: Value = serde_json::from_str(&client).unwrap();
    assert_eq!(client["version"], env!("CARGO_PKG_VERSION"), "web/client/package.json");
}
