//! The flags that say what `loquent serve` runs: a model, or a simulation.

use clap::Args;

use crate::model_args::ModelArgs;

/// What answers requests: a model file, or the simulated engine.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    pub(crate) file: ModelArgs,
    /// Run a simulated engine instead of a model, for tests and measurements
    ///
    /// Each answer gets this many tokens per second; "inf" is as fast as possible.
    #[arg(long, env = "LOQUENT_SIMULATE", value_name = "TOKENS_PER_S", value_parser = parse_rate,
          conflicts_with_all = ["model", "hf"])]
    pub(crate) simulate: Option<f64>,
}

impl SourceArgs {
    /// Whether the bundled model is served, as no flag names another.
    pub(crate) fn is_demonstration(&self) -> bool {
        self.file.model.is_none() && self.file.hf.is_none() && self.simulate.is_none()
    }
}

/// Tokens per second of the simulated engine.
fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| "give tokens per second, above 0, or \"inf\"".to_owned())
}
