//! Inserts a file's settings before the typed arguments, unless an argument or the environment
//! overrides them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::file::{CONFIG, ConfigError, SettingsSection, parse};
use super::place;
use super::value::FileSetting;
use crate::logging;

/// The group of flags that name a model. They are not mutually exclusive for clap, because one on
/// the command line overrides one in the environment. One in the file is ignored if any other is
/// given.
pub const ALTERNATIVE_MODELS: &str = "alternative-models";

/// The group of the flag that names servers. Servers without a name answer in place of a model, so
/// each excludes the other.
pub const REPLACEMENTS: &str = "replacements";

/// Reason why there are no usable arguments.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentsError {
    /// The arguments are wrong, or ask for help.
    #[error(transparent)]
    Arguments(#[from] clap::Error),
    /// The settings file is wrong.
    #[error(transparent)]
    File(#[from] ConfigError),
}

/// The arguments, merged with those of the file.
#[derive(Debug, Default)]
pub struct MergedArguments {
    /// Program name and all arguments.
    pub arguments: Vec<OsString>,
    /// Path of the file, if there is one.
    pub file: Option<PathBuf>,
    /// Ids of the flags set by the file, for the program and each subcommand in turn.
    pub of_file: Vec<BTreeSet<String>>,
    /// Warning about the file, for when the log has begun: its format is one of the settings.
    pub warning: Option<String>,
}

impl MergedArguments {
    /// Prints a note that some of the settings refused by clap may come from the file.
    pub(super) fn explain(&self, error: &clap::Error) {
        let is_used = self.of_file.iter().any(|ids| !ids.is_empty());
        if let Some(file) = self.file.as_ref().filter(|_| is_used && error.use_stderr()) {
            logging::write(&format!("Some of the settings are in {}.\n", file.display()));
        }
    }
}

/// Adds the file's settings to `typed`, which starts with the program's name.
///
/// # Errors
/// Errors of the file.
pub fn merge(command: &Command, typed: Vec<OsString>) -> Result<MergedArguments, ArgumentsError> {
    // Not all of it need be right: the file may have what is missing.
    let known = command.clone().ignore_errors(true).try_get_matches_from(&typed)?;
    let levels = levels(command, &known);
    let named = levels.iter().rev().find_map(|(_, matches)| {
        matches.try_get_one::<OsString>(CONFIG).ok().flatten().map(OsString::as_os_str)
    });
    let Some((path, text)) = place::read(named)? else {
        return Ok(MergedArguments { arguments: typed, ..MergedArguments::default() });
    };
    // The whole file, not only the section that is used: a slip in another one would wait for the
    // day on which it is.
    let file = parse(&path, &text, command)?;
    let is_exposed = file.has_secret() && place::others_can_read(&path);
    let warning = is_exposed.then(|| {
        format!(
            "{0} has a key in it and other users can read it; `chmod 600 {0}` prevents that; if a \
             service reads it, give it the service's group and `chmod 640 {0}`",
            path.display()
        )
    });
    let (arguments, of_file) = insert(&levels, &file, typed);
    Ok(MergedArguments { arguments, file: Some(path), of_file, warning })
}

/// A command with its parsed arguments.
type Level<'a> = (&'a Command, &'a ArgMatches);

/// Returns the program and the chosen subcommands.
fn levels<'a>(command: &'a Command, matches: &'a ArgMatches) -> Vec<Level<'a>> {
    let mut levels = vec![(command, matches)];
    while let Some((name, inner)) = levels[levels.len() - 1].1.subcommand()
        && let Some(subcommand) = levels[levels.len() - 1].0.find_subcommand(name)
    {
        levels.push((subcommand, inner));
    }
    levels
}

fn insert(
    levels: &[Level<'_>],
    file: &SettingsSection,
    typed: Vec<OsString>,
) -> (Vec<OsString>, Vec<BTreeSet<String>>) {
    let deepest = levels[levels.len() - 1].1;
    let (mut arguments, mut of_file) = (Vec::with_capacity(typed.len()), Vec::new());
    let mut rest = typed.into_iter();
    arguments.extend(rest.next());
    let mut section = Some(file);
    for (at, &(command, matches)) in levels.iter().enumerate() {
        let mut ids = BTreeSet::new();
        for setting in section.map_or(&[][..], |section| &section.settings) {
            // Flags of all commands may stand behind the subcommand.
            let is_decided =
                is_given(deepest, &setting.id) || is_decided(setting, command, matches);
            if !is_decided {
                arguments.extend(setting.arguments.iter().map(OsString::from));
                ids.insert(setting.id.clone());
            }
        }
        of_file.push(ids);
        let Some((next, _)) = levels.get(at + 1) else { break };
        section = section.and_then(|section| section.section(next.get_name()));
        take_through(next, command, &mut rest, &mut arguments);
    }
    arguments.extend(rest);
    (arguments, of_file)
}

/// Moves the typed arguments up to the name of the subcommand `next` of `command`.
fn take_through(
    next: &Command,
    command: &Command,
    typed: &mut impl Iterator<Item = OsString>,
    into: &mut Vec<OsString>,
) {
    while let Some(argument) = typed.next() {
        let takes_next = takes_next(command, &argument);
        let is_name = argument.to_str().is_some_and(|name| {
            command.find_subcommand(name).is_some_and(|it| it.get_name() == next.get_name())
        });
        into.push(argument);
        if is_name {
            return;
        }
        if takes_next {
            into.extend(typed.next());
        }
    }
}

/// Returns true if the next argument is the value of this flag of `command`.
fn takes_next(command: &Command, argument: &OsStr) -> bool {
    let text = argument.to_string_lossy();
    let flag = match text.strip_prefix("--") {
        Some(long) => command.get_arguments().find(|flag| flag.get_long() == Some(long)),
        None => command.get_arguments().find(|flag| {
            let mut chars = text.chars();
            chars.next() == Some('-') && chars.next() == flag.get_short() && chars.next().is_none()
        }),
    };
    flag.is_some_and(|flag| flag.get_action().takes_values())
}

/// Returns true if the arguments or the environment set `setting`, or rule it out.
fn is_decided(setting: &FileSetting, command: &Command, matches: &ArgMatches) -> bool {
    if is_given(matches, &setting.id) {
        return true;
    }
    let Some(own) = command.get_arguments().find(|flag| *flag.get_id() == setting.id) else {
        return false;
    };
    let is_alternative = |flag: &Arg| is_in(command, ALTERNATIVE_MODELS, flag);
    let is_replacement = |flag: &Arg| is_in(command, REPLACEMENTS, flag);
    let replaces = setting
        .arguments
        .iter()
        .any(|text| text.split_once('=').is_some_and(|(_, value)| replaces_model(value)));
    let excludes = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|it| it.get_id() == other.get_id())
    };
    command.get_arguments().any(|flag| {
        let excluded = || excludes(own, flag) || excludes(flag, own);
        let replaced =
            || is_alternative(own) && is_replacement(flag) && given_replaces(matches, flag);
        let replacement = is_replacement(own) && replaces && is_alternative(flag);
        is_given(matches, flag.get_id().as_str())
            && (is_alternative(own) && is_alternative(flag)
                || replacement
                || replaced()
                || excluded())
    })
}

