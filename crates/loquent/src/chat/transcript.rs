//! Saves a conversation to a file: Markdown for people, JSON for programs.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde_json::json;

use super::dialogue::Dialogue;

/// Writes the conversation to a new file: as JSON if its extension is `.json`, else as Markdown.
///
/// # Errors
/// If the file already exists or cannot be written.
pub(super) fn save(dialogue: &Dialogue, path: &Path) -> anyhow::Result<()> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let text = if is_json { as_json(dialogue) } else { as_markdown(dialogue) };
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let shown = path.display();
    let mut file = file.with_context(|| match path.exists() {
        true => format!("{shown} is there already; choose another name"),
        false => format!("cannot create {shown}"),
    })?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {shown}"))
}

/// Returns the members of a request, with which the conversation can be continued anywhere.
fn as_json(dialogue: &Dialogue) -> String {
    let object = json!({ "model": dialogue.model, "messages": dialogue.messages() });
    format!("{object:#}\n")
}

fn as_markdown(dialogue: &Dialogue) -> String {
    let mut text = format!("# Conversation with {}\n", dialogue.model);
    let mut add = |who: &str, what: &str| text += &format!("\n## {who}\n\n{}\n", what.trim_end());
    dialogue.system.iter().for_each(|system| add("System", system));
    for (asked, answered) in dialogue.turns() {
        add("You", asked);
        add(&dialogue.model, answered);
    }
    if let Some((asked, answered)) = dialogue.cut_off() {
        add("You", asked);
        add(&format!("{} (cut off)", dialogue.model), answered);
    }
    text
}
