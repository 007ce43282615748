//! Names, comments and prose: one word for one meaning, comments that say why, lines that fit.

use std::collections::BTreeMap;

use crate::sources::{before_tests, files, lines_before_tests, product, root, syntax};

/// Percent of type definitions whose name another type has too; it only ever goes down.
const COLLIDING_PERCENT: usize = 5;

#[test]
fn a_type_name_has_one_meaning() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (place, text) in product() {
        for item in syntax(&place, &text).items {
            let name = match item {
                syn::Item::Struct(one) => one.ident,
                syn::Item::Enum(one) => one.ident,
                syn::Item::Trait(one) => one.ident,
                _ => continue,
            };
            places.entry(name.to_string()).or_default().push(place.clone());
        }
    }
    let all: usize = places.values().map(Vec::len).sum();
    places.retain(|_, places| places.len() > 1);
    let colliding: usize = places.values().map(Vec::len).sum();
    println!("{colliding} of {all} type definitions share their name with another");
    let few = colliding * 100 <= all * COLLIDING_PERCENT;
    assert!(few, "{colliding} of {all} type definitions share their name: {places:#?}");
}

/// Of a thousand lines of code, how many are comments inside it; it only ever goes up.
const COMMENTS_PER_MILLE: usize = 19;

#[test]
fn comments_inside_code_say_why() {
    let (mut all, mut comments) = (0, 0);
    for (_, text) in product() {
        for line in lines_before_tests(&text) {
            let documents = line.starts_with("///") || line.starts_with("//!");
            all += 1;
            comments += usize::from(line.starts_with("//") && !documents);
        }
    }
    println!("{comments} of {all} lines are comments inside code");
    assert!(comments * 1000 >= all * COMMENTS_PER_MILLE, "{comments} of {all}");
}

/// Columns of a line of prose in Markdown, of code in Rust.
const PROSE_COLUMNS: usize = 120;
const CODE_COLUMNS: usize = 100;

#[test]
fn lines_fit_a_window() {
    let mut long = Vec::new();
    let mut check = |place: &str, text: &str, columns: usize, skip: &dyn Fn(&str) -> bool| {
        for (at, line) in text.lines().enumerate() {
            if line.chars().count() > columns && !skip(line) {
                long.push(format!("{place}:{}", at + 1));
            }
        }
    };
    // rustfmt leaves long string literals as they are.
    let literal = |line: &str| line.contains('"') || line.ends_with('\\');
    for (place, text) in product() {
        check(&place, before_tests(&text), CODE_COLUMNS, &literal);
    }
    // A row of a table, a link or a command cannot be broken.
    let is_command = |line: &str| line.starts_with('`') && line.ends_with('`');
    let unbreakable =
        |line: &str| line.starts_with('|') || is_command(line) || !line.trim_end().contains(' ');
    for (place, text) in files(&["docs", "spec", "bench", "models", "web/client"], ".md") {
        check(&place, &without_code(&text), PROSE_COLUMNS, &unbreakable);
    }
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        let text = std::fs::read_to_string(root().join(name)).unwrap();
        check(name, &without_code(&text), PROSE_COLUMNS, &unbreakable);
    }
    assert!(long.is_empty(), "{} lines are too long: {long:#?}", long.len());
}

/// Markdown with its fenced blocks emptied; lines keep their numbers.
fn without_code(text: &str) -> String {
    let mut inside = false;
    let line = |line: &str| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        if inside || fence { "\n".into() } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}

#[test]
fn docs_name_files_that_exist() {
    let mut missing = Vec::new();
    let mut pages = files(&["docs"], ".md");
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"] {
        pages.push((name.into(), std::fs::read_to_string(root().join(name)).unwrap()));
    }
    for (place, text) in pages {
        let text = without_code(&text);
        let spans = text.split('`').skip(1).step_by(2);
        missing.extend(
            spans.filter(|span| !names_a_file(span)).map(|span| format!("{place}: {span}")),
        );
    }
    assert!(missing.is_empty(), "these are not in the tree: {missing:#?}");
}

/// Whether a code span is no path into the tree, or one that exists. `proto/log.rs` is short for
/// `crates/proto/src/log.rs`.
fn names_a_file(span: &str) -> bool {
    let Some((first, rest)) = span.split_once('/') else { return true };
    if first.is_empty() {
        return true; // a route
    }
    let is_path = span.bytes().all(|it| it.is_ascii_alphanumeric() || b"/._-".contains(&it));
    let krate = root().join("crates").join(first);
    if !is_path || !(krate.is_dir() || span.ends_with(".rs") || span.ends_with(".cpp")) {
        return true;
    }
    let places = [krate.join("src").join(rest), krate.join(rest), root().join(span)];
    let exists = |place: &std::path::PathBuf| place.exists() || place.with_extension("rs").exists();
    places.iter().any(exists)
}
