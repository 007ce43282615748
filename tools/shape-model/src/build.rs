//! Writes a model's file: 16-bit floats first, then llama.cpp's quantiser.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use loquent_engine::llama::{Quant, quantize};
use loquent_formats::gguf::{GgufWriter, TensorSpec};
use tempfile::NamedTempFile;

use crate::shape::{ModelShape, Tensor};
use crate::vocab::Vocabulary;
use crate::weights::RandomWeights;

/// The model to write, and its file.
#[derive(Debug, Clone)]
pub struct BuildOrder {
    /// The model's sizes; the vocabulary's length must be that of `vocabulary`.
    pub shape: ModelShape,
    /// The tokenizer to write into it.
    pub vocabulary: Vocabulary,
    /// Seed of the weights.
    pub seed: u64,
    /// How the weights are stored; [`Quant::F16`] is left as it is drawn.
    pub quant: Quant,
    /// Threads of the quantiser; 0 for one per core.
    pub threads: u32,
    /// The file; replaced if it exists.
    pub out: PathBuf,
}

/// Progress of [`build`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildProgress {
    /// Weights drawn so far, of how many.
    Drawing {
        /// Weights drawn so far.
        done: u64,
        /// Weights of the model.
        all: u64,
    },
    /// The quantiser works (it does not report its progress).
    Quantising,
}

/// Writes the model. The file appears under its name only when it is complete; meanwhile a
/// temporary file takes 2 bytes per weight.
///
/// # Errors
/// A file that cannot be written, or a shape that llama.cpp's quantiser refuses.
pub fn build(order: &BuildOrder, progress: &mut dyn FnMut(BuildProgress)) -> anyhow::Result<()> {
    let drawn = beside(&order.out)?;
    draw(order, drawn.as_file(), progress).with_context(|| drawn.path().display().to_string())?;
    let whole = if order.quant == Quant::F16 {
        drawn
    } else {
        progress(BuildProgress::Quantising);
        let quantised = beside(&order.out)?;
        quantize(drawn.path(), quantised.path(), order.quant, order.threads)?;
        quantised
    };
    let published = whole.persist(&order.out).map_err(|error| error.error);
    published.map(drop).with_context(|| order.out.display().to_string())
}

/// An unfinished file, which is removed unless it is kept, in the folder of the finished one.
fn beside(out: &Path) -> anyhow::Result<NamedTempFile> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".shape-model-").suffix(".part");
    // As any new file; a temporary one would be its owner's alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    builder.tempfile_in(folder).with_context(|| format!("cannot write to {}", folder.display()))
}

fn draw(
    order: &BuildOrder,
    file: &std::fs::File,
    progress: &mut dyn FnMut(BuildProgress),
) -> anyhow::Result<()> {
    assert_eq!(order.shape.vocab, order.vocabulary.len, "the embeddings have one row per token");
    let tensors = order.shape.tensors();
    let specs: Vec<TensorSpec> = tensors.iter().map(|tensor| tensor.spec.clone()).collect();
    let metadata = [order.shape.metadata(), order.vocabulary.metadata.clone()].concat();
    let weights = RandomWeights::new(order.seed);
    let mut writer = GgufWriter::start(BufWriter::new(file), &metadata, &specs)?;
    let (mut done, all) = (0, order.shape.parameters());
    let mut bytes = Vec::new();
    for tensor in &tensors {
        progress(BuildProgress::Drawing { done, all });
        done += tensor.spec.dims.iter().product::<u64>();
        bytes.clear();
        numbers(&weights, tensor, &mut bytes)?;
        writer.data(&bytes)?;
    }
    writer.finish()?.flush()?;
    progress(BuildProgress::Drawing { done, all });
    Ok(())
}

fn numbers(weights: &RandomWeights, tensor: &Tensor, bytes: &mut Vec<u8>) -> io::Result<()> {
    let TensorSpec { name, dims, kind } = &tensor.spec;
    weights.write(name, tensor.fill, *kind, dims.iter().product(), bytes)
}
