//! The loop of a conversation: reads messages and commands, prints answers.

use std::future::Future;
use std::io::Write;
use std::path::Path;

use anyhow::{anyhow, bail};

use super::answer::{AskError, TimedAnswer};
use super::commands::{self, SlashCommand};
use super::dialogue::Dialogue;
use super::files::{self, home_expanded};
use super::lines::{self, Lines};
use super::partner::Partner;
use super::screen::Screen;
use super::transcript;

/// Action that follows a line of input.
enum Next {
    Ask(String),
    Wait,
    Leave,
}

/// A conversation at the terminal.
struct Conversation<'a, W> {
    dialogue: &'a mut Dialogue,
    screen: &'a mut Screen<W>,
    last_prompt: Option<String>,
}

/// Reads messages and prints answers until the input ends or `/quit`. `stop` creates a future that
/// resolves when the current answer, or command, should stop.
///
/// # Errors
/// If the input cannot be read or the screen cannot be written. A failed answer is only printed.
pub async fn converse<W: Write, S: Future<Output = ()>>(
    dialogue: &mut Dialogue,
    lines: &mut impl Lines,
    screen: &mut Screen<W>,
    stop: impl Fn() -> S,
) -> anyhow::Result<()> {
    let mut conversation = Conversation { dialogue, screen, last_prompt: None };
    while let Some(text) = lines::message(lines)? {
        match conversation.next(text, stop()).await? {
            Next::Ask(prompt) => {
                let quiet = lines.while_answering();
                conversation.ask(prompt, stop()).await?;
                drop(quiet);
            }
            Next::Wait => {}
            Next::Leave => break,
        }
    }
    Ok(())
}