/// Returns true if `flag` is in the group `name` of `command`.
fn is_in(command: &Command, name: &str, flag: &Arg) -> bool {
    let group = command.get_groups().find(|group| *group.get_id() == name);
    group.is_some_and(|group| group.get_args().any(|id| id == flag.get_id()))
}

/// Returns true if any value given for `flag` has no name.
fn given_replaces(matches: &ArgMatches, flag: &Arg) -> bool {
    let mut values = matches.get_raw(flag.get_id().as_str()).into_iter().flatten();
    values.any(|value| replaces_model(&value.to_string_lossy()))
}

/// Returns true if these servers have no name, as in `NAME=URL`.
fn replaces_model(value: &str) -> bool {
    value.split_once('=').is_none_or(|(name, _)| name.contains("://"))
}

/// Returns true if an argument is typed, or its variable is set and not empty. Compose files set
/// variables without a value to an empty string.
fn is_given(matches: &ArgMatches, id: &str) -> bool {
    if matches.try_contains_id(id).is_err() {
        return false;
    }
    match matches.value_source(id) {
        Some(ValueSource::CommandLine) => true,
        Some(ValueSource::EnvVariable) => {
            matches.get_raw(id).is_some_and(|mut values| values.any(|value| !value.is_empty()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, ArgGroup};

    use super::*;

    fn program() -> Command {
        let model = Arg::new("model").long("model").short('m').conflicts_with("hub");
        let hub = Arg::new("hub").long("hub");
        let quiet = Arg::new("quiet").long("quiet").action(ArgAction::SetTrue);
        let named = [Arg::new("name").long("name"), Arg::new("prompt")];
        let group = ArgGroup::new(ALTERNATIVE_MODELS).args(["name", "prompt"]).multiple(true);
        let far = Arg::new("far").long("far").action(ArgAction::Append);
        let replacing = ArgGroup::new(REPLACEMENTS).args(["far"]);
        let serve = Command::new("serve").args([model, hub, quiet, far]).args(named).group(group);
        let serve = serve.group(replacing);
        let level = Arg::new("level").long("level").short('l').global(true);
        Command::new("loquent").arg(level).subcommand(serve)
    }

    /// Returns the result of merging `typed` with `file`.
    fn merged(file: &str, typed: &str) -> String {
        let program = program();
        let file = parse(std::path::Path::new("c.toml"), file, &program).unwrap();
        let typed: Vec<OsString> = typed.split(' ').map(OsString::from).collect();
        let known = program.clone().ignore_errors(true).try_get_matches_from(&typed).unwrap();
        let (arguments, _) = insert(&levels(&program, &known), &file, typed);
        assert!(program.clone().try_get_matches_from(&arguments).is_ok(), "{arguments:?}");
        arguments.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn settings_stand_before_what_is_typed_for_their_command() {
        let file = "level = 'warn'\n[serve]\nmodel = 'a'\nquiet = true";
        for (typed, expected) in [
            ("loquent serve", "loquent --level=warn serve --model=a --quiet"),
            ("loquent serve hello", "loquent --level=warn serve --model=a --quiet hello"),
            ("loquent serve -l info", "loquent serve --model=a --quiet -l info"),
            ("loquent --level serve serve", "loquent --level serve serve --model=a --quiet"),
            ("loquent -l serve serve", "loquent -l serve serve --model=a --quiet"),
            ("loquent --level=x serve", "loquent --level=x serve --model=a --quiet"),
        ] {
            assert_eq!(merged(file, typed), expected, "{typed}");
        }
    }

    #[test]
    fn one_model_is_named() {
        let file = "[serve]\nname = 'a'";
        assert_eq!(merged(file, "loquent serve"), "loquent serve --name=a");
        assert_eq!(merged(file, "loquent serve hello"), "loquent serve hello");
    }

    #[test]
    fn servers_without_a_name_stand_in_for_a_model() {
        let model = "[serve]\nname = 'a'";
        assert_eq!(merged(model, "loquent serve --far http://b"), "loquent serve --far http://b");
        let both = "loquent serve --name=a --far b=http://b";
        assert_eq!(merged(model, "loquent serve --far b=http://b"), both);
        let servers = "[serve]\nfar = 'http://b'";
        assert_eq!(merged(servers, "loquent serve --name a"), "loquent serve --name a");
        let named = "[serve]\nfar = ['b=http://b', 'c=http://c']";
        let all = "loquent serve --far=b=http://b --far=c=http://c --name a";
        assert_eq!(merged(named, "loquent serve --name a"), all);
    }

    #[test]
    fn what_is_typed_or_contradicts_it_wins() {
        let file = "[serve]\nmodel = 'a'";
        assert_eq!(merged(file, "loquent serve -m b"), "loquent serve -m b");
        assert_eq!(merged(file, "loquent serve --hub b"), "loquent serve --hub b");
        assert_eq!(merged("[serve]\nhub = 'a'", "loquent serve -m b"), "loquent serve -m b");
        assert_eq!(merged("[serve]\nquiet = false", "loquent serve"), "loquent serve");
    }
}
