//! Folders of the user, by the XDG Base Directory Specification.

use std::path::PathBuf;

/// Returns the folder that `variable` names or, if it is not set, `below_home` in the user's home.
/// `None` if the environment names no home.
pub(crate) fn user_folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    // An environment variable set to nothing counts as not set.
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(variable).or_else(|| Some(set("HOME")?.join(below_home)))
}
