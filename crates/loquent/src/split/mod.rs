//! `loquent split`: cuts a model's file into one file for each stage.

mod machine;
mod verify;

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use loquent_formats::gguf::split::SplittableModel;
use machine::{NamedMachine, parse_machine};

/// KV cells of `loquent serve` with its defaults.
const ASSUMED_KV_CELLS: u32 = 8192;

const EXAMPLES: &str = "\
Examples:
  loquent split qwen.gguf --stages 2 --verify
  loquent split qwen.gguf --for 24GiB@95,16GiB@60,8GiB@40
  loquent stage --model qwen-stage-2-of-2.gguf --listen 127.0.0.1:7072
  loquent serve --model qwen-entry.gguf --stages qwen-stage-1-of-2.gguf,127.0.0.1:7072";

/// Arguments of `loquent split`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SplitArgs {
    /// GGUF file of the whole model
    model: PathBuf,
    /// Number of stages. The cut balances the bytes that each stage reads for a token
    #[arg(long, value_name = "N", required_unless_present_any = ["layers", "machines"])]
    stages: Option<u32>,
    /// One stage for each of these machines, in order: its memory, and behind @ how fast it reads
    /// it, by `loquent bench engine --roofline` there (GB/s). The slowest stage takes as little
    /// time as it can, and none more than its memory
    #[arg(long = "for", value_name = "MEMORY[@SPEED],…", value_delimiter = ',',
          value_parser = parse_machine, conflicts_with_all = ["stages", "layers"])]
    machines: Vec<NamedMachine>,
    /// KV cache in tokens that the machines of --for need memory for
    #[arg(long, value_name = "N", default_value_t = ASSUMED_KV_CELLS, requires = "machines")]
    kv_cells: u32,
    /// Layers of each stage, for example 0..18,18..28, instead of a balanced cut
    #[arg(long, value_name = "A..B,…", value_delimiter = ',', value_parser = parse_range,
          conflicts_with = "stages")]
    layers: Vec<Range<u32>>,
    /// Path prefix of the files to write [default: the model's path without .gguf]
    #[arg(long, value_name = "PREFIX")]
    out: Option<PathBuf>,
    /// Generate a text with the stages and with the whole model, and compare every number
    #[arg(long)]
    verify: bool,
}

fn parse_range(text: &str) -> Result<Range<u32>, String> {
    let parts = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts.map(|(a, b)| a..b).ok_or_else(|| "use a range like 0..14".to_owned())
}

impl SplitArgs {
    /// Writes the files, and verifies them with `--verify`.
    ///
    /// # Errors
    /// If the model cannot be split, if a file cannot be written, or if the stages' results differ
    /// from the model's.
    pub fn run(self) -> anyhow::Result<()> {
        let source = SplittableModel::open(&self.model)?;
        let layers = match self.stages {
            Some(stages) => source.balance(stages)?,
            None if self.machines.is_empty() => self.layers,
            None => source.fit(&machine::resolve(&self.machines)?, self.kv_cells.into())?,
        };
        let prefix = self.out.unwrap_or_else(|| self.model.with_extension(""));
        let bar = progress_bar(source.total_bytes());
        let files = source.write(&layers, &prefix, &mut |bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        for (index, file) in files.iter().enumerate() {
            let bytes = std::fs::metadata(file).context("a file just written")?.len();
            // The first file is the entry file, so the stages count from 1.
            let what = match index.checked_sub(1) {
                None => "tokenizer and embeddings".to_owned(),
                Some(stage) => format!("layers {}..{}", layers[stage].start, layers[stage].end),
            };
            println!("{} ({} MiB): {what}", file.display(), bytes >> 20);
        }
        if self.verify {
            let steps = verify::verify(&self.model, &files)?;
            println!(
                "verified: {steps} tokens and their log-probabilities equal the whole model's"
            );
        }
        Ok(())
    }
}

fn progress_bar(bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("Splitting {wide_bar} {bytes}/{total_bytes}");
    ProgressBar::new(bytes).with_style(style.expect("the template is constant"))
}

/// Returns an error that names the first difference.
fn differ(step: usize, whole: &str, staged: &str) -> anyhow::Result<()> {
    bail!("token {step} is {staged} with the stages and {whole} with the whole model")
}
