//! Converts TOML values to flags as typed on a command line.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use toml::de::DeValue;

/// One setting of a file.
#[derive(Debug, PartialEq)]
pub struct FileSetting {
    /// Id of the flag in clap.
    pub id: String,
    /// The flag as typed, once for each value; empty for a switch that is off.
    pub arguments: Vec<String>,
    /// True if it is a secret.
    pub is_secret: bool,
}

/// Kind of value that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WantedValue {
    /// No value: the flag is present or not.
    Switch,
    Boolean,
    Whole,
    Number,
    Text,
    Path,
    /// A type with its own notation, such as `16` or `auto`.
    Other,
}

impl WantedValue {
    fn of(flag: &Arg) -> Self {
        if !flag.get_action().takes_values() {
            return Self::Switch;
        }
        let parser = flag.get_value_parser();
        if is_one_of(parser, &[TypeId::of::<bool>()]) {
            Self::Boolean
        } else if is_one_of(parser, &whole_numbers()) {
            Self::Whole
        } else if is_one_of(parser, &[TypeId::of::<f64>(), TypeId::of::<f32>()]) {
            Self::Number
        } else if is_one_of(parser, &[TypeId::of::<PathBuf>()]) {
            Self::Path
        } else if is_one_of(parser, &[TypeId::of::<String>(), TypeId::of::<OsString>()]) {
            Self::Text
        } else {
            Self::Other
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Switch | Self::Boolean => "true or false",
            Self::Whole | Self::Number => "a number",
            Self::Text | Self::Path => "a string in quotes",
            Self::Other => "a string or a number",
        }
    }
}

fn whole_numbers() -> [TypeId; 12] {
    [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<i8>(),
        TypeId::of::<i16>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<isize>(),
        TypeId::of::<NonZeroU16>(),
        TypeId::of::<NonZeroU32>(),
    ]
}

fn is_one_of(parser: &ValueParser, types: &[TypeId]) -> bool {
    types.iter().any(|one| parser.type_id() == *one)
}

/// Returns `flag` with `value` as typed, once for each value.
///
/// # Errors
/// If the flag does not accept the value's type.
pub(super) fn arguments_of(flag: &Arg, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let long = flag.get_long().unwrap_or_default();
    if let DeValue::Array(values) = value {
        let is_list =
            matches!(flag.get_action(), ArgAction::Append) || flag.get_value_delimiter().is_some();
        if !is_list {
            return Err("expected one value, found a list".to_owned());
        }
        let texts = values.iter().map(|value| text(flag, value.get_ref()));
        let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
        if let Some(delimiter) = flag.get_value_delimiter()
            && let Some(text) = texts.iter().find(|text| text.contains(delimiter))
        {
            return Err(format!("'{text}' must not contain '{delimiter}'"));
        }
        return Ok(texts.iter().map(|text| format!("--{long}={text}")).collect());
    }
    match (WantedValue::of(flag), value) {
        (WantedValue::Switch, DeValue::Boolean(true)) => Ok(vec![format!("--{long}")]),
        (WantedValue::Switch, DeValue::Boolean(false)) => Ok(Vec::new()),
        _ => Ok(vec![format!("--{long}={}", text(flag, value)?)]),
    }
}

/// Returns one value as typed.
fn text(flag: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    let wanted = WantedValue::of(flag);
    match (wanted, value) {
        (WantedValue::Text | WantedValue::Other, DeValue::String(text)) => Ok(text.to_string()),
        (WantedValue::Path, DeValue::String(text)) => Ok(at_home(text)),
        (WantedValue::Boolean | WantedValue::Other, DeValue::Boolean(is)) => Ok(is.to_string()),
        (
            WantedValue::Whole | WantedValue::Number | WantedValue::Other,
            DeValue::Integer(number),
        ) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            number.map(|number| number.to_string()).map_err(|error| error.to_string())
        }
        (WantedValue::Number | WantedValue::Other, DeValue::Float(number)) => {
            Ok(number.as_str().to_owned())
        }
        (_, found) => Err(format!("expected {}, found {}", wanted.name(), kind(found))),
    }
}

/// Expands a leading tilde in the path `text`, since no shell does so in a file.
pub fn at_home(text: &str) -> String {
    let home = std::env::var("HOME").ok().filter(|home| !home.is_empty());
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => format!("{home}/{rest}"),
        _ => text.to_owned(),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    }
}

/// Checks the values of `flag` as clap checks typed ones.
///
/// # Errors
/// The message of clap.
pub(super) fn check(flag: &Arg, arguments: &[String]) -> Result<(), String> {
    if !flag.get_action().takes_values() {
        return Ok(());
    }
    // Alone, since what it needs or contradicts is checked with all the arguments; and under
    // another name, as clap takes only names that are constants.
    let mut alone = Arg::new("value")
        .long("value")
        .action(flag.get_action().clone())
        .value_parser(flag.get_value_parser().clone())
        .allow_hyphen_values(true);
    if let Some(delimiter) = flag.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let name = format!("--{}", flag.get_long().unwrap_or_default());
    let renamed = arguments.iter().map(|argument| argument.replacen(&name, "--value", 1));
    let command = Command::new("settings").no_binary_name(true).arg(alone);
    match command.try_get_matches_from(renamed) {
        Ok(_) => Ok(()),
        Err(error) => Err(said(&error).replacen("--value <value>", &name, 1)),
    }
}

/// Returns the part of a clap message that describes the error in the value.
fn said(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    match (error.kind(), lines.next()) {
        // The values that are possible are on the second line.
        (ErrorKind::InvalidValue, Some(second)) => format!("{first} {second}"),
        _ => first,
    }
}
