//! Settings from a file: TOML whose keys are the long names of the flags, in a section for each
//! command. Flags override the environment, the environment overrides the file, and the file
//! overrides the defaults.
//!
//! Works on clap's description of the command line and names no flag. The file's settings are
//! inserted before the typed arguments, so that types, bounds and conflicts are checked as for
//! flags.

mod environment;
mod file;
mod merge;
mod place;
mod show;
mod upstreams;
mod value;

use std::ffi::OsString;

use clap::{ArgMatches, Command};

pub use self::environment::warn_of_unknown_variables;
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
    let command = &environment::with_variables(command.clone());
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
