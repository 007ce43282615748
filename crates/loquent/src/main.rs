//! The `loquent` command line: parses the arguments and runs a subcommand.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use loquent::bench::BenchArgs;
use loquent::chat::{self, ChatArgs};
use loquent::completions::CompletionsArgs;
use loquent::config::{self, ArgumentsError, ConfigArgs, ConfigFileArgs};
use loquent::connect::{self, ConnectArgs};
#[cfg(target_os = "linux")]
use loquent::demo::{self, DemoArgs};
use loquent::doctor::{self, DoctorArgs};
#[cfg(feature = "llama")]
use loquent::engine_process::EngineProcessArgs;
use loquent::logging::{self, LogArgs, LogFormat};
use loquent::man::ManArgs;
use loquent::models::list::{self, ListArgs};
use loquent::models::pull::{self, PullArgs};
use loquent::models::rm::{self, RmArgs};
use loquent::neighbour_flags;
#[cfg(feature = "rpc")]
use loquent::rpc::RpcServerArgs;
use loquent::run::{self, RunModelArgs};
use loquent::serve::{self, ServeArgs};
use loquent::shutdown;
#[cfg(feature = "llama")]
use loquent::split::SplitArgs;
#[cfg(feature = "llama")]
use loquent::stage::StageArgs;
use loquent::trust;
use loquent::tune::{self, TuneArgs};
use loquent_proto::printable::printable;
use loquent_sim::cli::{SimArgs, TraceArgs};

/// Global allocator. glibc's keeps the memory of a burst of large requests, up to a few dozen MiB
/// for each thread that ever parsed one; this one returns it within milliseconds.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stream a language model to many users, over any network.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
    #[command(flatten)]
    config: ConfigFileArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Serve a model over the OpenAI API, with a chat page
    Serve(Box<ServeArgs>),
    /// Chat in the terminal with a model, without a server
    Run(Box<RunModelArgs>),
    /// Chat in the terminal with any OpenAI-compatible server
    Chat(ChatArgs),
    /// Download models from the Hugging Face hub
    Pull(PullArgs),
    /// List the models on this machine, those of other tools too
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove models from this machine
    Rm(RmArgs),
    /// Run a local OpenAI endpoint for a remote Loquent server, over QUIC with resume
    Connect(Box<ConnectArgs>),
    /// Show one answer over TCP and over Loquent side by side, on the same bad network
    #[cfg(target_os = "linux")]
    Demo(Box<DemoArgs>),
    /// Split a model into files for several machines
    #[cfg(feature = "llama")]
    Split(SplitArgs),
    /// Compute some layers of a split model for a server on another machine
    #[cfg(feature = "llama")]
    Stage(StageArgs),
    /// Compute for a server of this machine, which starts this itself
    #[cfg(feature = "llama")]
    #[command(hide = true)]
    EngineProcess(Box<EngineProcessArgs>),
    /// Compute for a server on another machine over llama.cpp's RPC
    #[cfg(feature = "rpc")]
    RpcServer(RpcServerArgs),
    /// Measure a server under load, token delivery, or the engine alone
    Bench(BenchArgs),
    /// Emulate a bad network between two commands, with real packets
    #[cfg(target_os = "linux")]
    Link(Box<loquent_bench::link::cli::LinkArgs>),
    /// Say what is wrong with this machine, or on the way to a server, and what to do
    Doctor(DoctorArgs),
    /// Find the fastest settings for a model on this machine
    Tune(TuneArgs),
    /// Simulate delivery schemes over lossy links, in virtual time
    Sim(SimArgs),
    /// Show the losses and stalls of a stream in a packet capture
    Trace(TraceArgs),
    /// Print a script that completes commands and flags in a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    Man(ManArgs),
    /// Show the settings of a command, and what sets each: flag, environment, file or default
    Config(ConfigArgs),
}

fn main() -> ExitCode {
    // Arguments first: `--help` and errors in them need no log.
    let (cli, warning) = parse();
    cli.log.start(default_log(&cli.command));
    if let Some(warning) = &warning {
        logging::warn(warning);
    }
    if matches!(cli.command, Subcommands::Serve(_)) {
        config::warn_of_unknown_variables(&Cli::command());
    }
    let format = cli.log.log_format;
    let has_engine = has_engine(&cli.command);
    let trust_advice = trust_advice(&cli.command);
    let outcome = run_command(cli.command, format, &cli.config);
    if let Err(error) = &outcome {
        // It may quote a server, or a file.
        let text = message(error);
        let why = printable(&text);
        match format {
            LogFormat::Text => logging::write(&format!("loquent: {why}\n")),
            LogFormat::Json => tracing::error!("{why}"),
        }
        // As rustls says it, of a server that the command connects to.
        if text.contains("invalid peer certificate") && format == LogFormat::Text {
            logging::write(&format!("{trust_advice}\n"));
        }
    }
    match outcome {
        Ok(_) if has_engine => shutdown::leave(0),
        Err(error) if has_engine => shutdown::leave(i32::from(failure_status(&error))),
        Ok(status) => status,
        Err(error) => ExitCode::from(failure_status(&error)),
    }
}

/// Returns 130 after Ctrl-C, as if the signal had ended the process, and 1 after other failures.
fn failure_status(error: &anyhow::Error) -> u8 {
    if error.is::<chat::StoppedError>() { 130 } else { 1 }
}

