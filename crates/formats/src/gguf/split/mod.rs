//! Splits a model into files for stages: [`SplittableModel::open`] checks a model,
//! [`SplittableModel::balance`] or the user chooses the layers, [`SplittableModel::write`] writes
//! the files.
//!
//! The *entry* file has the tokenizer and the embeddings; it is a GGUF of one tensor that llama.cpp
//! opens only for its vocabulary. A *stage* file is a model of some consecutive layers, renumbered
//! from 0, that llama.cpp loads like any other and whose input is hidden states. Each tensor has
//! one owner: the layers' their stage, the head and its norm the last stage, embeddings the entry
//! file. Two exceptions: tied weights are embeddings and head at once and are stored in both
//! places; factors of the position encoding, some hundred bytes, are in every stage. Other tensors
//! that llama.cpp requires are placeholders of zeros that no computation reaches: a vocabulary of
//! `DUMMY_VOCAB` rows and a norm.

mod keys;
mod owner;
mod partition;

pub use keys::{STAGE_VERSION, StageKeys};

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{
    Array, GgufError, GgufWriter, Header, ReadLimits, TensorInfo, TensorSpec, TensorType, Value,
};
use owner::{Owner, owner};
use partition::{PartLoad, PipelinePart, partition, partition_for};

/// Rows of the vocabulary in stages without a head: enough for llama.cpp, which requires one.
const DUMMY_VOCAB: u64 = 32;
/// Assumed length of a text: the number of keys and values, in 16 bits, that a layer reads in a
/// step.
const TYPICAL_TOKENS: u64 = 1024;
/// Fraction of a machine's memory (one part in this many) left for buffers, other programs and the
/// system.
const MEMORY_LEFT_PART: u64 = 8;
/// Bytes of each tensor that enter the fingerprint: enough to distinguish two fine-tunes without
/// reading gigabytes.
const SAMPLE_BYTES: u64 = 4096;
/// Maximum layers of a model; published ones have some hundred.
const MAX_LAYERS: u32 = 4096;
/// Architectures whose layers are named `blk.N`, whose graph ends a layer in `l_out-N`, and that
/// accept hidden states in place of embeddings without changing them.
const SUPPORTED: [&str; 5] = ["llama", "qwen2", "qwen3", "gemma3", "gpt2"];

/// Reason why a model was not split.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// The model's file is not a usable GGUF file, or cannot be read.
    #[error("{}: {source}", .path.display())]
    Model {
        /// Path of the model's file.
        path: PathBuf,
        /// Reason.
        source: GgufError,
    },
    /// The model cannot be split, with the reason.
    #[error("this model cannot be split: {0}")]
    Unsupported(String),
    /// The requested layers do not partition the model's.
    #[error("these layers do not fit the model: {0}")]
    Layers(String),
    /// A stage file could not be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write {
        /// Path of the stage file.
        path: PathBuf,
        /// Reason.
        source: GgufError,
    },
}

/// A machine that will compute a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageMachine {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Memory read speed, in a unit that is the same for all machines.
    pub speed: f64,
}

/// A model that has been checked and can be split.
#[derive(Debug)]
pub struct SplittableModel {
    path: PathBuf,
    header: Header,
    layers: u32,
    fingerprint: u64,
}

/// A tensor of a file to be written, and the source of its data.
struct PlannedTensor<'a> {
    spec: TensorSpec,
    /// `None` for a placeholder of zeros.
    from: Option<&'a TensorInfo>,
}

impl SplittableModel {
    /// Opens the model at `path` and checks that it can be split.
    ///
    /// # Errors
    /// [`SplitError::Model`] or [`SplitError::Unsupported`].
    pub fn open(path: &Path) -> Result<Self, SplitError> {
        let model = |source| SplitError::Model { path: path.to_owned(), source };
        let header = Header::open(path, ReadLimits::with_arrays()).map_err(model)?;
        let layers = check(&header)?;
        let fingerprint = fingerprint(path, &header).map_err(|e| model(GgufError::Io(e)))?;
        Ok(Self { path: path.to_owned(), header, layers, fingerprint })
    }

    /// Plans splits of a model without writing them: for the fuzz target.
    #[cfg(any(test, fuzzing))]
    pub fn plan_all(header: Header) {
        let Ok(layers) = check(&header) else { return };
        let model = Self { path: PathBuf::new(), header, layers, fingerprint: 0 };
        for count in [1, 2] {
            let Ok(stages) = model.balance(count) else { continue };
            model.check_layers(&stages).expect("balanced layers are all layers");
            let files: Vec<_> = stages.iter().map(|layers| model.stage(layers)).collect();
            let entry = model.entry();
            model.check_owned(files.iter().chain([&entry]).flat_map(|(_, parts)| parts));
        }
    }

