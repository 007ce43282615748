//! The flags for how conversations become prompts.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use loquent_formats::template::{self, ChatTemplate};
use serde_json::{Map, Value};

/// Maximum size of a file with a template.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// The chat template, and defaults of its variables.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conversations")]
pub(crate) struct ChatFormatArgs {
    /// File with the chat template, in Jinja, in place of the model's own; or the template itself,
    /// or `chatml`
    #[arg(
        long,
        visible_alias = "chat-template-file",
        env = "LOQUENT_CHAT_TEMPLATE",
        value_name = "FILE"
    )]
    pub(crate) chat_template: Option<PathBuf>,
    /// Variables of the chat template for requests that do not set them, as a JSON object
    ///
    /// Example: --chat-template-kwargs '{"enable_thinking": false}'
    #[arg(long, visible_alias = "default-chat-template-kwargs",
          env = "LOQUENT_CHAT_TEMPLATE_KWARGS", value_name = "JSON", value_parser = parse_object)]
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// Chat format of the served model, as far as the flags state it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StatedChatFormat {
    /// Text of the template, if it is not the model's own.
    pub(crate) template: Option<String>,
    /// Variables for requests that do not set them.
    pub(crate) variables: Vec<(String, Value)>,
}

impl ChatFormatArgs {
    /// Reads the template.
    ///
    /// # Errors
    /// If it cannot be read, is too large, or is no template.
    pub(crate) fn stated(&self) -> anyhow::Result<StatedChatFormat> {
        let variables = self.chat_template_kwargs.clone().unwrap_or_default();
        let template = self.chat_template.as_deref().map(|stated| match stated.to_str() {
            Some("chatml") => Ok(template::CHATML.to_owned()),
            // No name of a file has these.
            Some(text) if text.contains("{{") || text.contains("{%") => {
                checked(text.to_owned()).context("--chat-template: cannot use this text")
            }
            _ => read_template(stated)
                .with_context(|| format!("--chat-template: cannot use {}", stated.display())),
        });
        Ok(StatedChatFormat {
            template: template.transpose()?,
            variables: variables.into_iter().collect(),
        })
    }
}

fn read_template(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_TEMPLATE_BYTES + 1).read_to_string(&mut text)?;
    let fits = text.len() as u64 <= MAX_TEMPLATE_BYTES;
    ensure!(fits, "it is larger than {MAX_TEMPLATE_BYTES} bytes");
    checked(text)
}

/// Returns `text` if it is a template: said when the server starts, and not in the first answer.
fn checked(text: String) -> anyhow::Result<String> {
    ChatTemplate::new(&text)?;
    Ok(text)
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    let example = "give a JSON object such as {\"enable_thinking\": false}";
    serde_json::from_str(text).map_err(|error| format!("{error}; {example}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        chat: ChatFormatArgs,
    }

    fn stated(flags: &[&str]) -> anyhow::Result<StatedChatFormat> {
        Line::try_parse_from([&["loquent"], flags].concat())?.chat.stated()
    }

    #[test]
    fn a_template_is_read_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path.display().to_string()
        };
        assert_eq!(stated(&[]).unwrap(), StatedChatFormat::default());
        let good = write("good", b"{% for message in messages %}{{ message.content }}{% endfor %}");
        for flag in ["--chat-template", "--chat-template-file"] {
            let template = stated(&[flag, &good]).unwrap().template.unwrap();
            assert!(template.contains("message.content"));
        }
        for (name, bytes, told) in [
            ("broken", &b"{% for"[..], "broken"),
            ("binary", &b"\xff\xfe"[..], "UTF-8"),
            ("large", &vec![b' '; (1 << 20) + 1][..], "larger than"),
        ] {
            let error =
                format!("{:#}", stated(&["--chat-template", &write(name, bytes)]).unwrap_err());
            assert!(error.contains("--chat-template") && error.contains(told), "{name}: {error}");
        }
        assert!(stated(&["--chat-template", "/nonexistent"]).is_err());
        let text = "{{ messages[0].content }}";
        for (given, template) in [("chatml", template::CHATML), (text, text)] {
            let found = stated(&["--chat-template", given]).unwrap().template;
            assert_eq!(found.as_deref(), Some(template));
        }
        let error = format!("{:#}", stated(&["--chat-template", "{% for"]).unwrap_err());
        assert!(error.contains("--chat-template: cannot use this text"), "{error}");
    }

    #[test]
    fn variables_are_an_object() {
        let variables =
            stated(&["--chat-template-kwargs", r#"{"enable_thinking":false}"#]).unwrap();
        assert_eq!(variables.variables, [("enable_thinking".to_owned(), Value::Bool(false))]);
        for wrong in ["", "[]", "{", "true"] {
            let error = stated(&["--chat-template-kwargs", wrong]).unwrap_err().to_string();
            assert!(error.contains("JSON object"), "{wrong}: {error}");
        }
    }
}
