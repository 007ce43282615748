//! The `loquent` command line: arguments in, one of the libraries run.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use loquent::chat::{self, ChatArgs};
use loquent::connect::{self, ConnectArgs};
use loquent::in_process::BenchCommand;
#[cfg(feature = "rpc")]
use loquent::rpc::RpcServerArgs;
use loquent::serve::{self, ServeArgs};
#[cfg(feature = "llama")]
use loquent::split::SplitArgs;
#[cfg(feature = "llama")]
use loquent::stage::StageArgs;
use loquent::tune::{self, TuneArgs};
use loquent_sim::cli::{SimArgs, TraceArgs};
use tracing_subscriber::EnvFilter;

/// Stream a language model to many users, over any network.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over the OpenAI API, with a chat page
    Serve(Box<ServeArgs>),
    /// Serve a server's API on this machine, its answers by QUIC with resume
    Connect(Box<ConnectArgs>),
    /// Cut a model into files for several machines
    #[cfg(feature = "llama")]
    Split(SplitArgs),
    /// Compute some layers of a split model for a server elsewhere
    #[cfg(feature = "llama")]
    Stage(StageArgs),
    /// Compute for a server elsewhere by llama.cpp's RPC
    #[cfg(feature = "rpc")]
    RpcServer(RpcServerArgs),
    /// Chat in the terminal with any OpenAI-compatible server
    Chat(ChatArgs),
    /// Measure any OpenAI-compatible server under load, or the engine without one
    Bench(Box<BenchCommand>),
    /// Emulate a bad network between two commands, with real packets
    #[cfg(target_os = "linux")]
    Link(Box<loquent_bench::link::cli::LinkArgs>),
    /// Measure this machine with a model and keep the best settings for serving it
    Tune(TuneArgs),
    /// Simulate delivery schemes over lossy links, in virtual time
    Sim(SimArgs),
    /// Read losses and stalls from a packet capture of a stream
    Trace(TraceArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("loquent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::run(*args)?,
        Command::Connect(args) => runtime()?.block_on(connect::run(*args))?,
        #[cfg(feature = "llama")]
        Command::Split(args) => args.run()?,
        #[cfg(feature = "llama")]
        Command::Stage(args) => args.run()?,
        #[cfg(feature = "rpc")]
        Command::RpcServer(args) => args.run()?,
        Command::Chat(args) => runtime()?.block_on(chat::run(args))?,
        Command::Bench(args) => return runtime()?.block_on(args.run()),
        #[cfg(target_os = "linux")]
        Command::Link(args) => return runtime()?.block_on(args.run()),
        Command::Tune(args) => tune::run(args)?,
        Command::Sim(args) => args.run()?,
        Command::Trace(args) => args.run()?,
    }
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// Logs go to stderr; `LOQUENT_LOG` chooses them (`debug`, `loquent_server=trace`, …).
fn start_log() {
    let filter = EnvFilter::try_from_env("LOQUENT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
