//! Parameters of the questions: those of flags, and those that `/set` sets.

use std::ops::RangeInclusive;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};

/// Values of a parameter.
enum Range {
    /// Numbers.
    Numbers(RangeInclusive<f64>),
    /// Whole numbers.
    Whole(RangeInclusive<i64>),
}

/// Parameters that `/set` knows, by their names in requests, with the values that `loquent serve`
/// accepts.
const PARAMETERS: [(&str, Range); 9] = [
    ("temperature", Range::Numbers(0.0..=2.0)),
    ("top_k", Range::Whole(-1..=i32::MAX as i64)),
    ("top_p", Range::Numbers(0.0..=1.0)),
    ("min_p", Range::Numbers(0.0..=1.0)),
    ("repetition_penalty", Range::Numbers(0.01..=10.0)),
    ("presence_penalty", Range::Numbers(-2.0..=2.0)),
    ("frequency_penalty", Range::Numbers(-2.0..=2.0)),
    ("seed", Range::Whole(i64::MIN..=i64::MAX)),
    ("max_tokens", Range::Whole(1..=u32::MAX as i64)),
];

/// Value of `/set` that leaves a parameter to the server.
const DEFAULT: &str = "default";

/// Parameters that are sent with each question. The server decides all others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuestionParameters(Map<String, Value>);

impl QuestionParameters {
    /// Sets a parameter, if there is a value for it.
    pub(super) fn set(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.0.insert(name.to_owned(), value.into());
        }
    }

    /// Sets a parameter to the number in `text`, or leaves it to the server if that is `default`.
    /// Returns what then holds, in words.
    ///
    /// # Errors
    /// If there is no such parameter, or it cannot have this value.
    pub(super) fn set_by_text(&mut self, name: &str, text: &str) -> anyhow::Result<String> {
        let range = range(name)?;
        if text == DEFAULT {
            self.0.remove(name);
            return Ok(format!("{name} is the default again."));
        }
        self.0.insert(name.to_owned(), parse(name, range, text)?);
        Ok(format!("{name} is {text} from here on."))
    }

    /// Returns the parameters, by their names in requests.
    pub(super) fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns a line for each parameter, or for that called `only`: what is set, else the default,
    /// if it is in `defaults`.
    ///
    /// # Errors
    /// If there is no parameter of this name.
    pub(super) fn listed(&self, only: Option<&str>, defaults: &Value) -> anyhow::Result<String> {
        only.map_or(Ok(()), |name| range(name).map(|_| ()))?;
        let line = |name: &str| match (self.0.get(name), defaults.get(name)) {
            (Some(set), _) => format!("{name} {set}"),
            (None, Some(known)) => format!("{name} {known} (default)"),
            (None, None) => format!("{name} {DEFAULT}"),
        };
        let names = PARAMETERS.iter().map(|(name, _)| *name);
        let lines = names.filter(|name| only.is_none_or(|only| only == *name)).map(line);
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Returns the values of the parameter.
fn range(name: &str) -> anyhow::Result<&'static Range> {
    let found = PARAMETERS.iter().find(|(known, _)| *known == name);
    let Some((_, range)) = found else {
        let names = PARAMETERS.map(|(name, _)| name).join(", ");
        bail!("there is no parameter {name}; these can be set: {names}");
    };
    Ok(range)
}

fn parse(name: &str, range: &Range, text: &str) -> anyhow::Result<Value> {
    let wrong = |kind: &str| format!("{name} takes {kind}, or {DEFAULT}, not {text:?}");
    Ok(match range {
        Range::Numbers(range) => {
            let (least, most) = (range.start(), range.end());
            let wrong = || wrong(&format!("a number from {least} to {most}"));
            let number: f64 = text.parse().ok().with_context(wrong)?;
            ensure!(range.contains(&number), wrong());
            number.into()
        }
        Range::Whole(range) => {
            let least = range.start();
            let wrong = || match *least {
                i64::MIN => wrong("a whole number"),
                _ => wrong(&format!("a whole number, at least {least}")),
            };
            let number: i64 = text.parse().ok().with_context(wrong)?;
            ensure!(range.contains(&number), wrong());
            number.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_parameter_is_set_shown_and_left_to_the_server_again() {
        let mut parameters = QuestionParameters::default();
        parameters.set("max_tokens", None::<u32>);
        assert_eq!(parameters, QuestionParameters::default());
        for (name, text) in [("temperature", "0.2"), ("top_k", "-1"), ("seed", "-7")] {
            parameters.set_by_text(name, text).unwrap();
        }
        assert_eq!(
            json!(parameters.as_map()),
            json!({"temperature": 0.2, "top_k": -1, "seed": -7})
        );
        let listed = parameters.listed(None, &json!({"temperature": 0.8, "top_p": 0.95})).unwrap();
        for line in ["temperature 0.2\n", "top_p 0.95 (default)\n", "\nmax_tokens default"] {
            assert!(listed.contains(line), "{line}: {listed}");
        }
        assert_eq!(parameters.listed(Some("seed"), &Value::Null).unwrap(), "seed -7");
        parameters.set_by_text("temperature", "default").unwrap();
        assert!(!parameters.as_map().contains_key("temperature"));
    }

    #[test]
    fn wrong_names_and_values_say_what_is_right() {
        let mut parameters = QuestionParameters::default();
        for (name, text, right) in [
            ("heat", "1", "temperature, top_k"),
            ("temperature", "hot", "from 0 to 2"),
            ("temperature", "2.1", "from 0 to 2"),
            ("temperature", "nan", "from 0 to 2"),
            ("top_k", "0.5", "at least -1"),
            ("max_tokens", "0", "at least 1"),
            ("seed", "x", "a whole number, or default"),
        ] {
            let error = parameters.set_by_text(name, text).unwrap_err().to_string();
            assert!(error.contains(right), "{error}");
        }
        assert_eq!(parameters, QuestionParameters::default());
        assert!(parameters.listed(Some("heat"), &Value::Null).is_err());
    }
}
