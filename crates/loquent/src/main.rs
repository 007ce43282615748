//! The `loquent` command line: arguments in, one of the libraries run.

use clap::Parser;
use loquent::chat::{self, ChatArgs};

/// Streams a language model to many users, over any network.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Chat in the terminal with any OpenAI-compatible server
    Chat(ChatArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Chat(args) => chat::run(args).await,
    }
}
