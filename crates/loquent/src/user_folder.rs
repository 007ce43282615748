//! Folders of the user, by the XDG Base Directory Specification.

use std::path::PathBuf;

/// Returns the folder that `variable` names or, if it names none, `below_home` in the user's home.
/// `None` if the environment names no home.
pub(crate) fn user_folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    find(variable, below_home, |name| std::env::var_os(name).map(PathBuf::from))
}

fn find(
    variable: &str,
    below_home: &str,
    value: impl Fn(&str) -> Option<PathBuf>,
) -> Option<PathBuf> {
    // A relative path, or an empty one, would mean another folder after each `cd`.
    let folder = |name: &str| value(name).filter(|path| path.is_absolute());
    folder(variable).or_else(|| Some(folder("HOME")?.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_depends_on_where_the_program_starts() {
        let cache = |xdg: &str, home: &str| {
            let value = |name: &str| Some(PathBuf::from(if name == "HOME" { home } else { xdg }));
            find("XDG_CACHE_HOME", ".cache", value)
        };
        assert_eq!(cache("/x", "/h"), Some("/x".into()));
        for xdg in ["", "relative"] {
            assert_eq!(cache(xdg, "/h"), Some("/h/.cache".into()));
            assert_eq!(cache(xdg, ""), None);
        }
    }
}
