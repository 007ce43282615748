//! Runs `loquent sim` and `loquent trace` without the rest of the program.

use clap::Parser;

#[derive(Parser)]
enum Args {
    Sim(loquent_sim::cli::SimArgs),
    Trace(loquent_sim::cli::TraceArgs),
}

fn main() -> anyhow::Result<()> {
    match Args::parse() {
        Args::Sim(args) => args.run(),
        Args::Trace(args) => args.run(),
    }
}
