//! `shape-model`: writes a GGUF of a real model's shape with random weights.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use loquent_engine::llama::Quant;
use loquent_formats::gguf::Value;
use shape_model::{
    Architecture, BuildOrder, BuildProgress, ModelShape, SHAPES, build, embedding_trial, trial,
    vocab,
};

/// Tokens that `--check` decodes.
const CHECKED_TOKENS: usize = 64;

/// Writes a GGUF file with a real model's shape and random weights, quantised by llama.cpp: as fast
/// and as large as the real model, without a download. Its text is noise.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  shape-model --list
  shape-model qwen3-0.6b --out model.gguf
  shape-model gpt2 --quant Q8_0 --vocab ggml-vocab-gpt-2.gguf --out gpt2.gguf
  shape-model tiny --layers 2 --vocab-size 2000 --quant F16 --out small.gguf
  shape-model tiny-moe --quant MXFP4 --out experts.gguf
  shape-model gemma3-1b --layers 6 --vocab-size 32000 --out window.gguf
  shape-model bge-small --layers 2 --vocab-size 2000 --quant F16 --out embedding.gguf

Without --vocab the vocabulary is synthetic: 256 bytes, merges of frequent characters, three
control tokens. It writes any text, in shorter tokens than a trained one."
)]
struct Arguments {
    /// One of the shapes of --list
    #[arg(required_unless_present = "list")]
    shape: Option<String>,
    /// File to write; replaced if it exists
    #[arg(long, short, value_name = "FILE", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Format of the weights: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_1, Q5_0, Q4_K_M, Q4_K_S,
    /// Q4_1, Q4_0, IQ4_NL, IQ4_XS, MXFP4 (experts; all else Q8_0), Q3_K_M, Q2_K or IQ3_S
    #[arg(long, short, value_name = "TYPE", default_value = "Q4_K_M")]
    quant: Quant,
    /// Copy the tokenizer of this GGUF; its size becomes the vocabulary's
    #[arg(long, value_name = "FILE", conflicts_with = "vocab_size")]
    vocab: Option<PathBuf>,
    /// Tokens of the synthetic vocabulary [default: the shape's]
    #[arg(long, value_name = "N")]
    vocab_size: Option<u32>,
    /// Blocks [default: the shape's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    layers: Option<u32>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads of the quantiser and of --check; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: u32,
    /// Load the file afterwards and decode some tokens with it, or embed a text
    #[arg(long)]
    check: bool,
    /// List the known shapes and exit
    #[arg(long)]
    list: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.list {
        list();
        return Ok(());
    }
    let check = arguments.check;
    let order = order(arguments)?;
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    build(&order, &mut |stage| show(&bar, stage))?;
    bar.finish_and_clear();
    let size_bytes = std::fs::metadata(&order.out)?.len();
    println!(
        "{}: {} of {:.1} million random weights as {}, {} tokens, {}",
        order.out.display(),
        order.shape.name,
        order.shape.parameters() as f64 / 1e6,
        order.quant,
        order.vocabulary.len,
        HumanBytes(size_bytes)
    );
    if check && order.shape.pooling.is_some() {
        let vector = embedding_trial(&order.out, order.threads)?;
        println!("It works: vectors of {} numbers", vector.len());
    } else if check {
        let trial = trial(&order.out, CHECKED_TOKENS, order.threads)?;
        let rate = (CHECKED_TOKENS - 1) as f64 / trial.decoding.as_secs_f64();
        println!(
            "It works: {}, {CHECKED_TOKENS} tokens ({} different) at {rate:.1} tokens/s alone",
            trial.description,
            trial.distinct()
        );
    }
    Ok(())
}

/// The arguments, resolved.
fn order(arguments: Arguments) -> anyhow::Result<BuildOrder> {
    let name = arguments.shape.context("no shape was named")?;
    let Some(mut shape) = ModelShape::named(&name) else {
        let names = SHAPES.map(|shape| shape.name).join(", ");
        bail!("unknown shape `{name}`; use one of {names}");
    };
    let vocab_size = arguments.vocab_size.unwrap_or(shape.vocab);
    let mut vocabulary = match (&arguments.vocab, shape.architecture) {
        (Some(file), _) => vocab::copied(file)?,
        (None, Architecture::Gpt2) => vocab::synthetic(vocab_size, "gpt-2")?,
        (None, Architecture::Bert) => vocab::word_pieces(vocab_size)?,
        (None, _) => vocab::synthetic(vocab_size, "qwen2")?,
    };
    // As Qwen's embedding models do, whose vector is that of the last token.
    if shape.pooling.is_some() && shape.architecture == Architecture::Qwen3 {
        vocabulary.metadata.push(("tokenizer.ggml.add_eos_token".into(), Value::Bool(true)));
    }
    shape.vocab = vocabulary.len;
    shape.layers = arguments.layers.unwrap_or(shape.layers);
    Ok(BuildOrder {
        shape,
        vocabulary,
        seed: arguments.seed,
        quant: arguments.quant,
        threads: arguments.threads,
        out: arguments.out.context("no file was named")?,
    })
}

fn list() {
    println!(
        "{:20} {:>9} {:>6} {:>6} {:>6} {:>8} {:>8}  architecture",
        "shape", "weights", "layers", "width", "ffn", "tokens", "context"
    );
    for shape in SHAPES {
        println!(
            "{:20} {:>8.1}M {:>6} {:>6} {:>6} {:>8} {:>8}  {}",
            shape.name,
            shape.parameters() as f64 / 1e6,
            shape.layers,
            shape.width,
            shape.ffn,
            shape.vocab,
            shape.context,
            shape.architecture.name()
        );
    }
}

fn show(bar: &ProgressBar, stage: BuildProgress) {
    match stage {
        BuildProgress::Drawing { done, all } => {
            if bar.length() != Some(all) {
                let template = "drawing weights {wide_bar} {human_pos}/{human_len}";
                bar.set_style(ProgressStyle::with_template(template).expect("well-formed"));
                bar.set_length(all);
            }
            bar.set_position(done);
        }
        BuildProgress::Quantising => {
            let template = "quantising {spinner} {elapsed}";
            bar.set_style(ProgressStyle::with_template(template).expect("well-formed"));
            bar.enable_steady_tick(std::time::Duration::from_millis(200));
        }
    }
}
