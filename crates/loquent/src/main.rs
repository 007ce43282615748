//! The `loquent` command line: parses the arguments and runs a subcommand.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use loquent::bench::BenchArgs;
use loquent::chat::{self, ChatArgs};
use loquent::connect::{self, ConnectArgs};
#[cfg(target_os = "linux")]
use loquent::demo::{self, DemoArgs};
#[cfg(feature = "rpc")]
use loquent::rpc::RpcServerArgs;
use loquent::serve::{self, ServeArgs};
use loquent::shutdown;
#[cfg(feature = "llama")]
use loquent::split::SplitArgs;
#[cfg(feature = "llama")]
use loquent::stage::StageArgs;
use loquent::tune::{self, TuneArgs};
use loquent_proto::printable::printable;
use loquent_sim::cli::{SimArgs, TraceArgs};
use tracing_subscriber::EnvFilter;

/// glibc's allocator keeps what a burst of large requests took, up to a few dozen MiB for each
/// thread that ever parsed one. This one gives it back within milliseconds.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stream a language model to many users, over any network.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Serve a model over the OpenAI API, with a chat page
    Serve(Box<ServeArgs>),
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
    /// Compute for a server on another machine over llama.cpp's RPC
    #[cfg(feature = "rpc")]
    RpcServer(RpcServerArgs),
    /// Chat in the terminal with any OpenAI-compatible server
    Chat(ChatArgs),
    /// Measure a server under load, token delivery, or the engine alone
    Bench(BenchArgs),
    /// Emulate a bad network between two commands, with real packets
    #[cfg(target_os = "linux")]
    Link(Box<loquent_bench::link::cli::LinkArgs>),
    /// Find the fastest settings for a model on this machine
    Tune(TuneArgs),
    /// Simulate delivery schemes over lossy links, in virtual time
    Sim(SimArgs),
    /// Show the losses and stalls of a stream in a packet capture
    Trace(TraceArgs),
}

fn main() -> ExitCode {
    // Arguments first: `--help` and errors in them need no log.
    let cli = Cli::parse();
    start_log(default_log(&cli.command));
    let has_engine = has_engine(&cli.command);
    let outcome = run(cli.command);
    if let Err(error) = &outcome {
        // It may quote a server, or a file.
        eprintln!("loquent: {}", printable(&message(error)));
    }
    if has_engine {
        shutdown::leave(i32::from(outcome.is_err()));
    }
    outcome.unwrap_or(ExitCode::FAILURE)
}

fn run(command: Subcommands) -> anyhow::Result<ExitCode> {
    // The chat and the link have handlers of their own.
    #[cfg(target_os = "linux")]
    let has_handlers = matches!(command, Subcommands::Chat(_) | Subcommands::Link(_));
    #[cfg(not(target_os = "linux"))]
    let has_handlers = matches!(command, Subcommands::Chat(_));
    if !has_handlers {
        shutdown::install()?;
    }
    match command {
        Subcommands::Serve(args) => serve::run(*args)?,
        Subcommands::Connect(args) => block_on(connect::run(*args))?,
        #[cfg(target_os = "linux")]
        Subcommands::Demo(args) => demo::run(*args)?,
        #[cfg(feature = "llama")]
        Subcommands::Split(args) => args.run()?,
        #[cfg(feature = "llama")]
        Subcommands::Stage(args) => args.run()?,
        #[cfg(feature = "rpc")]
        Subcommands::RpcServer(args) => args.run()?,
        Subcommands::Chat(args) => block_on(chat::run(args))?,
        Subcommands::Bench(args) => return block_on(args.run()),
        #[cfg(target_os = "linux")]
        Subcommands::Link(args) => return block_on(args.run()),
        Subcommands::Tune(args) => tune::run(args)?,
        Subcommands::Sim(args) => args.run()?,
        Subcommands::Trace(args) => args.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a command computes on threads that need not be waited for.
fn has_engine(command: &Subcommands) -> bool {
    match command {
        Subcommands::Serve(_) => true,
        #[cfg(target_os = "linux")]
        Subcommands::Demo(_) => true,
        _ => false,
    }
}

/// What is logged unless `LOQUENT_LOG` says otherwise.
fn default_log(command: &Subcommands) -> &'static str {
    match command {
        // Its columns are the whole screen.
        #[cfg(target_os = "linux")]
        Subcommands::Demo(_) => "error",
        _ => "info",
    }
}

/// Runs a command on a runtime of its own.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // Threads that block, in a look-up of a name for example, must not keep the process.
    runtime.shutdown_background();
    outcome
}

/// The error with its causes on one line. Many errors of libraries repeat their cause in their own
/// message, so a cause that has just been printed is left out.
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

/// Logs go to stderr. `LOQUENT_LOG` selects them (`debug`, `loquent_server=trace`, …).
fn start_log(default: &str) {
    let filter = EnvFilter::try_from_env("LOQUENT_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // Colour codes belong on a terminal only, not in a file or a journal.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colour);
    log.with_writer(std::io::stderr).init();
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_printed_once() {
        let missing = || std::io::Error::other("no such file");
        let plain = Err::<(), _>(missing()).context("cannot read a.gguf").unwrap_err();
        assert_eq!(message(&plain), "cannot read a.gguf: no such file");
        let repeated = Err::<(), _>(missing()).context("a.gguf: no such file").unwrap_err();
        assert_eq!(message(&repeated), "a.gguf: no such file");
    }
}
