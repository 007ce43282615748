//! Runs `loquent sim` without the rest of the program.

use clap::Parser;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    sim: loquent_sim::cli::SimArgs,
}

fn main() -> anyhow::Result<()> {
    Args::parse().sim.run()
}
