//! The page of faults and abuses: each row names a test that holds it, and each test is there.

use crate::sources::root;

const PAGE: &str = "docs/reliability.md";
/// Fewer rows than this were not found, or were lost.
const FEWEST_ROWS: usize = 100;

/// The rows of all tables, without their heads.
fn rows(page: &str) -> Vec<&str> {
    let lines: Vec<_> = page.lines().collect();
    let is_head = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("| ---"));
    let in_table = lines.iter().enumerate().filter(|(_, line)| line.starts_with('|'));
    let rows = in_table.filter(|(at, line)| !is_head(*at) && !line.starts_with("| ---"));
    rows.map(|(_, line)| *line).collect()
}

/// The tests that a row names in its last cell, as (file, name). It may name several of one file:
/// the file then stands before the first only.
fn tests(row: &str) -> Vec<(String, String)> {
    let mut file = String::new();
    let mut found = Vec::new();
    let last_cell = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
    for span in last_cell.split('`').skip(1).step_by(2) {
        let Some((path, name)) = span.split_once("::") else { continue };
        if !path.is_empty() {
            file = path.to_owned();
        }
        found.push((file.clone(), name.to_owned()));
    }
    found
}

/// Whether `file` has a test of this name. `server/src/sse.rs` is short for a file in `crates`.
fn exists(file: &str, name: &str) -> bool {
    let places = [root().join("crates").join(file), root().join(file)];
    let Some(text) = places.iter().find_map(|place| std::fs::read_to_string(place).ok()) else {
        return false;
    };
    let quoted = format!("test(\"{name}\"");
    let is_here = |kind: &str| text.contains(&format!("{kind}{name}("));
    is_here("fn ") || is_here("def ") || text.contains(&quoted)
}

#[test]
fn each_fault_names_tests_that_exist() {
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let rows = rows(&page);
    assert!(rows.len() >= FEWEST_ROWS, "{PAGE} has {} rows", rows.len());
    let untested: Vec<_> = rows.iter().filter(|row| tests(row).is_empty()).collect();
    assert!(untested.is_empty(), "these rows name no test: {untested:#?}");
    let all = rows.iter().flat_map(|row| tests(row));
    let missing: Vec<_> = all.filter(|(file, name)| !exists(file, name)).collect();
    assert!(missing.is_empty(), "these tests are not in the tree: {missing:#?}");
}

#[test]
fn a_test_that_is_not_there_is_noticed() {
    let row = "| `std::a` | b | `tidy/none.rs::one`, `::two` |";
    let expected = [("tidy/none.rs", "one"), ("tidy/none.rs", "two")];
    let expected = expected.map(|(file, name)| (file.to_owned(), name.to_owned()));
    assert_eq!(tests(row), expected);
    let file = "loquent/tests/tidy/reliability.rs";
    assert!(exists(file, "a_test_that_is_not_there_is_noticed") && !exists(file, "no_such_test"));
}
