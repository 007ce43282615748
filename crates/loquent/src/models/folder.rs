//! GGUF files in a folder and its subfolders: the user's own, or LM Studio's.

use std::fs;
use std::path::Path;

use super::local::{FoundIn, LocalModel, Origin};
use crate::hub::choose;

/// Maximum depth of the search; LM Studio's layout is two deep.
const MAX_DEPTH: usize = 4;
/// Maximum number of entries to examine, in case the root folder is given.
const MAX_ENTRIES: usize = 50_000;

/// Returns the models in `root`, by name.
pub(super) fn models(root: &Path, place: FoundIn) -> Vec<LocalModel> {
    let mut files = Vec::new();
    let mut entries_left = MAX_ENTRIES;
    collect(root, "", MAX_DEPTH, &mut entries_left, &mut files);
    files.sort_unstable();
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let mut models = choose::models(&names);
    models.retain(|model| !choose::is_companion(model[0]));
    let found = models.iter().map(|model| LocalModel {
        name: match place {
            FoundIn::LmStudio => name_in_repo(&models, model),
            _ => stem(model[0]).to_owned(),
        },
        paths: model.iter().map(|file| root.join(file)).collect(),
        is_complete: choose::is_complete(model),
        origin: Origin::Other(place),
    });
    found.collect()
}

/// Returns a file's name without the suffixes of the format.
fn stem(file: &str) -> &str {
    let split = choose::split_of(file).map(|(stem, _, _)| stem);
    split.or_else(|| choose::without_extension(file)).unwrap_or(file)
}

/// Returns a model's name in its repository: LM Studio's folders are the hub's repositories, and
/// its models have the same names.
fn name_in_repo(models: &[choose::Model<'_>], model: &[&str]) -> String {
    let Some(repo) = repo_of(model[0]) else {
        return stem(model[0]).to_owned();
    };
    let in_repo = |files: &[&'_ str]| -> Vec<String> {
        files.iter().map(|file| file[repo.len() + 1..].to_owned()).collect()
    };
    let siblings: Vec<_> = models.iter().filter(|it| repo_of(it[0]) == Some(repo)).collect();
    let owned: Vec<Vec<String>> = siblings.iter().map(|model| in_repo(model)).collect();
    let siblings: Vec<choose::Model<'_>> =
        owned.iter().map(|files| files.iter().map(String::as_str).collect()).collect();
    let own = in_repo(model);
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    format!("{repo}:{}", choose::selector(&siblings, &own))
}

/// Returns `owner/repo` of `owner/repo/file`.
fn repo_of(file: &str) -> Option<&str> {
    let (owner, rest) = file.split_once('/')?;
    let (name, _) = rest.split_once('/')?;
    Some(&file[..owner.len() + 1 + name.len()])
}

/// Adds the GGUF files below `folder`, as paths with `prefix` before them.
fn collect(
    folder: &Path,
    prefix: &str,
    depth: usize,
    entries_left: &mut usize,
    files: &mut Vec<String>,
) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *entries_left == 0 {
            return;
        }
        *entries_left -= 1;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let relative = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        // Follows links, which are how many people share files between tools.
        match fs::metadata(entry.path()) {
            Ok(meta) if meta.is_dir() && depth > 0 => {
                collect(&entry.path(), &relative, depth - 1, entries_left, files);
            }
            Ok(meta) if meta.is_file() && choose::without_extension(&relative).is_some() => {
                files.push(relative);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str], place: FoundIn) -> Vec<(String, usize, bool)> {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"GGUF").unwrap();
        }
        let models = models(folder.path(), place);
        models.into_iter().map(|it| (it.name, it.paths.len(), it.is_complete)).collect()
    }

    #[test]
    fn files_are_named_without_what_the_format_adds() {
        let files = [
            "qwen.gguf",
            "readme.txt",
            "mmproj-qwen.gguf",
            "large/l-00001-of-00002.gguf",
            "large/l-00002-of-00002.gguf",
            "half-00002-of-00002.gguf",
        ];
        let expected = [
            ("half".to_owned(), 1, false),
            ("large/l".to_owned(), 2, true),
            ("qwen".to_owned(), 1, true),
        ];
        assert_eq!(found(&files, FoundIn::Folder), expected);
    }

    #[test]
    fn lm_studios_models_have_their_names_on_the_hub() {
        let files = [
            "acme/Small-GGUF/small-Q8_0.gguf",
            "acme/Small-GGUF/small-Q4_K_M.gguf",
            "acme/Odd/odd.gguf",
            "loose.gguf",
        ];
        let names: Vec<_> =
            found(&files, FoundIn::LmStudio).into_iter().map(|(name, ..)| name).collect();
        let expected =
            ["acme/Odd:odd.gguf", "acme/Small-GGUF:Q4_K_M", "acme/Small-GGUF:Q8_0", "loose"];
        assert_eq!(names, expected);
    }

    #[cfg(unix)]
    #[test]
    fn a_loop_of_links_ends() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("m.gguf"), b"GGUF").unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        assert_eq!(models(folder.path(), FoundIn::Folder).len(), MAX_DEPTH + 1);
    }
}
