//! The dashboard's events as text, rendered once for all readers.

use std::fmt::Write;

use bytes::Bytes;
use serde_json::{Value, json};

use super::columns::{COLUMNS, Row, row};
use super::moment::Stretch;
use super::sampler::{INTERVAL, MAX_ROWS, SecondSampler, WINDOW};

/// Returns the first event: the names of the figures, and the rows of the last minutes.
pub fn opening(sampler: &SecondSampler) -> Bytes {
    let columns: Vec<_> = COLUMNS.iter().map(|(name, _)| name).collect();
    let about = json!({
        "columns": columns,
        "interval_ms": INTERVAL.as_millis() as u64,
        "history_s": MAX_ROWS as u64 * INTERVAL.as_secs(),
        "window_s": WINDOW as u64 * INTERVAL.as_secs(),
    });
    let mut rows = String::new();
    for row in sampler.rows() {
        if !rows.is_empty() {
            rows.push(',');
        }
        write_row(row, &mut rows);
    }
    // A splice, because a tree of all these numbers would take a hundred times their room.
    let about = about.to_string();
    let about = about.strip_suffix('}').unwrap_or_default();
    event("open", &format!("{about},\"rows\":[{rows}]}}"))
}

/// Returns an event with the current row of figures and the `details` that have no history.
pub fn snapshot(stretch: &Stretch<'_>, details: Value) -> Bytes {
    let mut figures = String::new();
    write_row(&row(stretch), &mut figures);
    event("snapshot", &format!("{{\"row\":{figures},\"details\":{details}}}"))
}

fn event(name: &str, data: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

fn write_row(row: &Row, out: &mut String) {
    out.push('[');
    for (at, &value) in row.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        match value.is_finite() {
            true => drop(write!(out, "{}", rounded(value))),
            false => out.push_str("null"),
        }
    }
    out.push(']');
}

/// Rounds to four significant digits; whole numbers keep all digits.
fn rounded(value: f32) -> f64 {
    let value = f64::from(value);
    if value == 0.0 || value.fract() == 0.0 {
        return value;
    }
    let unit = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_gaps_are_null() {
        let mut row = [0.0; COLUMNS.len()];
        (row[0], row[1], row[2], row[3]) = (123_456.0, 0.012_345_67, f32::NAN, 1234.567);
        let mut text = String::new();
        write_row(&row, &mut text);
        assert!(text.starts_with("[123456,0.01235,null,1235,0,"), "{text}");
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_array());
    }

    #[test]
    fn the_opening_is_json_with_and_without_rows() {
        let data = |event: Bytes| {
            let text = String::from_utf8(event.to_vec()).unwrap();
            let data = text.strip_prefix("event: open\ndata: ").unwrap().trim_end().to_owned();
            serde_json::from_str::<Value>(&data).unwrap()
        };
        let opened = data(opening(&SecondSampler::default()));
        assert_eq!(opened["rows"], json!([]));
        assert_eq!(opened["columns"].as_array().unwrap().len(), COLUMNS.len());
        assert_eq!(opened["history_s"], 600);
    }
}
