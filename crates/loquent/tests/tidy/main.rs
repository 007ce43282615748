//! The repository's habits as tests: who may depend on whom, how long functions and files grow,
//! where `unsafe`, clocks and HTTP status codes may stand, what names and comments look like.

mod binaries;
mod claims;
mod cycles;
mod draft;
mod language;
mod ratchet;
mod reliability;
mod sources;
mod supply;

use std::collections::BTreeSet;
use std::fs;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use sources::{lines_before_tests, product, root, sources, syntax};

/// Our crates that each crate may depend on; the direction in ARCHITECTURE.md.
const ALLOWED: &[(&str, &[&str])] = &[
    ("book", &[]),
    ("needs", &[]),
    ("script-model", &[]),
    (
        "world",
        &["proto", "infer", "openai", "serving", "store", "resumable", "dialects", "responses"],
    ),
    ("proto", &[]),
    ("infer", &[]),
    ("formats", &["infer"]),
    ("kernels", &[]),
    ("engine", &["infer", "formats", "kernels"]),
    ("openai", &["proto"]),
    ("serving", &["proto", "infer", "formats", "openai"]),
    ("gateway", &["proto", "infer", "formats", "openai", "serving"]),
    ("store", &["proto", "openai", "serving"]),
    ("resumable", &["proto", "infer", "serving", "store"]),
    ("dialects", &["proto", "infer", "serving", "store"]),
    ("responses", &["proto", "infer", "serving", "store", "resumable", "dialects"]),
    (
        "server",
        &[
            "proto",
            "infer",
            "formats",
            "engine",
            "openai",
            "serving",
            "gateway",
            "store",
            "resumable",
            "dialects",
            "responses",
        ],
    ),
    ("client", &["proto", "openai"]),
    ("sim", &["proto", "infer"]),
    ("bench", &["proto", "client", "openai", "sim"]),
    (
        "loquent",
        &[
            "book", "proto", "infer", "formats", "engine", "server", "client", "openai", "sim",
            "bench",
        ],
    ),
];

/// Crates from outside that a crate must not know.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("proto", &["*"]),
    ("infer", &["tokio", "llama-cpp-sys-2", "libc", "rand", "hyper", "axum"]),
    ("formats", &["tokio", "hyper", "axum", "http", "llama-cpp-sys-2", "libc"]),
    ("kernels", &["tokio", "loquent-infer"]),
    ("engine", &["tokio", "hyper", "axum", "http", "reqwest"]),
    ("serving", &["axum", "quinn", "redis", "redb", "loquent-engine"]),
    ("gateway", &["axum", "quinn", "redis", "redb"]),
    ("store", &["axum", "quinn", "hyper"]),
    ("resumable", &["axum", "quinn", "hyper"]),
    ("dialects", &["axum", "tokio", "quinn", "hyper"]),
    ("responses", &["axum", "quinn", "hyper", "http"]),
    ("server", &["redis", "redb", "llama-cpp-sys-2"]),
    ("sim", &["tokio", "quinn", "hyper", "socket2"]),
];

fn dependencies(krate: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates").join(krate).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let table = manifest.get("dependencies").and_then(toml::Value::as_table);
    table.map(|table| table.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn crates_depend_only_in_the_allowed_direction() {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let listed: BTreeSet<_> = ALLOWED.iter().map(|&(name, _)| name.to_owned()).collect();
    assert_eq!(folders.collect::<BTreeSet<_>>(), listed, "a new crate needs its place in ALLOWED");
    for (krate, allowed) in ALLOWED {
        for dependency in dependencies(krate) {
            if let Some(ours) = dependency.strip_prefix("loquent-") {
                assert!(allowed.contains(&ours), "{krate} must not depend on {ours}");
            }
        }
    }
}

#[test]
fn crates_keep_away_from_what_they_must_not_know() {
    for (krate, forbidden) in FORBIDDEN {
        for dependency in dependencies(krate) {
            let known = forbidden.iter().any(|&name| name == "*" || name == dependency);
            assert!(!known, "{krate} must not depend on {dependency}");
        }
    }
}

/// Collects the length in lines of every function outside tests.
#[derive(Default)]
struct Lengths {
    lines: Vec<(usize, String)>,
}

impl Lengths {
    fn note(&mut self, name: &syn::Ident, block: &syn::Block) {
        let span = block.span();
        self.lines.push((span.end().line - span.start().line + 1, name.to_string()));
    }
}

impl<'ast> Visit<'ast> for Lengths {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note(&function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

/// These bounds only ever go down.
const LONGEST_FUNCTION: usize = 50;
const P90_FUNCTION: usize = 24;
const LONGEST_FILE: usize = 900;

#[test]
fn functions_stay_short() {
    let mut all = Vec::new();
    for (place, text) in product() {
        let mut lengths = Lengths::default();
        lengths.visit_file(&syntax(&place, &text));
        let named =
            lengths.lines.into_iter().map(|(lines, name)| (lines, format!("{place}: {name}")));
        all.extend(named);
    }
    all.sort();
    let (longest, name) = all.last().unwrap();
    let p90 = all[all.len() * 9 / 10].0;
    println!("{} functions, p90 {p90} lines, longest {longest} ({name})", all.len());
    assert!(*longest <= LONGEST_FUNCTION, "{name} has {longest} lines");
    assert!(p90 <= P90_FUNCTION, "a tenth of all functions is longer than {p90} lines");
}

#[test]
fn files_stay_short() {
    for (place, text) in product() {
        let lines = lines_before_tests(&text).count();
        assert!(lines <= LONGEST_FILE, "{place} has {lines} lines: split it by what it does");
    }
}

#[test]
fn unsafe_code_stands_in_two_places() {
    for (place, text) in sources() {
        let allowed = place.starts_with("crates/engine/src/llama/")
            || place.starts_with("crates/kernels/src/")
            || place == "crates/loquent/tests/tidy/main.rs";
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let used = code.into_iter().any(|line| line.contains("unsafe "));
        assert!(allowed || !used, "{place} has unsafe code");
    }
}

#[test]
fn only_one_file_of_the_server_knows_status_codes() {
    let of_the_server =
        ["server", "serving", "gateway", "store", "resumable", "dialects", "responses"];
    for (place, text) in sources() {
        let is_of_it = |krate: &&str| place.starts_with(&format!("crates/{krate}/src/"));
        if of_the_server.iter().any(is_of_it) && place != "crates/serving/src/error.rs" {
            assert!(!text.contains("StatusCode"), "{place} names status codes");
        }
    }
}

#[test]
fn proto_and_infer_never_learn_the_time() {
    for (place, text) in sources() {
        if place.starts_with("crates/proto/src") || place.starts_with("crates/infer/src") {
            for clock in ["Instant::now", "SystemTime", "std::thread", "std::net"] {
                assert!(!text.contains(clock), "{place} uses {clock}");
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for (place, text) in sources() {
        let first = text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
        assert!(
            first.starts_with("//"),
            "{place} begins without a comment that says what it is for"
        );
    }
}
