//! `loquent chat`: a terminal chat with any OpenAI-compatible server.
//!
//! With a prompt on the command line, or text on standard input, it prints one answer and exits;
//! standard output then has the answer alone. Otherwise it reads messages line by line.

mod answer;
mod arriving;
mod commands;
mod dialogue;
mod lines;
mod screen;
mod wrap;

use std::future::Future;
use std::io::{ErrorKind, IsTerminal, Read, Write};

use anyhow::{Context, bail};
use loquent_client::{Client, Config, openai};
use loquent_openai::api_key::{api_key, warn_of_cleartext};
use loquent_openai::http::HttpClient;

pub use answer::{AnswerEnd, AskError, TimedAnswer};
pub use commands::SlashCommand;
pub use dialogue::Dialogue;
pub use lines::{Input, Lines};
pub use screen::{Columns, Screen, Style};

/// How long the program waits at its end for its last messages to reach the server. Chosen by hand:
/// one long round trip, and short enough for a prompt to feel immediate.
const CLOSE_LIMIT: std::time::Duration = std::time::Duration::from_millis(500);

/// The default of `--url`: `loquent serve` with its own defaults.
const LOCAL_SERVER: &str = "http://127.0.0.1:8080";

/// Maximum size of standard input; more would not fit into any model's context.
const MAX_STDIN_BYTES: u64 = 16 << 20;

/// Options of `loquent chat`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  loquent chat                                   talk to the server on this machine
  loquent chat 'Why is the sky blue?'            print one answer
  git diff | loquent chat 'Review this:' -       insert standard input at '-'
  loquent chat --url https://example.org/v1 --model m")]
pub struct ChatArgs {
    /// URL of the server, with or without a final /v1
    #[arg(long, value_name = "URL", env = "LOQUENT_URL", default_value = LOCAL_SERVER)]
    pub url: String,
    /// Model to ask [default: the first that the server lists]
    #[arg(long, short, value_name = "NAME")]
    pub model: Option<String>,
    /// System message at the start of the conversation
    #[arg(long, short, value_name = "TEXT")]
    pub system: Option<String>,
    /// API key, sent as a bearer token
    #[arg(long, value_name = "KEY", env = "LOQUENT_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with the API key, which other users cannot see as they can arguments
    #[arg(long, value_name = "FILE", env = "LOQUENT_API_KEY_FILE")]
    pub api_key_file: Option<std::path::PathBuf>,
    /// Use HTTP only
    #[arg(long, env = "LOQUENT_NO_QUIC")]
    pub no_quic: bool,
    /// Sampling temperature [default: the server's]
    #[arg(long, short, value_name = "T")]
    pub temperature: Option<f64>,
    /// Maximum number of tokens per answer [default: the server's]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u32>,
    /// Question to ask once, instead of starting a conversation; '-' inserts standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
}

/// Runs `loquent chat`.
///
/// # Errors
/// When the server cannot be reached or refuses the request, and when the answer to a single
/// question is cut off or stopped. In a conversation such an answer is reported and the
/// conversation continues.
pub async fn run(args: ChatArgs) -> anyhow::Result<()> {
    let once = prompt_of(&args, std::io::stdin().lock())?;
    // An environment variable set to nothing counts as not set.
    let url = if args.url.is_empty() { LOCAL_SERVER.to_owned() } else { args.url };
    let key = api_key(args.api_key.as_deref(), args.api_key_file.as_deref())?;
    let has_key = key.is_some();
    let client = Client::new(Config {
        api_key: key,
        quic: !args.no_quic,
        memory: crate::connect::default_state_dir(),
        ..Config::new(url.clone())
    })?;
    if let Some(warning) = warn_of_cleartext(client.http().base(), has_key) {
        eprintln!("{warning}");
    }
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

/// Resolves at the next Ctrl-C; never, if the signal cannot be handled.
async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// The single question, if there is one: from the command line, else from standard input unless
/// that is a terminal.
fn prompt_of(args: &ChatArgs, stdin: impl Read + IsTerminal) -> anyhow::Result<Option<String>> {
    let reads_stdin = args.prompt.iter().any(|word| word == "-");
    if args.prompt.is_empty() && stdin.is_terminal() {
        return Ok(None);
    }
    let mut piped = String::new();
    if args.prompt.is_empty() || reads_stdin {
        stdin
            .take(MAX_STDIN_BYTES + 1)
            .read_to_string(&mut piped)
            .context("cannot read standard input")?;
    }
    if piped.len() as u64 > MAX_STDIN_BYTES {
        bail!("standard input is longer than {MAX_STDIN_BYTES} bytes");
    }
    let prompt = match args.prompt.as_slice() {
        [] => piped,
        words => {
            let words = words.iter().map(|word| if word == "-" { &piped } else { word });
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
    };
    if prompt.trim().is_empty() {
        bail!("the prompt is empty; give one as an argument or on standard input");
    }
    Ok(Some(prompt))
}

/// The first model that the server lists. A server without a list is asked for `default`.
async fn first_model(client: &HttpClient) -> anyhow::Result<String> {
    use loquent_client::ClientError;
    match openai::models(client).await {
        Ok(models) => Ok(models.into_iter().next().unwrap_or_else(|| "default".to_owned())),
        Err(ClientError::Refused { status: 404 | 405, .. }) => Ok("default".to_owned()),
        Err(ClientError::Refused { status: 401 | 403, message, .. }) => {
            bail!("the server requires an API key ({message}); set --api-key or LOQUENT_API_KEY")
        }
        Err(error @ ClientError::Connect { .. }) => {
            Err(error).context("no server answers at this URL; `loquent serve` starts one")
        }
        Err(error) => Err(error.into()),
    }
}

/// Asks one question. Standard output gets the answer alone, and a terminal also the timing.
async fn answer_once(
    dialogue: &mut Dialogue,
    prompt: &str,
    screen: &mut Screen<impl Write>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let asked = dialogue.ask(prompt, stop, &mut |text| screen.answer(text)).await;
    if matches!(&asked, Err(AskError::Screen(error)) if error.kind() == ErrorKind::BrokenPipe) {
        return Ok(()); // The reader has closed the pipe, as `| head` does when it has enough.
    }
    screen.end_line()?;
    let answer = asked?;
    if answer.ending == AnswerEnd::Stopped {
        bail!("the answer was stopped");
    }
    if screen.style().terminal {
        screen.note(&answer.summary())?;
    }
    Ok(())
}

/// Reads messages and prints answers until the input ends or `/quit`. `stop` makes a future that is
/// ready when the current answer should stop.
///
/// # Errors
/// When the input cannot be read or the screen not be written. A failed answer is only printed.
pub async fn converse<W: Write, S: Future<Output = ()>>(
    dialogue: &mut Dialogue,
    lines: &mut impl Lines,
    screen: &mut Screen<W>,
    stop: impl Fn() -> S,
) -> anyhow::Result<()> {
    let mut last_prompt: Option<String> = None;
    while let Some(text) = lines::message(lines)? {
        let prompt = match SlashCommand::parse(&text) {
            None => text,
            Some(SlashCommand::Quit) => break,
            Some(SlashCommand::Say(text)) => text,
            Some(SlashCommand::Retry) => match last_prompt.take() {
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
                if command == SlashCommand::Reset {
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
            Err(error) => screen.error(&format!("{error} (/retry repeats the question)"))?,
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
