//! The load generator on its own: `cargo run --release --example bench -- --url …`.

use clap::Parser;
use loquent_bench::cli::BenchArgs;

#[derive(Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    Cli::parse().bench.run(None).await
}
