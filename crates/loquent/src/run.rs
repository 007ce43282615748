//! `loquent run`: a chat with a model loaded by this process. Nothing listens on a network: the
//! chat uses the engine like the server does, without HTTP in between.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use clap::Args;
use loquent_proto::printable::printable;

use crate::bundled::{self, SUGGESTED};
use crate::chat::{self, Dialogue, Partner, TalkArgs};
use crate::in_process::{InProcess, InProcessArgs};
use crate::model_args::ModelArgs;
use crate::models;
use crate::serve::args::SamplingArgs;
use crate::shutdown;

const EXAMPLES: &str = "\
Examples:
  loquent run                                      the bundled model, for a first look
  loquent run qwen.gguf -c 8192                    a GGUF file, with a longer context
  loquent run Qwen/Qwen3-0.6B-GGUF                 a model from the Hugging Face hub
  loquent run 'What is streaming?'                 ask the bundled model
  loquent run qwen.gguf 'Why is the sky blue?'     print one answer
  loquent run qwen.gguf -f main.rs 'Explain this'  send a file with the question
  git log -5 | loquent run qwen.gguf 'Summarize:' -

Within the chat, /help lists its commands.";

/// Flags that `run -h` lists besides those of the chat; `--help` lists all.
const ESSENTIAL: [&str; 14] = [
    "wanted",
    "prompt",
    "hf",
    "context",
    "threads",
    "gpu_layers",
    "system",
    "temperature",
    "max_tokens",
    "file",
    "plain",
    "reasoning",
    "models_dir",
    "simulate",
];

/// Adapts a flag's defaults to one user, who needs no batch: its memory is better spent on the
/// context.
fn for_one_user(flag: clap::Arg) -> clap::Arg {
    let id = flag.get_id().as_str().to_owned();
    let flag = match id.as_str() {
        "max_batch_size" => flag.default_value("1"),
        // As in `serve`; declared here because `bench` has a `-c` of its own.
        "context" => flag.short('c'),
        "temperature" => flag.short('t'),
        _ => flag,
    };
    flag.hide_short_help(!ESSENTIAL.contains(&id.as_str()))
}

/// Options of `loquent run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_args(for_one_user))]
pub struct RunModelArgs {
    #[command(flatten)]
    talk: TalkArgs,
    #[command(flatten)]
    in_process: InProcessArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Question to ask once, instead of starting a conversation; '-' inserts standard input
    #[arg(value_name = "PROMPT", help_heading = None::<&str>)]
    prompt: Vec<String>,
}

/// Loads the model and chats with it.
///
/// # Errors
/// If the model cannot be loaded, the terminal cannot be used, or the single question gets no
/// complete answer.
pub async fn run(mut args: RunModelArgs) -> anyhow::Result<()> {
    // `loquent run "Why is the sky blue?"`: no model has such a name.
    if args.prompt.is_empty() {
        args.prompt.extend(args.in_process.take_sentence());
    }
    if let Some(model) = args.in_process.model_mut() {
        // Before a prompt is waited for, or missed.
        model.check()?;
    }
    let question = chat::question(&args.prompt)?;
    let is_told = match args.in_process.model_mut() {
        Some(model) if question.is_none() => offer_download(model)?,
        _ => false,
    };
    args.in_process.set_sampling(args.sampling.stated());
    let is_demonstration = args.in_process.is_demonstration();
    let engine = InProcess::open(args.in_process).await?;
    let service = engine.service();
    let (model, context) = (service.model().name.clone(), service.model().context_tokens);
    let mut greeting = format!(
        "{model} ({}), {context} tokens of context, in this process alone. /help lists the \
         commands.",
        engine.description()
    );
    if is_demonstration && !is_told && io::stdout().is_terminal() {
        let advice = bundled::advice("run");
        match question {
            Some(_) => eprintln!("{advice}"),
            None => greeting = format!("{greeting}\n{advice}"),
        }
    }
    let dialogue = Dialogue::new(Partner::Engine(service), model);
    let outcome = chat::talk(dialogue, &args.talk, question, &greeting).await;
    tokio::select! {
        () = engine.close() => outcome,
        // A pass of a large model may take long.
        () = chat::interrupt() => shutdown::leave(130),
    }
}

/// Offers to download a real model if nobody has named one and there is somebody to ask; returns
/// true if it did. After a no, or a failed download, the bundled model stays.
fn offer_download(model: &mut ModelArgs) -> anyhow::Result<bool> {
    let name = Path::new(SUGGESTED);
    let is_online = model.places().hub().is_ok_and(|hub| !hub.offline);
    let is_asked = io::stdin().is_terminal() && io::stdout().is_terminal();
    let is_here = || models::resolve_here(name, model.places()).is_ok_and(|path| path.is_some());
    if !model.is_open() || model.is_pinned() || !is_online || !is_asked || is_here() {
        return Ok(false);
    }
    println!("{}.", bundled::description());
    print!("Download {SUGGESTED} from the Hugging Face hub now? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        match models::resolve(name, model.places()) {
            Ok(_) => model.select(SUGGESTED),
            Err(error) => eprintln!("{}", printable(&format!("{error:#}"))),
        }
    }
    Ok(true)
}
