//! The `loquent` command line: arguments in, one of the libraries run.

mod bundled;
mod chat_format;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
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
    Serve(Box<serve::ServeArgs>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(*args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loquent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to stderr; `LOQUENT_LOG` chooses them (`debug`, `loquent_server=trace`, …).
fn start_log() {
    let filter = EnvFilter::try_from_env("LOQUENT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}
