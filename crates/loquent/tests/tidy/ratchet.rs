//! Habits that are counted and whose counts only ever go down: names that stand for anything,
//! arguments packed in tuples, types spread over files, docs that begin with a riddle.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::sources::{before_tests, product, syntax};

/// Types whose name ends in `Place`: a permit, a slot, a lease or a position, which one unsaid.
const PLACES: usize = 0;
/// Functions that take several arguments packed in a tuple.
const TUPLE_ARGUMENTS: usize = 29;
/// Types whose own methods stand in several files.
const SPREAD_TYPES: usize = 16;
/// Most lines of one type's own methods, in all files.
const LONGEST_TYPE: usize = 1462;
/// Doc blocks that begin with What, Whether, Who or Those in place of a noun.
const RIDDLES: usize = 4;

/// Fails if more were found than the bound allows.
fn check(what: &str, bound: usize, found: &[String]) {
    println!("{what}: {}", found.len());
    assert!(found.len() <= bound, "{} {what}, at most {bound}: {found:#?}", found.len());
}

#[test]
fn types_are_named_after_what_they_hold() {
    let mut found = Vec::new();
    for (place, text) in product() {
        for item in syntax(&place, &text).items {
            let name = match item {
                syn::Item::Struct(one) => one.ident,
                syn::Item::Enum(one) => one.ident,
                syn::Item::Type(one) => one.ident,
                _ => continue,
            };
            if name.to_string().ends_with("Place") {
                found.push(format!("{place}: {name}"));
            }
        }
    }
    check("types named Place", PLACES, &found);
}

/// Functions with a pattern such as `(retries, rate): (u32, u64)` among their arguments.
#[derive(Default)]
struct Tuples(Vec<String>);

impl Tuples {
    fn note(&mut self, signature: &syn::Signature) {
        let is_tuple = |argument: &syn::FnArg| {
            let syn::FnArg::Typed(typed) = argument else { return false };
            matches!((&*typed.pat, &*typed.ty), (syn::Pat::Tuple(_), syn::Type::Tuple(_)))
        };
        if signature.inputs.iter().any(is_tuple) {
            self.0.push(signature.ident.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for Tuples {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.note(signature);
        visit::visit_signature(self, signature);
    }
}

#[test]
fn arguments_stand_for_themselves() {
    let mut found = Vec::new();
    for (place, text) in product() {
        let mut tuples = Tuples::default();
        tuples.visit_file(&syntax(&place, &text));
        found.extend(tuples.0.into_iter().map(|name| format!("{place}: {name}")));
    }
    check("functions with arguments in a tuple", TUPLE_ARGUMENTS, &found);
}

/// A type by its crate and name: the files of its inherent methods, and their lines.
type Types = BTreeMap<(String, String), (BTreeSet<String>, usize)>;

fn types() -> Types {
    let mut types = Types::new();
    for (place, text) in product() {
        let krate = place.split('/').nth(1).unwrap_or_default().to_owned();
        for item in syntax(&place, &text).items {
            let syn::Item::Impl(block) = item else { continue };
            let syn::Type::Path(path) = &*block.self_ty else { continue };
            let (None, Some(name)) = (&block.trait_, path.path.segments.last()) else { continue };
            let span = block.span();
            let lines = span.end().line - span.start().line + 1;
            let entry = types.entry((krate.clone(), name.ident.to_string())).or_default();
            entry.0.insert(place.clone());
            entry.1 += lines;
        }
    }
    types
}

#[test]
fn a_type_is_not_cut_in_pieces_to_keep_its_file_short() {
    let types = types();
    let spread = types.iter().filter(|(_, (files, _))| files.len() > 1);
    let spread: Vec<_> = spread.map(|((krate, name), _)| format!("{krate}: {name}")).collect();
    check("types with methods in several files", SPREAD_TYPES, &spread);
    let (name, (_, lines)) = types.iter().max_by_key(|(_, (_, lines))| *lines).unwrap();
    println!("longest type: {name:?} with {lines} lines of methods");
    assert!(*lines <= LONGEST_TYPE, "{name:?} has {lines} lines of methods");
}

#[test]
fn docs_begin_with_a_noun_or_a_verb() {
    const STARTS: [&str; 7] = ["What", "Whatever", "Whether", "Who", "Whoever", "Whom", "Those"];
    let (mut all, mut found) = (0, Vec::new());
    for (place, text) in product() {
        let mut inside = false;
        for (at, line) in before_tests(&text).lines().enumerate() {
            let line = line.trim_start();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let Some(doc) = doc.filter(|_| !inside) {
                all += 1;
                let first = doc.trim_start().split(|it: char| !it.is_alphabetic()).next();
                if STARTS.contains(&first.unwrap_or_default()) {
                    found.push(format!("{place}:{}: {}", at + 1, doc.trim()));
                }
            }
            inside = doc.is_some();
        }
    }
    println!("{} of {all} doc blocks begin with a riddle", found.len());
    check("docs that begin with What, Whether, Who or Those", RIDDLES, &found);
}