    /// Number of layers of the model.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Returns the layers of each of `stages` stages, such that the cost of the most expensive
    /// stage is minimal. A stage's cost is the bytes that a decode step reads: its weights, head
    /// included, and the keys and values of a text of `TYPICAL_TOKENS`.
    ///
    /// # Errors
    /// [`SplitError::Layers`] if there are fewer layers than stages, or no stages.
    pub fn balance(&self, stages: u32) -> Result<Vec<Range<u32>>, SplitError> {
        if stages == 0 || stages > self.layers {
            let reason = format!("{stages} stages of {} layers", self.layers);
            return Err(SplitError::Layers(reason));
        }
        let costs: Vec<u64> = self.layer_costs(TYPICAL_TOKENS).collect();
        Ok(partition(&costs, stages as usize))
    }

    /// Returns the layers of a stage for each of `machines`, such that each has the memory for its
    /// weights and for the keys and values of `kv_cells` tokens, and the time of the slowest is
    /// minimal.
    ///
    /// # Errors
    /// [`SplitError::Layers`] if the model does not fit, or has too few layers.
    pub fn fit(
        &self,
        machines: &[StageMachine],
        kv_cells: u64,
    ) -> Result<Vec<Range<u32>>, SplitError> {
        let holds = self.layer_costs(kv_cells);
        let loads = self.layer_costs(TYPICAL_TOKENS).zip(holds);
        let loads: Vec<PartLoad> = loads.map(|(cost, bytes)| PartLoad { cost, bytes }).collect();
        let part = |machine: &StageMachine| PipelinePart {
            room: machine.memory_bytes - machine.memory_bytes / MEMORY_LEFT_PART,
            speed: machine.speed,
        };
        let parts: Vec<PipelinePart> = machines.iter().map(part).collect();
        partition_for(&loads, &parts).ok_or_else(|| {
            let needed: u64 = loads.iter().map(|load| load.bytes).sum();
            let room: u64 = parts.iter().map(|part| part.room).sum();
            SplitError::Layers(format!(
                "{} layers take {} MiB with a cache of {kv_cells} tokens, and these {} machines \
                 hold {} MiB, an eighth of their memory left for everything else",
                self.layers,
                needed >> 20,
                machines.len(),
                room >> 20
            ))
        })
    }

    /// For each layer the bytes of its weights, and of keys and values of `tokens` tokens in 16
    /// bits; the last layer includes the head. A decode step is bound by memory, so the bytes read
    /// are a good measure of its time.
    fn layer_costs(&self, tokens: u64) -> impl Iterator<Item = u64> {
        let kv_bytes = self.header.kv_elements().saturating_mul(tokens.saturating_mul(2));
        // A header with absurd sizes must not outweigh the weights.
        let kv_bytes = (kv_bytes / u64::from(self.layers)).min(self.total_bytes());
        (0..self.layers).map(move |layer| {
            let head = if layer + 1 == self.layers { self.head_bytes() } else { 0 };
            self.layer_bytes(layer) + kv_bytes + head
        })
    }

