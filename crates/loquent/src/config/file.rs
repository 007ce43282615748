//! Parses a settings file and checks it against the existing flags.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::upstreams;
use super::value::{FileSetting, arguments_of, at_home, check};

/// Long name of the flag for the file's path, which the file itself cannot set.
pub(super) const CONFIG: &str = "config";
/// The table of `serve`'s models.
const MODELS: &str = "models";
/// The table of `serve`'s upstreams.
const UPSTREAMS: &str = "upstreams";
/// The subcommand that both tables belong to.
const SERVE: &str = "serve";
/// Minimum similarity of a name to be suggested, from 0 to 1.
const MIN_LIKENESS: f64 = 0.75;
/// Maximum depth of sections: `[bench.engine]` has depth 2.
const MAX_DEPTH: usize = 4;

/// Errors of a settings file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {error}; --config names another file", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error; part of the message, and so not a separate source.
        error: io::Error,
    },
    /// A line of the file is wrong.
    #[error("{}, line {line}: {problem}", path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Description of the error, with advice.
        problem: String,
    },
}

/// Settings of one command and its subcommands.
#[derive(Debug, Default, PartialEq)]
pub struct SettingsSection {
    /// Settings, in the order of the file's keys.
    pub settings: Vec<FileSetting>,
    /// Sections of subcommands, by name.
    pub sections: Vec<(String, SettingsSection)>,
}

impl SettingsSection {
    /// Returns the section of the subcommand `name`.
    pub fn section(&self, name: &str) -> Option<&Self> {
        self.sections.iter().find(|(of, _)| of == name).map(|(_, section)| section)
    }

    /// Adds the section of the subcommand `name`, merging it with an existing one.
    fn add_section(&mut self, name: &str, section: Self) {
        match self.sections.iter_mut().find(|(of, _)| of == name) {
            Some((_, known)) => {
                known.settings.extend(section.settings);
                known.sections.extend(section.sections);
            }
            None => self.sections.push((name.to_owned(), section)),
        }
    }

    /// Returns true if the section or one within it contains a secret.
    pub fn has_secret(&self) -> bool {
        self.settings.iter().any(|setting| setting.is_secret)
            || self.sections.iter().any(|(_, section)| section.has_secret())
    }
}

/// Parses `text`, the content of the file at `path`, for the flags of `command`.
///
/// # Errors
/// Unknown keys and wrong values, with their lines.
pub fn parse(path: &Path, text: &str, command: &Command) -> Result<SettingsSection, ConfigError> {
    let reader = SettingsReader { path, text, program: command };
    let table = DeTable::parse(text).map_err(|error| {
        reader.wrong(error.span().map_or(0, |span| span.start), error.message().to_owned())
    })?;
    reader.section(&mut vec![], command, table.get_ref())
}

struct SettingsReader<'a> {
    path: &'a Path,
    text: &'a str,
    program: &'a Command,
}

impl SettingsReader<'_> {
    /// Parses the section of `command`, whose path is `names`.
    fn section(
        &self,
        names: &mut Vec<String>,
        command: &Command,
        table: &DeTable<'_>,
    ) -> Result<SettingsSection, ConfigError> {
        let mut section = SettingsSection::default();
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name: &str = key.get_ref();
            let subcommand = command.find_subcommand(name).filter(|_| names.len() < MAX_DEPTH);
            match (value.get_ref(), subcommand) {
                (DeValue::Table(models), None) if names.is_empty() && name == MODELS => {
                    section.add_section(SERVE, self.models(models)?);
                }
                (DeValue::Table(table), None) if names.is_empty() && name == UPSTREAMS => {
                    section.add_section(SERVE, self.upstreams(table)?);
                }
                (DeValue::Table(inner), Some(subcommand)) => {
                    names.push(name.to_owned());
                    let inner = self.section(names, subcommand, inner)?;
                    names.pop();
                    section.add_section(subcommand.get_name(), inner);
                }
                _ => section.settings.push(self.setting(names, command, key, value)?),
            }
        }
        Ok(section)
    }

    /// Parses the models of `serve`: a table of names and files stands for `--model NAME=FILE`.
    fn models(&self, table: &DeTable<'_>) -> Result<SettingsSection, ConfigError> {
        let mut arguments = Vec::with_capacity(table.len());
        for (key, value) in table {
            let (at, name) = (key.span().start, key.get_ref());
            let DeValue::String(file) = value.get_ref() else {
                let problem = format!("{name}: expected a model's file or name in quotes");
                return Err(self.wrong(at, problem));
            };
            if name.is_empty() || name.contains(['/', '\\', '=']) {
                let problem = "a model's name in the API has no '/', '\\' or '='".to_owned();
                return Err(self.wrong(at, problem));
            }
            arguments.push((at, format!("--model={name}={}", at_home(file))));
        }
        arguments.sort_unstable();
        let arguments = arguments.into_iter().map(|(_, argument)| argument).collect();
        let models = FileSetting { id: "model".into(), arguments, is_secret: false };
        Ok(SettingsSection { settings: vec![models], sections: Vec::new() })
    }

    /// Parses the upstreams of `serve`, checked like its flags.
    fn upstreams(&self, table: &DeTable<'_>) -> Result<SettingsSection, ConfigError> {
        let settings =
            upstreams::settings_of(table).map_err(|(at, problem)| self.wrong(at, problem))?;
        Ok(SettingsSection { settings, sections: Vec::new() })
    }

    fn setting(
        &self,
        names: &[String],
        command: &Command,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<FileSetting, ConfigError> {
        let (at, name) = (key.span().start, key.get_ref().as_ref());
        let flag = settable(command).find(|flag| flag.get_long() == Some(name));
        let Some(flag) = flag else {
            return Err(self.wrong(at, self.unknown(names, command, name)));
        };
        let arguments = arguments_of(flag, value.get_ref())
            .and_then(|arguments| check(flag, &arguments).map(|()| arguments))
            .map_err(|problem| self.wrong(value.span().start, format!("{name}: {problem}")))?;
        let id = flag.get_id().to_string();
        Ok(FileSetting { id, arguments, is_secret: flag.is_hide_env_values_set() })
    }

    /// Returns the message for an unknown key, with a suggestion.
    fn unknown(&self, names: &[String], command: &Command, key: &str) -> String {
        if command.find_subcommand(key).is_some() {
            let path = [names, &[key.to_owned()]].concat().join(".");
            return format!("the settings of `{key}` stand in a section, below [{path}]");
        }
        if settable(self.program).any(|flag| flag.get_long() == Some(key)) {
            return format!("'{key}' is for all commands: put it before the first section");
        }
        let place = match names {
            [] => "before the first section".to_owned(),
            names => format!("in [{}]", names.join(".")),
        };
        let sections = command.get_subcommands().map(Command::get_name);
        let known = settable(command).filter_map(Arg::get_long).chain(sections);
        match most_alike(known, &key.replace('_', "-")) {
            Some(name) => format!("there is no setting '{key}' {place}; did you mean '{name}'?"),
            None => {
                let help = ["loquent", &names.join(" "), "--help"].map(str::trim).join(" ");
                format!(
                    "there is no setting '{key}' {place}; `{}` lists them",
                    help.replace("  ", " ")
                )
            }
        }
    }

    fn wrong(&self, at: usize, problem: String) -> ConfigError {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        ConfigError::Wrong { path: self.path.to_owned(), line, problem }
    }
}

