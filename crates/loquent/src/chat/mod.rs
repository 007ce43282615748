//! `loquent chat`: a terminal chat with any OpenAI-compatible server.
//!
//! With a prompt on the command line, or text on standard input, it answers once and ends, the
//! answer alone on standard output; otherwise it converses line by line.

mod arriving;
mod commands;
mod dialogue;
mod lines;
mod screen;

use std::future::Future;
use std::io::{ErrorKind, IsTerminal, Read, Write};

use anyhow::{Context, bail};
use loquent_client::http::HttpClient;
use loquent_client::{Client, Config, openai};

pub use commands::Command;
pub use dialogue::{Answer, AskError, Dialogue, Ending};
pub use lines::{Input, Lines};
pub use screen::{Screen, Style};

/// How long the end of the program waits for what the server is still to be told.
const CLOSE_LIMIT: std::time::Duration = std::time::Duration::from_millis(500);

/// Asked where no server is named.
const LOCAL_SERVER: &str = "http://127.0.0.1:8080";

/// Standard input beyond this is refused: it would not fit into any model's context.
const MAX_STDIN_BYTES: u64 = 16 << 20;

/// Options of `loquent chat`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  loquent chat                                   converse with the server on this machine
  loquent chat 'Why is the sky blue?'            one answer
  git diff | loquent chat 'Review this:' -       '-' puts standard input there
  loquent chat --url https://example.org/v1 --model m")]
pub struct ChatArgs {
    /// URL of the server, with or without a final /v1
    #[arg(long, value_name = "URL", env = "LOQUENT_URL", default_value = LOCAL_SERVER)]
    pub url: String,
    /// Model to ask [default: the first that the server lists]
    #[arg(long, short, value_name = "NAME")]
    pub model: Option<String>,
    /// System message before the conversation
    #[arg(long, short, value_name = "TEXT")]
    pub system: Option<String>,
    /// Key sent as a bearer token
    #[arg(long, value_name = "KEY", env = "LOQUENT_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Do without QUIC
    #[arg(long, env = "LOQUENT_NO_QUIC")]
    pub no_quic: bool,
    /// Sampling temperature [default: the server's]
    #[arg(long, short, value_name = "T")]
    pub temperature: Option<f64>,
    /// Most tokens of one answer [default: the server's]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// Ask this once instead of conversing; '-' stands for standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
}

/// Runs `loquent chat`.
///
/// # Errors
/// A server that cannot be reached or refuses, and, for a single question, an answer that was cut
/// off or stopped. While conversing such an answer is reported and the conversation goes on.
pub async fn run(args: ChatArgs) -> anyhow::Result<()> {
    let once = prompt_of(&args, std::io::stdin().lock())?;
    // An environment variable set to nothing counts as not set.
    let url = if args.url.is_empty() { LOCAL_SERVER.to_owned() } else { args.url };
    let client = Client::new(Config {
        api_key: args.api_key.clone(),
        quic: !args.no_quic,
        memory: crate::connect::default_state_dir(),
        ..Config::new(url.clone())
    })?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(client.http()).await?,
    };
    let mut dialogue = Dialogue::new(client.clone(), model);
    dialogue.system = args.system;
    dialogue.temperature = args.temperature;
    dialogue.max_tokens = args.max_tokens;
    let style = Style::of_terminal(std::io::stdout().is_terminal());
    let mut screen = Screen::new(std::io::stdout(), style);
    let outcome = match once {
        Some(prompt) => answer_once(&mut dialogue, &prompt, &mut screen, interrupt()).await,
        None => {
            let way = client.warm_up().await.name().to_uppercase();
            let model = &dialogue.model;
            screen.note(&format!("{model} at {url} over {way}. /help lists the commands."))?;
            converse(&mut dialogue, &mut lines::Terminal::new()?, &mut screen, interrupt).await
        }
    };
    client.close(CLOSE_LIMIT).await;
    outcome
}

