//! Files of one crate that import each other in circles cannot be read one after the other, and
//! folders that do cannot be moved apart. This counts both, by the `crate::`, `super::` and `self::`
//! paths of each file.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::sources::{product, syntax};

/// How many files of a crate may lie in import cycles; 0 where a crate is not listed. These
/// bounds only ever go down.
const FILES_IN_CYCLES: &[(&str, usize)] = &[("server", 4)];

/// How many folders of a crate, that is files and folders directly below `src`, may lie in import
/// cycles; 0 where a crate is not listed. These bounds only ever go down.
const FOLDERS_IN_CYCLES: &[(&str, usize)] = &[];

/// A module's path inside its crate, such as `["streams", "keeper"]`.
type ModulePath = Vec<String>;
type Imports = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

#[test]
fn files_do_not_import_each_other_in_circles() {
    for (krate, files) in crates() {
        check_cycles(&krate, "files", &imports(&files), FILES_IN_CYCLES);
    }
}

#[test]
fn folders_do_not_import_each_other_in_circles() {
    for (krate, files) in crates() {
        check_cycles(&krate, "folders", &by_folder(&imports(&files)), FOLDERS_IN_CYCLES);
    }
}

fn check_cycles(krate: &str, what: &str, imports: &Imports, bounds: &[(&str, usize)]) {
    let circular = in_cycles(imports);
    println!("{krate}: {} of {} {what} in import cycles", circular.len(), imports.len());
    let bound = bounds.iter().find(|(name, _)| *name == krate).map_or(0, |(_, bound)| *bound);
    let names: Vec<_> = circular.iter().map(|path| path.join("::")).collect();
    assert!(circular.len() <= bound, "{krate} has {what} in import cycles: {names:?}");
}

/// The imports of the folders, and of the files beside them, directly below `src`.
fn by_folder(imports: &Imports) -> Imports {
    let mut folders = Imports::new();
    for (path, imported) in imports {
        let Some(folder) = path.get(..1) else { continue };
        let others = imported.iter().map(|other| other[..1].to_vec());
        let others = others.filter(|other| other != folder);
        folders.entry(folder.to_vec()).or_default().extend(others);
    }
    folders
}

/// The product's files by crate.
fn crates() -> BTreeMap<String, Vec<(ModulePath, syn::File)>> {
    let mut crates: BTreeMap<String, Vec<(ModulePath, syn::File)>> = BTreeMap::new();
    for (place, text) in product() {
        let Some((krate, file)) =
            place.strip_prefix("crates/").and_then(|it| it.split_once("/src/"))
        else {
            continue;
        };
        crates.entry(krate.into()).or_default().push((module_path(file), syntax(&place, &text)));
    }
    crates
}

/// `a/b.rs` and `a/b/mod.rs` are both `["a", "b"]`; a crate's root is empty.
fn module_path(file: &str) -> ModulePath {
    let mut path: Vec<_> = file.trim_end_matches(".rs").split('/').map(String::from).collect();
    if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

/// Which modules each module names. A crate's root and `pub use` do not count: they make a
/// module known elsewhere, and do not use it.
fn imports(files: &[(ModulePath, syn::File)]) -> Imports {
    let modules: BTreeSet<_> = files.iter().map(|(path, _)| path.clone()).collect();
    let imports_of = |(here, file): &(ModulePath, syn::File)| {
        let mut paths = Paths { here, modules: &modules, found: BTreeSet::new() };
        paths.visit_file(file);
        paths.found.remove(here);
        paths.found.remove(&ModulePath::new());
        (here.clone(), paths.found)
    };
    files.iter().map(imports_of).collect()
}

struct Paths<'a> {
    here: &'a ModulePath,
    modules: &'a BTreeSet<ModulePath>,
    found: BTreeSet<ModulePath>,
}

impl Paths<'_> {
    fn note(&mut self, segments: &[String]) {
        let Some(first) = segments.first() else { return };
        let mut full = self.here.clone();
        let mut rest = segments;
        match first.as_str() {
            "crate" => (full, rest) = (ModulePath::new(), &segments[1..]),
            "super" | "self" => {
                while let Some((step, after)) = rest.split_first() {
                    match step.as_str() {
                        "super" => drop(full.pop()),
                        "self" => {}
                        _ => break,
                    }
                    rest = after;
                }
            }
            child => {
                full.push(child.into());
                if !self.modules.contains(&full) {
                    return;
                }
                rest = &segments[1..];
            }
        }
        full.extend(rest.iter().cloned());
        let longest = (0..=full.len()).rev().find(|&len| self.modules.contains(&full[..len]));
        self.found.extend(longest.map(|len| full[..len].to_vec()));
    }

    fn note_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) => self.note(&with(&name.ident)),
            syn::UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.note_tree(before, item));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        if matches!(import.vis, syn::Visibility::Inherited) {
            self.note_tree(&[], &import.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|one| one.ident.to_string()).collect();
        let ours = ["crate", "super", "self"].contains(&segments[0].as_str());
        if ours && segments.len() > 1 {
            self.note(&segments);
        }
        visit::visit_path(self, path);
    }
}

/// The modules from which a chain of imports leads back to themselves.
fn in_cycles(imports: &Imports) -> Vec<ModulePath> {
    let reaches_itself = |start: &ModulePath| {
        let mut seen = BTreeSet::new();
        let mut pending = vec![start];
        while let Some(module) = pending.pop() {
            for next in imports.get(module).into_iter().flatten() {
                if next == start {
                    return true;
                }
                if seen.insert(next) {
                    pending.push(next);
                }
            }
        }
        false
    };
    imports.keys().filter(|module| reaches_itself(module)).cloned().collect()
}

#[test]
fn a_circle_of_imports_is_found() {
    let file = |text: &str| syn::parse_file(text).unwrap();
    let path = |path: &str| module_path(&format!("{path}.rs"));
    let files = [
        (path("lib"), file("pub use a::A;")),
        (path("a"), file("use crate::b::{self, B};")),
        (path("b"), file("use std::fmt; fn f() { super::c::g() }")),
        (path("c"), file("use super::a::A as Z;")),
        (path("d/mod"), file("mod e; use e::E; use crate::a;")),
        (path("d/e"), file("pub use super::D;")),
    ];
    let circular = in_cycles(&imports(&files));
    assert_eq!(circular, [path("a"), path("b"), path("c")]);
}

#[test]
fn a_circle_of_folders_is_found() {
    let file = |text: &str| syn::parse_file(text).unwrap();
    let path = |path: &str| module_path(&format!("{path}.rs"));
    let files = [
        (path("a/mod"), file("mod one; mod two;")),
        (path("a/one"), file("use crate::b::B;")),
        (path("a/two"), file("pub struct Two;")),
        (path("b"), file("use crate::a::two::Two;")),
        (path("c"), file("use crate::a;")),
    ];
    let imports = imports(&files);
    assert!(in_cycles(&imports).is_empty(), "no two of the files need each other");
    assert_eq!(in_cycles(&by_folder(&imports)), [path("a"), path("b")]);
}
