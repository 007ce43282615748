//! Locates and reads the settings file, before it is parsed as TOML.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use super::file::ConfigError;

/// Location of the settings file, for all commands.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigFileArgs {
    /// File with settings [default: loquent/config.toml in the user's configuration folder, else
    /// /etc/loquent/config.toml, if it exists]
    ///
    /// TOML with a section for each command and the long names of its flags as keys. A flag or an
    /// environment variable wins over it; `loquent config` shows what holds.
    #[arg(
        long,
        global = true,
        env = "LOQUENT_CONFIG",
        value_name = "FILE",
        help_heading = "Settings",
        hide_short_help = true
    )]
    pub(super) config: Option<OsString>,
}

/// Path of the machine-wide file.
const OF_THE_MACHINE: &str = "/etc/loquent/config.toml";
/// Maximum size of a file to read.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the path and the text of the file: the `named` one, or else the first of the usual ones
/// that exists.
///
/// # Errors
/// If it cannot be read, or a named one does not exist.
pub(super) fn read(named: Option<&OsStr>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    // Compose files set a variable to nothing where it has no value.
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        let text = text(&path).map_err(|error| unreadable(&path, error))?;
        return Ok(Some((path, text)));
    }
    for path in usual_places(|name| std::env::var_os(name).map(PathBuf::from)) {
        match text(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(error) if is_absent(&path, &error) => {}
            Err(error) => return Err(unreadable(&path, error)),
        }
    }
    Ok(None)
}

/// Returns the usual paths, the user's first.
fn usual_places(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let folder = |name| variable(name).filter(|path| path.is_absolute());
    let own = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let own = own.map(|folder| folder.join("loquent/config.toml"));
    own.into_iter().chain([PathBuf::from(OF_THE_MACHINE)]).collect()
}

fn is_absent(path: &Path, error: &io::Error) -> bool {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => true,
        // A service or `su` may inherit a home that it cannot enter. A file that is seen there and
        // may not be read is another matter: somebody counts on what it says.
        io::ErrorKind::PermissionDenied => std::fs::metadata(path).is_err(),
        _ => false,
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: io::Error) -> ConfigError {
    ConfigError::Unreadable { path: path.to_owned(), error }
}

/// Returns true if other users of this machine can read the file.
#[cfg(unix)]
pub(super) fn others_can_read(path: &Path) -> bool {
    use nix::unistd::{Gid, Uid};
    use std::os::unix::fs::MetadataExt;
    path.metadata().is_ok_and(|file| {
        let is_users = file.uid() == Uid::effective().as_raw();
        let is_as_made = is_users && file.gid() == Gid::effective().as_raw();
        file.is_file() && is_open(file.mode(), is_as_made)
    })
}

/// Returns true if a file of this mode is open to others. The right of a group counts only if the
/// file has the owner and the group with which this user makes files: otherwise somebody chose the
/// group, as for a service that reads a file of root.
#[cfg(unix)]
fn is_open(mode: u32, is_as_made: bool) -> bool {
    let others = if is_as_made { 0o044 } else { 0o004 };
    mode & others != 0
}

/// Returns false: not determined on this system.
#[cfg(not(unix))]
pub(super) fn others_can_read(_path: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_comes_before_the_machines() {
        let places = |xdg: &str, home: &str| {
            let (xdg, home) = (PathBuf::from(xdg), PathBuf::from(home));
            usual_places(move |name| match name {
                "XDG_CONFIG_HOME" => Some(xdg.clone()),
                "HOME" => Some(home.clone()),
                _ => None,
            })
        };
        let machine = PathBuf::from(OF_THE_MACHINE);
        let own = PathBuf::from("/h/.config/loquent/config.toml");
        assert_eq!(places("/x", "/h"), ["/x/loquent/config.toml".into(), machine.clone()]);
        assert_eq!(places("", "/h"), [own.clone(), machine.clone()]);
        assert_eq!(places("relative", "/h"), [own, machine.clone()]);
        assert_eq!(places("", ""), [machine]);
    }

    #[test]
    #[cfg(unix)]
    fn a_group_that_somebody_chose_may_read_the_file() {
        let open = |mode| [is_open(mode, true), is_open(mode, false)];
        assert_eq!(open(0o600), [false, false]);
        assert_eq!(open(0o640), [true, false]);
        assert_eq!(open(0o644), [true, true]);
    }

    #[test]
    fn a_named_file_has_to_exist() {
        let error = read(Some(OsStr::new("/nowhere/config.toml"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/config.toml"), "{error}");
    }
}
