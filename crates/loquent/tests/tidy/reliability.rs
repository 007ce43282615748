//! The page of faults and abuses: each row names a test that holds it, and each test is there and
//! runs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Item, ItemMacro, Lit, Meta, Token};

use crate::sources::{parents, root, sources};

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

/// What holds where the tests run, beside `test` and `unix`: Linux on x86-64, default features.
const USUAL_VALUES: &[(&str, &str)] =
    &[("feature", "llama"), ("target_os", "linux"), ("target_arch", "x86_64")];

/// Where `file` is; `server/src/sse.rs` is short for a file in `crates`.
fn place(file: &str) -> Option<PathBuf> {
    let places = [root().join("crates").join(file), root().join(file)];
    places.into_iter().find(|place| place.is_file())
}

/// Why `file` has no test of this name that runs; `None` if it has one.
fn complaint(file: &str, name: &str) -> Option<&'static str> {
    let Some(path) = place(file) else { return Some("there is no such file") };
    let text = std::fs::read_to_string(&path).expect("a text");
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") if !is_compiled(&path) => Some("the file belongs to no crate"),
        Some("rs") => rust_complaint(&text, name),
        Some("py") => python_complaint(&text, name),
        _ => javascript_complaint(&text, name),
    }
}

/// All Rust files, read once.
fn rust_files() -> &'static [(String, String)] {
    static FILES: OnceLock<Vec<(String, String)>> = OnceLock::new();
    FILES.get_or_init(sources)
}

/// Whether a Rust file is the root of a crate or a test, or a module of another file.
fn is_compiled(path: &Path) -> bool {
    let stem = path.file_stem().expect("a file").to_string_lossy();
    let is_test = path.parent().is_some_and(|folder| folder.ends_with("tests"));
    if is_test || ["main", "lib", "mod"].contains(&&*stem) {
        return true;
    }
    let own = path.strip_prefix(root()).expect("in the repository").to_string_lossy();
    let of_crate = own.splitn(3, '/').take(2).collect::<Vec<_>>().join("/") + "/";
    let (included, parents) = (format!("{stem}.rs\"]"), parents(&own));
    let others = rust_files().iter().filter(|(place, _)| place.starts_with(&of_crate));
    others.filter(|(place, _)| *place != own).any(|(place, text)| {
        text.contains(&included) || (parents.contains(place) && is_module(text, &stem))
    })
}

/// Whether a file's text declares the module `name` without a condition that is not met.
fn is_module(text: &str, name: &str) -> bool {
    let file = syn::parse_file(text).expect("Rust");
    file.items.iter().any(|item| match item {
        Item::Mod(module) => module.ident == name && is_usual(&module.attrs),
        _ => false,
    })
}

fn rust_complaint(text: &str, name: &str) -> Option<&'static str> {
    let file = syn::parse_file(text).expect("Rust");
    if !is_usual(&file.attrs) {
        return Some("its file is compiled on a condition");
    }
    item_complaint(&file.items, name).unwrap_or(Some("no function has this name"))
}

/// Of the first function of this name in `items` and their modules: why it is no test that runs.
fn item_complaint(items: &[Item], name: &str) -> Option<Option<&'static str>> {
    items.iter().find_map(|item| match item {
        Item::Fn(function) if function.sig.ident == name => {
            Some(attribute_complaint(&function.attrs))
        }
        Item::Mod(module) => {
            let (_, items) = module.content.as_ref()?;
            let found = item_complaint(items, name)?;
            let is_compiled = is_usual(&module.attrs);
            Some(if is_compiled { found } else { Some("its module is compiled on a condition") })
        }
        Item::Macro(ItemMacro { mac, .. }) if mac.path.is_ident("proptest") => {
            let tokens = mac.tokens.to_string();
            let (before, _) = tokens.split_once(&format!("fn {name} ("))?;
            // From the end of the function before it.
            let own = before.rsplit('}').next().unwrap_or_default();
            let runs = own.contains("# [test]") && !own.contains("# [ignore");
            Some((!runs).then_some("it is no test of proptest that runs"))
        }
        _ => None,
    })
}

fn attribute_complaint(attributes: &[Attribute]) -> Option<&'static str> {
    let is = |attribute: &Attribute, name: &str| {
        attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
    };
    if !attributes.iter().any(|attribute| is(attribute, "test")) {
        return Some("it is no test");
    }
    if attributes.iter().any(|attribute| is(attribute, "ignore") || is(attribute, "cfg_attr")) {
        return Some("it is ignored");
    }
    (!is_usual(attributes)).then_some("it is compiled on a condition")
}

/// Whether the conditions of this are met where the tests run.
fn is_usual(attributes: &[Attribute]) -> bool {
    let mut conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.all(|attribute| attribute.parse_args().is_ok_and(|condition| holds(&condition)))
}

