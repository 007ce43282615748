//! `loquent pull`: downloads models into the Hugging Face cache.

use std::path::Path;

use anyhow::bail;
use clap::Args;
use loquent_bench::print;

use super::one_line::on_one_line;
use super::{ModelFolders, hub_spec, is_bundled, looks_like_a_path, unknown};
use crate::hub::{self, FetchEvent, HubSpec};
use crate::logging;

const EXAMPLES: &str = "\
Examples:
  loquent pull qwen3:0.6b                      by a short name
  loquent pull Qwen/Qwen3-0.6B-GGUF:Q8_0       by owner, repository and quantisation
  loquent pull ggml-org/gemma-3-1b-it-GGUF     the usual quantisation: Q4_K_M, else Q8_0
  loquent pull --hf-endpoint https://mirror.example Qwen/Qwen3-0.6B-GGUF

A download that was broken off goes on where it stopped. Models go to the Hugging Face cache, which
other tools share: HF_HOME or HF_HUB_CACHE chooses it, HF_TOKEN opens repositories that need it.";

/// Arguments of `loquent pull`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PullArgs {
    /// Models to download: short names, or OWNER/REPO[@REVISION][:QUANT or FILE]
    #[arg(required = true, value_name = "MODEL")]
    names: Vec<String>,
    #[command(flatten)]
    places: ModelFolders,
}

/// Downloads the models, with all files of those in several files, and prints their paths.
///
/// # Errors
/// If a name matches no model of the hub, or a download fails.
pub fn run(args: &PullArgs) -> anyhow::Result<()> {
    // All names first: a typing error in the second must not show after an hour.
    let specs = args.names.iter().map(|name| spec(name, &args.places));
    let specs = specs.collect::<anyhow::Result<Vec<_>>>()?;
    let hub = args.places.hub()?;
    for (name, spec) in args.names.iter().zip(&specs) {
        let mut bar = hub::progress_bar();
        let mut is_new = false;
        let path = hub.fetch(spec, &mut |event| {
            is_new |= matches!(event, FetchEvent::Started { .. });
            bar(event);
        })?;
        if !is_new {
            logging::say(&format!("{} is up to date.", on_one_line(spec)));
        }
        // Alone on stdout, for scripts.
        print(format!("{}\n", on_one_line(path.display())))?;
        logging::say(&format!("  Serve it: loquent serve {}", on_one_line(name)));
    }
    Ok(())
}

fn spec(name: &str, places: &ModelFolders) -> anyhow::Result<HubSpec> {
    if is_bundled(Path::new(name)) {
        bail!("{name} is part of this program; loquent serve {name} serves it");
    }
    if looks_like_a_path(name) || Path::new(name).is_file() {
        bail!("{:?} is a file, not a model on the hub", on_one_line(name));
    }
    match hub_spec(name) {
        Some(spec) => Ok(spec),
        None => bail!(unknown(name, &places.here().models())),
    }
}
