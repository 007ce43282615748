//! Settings from a file: TOML whose keys are the long names of the flags, in a section for each
//! command. Flags override the environment, the environment overrides the file, and the file
//! overrides the defaults.
//!
//! Works on clap's description of the command line and names no flag. The file's settings are
//! inserted before the typed arguments, so that types, bounds and conflicts are checked as for
//! flags.

mod file;
mod merge;
mod place;
mod show;
mod upstreams;
mod value;

use std::ffi::{OsStr, OsString};

use clap::{ArgMatches, Command};

pub use self::file::ConfigError;
pub use self::merge::{ALTERNATIVE_MODELS, ArgumentsError, REPLACEMENTS};
pub use self::place::ConfigFileArgs;
pub use self::show::ConfigArgs;

/// The parsed arguments, merged with those of the settings file.
pub struct GivenArguments {
    /// Values of the flags.
    pub matches: ArgMatches,
    /// Warning about the file, for when the log has begun.
    pub warning: Option<String>,
}

/// Parses the arguments of `command` in `typed`, which starts with the program's name, merged with
/// those of the settings file.
///
/// # Errors
/// Errors of clap and of the file.
pub fn arguments(
    command: &Command,
    typed: Vec<OsString>,
) -> Result<GivenArguments, ArgumentsError> {
    // Help and the version need no file, and are shown even if that is broken.
    if let Err(error) = command.clone().try_get_matches_from(&typed)
        && !error.use_stderr()
    {
        return Err(error.into());
    }
    let command = &without_blank_variables(command.clone(), &is_blank);
    let strict = command.clone().try_get_matches_from(&typed);
    let merged = merge::merge(command, typed)?;
    if merged.file.is_none() {
        return Ok(GivenArguments { matches: strict?, warning: None });
    }
    match command.clone().try_get_matches_from(&merged.arguments) {
        Ok(matches) => Ok(GivenArguments { matches, warning: merged.warning }),
        Err(error) => {
            merged.explain(&error);
            Err(error.into())
        }
    }
}

/// Returns `command` without environment variables set to an empty string, as compose files do if
/// there is no value. Variables that control access to the server or its encryption are kept: a
/// missing key must be an error.
fn without_blank_variables(command: Command, is_blank: &impl Fn(&OsStr) -> bool) -> Command {
    let command = command.mut_args(|flag| match flag.get_env() {
        Some(name) if is_blank(name) && !guards_access(name) => flag.env(None::<&'static str>),
        _ => flag,
    });
    command.mut_subcommands(|inner| without_blank_variables(inner, is_blank))
}

fn is_blank(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

/// Returns true if the variable holds or names a key or a certificate.
fn guards_access(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["_KEY", "_KEY_FILE", "_CERT", "_CA"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_variable_set_to_nothing_is_not_set_unless_it_guards_access() {
        let flag = |id, name| Arg::new(id).long(id).env(name);
        let serve = Command::new("serve").arg(flag("model", "BLANK_MODEL"));
        let serve = serve.arg(flag("api-key", "BLANK_API_KEY")).arg(flag("port", "SET_PORT"));
        let program = Command::new("loquent").arg(flag("config", "BLANK_CONFIG")).subcommand(serve);
        let is_blank = |name: &OsStr| name.to_string_lossy().starts_with("BLANK");
        let program = without_blank_variables(program, &is_blank);
        let serve = program.find_subcommand("serve").unwrap();
        let kept = |command: &Command, id: &str| {
            command.get_arguments().find(|flag| flag.get_id() == id).unwrap().get_env().is_some()
        };
        assert!(!kept(&program, "config") && !kept(serve, "model"));
        assert!(kept(serve, "api-key") && kept(serve, "port"));
    }
}