impl<W: Write> Conversation<'_, W> {
    async fn next(&mut self, text: String, stop: impl Future<Output = ()>) -> anyhow::Result<Next> {
        let text = match SlashCommand::parse(&text) {
            None => text,
            Some(SlashCommand::Say(text)) => text,
            Some(SlashCommand::Quit) => return Ok(Next::Leave),
            Some(SlashCommand::Retry) => {
                let Some(prompt) = self.last_prompt.take() else {
                    self.screen.note("There is no question to ask again.")?;
                    return Ok(Next::Wait);
                };
                self.dialogue.forget();
                return Ok(Next::Ask(prompt));
            }
            Some(command) => {
                let obeyed = tokio::select! {
                    biased;
                    // A server may never answer what a command asks of it.
                    () = stop => Err(anyhow!("stopped")),
                    obeyed = self.obey(command) => obeyed,
                };
                match obeyed {
                    Ok(said) => self.screen.note(&said)?,
                    Err(error) => self.screen.error(&format!("{error:#}"))?,
                }
                return Ok(Next::Wait);
            }
        };
        Ok(Next::Ask(self.dialogue.with_attached(&text)))
    }

    async fn ask(&mut self, prompt: String, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let screen = &mut *self.screen;
        let asked = self.dialogue.ask(&prompt, stop, &mut |part| screen.show(part)).await;
        self.last_prompt = Some(prompt);
        self.screen.end_line()?;
        match asked {
            Ok(answer) => {
                self.screen.note(&after_answer(&answer))?;
                self.screen.space()?;
            }
            Err(AskError::Screen(error)) => return Err(error.into()),
            Err(error) => {
                let advice = "/retry repeats the question, /reset starts a new conversation";
                self.screen.error(&format!("{error} ({advice})"))?;
            }
        }
        Ok(())
    }

    /// Executes a command that needs no answer from the model, and returns the text to print.
    async fn obey(&mut self, command: SlashCommand) -> anyhow::Result<String> {
        Ok(match command {
            SlashCommand::Help => commands::HELP.to_owned(),
            SlashCommand::Reset => {
                self.dialogue.reset();
                self.last_prompt = None;
                "The conversation is empty.".to_owned()
            }
            SlashCommand::System(Some(text)) => {
                self.dialogue.system = Some(text);
                "The system message is set.".to_owned()
            }
            SlashCommand::System(None) => {
                let system = self.dialogue.system.clone();
                system.unwrap_or_else(|| "There is no system message.".to_owned())
            }
            SlashCommand::Set(words) => self.set(words.as_deref()).await?,
            SlashCommand::Model(None) => self.list_models().await?,
            SlashCommand::Model(Some(name)) => self.choose_model(name).await?,
            SlashCommand::File(Some(path)) => self.attach(Path::new(&path))?,
            SlashCommand::File(None) => match self.dialogue.attached_summary() {
                nothing if nothing.is_empty() => "/file PATH sends a text file.".to_owned(),
                files => format!("With the next message: {files}"),
            },
            SlashCommand::Save(path) => {
                transcript::save(self.dialogue, &home_expanded(Path::new(&path)))?;
                format!("Written to {path}.")
            }
            SlashCommand::Copy => self.copy(|answer| Some(answer.to_owned()))?,
            SlashCommand::CopyCode => self.copy(commands::last_code)?,
            SlashCommand::Thoughts if self.dialogue.last_reasoning().is_empty() => {
                "The last answer came without reasoning.".to_owned()
            }
            SlashCommand::Thoughts => self.dialogue.last_reasoning().trim().to_owned(),
            SlashCommand::Unknown(name) => {
                bail!("{name} is not a command like this; /help lists them")
            }
            SlashCommand::Retry | SlashCommand::Quit | SlashCommand::Say(_) => {
                unreachable!("`next` handles these itself")
            }
        })
    }

    /// Sets a parameter if `words` are a name and a value, else shows what holds.
    async fn set(&mut self, words: Option<&str>) -> anyhow::Result<String> {
        if let Some((name, value)) = words.and_then(|words| words.split_once(char::is_whitespace)) {
            return self.dialogue.parameters.set_by_text(name, value.trim());
        }
        let defaults = self.dialogue.partner().sampling_defaults(&self.dialogue.model).await;
        self.dialogue.parameters.listed(words, &defaults)
    }

    async fn list_models(&self) -> anyhow::Result<String> {
        let mut said = format!("This is {}.", self.dialogue.model);
        for name in self.dialogue.partner().models().await? {
            if name != self.dialogue.model {
                said += &format!("\n/model {name}");
            }
        }
        Ok(said)
    }

    async fn choose_model(&mut self, name: String) -> anyhow::Result<String> {
        let partner = self.dialogue.partner();
        let models = partner.models().await?;
        if !models.contains(&name) {
            if let Partner::Engine(_) = partner {
                bail!("this process has loaded one model; `loquent run {name}` starts another");
            }
            bail!("the server has no model {name}; it has {}", models.join(", "));
        }
        self.dialogue.model = name;
        Ok(format!("{} answers from here on.", self.dialogue.model))
    }

    fn attach(&mut self, path: &Path) -> anyhow::Result<String> {
        self.dialogue.attach(files::read(path)?);
        Ok(format!("With the next message: {}", self.dialogue.attached_summary()))
    }

    /// Copies a part of the last answer to the clipboard.
    fn copy(&mut self, part: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
        let Some(answer) = self.dialogue.last_text() else {
            bail!("there is no answer to copy");
        };
        let Some(text) = part(answer) else { bail!("the last answer has no block of code") };
        self.screen.copy(&text)?;
        let lines = text.lines().count();
        Ok(format!("Sent to the clipboard: {lines} {}.", if lines == 1 { "line" } else { "lines" }))
    }
}

/// Returns the text printed below an answer.
fn after_answer(answer: &TimedAnswer) -> String {
    let summary = answer.summary();
    match answer.has_calls {
        true => format!("{summary}\nThe model calls a tool; this chat runs none."),
        false => summary,
    }
}