    fn bytes_of(&self, wanted: impl Fn(Owner<'_>) -> bool) -> u64 {
        let owned = self.header.tensors.iter().filter(|t| owner(&t.name).is_some_and(&wanted));
        owned.map(|tensor| tensor.bytes().ok().flatten().unwrap_or(0)).sum()
    }

    fn layer_bytes(&self, layer: u32) -> u64 {
        self.bytes_of(|owner| matches!(owner, Owner::Layer(n, _) if n == layer))
    }

    fn head_bytes(&self) -> u64 {
        match self.bytes_of(|owner| owner == Owner::Head) {
            0 => self.bytes_of(|owner| owner == Owner::Embeddings),
            bytes => bytes,
        }
    }

    /// Writes the entry file and one file for each of `stages`, named after `prefix`:
    /// `PREFIX-entry.gguf`, `PREFIX-stage-1-of-2.gguf`, … `progress` is called with the number of
    /// bytes just written. Files appear under their names only when complete. Returns their paths.
    ///
    /// # Errors
    /// [`SplitError::Layers`] if `stages` is not a partition of the layers in order,
    /// [`SplitError::Write`] if a file cannot be written.
    pub fn write(
        &self,
        stages: &[Range<u32>],
        prefix: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<PathBuf>, SplitError> {
        self.check_layers(stages)?;
        let named = |end: String| {
            let mut name = prefix.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        };
        let mut jobs = vec![(named("-entry.gguf".into()), self.entry())];
        for (index, layers) in stages.iter().enumerate() {
            let path = named(format!("-stage-{}-of-{}.gguf", index + 1, stages.len()));
            jobs.push((path, self.stage(layers)));
        }
        self.check_owned(jobs.iter().flat_map(|(_, (_, parts))| parts));
        // Planned and checked as a whole before the first byte is written.
        for (path, (metadata, parts)) in &jobs {
            self.write_file(path, metadata, parts, progress)
                .map_err(|source| SplitError::Write { path: path.clone(), source })?;
        }
        Ok(jobs.into_iter().map(|(path, _)| path).collect())
    }

    fn check_layers(&self, stages: &[Range<u32>]) -> Result<(), SplitError> {
        let mut next = 0;
        for range in stages {
            if range.start != next || range.is_empty() {
                let reason = format!("{}..{} where {next} should begin", range.start, range.end);
                return Err(SplitError::Layers(reason));
            }
            next = range.end;
        }
        if next != self.layers {
            let reason = format!("they end at {next}, the model has {}", self.layers);
            return Err(SplitError::Layers(reason));
        }
        Ok(())
    }

    /// Asserts that every tensor is in some file, and only shared and tied ones in several.
    fn check_owned<'a>(&self, parts: impl Iterator<Item = &'a PlannedTensor<'a>>) {
        let mut copies: BTreeMap<&str, usize> = BTreeMap::new();
        parts.filter_map(|part| part.from).for_each(|t| *copies.entry(&t.name).or_default() += 1);
        for tensor in &self.header.tensors {
            let most = match owner(&tensor.name) {
                Some(Owner::Shared) => usize::MAX,
                Some(Owner::Embeddings) if self.find("output.weight").is_none() => 2,
                _ => 1,
            };
            let count = copies.get(tensor.name.as_str()).copied().unwrap_or(0);
            assert!((1..=most).contains(&count), "{} has {count} owners", tensor.name);
        }
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn keys(&self, layers: &Range<u32>) -> StageKeys {
        StageKeys {
            fingerprint: self.fingerprint,
            first_layer: layers.start,
            layers: layers.end - layers.start,
            all_layers: self.layers,
        }
    }

    fn entry(&self) -> (Vec<(String, Value)>, Vec<PlannedTensor<'_>>) {
        let mut metadata: Vec<_> = self.header.metadata.clone();
        metadata.retain(|(key, _)| !is_of_container(key));
        metadata.extend(self.keys(&(0..0)).metadata());
        let embeddings = self.find("token_embd.weight").expect("checked when it was opened");
        (metadata, vec![copy(embeddings, embeddings.name.clone())])
    }

    fn stage(&self, layers: &Range<u32>) -> (Vec<(String, Value)>, Vec<PlannedTensor<'_>>) {
        let (is_first, is_last) = (layers.start == 0, layers.end == self.layers);
        let embeddings = self.find("token_embd.weight").expect("checked when it was opened");
        let mut parts = Vec::new();
        let mut vocab = DUMMY_VOCAB;
        if is_last {
            // Tied weights: without `output.weight`, llama.cpp uses the embeddings as the head.
            let head = self.find("output.weight").unwrap_or(embeddings);
            vocab = head.dims.get(1).copied().unwrap_or(0);
            parts.push(copy(head, embeddings.name.clone()));
        } else {
            parts.push(zeros(&embeddings.name, &[embeddings.dims[0], DUMMY_VOCAB]));
        }
        for tensor in &self.header.tensors {
            let name = tensor.name.clone();
            match owner(&tensor.name).expect("checked when it was opened") {
                Owner::Layer(n, rest) if layers.contains(&n) => {
                    parts.push(copy(tensor, format!("blk.{}.{rest}", n - layers.start)));
                }
                Owner::Shared => parts.push(copy(tensor, name)),
                Owner::Positions if is_first => parts.push(copy(tensor, name)),
                // Added to the hidden states, so zeros change nothing.
                Owner::Positions => parts.push(zeros(&name, &tensor.dims)),
                Owner::Norm if is_last => parts.push(copy(tensor, name)),
                Owner::Norm => parts.push(zeros(&name, &tensor.dims)),
                Owner::Head if is_last && name != "output.weight" => parts.push(copy(tensor, name)),
                _ => {}
            }
        }
        (self.stage_metadata(layers, vocab), parts)
    }

    fn stage_metadata(&self, layers: &Range<u32>, vocab: u64) -> Vec<(String, Value)> {
        let own = format!("{}.", self.header.architecture().unwrap_or_default());
        let mut metadata = Vec::new();
        for (key, value) in &self.header.metadata {
            let key_of_model = key.strip_prefix(&own);
            if is_of_container(key)
                || key.starts_with("tokenizer.")
                || matches!(key_of_model, Some("vocab_size" | "block_count"))
            {
                continue;
            }
            // Arrays with an entry per layer (head counts, widths) are cut like the layers.
            let sliced = match (key_of_model, value) {
                (Some(_), Value::Array(array)) if array.len == u64::from(self.layers) => {
                    Value::Array(slice(array, layers))
                }
                _ => value.clone(),
            };
            metadata.push((key.clone(), sliced));
        }
        let count = layers.end - layers.start;
        metadata.push((format!("{own}block_count"), Value::u32(count)));
        metadata.push((format!("{own}vocab_size"), Value::u32(vocab as u32)));
        metadata.push(("tokenizer.ggml.model".into(), Value::string("no_vocab")));
        if let Some(pattern) = self.window_pattern(layers) {
            let key = format!("{own}attention.sliding_window_pattern");
            metadata.retain(|(other, _)| *other != key);
            metadata.push((key, Value::Array(pattern)));
        }
        metadata.extend(self.keys(layers).metadata());
        metadata
    }

    /// Sliding windows of `layers`, for architectures that compute them from the layer's number:
    /// renumbered layers would give another result.
    fn window_pattern(&self, layers: &Range<u32>) -> Option<Array> {
        if self.header.architecture() != Some("gemma3") {
            return None;
        }
        let period = match self.header.get("gemma3.attention.sliding_window_pattern") {
            Some(Value::Array(_)) => return None,
            Some(value) => value.as_u64().unwrap_or(6) as u32,
            None => 6,
        };
        // llama.cpp: of every `period` layers the last one sees everything.
        let windowed = |layer: u32| i32::from(period > 0 && layer % period < period - 1);
        Some(Array::of_i32(layers.clone().map(windowed)))
    }

    fn write_file(
        &self,
        path: &Path,
        metadata: &[(String, Value)],
        parts: &[PlannedTensor<'_>],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), GgufError> {
        let unfinished = path.with_extension("gguf.part");
        let written = self.write_parts(&unfinished, metadata, parts, progress);
        let published = written.and_then(|()| Ok(std::fs::rename(&unfinished, path)?));
        if published.is_err() {
            // It may never have been created; the first error is the one to report.
            let _ = std::fs::remove_file(&unfinished);
        }
        published
    }

    fn write_parts(
        &self,
        path: &Path,
        metadata: &[(String, Value)],
        parts: &[PlannedTensor<'_>],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), GgufError> {
        let mut input = BufReader::with_capacity(1 << 20, File::open(&self.path)?);
        let specs: Vec<TensorSpec> = parts.iter().map(|part| part.spec.clone()).collect();
        let sink = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut writer = GgufWriter::start(sink, metadata, &specs)?;
        for part in parts {
            let bytes = match part.from {
                Some(tensor) => {
                    input.seek(SeekFrom::Start(self.header.data_offset + tensor.offset))?;
                    writer.data_from(&mut input)?
                }
                None => writer.data_from(io::repeat(0))?,
            };
            progress(bytes);
        }
        writer.finish()?.get_ref().sync_all()?;
        Ok(())
    }

    /// Bytes that [`SplittableModel::write`] will write as tensor data.
    pub fn total_bytes(&self) -> u64 {
        self.bytes_of(|_| true) + self.head_bytes()
    }
}

fn copy(tensor: &TensorInfo, name: String) -> PlannedTensor<'_> {
    let spec = TensorSpec { name, dims: tensor.dims.clone(), kind: tensor.kind };
    PlannedTensor { spec, from: Some(tensor) }
}

fn zeros<'a>(name: &str, dims: &[u64]) -> PlannedTensor<'a> {
    PlannedTensor { spec: TensorSpec::f32(name, dims), from: None }
}

/// Keys that describe the file rather than the model.
fn is_of_container(key: &str) -> bool {
    key == "general.alignment" || key.starts_with("split.") || key.starts_with("loquent.stage.")
}

fn slice(array: &Array, layers: &Range<u32>) -> Array {
    let size = array.item.fixed_bytes().unwrap_or(0) as usize;
    let range = layers.start as usize * size..layers.end as usize * size;
    let bytes = array.bytes.as_ref().and_then(|bytes| bytes.get(range)).map(<[u8]>::to_vec);
    Array { item: array.item, len: u64::from(layers.end - layers.start), bytes }
}

/// Checks that the model can be split; returns its number of layers.
fn check(header: &Header) -> Result<u32, SplitError> {
    let refuse = |why: String| Err(SplitError::Unsupported(why));
    let architecture = header.architecture().unwrap_or("(none)");
    if StageKeys::of(header).is_some() {
        return refuse("it is a part of a split model already".into());
    }
    if header.get("split.count").and_then(Value::as_u64).is_some_and(|count| count > 1) {
        return refuse("it comes in several files; merge them first (llama-gguf-split)".into());
    }
    if !SUPPORTED.contains(&architecture) {
        let known = SUPPORTED.join(", ");
        return refuse(format!("its architecture is {architecture:?}; known are {known}"));
    }
    let numbers = |key: &str| header.model_number(key).unwrap_or(0);
    if architecture == "gemma3" && numbers("block_count") == 62 {
        return refuse("gemma3 with 62 layers scales attention by the number of layers".into());
    }
    let layers = u32::try_from(numbers("block_count")).unwrap_or(u32::MAX);
    if layers > MAX_LAYERS {
        return refuse(format!("it claims {layers} layers; {MAX_LAYERS} are possible"));
    }
    check_tensors(header, layers)?;
    Ok(layers)
}

fn check_tensors(header: &Header, layers: u32) -> Result<(), SplitError> {
    let refuse = |why: String| Err(SplitError::Unsupported(why));
    let mut seen = vec![false; layers as usize];
    for tensor in &header.tensors {
        let name = &tensor.name;
        match owner(name) {
            Some(Owner::Layer(n, _)) if (n as usize) < seen.len() => seen[n as usize] = true,
            Some(Owner::Layer(n, _)) => return refuse(format!("it has no layer {n}, but {name}")),
            Some(Owner::Embeddings) if tensor.dims.len() != 2 => {
                return refuse(format!("{name} is no matrix"));
            }
            Some(_) => {}
            None => return refuse(format!("the tensor {name:?} belongs to no layer")),
        }
        if !matches!(tensor.bytes(), Ok(Some(_))) {
            return refuse(format!("{name} has an unknown element type"));
        }
    }
    if seen.is_empty() || seen.contains(&false) {
        return refuse("layers are missing".into());
    }
    match header.tensors.iter().any(|tensor| owner(&tensor.name) == Some(Owner::Embeddings)) {
        true => Ok(()),
        false => refuse("it has no token_embd.weight".into()),
    }
}

/// Hash (FNV-1a) of the tensors' descriptions and the beginning of each one's data.
fn fingerprint(path: &Path, header: &Header) -> io::Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for &byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    let mut file = File::open(path)?;
    for tensor in &header.tensors {
        add(tensor.name.as_bytes());
        tensor.dims.iter().for_each(|dim| add(&dim.to_le_bytes()));
        let TensorType(kind) = tensor.kind;
        add(&kind.to_le_bytes());
        file.seek(SeekFrom::Start(header.data_offset + tensor.offset))?;
        let mut sample = Vec::new();
        let len = tensor.bytes().ok().flatten().unwrap_or(0).min(SAMPLE_BYTES);
        (&mut file).take(len).read_to_end(&mut sample)?;
        add(&sample);
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header that claims `claimed` layers and has the tensors of `real` ones.
    fn header(claimed: u32, real: u32) -> Header {
        let tensor =
            |name: String| TensorInfo { name, dims: vec![1, 1], kind: TensorType::F32, offset: 0 };
        let layers = (0..real).map(|layer| tensor(format!("blk.{layer}.attn_q.weight")));
        Header {
            version: 3,
            metadata: vec![
                ("general.architecture".into(), Value::string("llama")),
                ("llama.block_count".into(), Value::u32(claimed)),
            ],
            tensors: layers.chain([tensor("token_embd.weight".into())]).collect(),
            data_offset: 0,
            alignment: 32,
        }
    }

    #[test]
    fn a_header_cannot_claim_more_layers_than_it_has() {
        assert_eq!(check(&header(3, 3)).unwrap(), 3);
        assert_eq!(check(&header(MAX_LAYERS, MAX_LAYERS)).unwrap(), MAX_LAYERS);
        // So many tensors that the first layers are all there.
        assert!(check(&header(u32::MAX, MAX_LAYERS)).is_err());
        assert!(check(&header(4, 3)).is_err());
        assert!(check(&header(0, 0)).is_err());
    }
}