/// Parses the arguments, merged with the settings file. Exits the program if they are wrong or ask
/// for help. Also returns a warning about the file.
fn parse() -> (Cli, Option<String>) {
    let typed = neighbour_flags::translated(std::env::args_os().collect());
    let given = config::arguments(&Cli::command(), typed);
    match given.map(|given| (Cli::from_arg_matches(&given.matches), given.warning)) {
        Ok((Ok(cli), warning)) => (cli, warning),
        Ok((Err(error), _)) | Err(ArgumentsError::Arguments(error)) => error.exit(),
        Err(ArgumentsError::File(error)) => {
            logging::write(&format!("loquent: {}\n", printable(&message(&error.into()))));
            std::process::exit(2);
        }
    }
}

fn run_command(
    command: Subcommands,
    log: LogFormat,
    config: &ConfigFileArgs,
) -> anyhow::Result<ExitCode> {
    // The chats and the link have handlers of their own.
    #[cfg(target_os = "linux")]
    let is_link = matches!(command, Subcommands::Link(_));
    #[cfg(not(target_os = "linux"))]
    let is_link = false;
    #[cfg(feature = "llama")]
    let is_engine = matches!(command, Subcommands::EngineProcess(_));
    #[cfg(not(feature = "llama"))]
    let is_engine = false;
    let is_chat = matches!(command, Subcommands::Chat(_) | Subcommands::Run(_));
    let has_handlers = is_link || is_engine || is_chat;
    if !has_handlers {
        shutdown::install()?;
    }
    match command {
        Subcommands::Serve(args) => serve::run(*args, log)?,
        Subcommands::Connect(args) => block_on(connect::run(*args))?,
        #[cfg(target_os = "linux")]
        Subcommands::Demo(args) => demo::run(*args)?,
        #[cfg(feature = "llama")]
        Subcommands::Split(args) => args.run()?,
        #[cfg(feature = "llama")]
        Subcommands::Stage(args) => args.run()?,
        #[cfg(feature = "llama")]
        Subcommands::EngineProcess(args) => args.run()?,
        #[cfg(feature = "rpc")]
        Subcommands::RpcServer(args) => args.run()?,
        Subcommands::Chat(args) => block_on(chat::run(args))?,
        Subcommands::Pull(args) => pull::run(&args)?,
        Subcommands::List(args) => list::run(&args)?,
        Subcommands::Rm(args) => rm::run(&args)?,
        Subcommands::Run(args) => block_on(run::run(*args))?,
        Subcommands::Bench(args) => return block_on(args.run()),
        #[cfg(target_os = "linux")]
        Subcommands::Link(args) => return block_on(args.run()),
        Subcommands::Doctor(args) => return block_on(doctor::run(args)),
        Subcommands::Tune(args) => tune::run(args)?,
        Subcommands::Sim(args) => args.run()?,
        Subcommands::Trace(args) => args.run()?,
        Subcommands::Completions(args) => args.run(Cli::command())?,
        Subcommands::Man(args) => args.run(Cli::command())?,
        Subcommands::Config(args) => args.run(&Cli::command(), config)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true if a command computes on threads that need not be waited for at exit.
fn has_engine(command: &Subcommands) -> bool {
    match command {
        Subcommands::Serve(_) | Subcommands::Run(_) => true,
        #[cfg(feature = "llama")]
        Subcommands::EngineProcess(_) => true,
        #[cfg(target_os = "linux")]
        Subcommands::Demo(_) => true,
        _ => false,
    }
}

/// Returns the advice for when a server's certificate is refused.
fn trust_advice(command: &Subcommands) -> &'static str {
    match command {
        Subcommands::Chat(_) | Subcommands::Connect(_) | Subcommands::Doctor(_) => trust::ADVICE,
        Subcommands::Bench(args) if args.has_trust() => trust::ADVICE,
        _ => trust::ADVICE_WITHOUT_FLAGS,
    }
}

/// Returns the default log level of a command.
fn default_log(command: &Subcommands) -> &'static str {
    match command {
        // It says itself what there is to say.
        Subcommands::Doctor(_) => "error",
        // Its columns are the whole screen.
        #[cfg(target_os = "linux")]
        Subcommands::Demo(_) => "error",
        // It would be in the middle of the conversation.
        Subcommands::Run(_) => "warn",
        _ => "info",
    }
}

/// Runs a command on its own runtime.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // Threads that block, in a look-up of a name for example, must not keep the process.
    runtime.shutdown_background();
    outcome
}

/// Formats the error with its causes on one line. Many errors of libraries repeat their cause in
/// their own message, so a cause that has just been printed is left out.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn advice_on_trust_names_flags_that_the_command_has() {
        let url = "https://localhost";
        for typed in [
            &["chat", "--url", url][..],
            &["connect", "--url", url],
            &["doctor", "--url", url],
            &["bench", "load", "--url", url],
            &["bench", "engine", "--simulate", "inf", "--url", url],
            &["bench", "burst", "--url", url],
            &["pull", "owner/repo"],
        ] {
            let parse =
                |flags: &[&str]| Cli::try_parse_from(["loquent"].iter().chain(typed).chain(flags));
            let advice = trust_advice(&parse(&[]).unwrap().command);
            let sha256 = "00".repeat(32);
            for flag in [["--ca", "ca.pem"], ["--insecure-fingerprint", sha256.as_str()]] {
                let is_known = parse(&flag).is_ok();
                assert_eq!(advice.contains(flag[0]), is_known, "{typed:?} {}", flag[0]);
            }
        }
    }

    #[test]
    fn a_cause_is_printed_once() {
        let missing = || std::io::Error::other("no such file");
        let plain = Err::<(), _>(missing()).context("cannot read a.gguf").unwrap_err();
        assert_eq!(message(&plain), "cannot read a.gguf: no such file");
        let repeated = Err::<(), _>(missing()).context("a.gguf: no such file").unwrap_err();
        assert_eq!(message(&repeated), "a.gguf: no such file");
    }
}
