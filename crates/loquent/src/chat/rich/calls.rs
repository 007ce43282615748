//! Tool calls: the function's name and its arguments.

use serde_json::Value;

use super::row::{Canvas, Look, Row};

/// Maximum bytes of arguments that are laid out; longer ones are shown unformatted.
const LONGEST_ARGUMENTS_BYTES: usize = 16 << 10;

/// One call, as far as it has arrived.
#[derive(Debug)]
pub(super) struct ToolCall {
    pub(super) index: u32,
    name: String,
    arguments: String,
}

impl ToolCall {
    pub(super) fn new(index: u32) -> ToolCall {
        ToolCall { index, name: String::new(), arguments: String::new() }
    }

    pub(super) fn push(&mut self, name: &str, arguments: &str) {
        self.name += name;
        self.arguments += arguments;
    }

    /// Lays out the call on one row if it fits, else with each argument on its own row.
    pub(super) fn rows(&self, canvas: Canvas) -> Vec<Row> {
        let mut head = Row::of(Look::TOOL, &format!("→ {}", self.name));
        let bounded = Some(&self.arguments).filter(|it| it.len() <= LONGEST_ARGUMENTS_BYTES);
        let parsed = bounded.and_then(|it| serde_json::from_str::<Value>(it).ok());
        let short = match &parsed {
            Some(Value::Object(members)) => {
                let members = members.iter().map(|(name, value)| format!("{name}: {value}"));
                format!("({})", members.collect::<Vec<_>>().join(", "))
            }
            _ => format!(" {}", self.arguments),
        };
        let mut whole = head.clone();
        whole.push(Look::CODE, short.trim_end());
        if whole.width() <= canvas.columns && !short.contains('\n') {
            return vec![whole];
        }
        let long = parsed.and_then(|value| serde_json::to_string_pretty(&value).ok());
        let long = long.unwrap_or_else(|| self.arguments.clone());
        head = head.trim_end();
        let lines = long.lines().flat_map(|line| Row::of(Look::CODE, line).wrap(canvas.columns));
        std::iter::once(head).chain(lines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(arguments: &str) -> Vec<String> {
        let mut call = ToolCall::new(0);
        call.push("weather", arguments);
        let canvas = Canvas { columns: 32, rows: 24, colour: true };
        call.rows(canvas).iter().map(Row::text).collect()
    }

    #[test]
    fn calls_are_readable_while_they_arrive_and_after() {
        assert_eq!(rows(""), ["→ weather"]);
        assert_eq!(rows(r#"{"city": "Par"#), [r#"→ weather {"city": "Par"#]);
        assert_eq!(rows(r#"{"city": "Paris"}"#), [r#"→ weather(city: "Paris")"#]);
        assert_eq!(
            rows(r#"{"city": "Paris", "days": [1, 2]}"#)[..3],
            ["→ weather", "{", r#"  "city": "Paris","#]
        );
        assert_eq!(rows("{}"), ["→ weather()"]);
    }
}
