//! The load generator on its own: `cargo run --release --example bench -- --url …`.

use clap::Parser;
use loquent_bench::cli::LoadArgs;

#[derive(Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(flatten)]
    load: LoadArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    Cli::parse().load.run().await
}
