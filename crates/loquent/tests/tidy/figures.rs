//! README's figures are those of bench/RESULTS.md.

use std::fs;

use crate::sources::root;

/// The sections of a page: heading and text.
fn sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n## ").skip(1).filter_map(|section| section.split_once('\n')).collect()
}

/// The numbers in `text`, as they are written.
fn numbers(text: &str) -> Vec<&str> {
    let is_number = |part: &&str| part.contains(|c: char| c.is_ascii_digit());
    let split = text.split(|c: char| !c.is_ascii_digit() && c != '.' && c != ',');
    split.map(|part| part.trim_matches(['.', ','])).filter(is_number).collect()
}

#[test]
fn readme_quotes_the_figures_of_the_sections_that_it_names() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let results = fs::read_to_string(root().join("bench/RESULTS.md")).unwrap();
    let results = sections(&results);
    let readme = sections(&readme);
    let (_, table) = readme.iter().find(|(heading, _)| *heading == "How fast").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("| ---"))
        .skip(1)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "README's table of figures is gone");
    for row in rows {
        let [measure, figure, named] = *row else { panic!("{row:?} has not three cells") };
        let (_, text) = results
            .iter()
            .find(|(heading, _)| heading.starts_with(named))
            .unwrap_or_else(|| panic!("RESULTS.md has no section {named:?}"));
        let written = numbers(text);
        assert!(!numbers(figure).is_empty(), "{measure}: no figure in {figure:?}");
        for number in numbers(figure) {
            assert!(written.contains(&number), "{measure}: {number} is not in {named:?}");
        }
    }
}
