//! Statements of the README and the book that a table or a constant of the code decides: prose
//! must not say something else.

use std::collections::BTreeSet;
use std::fs;

use crate::sources::{files, root};

/// Routes of Ollama's own API, without `blobs`, which is a part of `create`.
const OLLAMA_ROUTES: [&str; 12] = [
    "chat",
    "copy",
    "create",
    "delete",
    "embed",
    "embeddings",
    "generate",
    "ps",
    "pull",
    "push",
    "show",
    "tags",
];

/// The endpoint of each API that streams answers, as the README's table names it.
const ANSWERING: [(&str, &str); 6] = [
    ("/v1/chat/completions", "chat"),
    ("/v1/completions", "completions"),
    ("/v1/responses", "responses"),
    ("/v1/ui/chat", "the AI SDK's streams"),
    ("/v1/messages", "Messages"),
    ("/api/chat", "Ollama's API"),
];

fn read(place: &str) -> String {
    fs::read_to_string(root().join(place)).unwrap_or_else(|error| panic!("{place}: {error}"))
}

/// The README, the changelog and the book as (place, text), with one space between words.
fn prose() -> Vec<(String, String)> {
    let pages = files(&["docs"], ".md").into_iter();
    let others = ["README.md", "CHANGELOG.md"].map(|place| (place.to_owned(), read(place)));
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    pages.chain(others).map(|(place, text)| (place, words(text))).collect()
}

/// The number that a constant has in the source at `place`.
fn constant(place: &str, name: &str) -> usize {
    let text = read(place);
    let (_, rest) = text.split_once(&format!("const {name}: usize = ")).expect(name);
    number(rest.split(';').next().unwrap()).expect(name)
}

/// `1,024`, `1_024` and `1024` as a number.
fn number(text: &str) -> Option<usize> {
    text.replace([',', '_'], "").parse().ok()
}

/// The cell in column `column` of the row of a Markdown table whose first cell is `first`.
fn cell(text: &str, first: &str, column: usize) -> String {
    let row = text.lines().find(|line| line.starts_with(&format!("| {first} |")));
    let cells = row.unwrap_or_else(|| panic!("no row {first}")).split(" | ");
    cells.skip(column).map(str::to_owned).next().expect(first)
}

/// All string literals in `text` that are paths.
fn paths(text: &str) -> BTreeSet<&str> {
    text.split('"').skip(1).step_by(2).filter(|literal| literal.starts_with('/')).collect()
}

/// The body of the first function called `name` in the source at `place`.
fn body(place: &str, name: &str) -> String {
    let text = read(place);
    let (_, rest) = text.split_once(&format!("fn {name}(")).expect(name);
    rest.split("\n    }\n").next().unwrap().to_owned()
}

#[test]
fn the_number_of_readers_is_the_codes() {
    let most = constant("crates/resumable/src/readers.rs", "MAX_READERS");
    let mut named = 0;
    for (place, text) in prose() {
        let text = text.to_lowercase();
        assert!(!text.contains("any number of readers"), "{place}: there may be {most} readers");
        for told in text.split("up to ").skip(1) {
            if let Some(told) = told.split_once(" readers").and_then(|(it, _)| number(it)) {
                assert_eq!(told, most, "{place}: up to {told} readers");
                named += 1;
            }
        }
    }
    assert!(named >= 3, "the statements about readers were not found");
}

#[test]
fn the_number_of_a_folders_models_is_the_codes() {
    let most = constant("crates/loquent/src/serve/several.rs", "MAX_MODELS");
    let (_, page) = prose().into_iter().find(|(place, _)| place == "docs/models.md").unwrap();
    let (_, rest) = page.split_once("serves every GGUF file of a folder").expect("the sentence");
    let (_, rest) = rest.split_once("at most ").expect("its number");
    assert_eq!(number(rest.split('.').next().unwrap()), Some(most));
}

/// How an API's answer goes on after a lost connection, which its table of parameters says: by
/// itself, for clients that ask for the rest, or not at all.
fn continuation(tables: &str, path: &str) -> usize {
    let begin = format!("## POST {path}\n");
    let section = tables.split_once(&begin).expect(path).1.split("\n## ").next().unwrap();
    match () {
        () if section.contains("| `resumable` | supported |") => 0,
        () if section.contains("resum") => 1,
        () => 2,
    }
}

#[test]
fn the_answers_that_go_on_are_the_codes() {
    let row = cell(&read("README.md"), "Goes on after a lost connection, each token once", 1);
    let parts: Vec<_> = row.split("; ").collect();
    assert_eq!(parts.len(), 3, "by itself; for clients that ask; not: {row}");
    // The page is made from the APIs' tables, by a test of theirs.
    let tables = read("docs/compatibility.md");
    for (path, name) in ANSWERING {
        let expected = continuation(&tables, path);
        let found = parts.iter().position(|part| part.contains(name));
        assert_eq!(found, Some(expected), "{name} in: {row}");
    }
    // Over QUIC, and through the proxy, an answer goes on by itself where it can at all.
    let by_datagram = body("crates/server/src/quic/request_head.rs", "endpoint");
    let by_proxy = body("crates/loquent/src/connect/proxy.rs", "kind");
    let own = ANSWERING.map(|(path, _)| path).into_iter();
    let own: BTreeSet<_> = own.filter(|path| continuation(&tables, path) == 0).collect();
    let is_answering = |path: &&str| ANSWERING.iter().any(|(known, _)| known == path);
    for code in [&by_datagram, &by_proxy] {
        let found: BTreeSet<_> = paths(code).into_iter().filter(is_answering).collect();
        assert_eq!(found, own);
    }
    for page in ["docs/networks.md", "docs/python.md"] {
        let named = "`POST /v1/chat/completions` and `/v1/completions` with `stream`";
        assert!(own.iter().all(|path| named.contains(path)), "{own:?}");
        assert!(read(page).contains(&format!("| {named} |")), "{page} has no row of them");
    }
}

#[test]
fn the_missing_routes_of_ollama_are_the_codes() {
    let openapi: serde_json::Value = serde_json::from_str(&read("docs/openapi.json")).unwrap();
    let routes = openapi["paths"].as_object().unwrap();
    let missing: Vec<_> = OLLAMA_ROUTES
        .into_iter()
        .filter(|name| !routes.keys().any(|path| *path == format!("/api/{name}")))
        .collect();
    let told = cell(&read("README.md"), "APIs of OpenAI (Responses too), Anthropic, Ollama", 1);
    let (_, told) = told.split_once("Ollama's without ").expect("what is missing");
    let told = told.replace(" and ", ", ");
    assert_eq!(told.split(", ").collect::<BTreeSet<_>>(), missing.into_iter().collect());
}
