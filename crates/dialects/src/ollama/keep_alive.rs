//! Ollama's `keep_alive`: time for which a model stays in memory after a request, as seconds or in
//! Go's notation for durations (`5m`, `1h30m`). Negative values mean forever.

use std::time::Duration;

use serde_json::Value;

use loquent_serving::api::fields::Fields;
use loquent_serving::error::{ApiError, quoted};
use loquent_serving::keep_alive::KeepAlive;

/// Maximum finite time in seconds.
const MAX_S: f64 = 365.0 * 86_400.0;

/// Takes `keep_alive`.
///
/// # Errors
/// 400 if it is not a duration.
pub fn take_keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    let seconds = match fields.take("keep_alive") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.parse().ok().or_else(|| seconds_of(&text)),
        Some(other) => return Err(wrong(fields, &other.to_string())),
    };
    let seconds = seconds.filter(|seconds| seconds.is_finite());
    match seconds {
        Some(seconds) if seconds < 0.0 => Ok(Some(KeepAlive::Forever)),
        Some(seconds) => Ok(Some(KeepAlive::For(Duration::from_secs_f64(seconds.min(MAX_S))))),
        None => Err(wrong(fields, "such a text")),
    }
}

fn wrong(fields: &Fields, found: &str) -> ApiError {
    let message = format!("must be seconds or a duration such as '5m', not {}.", quoted(found));
    fields.error("keep_alive", message)
}

/// Parses `text`, numbers each followed by a unit, to seconds.
fn seconds_of(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut sum = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let behind = &rest[digits..];
        let unit = behind.find(|char: char| char.is_ascii_digit()).unwrap_or(behind.len());
        let seconds = match &behind[..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        sum += number * seconds;
        rest = &behind[unit..];
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Option<KeepAlive>, ApiError> {
        let body = json!({ "keep_alive": value }).to_string();
        take_keep_alive(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn seconds_and_durations_are_times_and_less_than_nothing_is_for_ever() {
        let seconds = |s| Some(KeepAlive::For(Duration::from_secs_f64(s)));
        for (value, expected) in [
            (json!(null), None),
            (json!(0), seconds(0.0)),
            (json!(2.5), seconds(2.5)),
            (json!("300"), seconds(300.0)),
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("250ms"), seconds(0.25)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!(1e300), seconds(MAX_S)),
        ] {
            assert_eq!(read(value.clone()).unwrap(), expected, "{value}");
        }
        for value in [json!(""), json!("soon"), json!("5 m"), json!("-"), json!("5"), json!([])] {
            let is_number = value == "5";
            assert_eq!(read(value.clone()).is_ok(), is_number, "{value}");
        }
    }
}
