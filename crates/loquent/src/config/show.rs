//! `loquent config`: shows the effective settings of a command, and the source of each.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use loquent_proto::printable::printable;
use loquent_proto::url_password::{HIDDEN, without_password};
use serde_json::{Value, json};

use super::environment::with_variables;
use super::file::settable;
use super::merge::{MergedArguments, merge};
use super::place::ConfigFileArgs;

/// Options of `loquent config`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  loquent config                         the settings of `loquent serve`, and where each comes from
  loquent config --changed               only those that are not at their defaults
  loquent config connect                 those of another command
  loquent config serve -c 8192           with flags, which win over everything else
  loquent --config new.toml config       with another file, to check it before it is used

A file of settings has a section for each command, and the long names of its flags as keys:

  [serve]
  host = \"0.0.0.0\"
  port = 8080
  api-key-file = \"/etc/loquent/keys.toml\"")]
pub struct ConfigArgs {
    /// Only settings that are not at their defaults
    #[arg(long)]
    changed: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Command whose settings are shown, with any of its flags [default: serve]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// An effective setting.
struct EffectiveSetting {
    name: String,
    /// `None` if nothing is set.
    value: Option<String>,
    source: SettingSource,
    /// Description of the default.
    otherwise: Option<String>,
}

/// Source of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SettingSource {
    Flag,
    Environment,
    File,
    Default,
}

impl SettingSource {
    const fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}

impl ConfigArgs {
    /// Prints the settings; `program` is the whole command line and `file` the settings file that
    /// it names.
    ///
    /// # Errors
    /// If the file or the flags are wrong.
    pub fn run(&self, program: &Command, file: &ConfigFileArgs) -> anyhow::Result<()> {
        let program = &with_variables(program.clone());
        let mut typed: Vec<OsString> = vec![program.get_name().into()];
        typed.extend(file.config.iter().flat_map(|file| ["--config".into(), file.clone()]));
        match self.command.is_empty() {
            true => typed.push("serve".into()),
            false => typed.extend(self.command.iter().cloned()),
        }
        let merged = merge(program, typed)?;
        let matches = match program.clone().try_get_matches_from(&merged.arguments) {
            // What the command cannot do without: this is a look at what there is.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                let lenient = program.clone().ignore_errors(true);
                lenient.try_get_matches_from(&merged.arguments)?
            }
            Err(error) => error.exit(),
            Ok(matches) => matches,
        };
        let (names, held) = held(program, &matches, &merged)
            .context("there is no such command; `loquent help` lists those that there are")?;
        let held: Vec<_> = held
            .into_iter()
            .filter(|one| !self.changed || one.source != SettingSource::Default)
            .collect();
        print!(
            "{}",
            if self.json { as_json(&merged, &held) } else { table(&names, &merged, &held) }
        );
        Ok(())
    }
}

/// Returns the path of names to the chosen command, and its settings with those of all commands.
fn held(
    program: &Command,
    matches: &ArgMatches,
    merged: &MergedArguments,
) -> Option<(Vec<String>, Vec<EffectiveSetting>)> {
    let none = BTreeSet::new();
    let of_file = |level: usize| merged.of_file.get(level).unwrap_or(&none);
    let (mut command, mut matches, mut names) = (program, matches, Vec::new());
    while let Some((name, inner)) = matches.subcommand() {
        (command, matches) = (command.find_subcommand(name)?, inner);
        names.push(name.to_owned());
    }
    (!names.is_empty()).then_some(())?;
    let own = settable(command).map(|flag| held_of(flag, matches, of_file(names.len())));
    // Those of all commands are known where they may be typed last.
    let general = settable(program).map(|flag| held_of(flag, matches, of_file(0)));
    let all = own.chain(general).collect();
    Some((names, all))
}

fn held_of(flag: &Arg, matches: &ArgMatches, of_file: &BTreeSet<String>) -> EffectiveSetting {
    let id = flag.get_id().as_str();
    let known = matches.try_contains_id(id).is_ok();
    let source = match known.then(|| matches.value_source(id)).flatten() {
        _ if of_file.contains(id) => SettingSource::File,
        Some(ValueSource::CommandLine) => SettingSource::Flag,
        Some(ValueSource::EnvVariable) => SettingSource::Environment,
        _ => SettingSource::Default,
    };
    let values = known.then(|| matches.get_raw(id)).flatten();
    let value = values.map(|values| {
        let shown = values.map(|value| without_password(&value.to_string_lossy()).into_owned());
        shown.collect::<Vec<_>>().join(",")
    });
    let is_secret = flag.is_hide_env_values_set();
    let shown = value.map(|value| if is_secret { HIDDEN.to_owned() } else { value });
    let name = flag.get_long().unwrap_or_default().to_owned();
    EffectiveSetting { name, value: shown, source, otherwise: described_default(flag) }
}

/// Returns the default that the help describes in words, in brackets at its end.
fn described_default(flag: &Arg) -> Option<String> {
    let help = flag.get_help()?.to_string();
    let (_, rest) = help.rsplit_once("[default: ")?;
    Some(rest.split_once(']')?.0.replace('\n', " "))
}

fn table(names: &[String], merged: &MergedArguments, held: &[EffectiveSetting]) -> String {
    let file = match &merged.file {
        Some(file) => file.display().to_string(),
        None => "no file".to_owned(),
    };
    let mut text = format!("# loquent {}, with {}\n", names.join(" "), printable(&file));
    let name_width = held.iter().map(|one| one.name.len()).max().unwrap_or(0);
    for one in held {
        let value = one.value.as_deref().unwrap_or("-");
        let source = match (&one.value, &one.otherwise) {
            (None, Some(otherwise)) => format!("{}: {otherwise}", one.source.name()),
            _ => one.source.name().to_owned(),
        };
        let value = printable(value).replace('\n', " ");
        let _ = writeln!(text, "{:name_width$}  {value:20}  {source}", one.name);
    }
    text
}

fn as_json(merged: &MergedArguments, held: &[EffectiveSetting]) -> String {
    let settings: Vec<Value> = held
        .iter()
        .map(|one| json!({"name": one.name, "value": one.value, "source": one.source.name()}))
        .collect();
    format!("{:#}\n", json!({"file": merged.file, "settings": settings}))
}
