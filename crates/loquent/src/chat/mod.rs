//! `loquent chat`: a terminal chat with any OpenAI-compatible server.
//!
//! With a prompt on the command line, or text on standard input, it prints one answer and exits;
//! standard output then contains only the answer. Otherwise it reads messages line by line.
//! `loquent run` is the same chat with a model in this process ([`crate::run`]).

mod answer;
mod arriving;
mod commands;
mod completion;
mod conversation;
mod dialogue;
mod ending;
mod files;
mod lines;
mod options;
mod parameters;
mod partner;
mod quiet_input;
mod rich;
mod screen;
mod transcript;
mod wrap;

use std::future::Future;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::{Context, bail};
use loquent_client::{Client, ClientError, Config, openai};
use loquent_openai::api_key::{api_key, warn_of_cleartext};
use loquent_openai::http::HttpClient;

use crate::trust::TrustArgs;
use crate::via_args::TwoNetworksArgs;

pub use answer::{AnswerEnd, AskError, StoppedError, TimedAnswer};
pub use arriving::AnswerPart;
pub use commands::SlashCommand;
pub use conversation::converse;
pub use dialogue::Dialogue;
pub use lines::{Input, Lines};
pub use options::{ReasoningDisplay, TalkArgs};
pub use partner::Partner;
pub use quiet_input::QuietInput;
pub use screen::{Columns, Screen, Style};

/// Time limit at exit for the last messages to reach the server. Chosen by hand: one long round
/// trip, and short enough for a prompt to feel immediate.
const CLOSE_LIMIT: std::time::Duration = std::time::Duration::from_millis(500);

/// Default of `--url`: `loquent serve` with its own defaults.
pub(crate) const LOCAL_SERVER: &str = "http://127.0.0.1:8080";

/// Options of `loquent chat`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  loquent chat                                   talk to the server on this machine
  loquent chat 'Why is the sky blue?'            print one answer
  loquent chat -f main.rs 'What does this do?'   send a file with the question
  git diff | loquent chat 'Review this:' -       insert standard input at '-'
  loquent chat --url https://example.org/v1 --model m
  loquent chat --url https://loquent.example --via wlan0,wwan0   over Wi-Fi and mobile at once

`loquent run` chats with a model without a server.")]
pub struct ChatArgs {
    /// URL of the server, with or without a final /v1
    #[arg(long, value_name = "URL", env = "LOQUENT_URL", default_value = LOCAL_SERVER)]
    pub url: String,
    /// Model to ask [default: the first that the server lists]
    #[arg(long, short, value_name = "NAME")]
    pub model: Option<String>,
    /// API key, sent as a bearer token
    #[arg(long, value_name = "KEY", env = "LOQUENT_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// File with the API key, which other users cannot see as they can arguments
    #[arg(long, value_name = "FILE", env = "LOQUENT_API_KEY_FILE")]
    pub api_key_file: Option<std::path::PathBuf>,
    /// Trust in the server's certificate.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Networks to ask over.
    #[command(flatten)]
    pub networks: TwoNetworksArgs,
    /// Use HTTP only
    #[arg(long, env = "LOQUENT_NO_QUIC")]
    pub no_quic: bool,
    /// Sampling temperature [default: the server's]
    #[arg(long, short, value_name = "T")]
    pub temperature: Option<f64>,
    /// How to talk to it.
    #[command(flatten)]
    pub talk: TalkArgs,
    /// Question to ask once, instead of starting a conversation; '-' inserts standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
}

/// Runs `loquent chat`.
///
/// # Errors
/// If the server cannot be reached or refuses the request, or the answer to a single question is
/// cut off or stopped ([`StoppedError`]). In a conversation such an answer is reported and the
/// conversation continues.
pub async fn run(args: ChatArgs) -> anyhow::Result<()> {
    let question = question(&args.prompt)?;
    // An environment variable set to nothing counts as not set.
    let url = if args.url.is_empty() { LOCAL_SERVER.to_owned() } else { args.url };
    let key = api_key(args.api_key.as_deref(), args.api_key_file.as_deref())?;
    let has_key = key.is_some();
    let client = Client::new(args.networks.apply(Config {
        api_key: key,
        trust: args.trust.trust()?,
        quic: !args.no_quic,
        memory: crate::connect::default_state_dir(),
        ..Config::new(url.clone())
    }))?;
    if let Some(warning) = warn_of_cleartext(client.http().base(), has_key) {
        eprintln!("{warning}");
    }
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(client.http()).await?,
    };
    let mut greeting = String::new();
    if question.is_none() {
        let way = client.warm_up().await.name().to_uppercase();
        greeting = format!("{model} at {url} over {way}. /help lists the commands.");
    }
    let mut dialogue = Dialogue::new(client.clone(), model);
    dialogue.parameters.set("temperature", args.temperature);
    let outcome = talk(dialogue, &args.talk, question, &greeting).await;
    client.close(CLOSE_LIMIT).await;
    outcome
}