/// Returns the flags of `command` that a file can set.
pub fn settable(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_settable =
        |flag: &&Arg| !matches!(flag.get_long(), None | Some(CONFIG | "help" | "version"));
    command.get_arguments().filter(is_settable)
}

/// Returns the `known` name that is most similar to `name`, if any is similar enough.
pub(super) fn most_alike<'a>(known: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    let alike = known.map(|known| (strsim::jaro(known, name), known));
    let best = alike.filter(|(likeness, _)| *likeness >= MIN_LIKENESS);
    best.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn command() -> Command {
        let port = Arg::new("port").long("port").value_parser(clap::value_parser!(u16));
        let key = Arg::new("api_key").long("api-key").hide_env_values(true);
        let key = key.action(ArgAction::Append);
        let quiet = Arg::new("no_quic").long("no-quic").action(ArgAction::SetTrue);
        let level = Arg::new("log_level").long("log-level").global(true);
        let serve = Command::new("serve").args([port, key, quiet]);
        let engine = Command::new("engine").arg(Arg::new("runs").long("runs"));
        Command::new("loquent")
            .args([level, Arg::new("config").long("config")])
            .subcommand(serve)
            .subcommand(Command::new("bench").subcommand(engine))
    }

    fn read(text: &str) -> Result<SettingsSection, String> {
        parse(Path::new("c.toml"), text, &command()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_command_has_its_section() {
        let text = "log-level = \"debug\"\n[serve]\nno-quic = true\nport = 1\n\
                    api-key = [\"a\", \"b\"]\n[bench.engine]\nruns = \"3\"";
        let file = read(text).unwrap();
        assert_eq!(file.settings[0].arguments, ["--log-level=debug"]);
        let serve = file.section("serve").unwrap();
        let arguments: Vec<_> = serve.settings.iter().flat_map(|one| &one.arguments).collect();
        assert_eq!(arguments, ["--no-quic", "--port=1", "--api-key=a", "--api-key=b"]);
        let engine = file.section("bench").unwrap().section("engine").unwrap();
        assert_eq!(engine.settings[0].arguments, ["--runs=3"]);
        assert!(file.has_secret() && !engine.has_secret());
        assert_eq!(read("").unwrap(), SettingsSection::default());
    }

    #[test]
    fn a_table_of_models_is_for_serve() {
        let text = "[models]\nb = \"2.gguf\"\na = \"x=1.gguf\"\n[serve]\nport = 1";
        let file = read(text).unwrap();
        let serve = file.section("serve").unwrap();
        let arguments: Vec<_> = serve.settings.iter().flat_map(|one| &one.arguments).collect();
        assert_eq!(arguments, ["--model=b=2.gguf", "--model=a=x=1.gguf", "--port=1"]);
        for wrong in ["[models]\na = 1", "[models]\n\"a/b\" = \"x\"", "models = 1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, words) in [
            ("[serve]\nprot = 1", 2, "did you mean 'port'?"),
            ("[serve]\nno_quic = true", 2, "did you mean 'no-quic'?"),
            ("\n[srve]\n", 2, "did you mean 'serve'?"),
            ("[serve]\n\nxyzzy = 1", 3, "`loquent serve --help` lists them"),
            ("[serve]\nlog-level = \"info\"", 2, "put it before the first section"),
            ("config = \"other.toml\"", 1, "no setting 'config'"),
            ("[serve]\nport = \"8080\"", 2, "port: expected a number, found a string"),
            ("[serve]\nport = 70000", 2, "70000 is not in 0..=65535"),
            ("[serve]\nno-quic = 1", 2, "expected true or false, found a number"),
            ("[serve]\nport = [1, 2]", 2, "expected one value, found a list"),
            ("[serve]\nport = {a = 1}", 2, "found a section"),
            ("serve = 1", 1, "below [serve]"),
            ("[serve]\nport = ", 2, ""),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.starts_with(&format!("c.toml, line {line}: ")), "{text:?}: {error}");
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