fn holds(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("unix"),
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(value), .. }) => USUAL_VALUES
                .iter()
                .any(|(name, usual)| pair.path.is_ident(name) && value.value() == *usual),
            _ => false,
        },
        Meta::List(list) => {
            let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
            let inner = list.parse_args_with(parse).expect("conditions");
            match () {
                () if list.path.is_ident("all") => inner.iter().all(holds),
                () if list.path.is_ident("any") => inner.iter().any(holds),
                () => !inner.iter().any(holds),
            }
        }
    }
}

fn python_complaint(text: &str, name: &str) -> Option<&'static str> {
    let lines: Vec<&str> = text.lines().collect();
    let is_it = |line: &&str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.starts_with(&format!("def {name}("))
    };
    let Some(at) = lines.iter().position(is_it) else { return Some("no function has this name") };
    let mut above = lines[..at].iter().rev().take_while(|line| !line.is_empty());
    match above.any(|line| line.starts_with("@pytest.mark.skip(") || *line == "@pytest.mark.skip") {
        true => Some("it is skipped"),
        false => (!name.starts_with("test_")).then_some("it is no test"),
    }
}

fn javascript_complaint(text: &str, name: &str) -> Option<&'static str> {
    let Some((_, rest)) = text.split_once(&format!("test(\"{name}\"")) else {
        return Some("no test has this name");
    };
    let options = rest.lines().next().unwrap_or_default();
    let is_left_out = options.contains("skip: true") || options.contains("todo");
    is_left_out.then_some("it is skipped")
}

#[test]
fn each_fault_names_tests_that_run() {
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let rows = rows(&page);
    assert!(rows.len() >= FEWEST_ROWS, "{PAGE} has {} rows", rows.len());
    let untested: Vec<_> = rows.iter().filter(|row| tests(row).is_empty()).collect();
    assert!(untested.is_empty(), "these rows name no test: {untested:#?}");
    let all = rows.iter().flat_map(|row| tests(row));
    let wrong = all.filter_map(|(file, name)| Some((complaint(&file, &name)?, file, name)));
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "these are no tests that run: {wrong:#?}");
}

#[test]
fn a_test_that_is_not_there_is_noticed() {
    let row = "| `std::a` | b | `tidy/none.rs::one`, `::two` |";
    let expected = [("tidy/none.rs", "one"), ("tidy/none.rs", "two")];
    let expected = expected.map(|(file, name)| (file.to_owned(), name.to_owned()));
    assert_eq!(tests(row), expected);
    let own = "loquent/tests/tidy/reliability.rs";
    assert_eq!(complaint(own, "a_test_that_is_not_there_is_noticed"), None);
    assert!(complaint(own, "no_such_test").is_some() && complaint("none.rs", "one").is_some());
    assert!(complaint(own, "rows").is_some(), "a function that is no test");
}

#[test]
fn a_test_that_does_not_run_is_noticed() {
    let with = |above: &str| format!("#[test]\n{above}\nfn one() {{}}");
    for runs in [
        with(""),
        with("#[cfg(any(fuzzing, all(unix, target_os = \"linux\")))]"),
        with("").replace("test", "tokio::test(x = 2)"),
    ] {
        assert_eq!(rust_complaint(&runs, "one"), None, "{runs}");
    }
    let property = "proptest! { fn no() {} /// Doc\n #[test] fn one(a: u8) {} }";
    assert_eq!(rust_complaint(property, "one"), None);
    for left_out in [
        "fn one() {}".to_owned(),
        with("#[ignore]"),
        with("#[ignore = \"slow\"]"),
        with("#[cfg(any())]"),
        with("#[cfg(not(test))]"),
        with("#[cfg(all(test, windows))]"),
        format!("#![cfg(feature = \"rpc\")]\n{}", with("")),
        format!("#[cfg(fuzzing)] mod inner {{ {} }}", with("")),
        property.replace("#[test]", "#[test] #[ignore]"),
        property.replace("#[test]", ""),
        // A macro's text is no item of the file.
        format!("fn other() {{ let text = {:?}; }}", with("")),
    ] {
        assert!(rust_complaint(&left_out, "one").is_some(), "{left_out}");
    }
    assert_eq!(python_complaint("@scenario\nasync def test_one(x):\n", "test_one"), None);
    assert!(python_complaint("@pytest.mark.skip(\"\")\ndef test_one():\n", "test_one").is_some());
    assert!(python_complaint("def one():\n", "one").is_some());
    assert_eq!(javascript_complaint("test(\"one\", async () => {", "one"), None);
    assert!(javascript_complaint("test(\"one\", { skip: true }, () => {", "one").is_some());
    assert!(javascript_complaint("test.skip(\"one\", () => {", "one").is_some());
}