/// Returns the single question, from the words of the command line or from standard input; `None`
/// for a conversation.
///
/// # Errors
/// If standard input cannot be read, or the question is empty.
pub(crate) fn question(words: &[String]) -> anyhow::Result<Option<String>> {
    options::prompt_of(words, std::io::stdin().lock())
}

/// Asks the question, or holds a conversation on the terminal, which starts with `greeting`.
///
/// # Errors
/// If a file cannot be read, the terminal cannot be used, or the single question gets no complete
/// answer.
pub(crate) async fn talk(
    mut dialogue: Dialogue,
    args: &TalkArgs,
    question: Option<String>,
    greeting: &str,
) -> anyhow::Result<()> {
    dialogue.system = args.system.clone();
    dialogue.parameters.set("max_tokens", args.max_tokens);
    args.attached()?.into_iter().for_each(|file| dialogue.attach(file));
    ending::restore_terminal_at_end()?;
    let style = Style::of_terminal(std::io::stdout().is_terminal());
    let mut screen = Screen::new(std::io::stdout(), style).with_reasoning(args.reasoning);
    if !args.plain {
        screen = screen.with_markdown();
    }
    match question {
        Some(question) => {
            let _quiet = style.terminal.then(QuietInput::start);
            let prompt = dialogue.with_attached(&question);
            answer_once(&mut dialogue, &prompt, &mut screen, interrupt()).await
        }
        None => {
            screen.note(greeting)?;
            converse(&mut dialogue, &mut lines::Terminal::new()?, &mut screen, interrupt).await
        }
    }
}

/// Resolves at the next Ctrl-C; never resolves if the signal cannot be handled.
pub(crate) async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Returns the first model that the server lists, or `default` if the server has no list.
async fn first_model(client: &HttpClient) -> anyhow::Result<String> {
    match openai::models(client).await {
        Ok(models) => Ok(models.into_iter().next().unwrap_or_else(|| "default".to_owned())),
        Err(ClientError::Refused { status: 404 | 405, .. }) => Ok("default".to_owned()),
        Err(ClientError::Refused { status: 401 | 403, message, .. }) => {
            bail!("the server requires an API key ({message}); set --api-key or LOQUENT_API_KEY")
        }
        Err(error @ ClientError::Connect { .. }) => Err(error).context(
            "no server answers at this URL; `loquent serve` starts one, and `loquent run` needs none",
        ),
        Err(error) => Err(error.into()),
    }
}

/// Asks one question. Prints only the answer to standard output, and also the timing to a terminal.
async fn answer_once(
    dialogue: &mut Dialogue,
    prompt: &str,
    screen: &mut Screen<impl Write>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let asked = dialogue.ask(prompt, stop, &mut |part| screen.show(part)).await;
    // The reader may close the pipe, as `| head` does when it has enough.
    let is_left = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    if matches!(&asked, Err(AskError::Screen(error)) if is_left(error)) {
        return Ok(());
    }
    match screen.end_line() {
        // It may do so even between the answer and the end of its line.
        Err(error) if is_left(&error) => {}
        ended => ended?,
    }
    let answer = asked?;
    if answer.ending == AnswerEnd::Stopped {
        return Err(StoppedError.into());
    }
    if screen.style().terminal {
        screen.note(&answer.summary())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use clap::Parser;

    use super::*;
    use crate::in_process::{InProcess, InProcessArgs};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        engine: InProcessArgs,
    }

    /// A pipe whose reader leaves before the last line's end.
    struct LeftPipe;

    impl Write for LeftPipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes == b"\n" { Err(ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reader_may_leave_before_the_last_lines_end() {
        let cli = Cli::parse_from(["engine", "--simulate", "inf"]);
        let engine = InProcess::open(cli.engine).await.unwrap();
        let service = engine.service();
        let model = service.model().name.clone();
        let mut dialogue = Dialogue::new(Partner::Engine(service), model);
        dialogue.parameters.set("max_tokens", Some(4_u32));
        let style = Style { terminal: false, colour: false, columns: Columns::Unlimited };
        let mut screen = Screen::new(LeftPipe, style);
        let line_end = screen.answer("x").and_then(|()| screen.end_line());
        assert!(line_end.is_err(), "else the rest proves nothing");
        answer_once(&mut dialogue, "q", &mut screen, pending()).await.unwrap();
        engine.close().await;
    }
}
