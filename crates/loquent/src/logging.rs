//! The log on standard error: its level, and its format for people or programs.

use std::io::{IsTerminal, Write as _};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Directives for messages without value by default: a browser that closes its tab leaves its
/// session open, which makes the library warn.
const QUIET: &str = "web_transport_quinn=error,rustls_platform_verifier=off";

/// Level and format of the log, for all commands.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// How much to log: off, error, warn, info, debug or trace [default: info]
    ///
    /// A list such as info,loquent_server=debug sets it for each part of the program, and
    /// loquent::requests=off leaves out the lines of requests.
    #[arg(long, global = true, env = "LOQUENT_LOG_LEVEL", value_name = "LEVEL",
          hide_short_help = true, value_parser = parse_level)]
    log_level: Option<LogLevel>,
    /// Whom the log is for
    #[arg(
        long,
        global = true,
        env = "LOQUENT_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        hide_short_help = true
    )]
    pub log_format: LogFormat,
}

/// Intended reader of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// People
    #[default]
    Text,
    /// Programs: one JSON object on each line
    Json,
}

/// Directives of a filter; empty if a variable is set to an empty string, as compose files do.
#[derive(Debug, Clone)]
struct LogLevel(String);

fn parse_level(text: &str) -> Result<LogLevel, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(LogLevel(text.trim().to_owned())),
        Err(_) => Err("give off, error, warn, info, debug or trace, or a list of parts with \
                       their levels such as info,loquent_server=debug"
            .to_owned()),
    }
}

/// Level and format of the log, once it has started.
static STARTED: OnceLock<(String, LogFormat)> = OnceLock::new();

/// Returns the variables that give a child process of this program the same log.
#[cfg(feature = "llama")]
pub(crate) fn environment() -> Vec<(&'static str, String)> {
    let Some((level, format)) = STARTED.get() else { return Vec::new() };
    let format = format.to_possible_value().map(|value| value.get_name().to_owned());
    let level = Some(level.clone());
    let all = [("LOQUENT_LOG_LEVEL", level), ("LOQUENT_LOG_FORMAT", format)];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

impl LogArgs {
    /// Starts the log, at the level `default` unless the arguments set one.
    pub fn start(&self, default: &str) {
        let _ = STARTED.set((self.directives(default), self.log_format));
        let filter = EnvFilter::new(self.directives(default));
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            // It reports a line that cannot be written with `eprintln!`, which panics for the same
            // reason, in the thread of an engine for example.
            .log_internal_errors(false);
        match self.log_format {
            // Colour codes belong on a terminal only, not in a file or a journal.
            LogFormat::Text => log.with_ansi(takes_colour()).init(),
            LogFormat::Json => log.json().flatten_event(true).with_span_list(false).init(),
        }
    }

    /// Returns the filter's directives.
    fn directives(&self, default: &str) -> String {
        let chosen = self.log_level.as_ref().map(|level| level.0.as_str());
        match chosen.filter(|level| !level.is_empty()).unwrap_or(default) {
            level @ ("warn" | "info") => format!("{level},{QUIET}"),
            other => other.to_owned(),
        }
    }
}

/// Writes `text` to standard error as it is. `eprint!` would panic where nobody reads any more, or
/// the disk of a log is full.
pub fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Says `line` to people as it is, and to programs as an event of the log.
pub(crate) fn say(line: &str) {
    match is_for_programs() {
        true => tracing::info!("{line}"),
        false => write(&format!("{line}\n")),
    }
}

/// The same with a line that programs should take for a warning.
pub fn warn(line: &str) {
    match is_for_programs() {
        true => tracing::warn!("{line}"),
        false => write(&format!("{line}\n")),
    }
}

/// Returns true if each line of standard error has to be a JSON object.
pub(crate) fn is_for_programs() -> bool {
    STARTED.get().is_some_and(|(_, format)| *format == LogFormat::Json)
}

fn takes_colour() -> bool {
    let is_declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !is_declined
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        log: LogArgs,
    }

    fn log(flag: &str) -> Result<LogArgs, clap::Error> {
        Line::try_parse_from(["loquent", flag]).map(|line| line.log)
    }

    #[test]
    fn a_level_leaves_out_what_closed_tabs_cause_and_a_list_is_taken_as_it_is() {
        let directives = |flag: &str| log(flag).unwrap().directives("info");
        assert_eq!(directives("--log-level="), format!("info,{QUIET}"));
        assert_eq!(directives("--log-level=warn"), format!("warn,{QUIET}"));
        assert_eq!(directives("--log-level=debug"), "debug");
        assert_eq!(directives("--log-level=off"), "off");
        assert_eq!(
            directives("--log-level=info,loquent_server=trace"),
            "info,loquent_server=trace"
        );
    }

    #[test]
    fn a_wrong_level_is_refused() {
        let error = log("--log-level=loquent=loud").unwrap_err().to_string();
        assert!(error.contains("--log-level") && error.contains("debug"), "{error}");
        assert!(log("--log-format=xml").is_err());
    }
}