/// Ctrl-C, once. Where it cannot be listened for, the answer simply cannot be stopped.
async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// The single question, if there is one: from the command line or, without any there, from a
/// standard input that is no terminal.
fn prompt_of(args: &ChatArgs, stdin: impl Read + IsTerminal) -> anyhow::Result<Option<String>> {
    let reads_stdin = args.prompt.iter().any(|word| word == "-");
    if args.prompt.is_empty() && stdin.is_terminal() {
        return Ok(None);
    }
    let mut piped = String::new();
    if args.prompt.is_empty() || reads_stdin {
        stdin.take(MAX_STDIN_BYTES + 1).read_to_string(&mut piped).context("standard input")?;
    }
    if piped.len() as u64 > MAX_STDIN_BYTES {
        bail!("standard input has more than {MAX_STDIN_BYTES} bytes");
    }
    let prompt = match args.prompt.as_slice() {
        [] => piped,
        words => {
            let words = words.iter().map(|word| if word == "-" { &piped } else { word });
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
    };
    if prompt.trim().is_empty() {
        bail!("the prompt is empty");
    }
    Ok(Some(prompt))
}

/// The name to send; a server that lists none is asked for `default`.
async fn first_model(client: &HttpClient) -> anyhow::Result<String> {
    use loquent_client::ClientError;
    match openai::models(client).await {
        Ok(models) => Ok(models.into_iter().next().unwrap_or_else(|| "default".to_owned())),
        Err(ClientError::Refused { status: 404 | 405, .. }) => Ok("default".to_owned()),
        Err(ClientError::Refused { status: 401 | 403, message, .. }) => {
            bail!("the server wants a key, by --api-key or LOQUENT_API_KEY: {message}")
        }
        Err(error @ ClientError::Connect { .. }) => {
            Err(error).context("no server answers there; `loquent serve` starts one")
        }
        Err(error) => Err(error.into()),
    }
}

/// One question; only the answer goes to standard output, the timing to a terminal only.
async fn answer_once(
    dialogue: &mut Dialogue,
    prompt: &str,
    screen: &mut Screen<impl Write>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let asked = dialogue.ask(prompt, stop, &mut |text| screen.answer(text)).await;
    if matches!(&asked, Err(AskError::Screen(error)) if error.kind() == ErrorKind::BrokenPipe) {
        return Ok(()); // As `| head` does when it has enough.
    }
    screen.end_line()?;
    let answer = asked?;
    if answer.ending == Ending::Stopped {
        bail!("the answer was stopped");
    }
    if screen.style().terminal {
        screen.note(&answer.summary())?;
    }
    Ok(())
}

/// Converses until the input ends or `/quit`. `stop` makes a future that is ready when the answer
/// under way shall stop.
///
/// # Errors
/// Only those of the input and of the screen; what goes wrong with an answer is shown.
pub async fn converse<W: Write, S: Future<Output = ()>>(
    dialogue: &mut Dialogue,
    lines: &mut impl Lines,
    screen: &mut Screen<W>,
    stop: impl Fn() -> S,
) -> anyhow::Result<()> {
    let mut last_prompt: Option<String> = None;
    while let Some(text) = lines::message(lines)? {
        let prompt = match Command::parse(&text) {
            None => text,
            Some(Command::Quit) => break,
            Some(Command::Say(text)) => text,
            Some(Command::Retry) => match last_prompt.take() {
                Some(prompt) => {
                    dialogue.forget(&prompt);
                    prompt
                }
                None => {
                    screen.note("There is no question to ask again.")?;
                    continue;
                }
            },
            Some(command) => {
                if command == Command::Reset {
                    last_prompt = None;
                }
                commands::obey(command, dialogue, screen)?;
                continue;
            }
        };
        let asked = dialogue.ask(&prompt, stop(), &mut |text| screen.answer(text)).await;
        last_prompt = Some(prompt);
        screen.end_line()?;
        match asked {
            Ok(answer) => screen.note(&answer.summary())?,
            Err(AskError::Screen(error)) => return Err(error.into()),
            Err(error) => screen.error(&format!("{error} (/retry asks again)"))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        chat: ChatArgs,
    }

    fn prompt(arguments: &[&str], stdin: &str) -> anyhow::Result<Option<String>> {
        let arguments = std::iter::once("chat").chain(arguments.iter().copied());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), stdin).unwrap();
        prompt_of(&Cli::parse_from(arguments).chat, file.reopen().unwrap())
    }

    #[test]
    fn the_question_comes_from_words_or_from_standard_input() {
        assert_eq!(prompt(&["one", "two"], "ignored").unwrap().unwrap(), "one two");
        assert_eq!(prompt(&[], "piped\n").unwrap().unwrap(), "piped\n");
        assert_eq!(prompt(&["see:", "-", "?"], "piped").unwrap().unwrap(), "see: piped ?");
        assert!(prompt(&[], " \n").unwrap_err().to_string().contains("empty"));
        assert!(prompt(&[" "], "").is_err());
    }
}
