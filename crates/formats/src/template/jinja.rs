//! minijinja, configured as `transformers` configures Jinja for chat templates.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::Map;
use serde_json::ser::Formatter;

use super::TemplateError;
use super::clock::strftime;

/// Maximum instructions per rendering: a conversation of some thousand messages needs fewer.
const FUEL: u64 = 10_000_000;
/// Maximum depth of macros and includes.
const RECURSION: usize = 100;
/// Name of the template in messages.
const NAME: &str = "chat";
/// Prefix of errors that a template raised itself.
const RAISED: &str = "raised by the template: ";

pub(super) fn compile(source: &str) -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment
        .add_template_owned(NAME, without_generation_tags(source))
        .map_err(|error| TemplateError::Syntax(error.to_string()))?;
    Ok(environment)
}

/// Jinja's tags, and `transformers`' white space: templates are indented for reading, which would
/// otherwise get into the prompt.
fn syntax() -> SyntaxConfig {
    let built = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    built.expect("the tags are the default ones")
}

/// Removes `{% generation %}` and its end, which mark the assistant's words for training and are
/// not Jinja. Replaced by comments, they keep their effect on the surrounding white space.
fn without_generation_tags(source: &str) -> String {
    let mut text = source.to_owned();
    for word in ["generation", "endgeneration"] {
        for (left, right) in [("", ""), ("-", ""), ("", "-"), ("-", "-")] {
            let tag = format!("{{%{left} {word} {right}%}}");
            text = text.replace(&tag, &format!("{{#{left} {right}#}}"));
        }
    }
    text
}

pub(super) fn render(
    environment: &Environment<'static>,
    variables: &Map<String, serde_json::Value>,
    now_unix_s: i64,
    max_bytes: usize,
) -> Result<String, TemplateError> {
    let failed = |error: Error| classify(&error);
    let template = environment.get_template(NAME).map_err(failed)?;
    let strftime_now = Value::from_function(move |format: String| strftime(&format, now_unix_s));
    let variables = Value::from(Serde(variables));
    let mut output = Bounded { bytes: Vec::new(), max_bytes };
    // As llama-server has them: templates of Llama 3 and Functionary ask for the date by these.
    let dates = context! {
        date_string => strftime("%d %b %Y", now_unix_s),
        datetime => strftime("%b %d %Y", now_unix_s),
    };
    let context = context! { strftime_now, ..context! { ..variables, ..dates } };
    template.render_captured_to(context, &mut output).map_err(failed)?;
    Ok(String::from_utf8_lossy(&output.bytes).into_owned())
}

fn classify(error: &Error) -> TemplateError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(current) = cause {
        let text = current.to_string();
        // An error that the template raised is the request's fault, all others are the template's.
        if let Some((_, reason)) = text.split_once(RAISED) {
            let reason = reason.split(" (in chat:").next().unwrap_or(reason);
            return TemplateError::Refused(reason.to_owned());
        }
        cause = current.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::Limit("steps"),
        ErrorKind::WriteFailure => TemplateError::Limit("output"),
        _ => TemplateError::Failed(error.to_string()),
    }
}

fn raise_exception(reason: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{reason}")))
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`, as templates expect it: a space
/// after each comma and colon, and no HTML escapes.
fn to_json(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    // Other arguments (ensure_ascii, separators, sort_keys) are accepted without effect.
    let indent: Option<usize> = kwargs.get("indent")?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = vec![b' '; width.min(16)];
            let formatter = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    // Safe: prompts are not HTML, so nothing may escape the quotes again.
    Ok(Value::from_safe_string(String::from_utf8_lossy(&bytes).into_owned()))
}

/// One line, with a space after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

/// Collects output up to a bound.
struct Bounded {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max_bytes {
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
