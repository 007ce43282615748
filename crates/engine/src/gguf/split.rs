//! Cutting a model into files for split stages: [`SplittableModel::open`] judges a model,
//! [`SplittableModel::balance`] or the user chooses the layers, [`SplittableModel::write`] writes the files.
//!
//! The *entry* file has the tokenizer and the embeddings; it is a GGUF of one tensor that
//! llama.cpp opens for its vocabulary only. A *stage* file is a model of some consecutive
//! layers, renumbered from 0, that llama.cpp loads like any other and that is fed with
//! hidden states. Each tensor has one owner: layers their stage, the head and its norm
//! the last stage, embeddings the entry file. Two exceptions: tied weights are embeddings
//! and head at once and are stored for both; factors of the position encoding, some
//! hundred bytes, are in every stage. What llama.cpp demands beyond that is a placeholder
//! of zeros that no computation reaches: a vocabulary of [`DUMMY_VOCAB`] rows and a norm.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{
    Array, GgufError, GgufWriter, Header, ReadLimits, TensorInfo, TensorSpec, TensorType, Value,
    ValueKind,
};

/// Version of the keys `loquent.stage.*`.
pub const STAGE_VERSION: u32 = 1;
/// Rows of the vocabulary of stages that have no head: enough for llama.cpp, which wants one.
const DUMMY_VOCAB: u64 = 32;
/// Tokens whose keys and values, in 16 bits, a layer is taken to read in a step.
const TYPICAL_TOKENS: u64 = 1024;
/// Bytes of each tensor that enter the fingerprint.
const SAMPLE_BYTES: u64 = 4096;
/// Architectures whose layers are named `blk.N`, whose graph ends a layer in `l_out-N` and
/// takes hidden states in place of embeddings without changing them.
const SUPPORTED: [&str; 5] = ["llama", "qwen2", "qwen3", "gemma3", "gpt2"];

/// Why a model was not split.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// The model's file is no usable GGUF, or cannot be read.
    #[error("{}: {source}", .path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: GgufError,
    },
    /// A model that cannot be split; the text says why.
    #[error("this model cannot be split: {0}")]
    Unsupported(String),
    /// Layers that are not a partition of the model's.
    #[error("these layers do not fit the model: {0}")]
    Layers(String),
    /// A stage file could not be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
}

/// What a stage file says of its place in the whole; the keys `loquent.stage.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageKeys {
    /// Names the whole model: equal in all files of one split.
    pub fingerprint: u64,
    /// First layer, counted in the whole model.
    pub first_layer: u32,
    /// Layers in this file.
    pub layers: u32,
    /// Layers of the whole model.
    pub all_layers: u32,
}

impl StageKeys {
    /// The keys of a stage file; `None` for other files.
    pub fn of(header: &Header) -> Option<Self> {
        let number = |key: &str| header.get(&format!("loquent.stage.{key}"))?.as_u64();
        let small = |key: &str| number(key).and_then(|n| u32::try_from(n).ok());
        let keys = Self {
            fingerprint: number("fingerprint")?,
            first_layer: small("first_layer")?,
            layers: small("layers")?,
            all_layers: small("all_layers")?,
        };
        let end = keys.first_layer.checked_add(keys.layers)?;
        (small("version")? == STAGE_VERSION && end <= keys.all_layers).then_some(keys)
    }

    /// Whether this is the entry file: embeddings and tokenizer, no layers.
    pub fn is_entry(self) -> bool {
        self.layers == 0
    }

    /// Whether the head is in this file.
    pub fn is_last(self) -> bool {
        !self.is_entry() && self.first_layer + self.layers == self.all_layers
    }

    fn metadata(self) -> Vec<(String, Value)> {
        [
            ("version", Value::u32(STAGE_VERSION)),
            ("fingerprint", Value::Unsigned(ValueKind::U64, self.fingerprint)),
            ("first_layer", Value::u32(self.first_layer)),
            ("layers", Value::u32(self.layers)),
            ("all_layers", Value::u32(self.all_layers)),
        ]
        .map(|(key, value)| (format!("loquent.stage.{key}"), value))
        .into()
    }
}

/// A model that can be split.
#[derive(Debug)]
pub struct SplittableModel {
    path: PathBuf,
    header: Header,
    layers: u32,
    fingerprint: u64,
}

/// A tensor of a file to be written, and where its data comes from.
struct PlannedTensor<'a> {
    spec: TensorSpec,
    /// `None` for a placeholder of zeros.
    from: Option<&'a TensorInfo>,
}

/// Where a tensor belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner<'a> {
    Layer(u32, &'a str),
    Embeddings,
    Positions,
    Norm,
    Head,
    Shared,
}

fn owner(name: &str) -> Option<Owner<'_>> {
    if let Some(rest) = name.strip_prefix("blk.") {
        let (layer, rest) = rest.split_once('.')?;
        return layer.parse().ok().map(|layer| Owner::Layer(layer, rest));
    }
    match name {
        "token_embd.weight" => Some(Owner::Embeddings),
        "position_embd.weight" => Some(Owner::Positions),
        "output_norm.weight" | "output_norm.bias" => Some(Owner::Norm),
        "output.weight" | "output.bias" => Some(Owner::Head),
        "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight" => {
            Some(Owner::Shared)
        }
        _ => None,
    }
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

    /// Layers of the model.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    /// Layers for `stages` stages, such that the most expensive stage costs least. A stage's
    /// cost is the bytes that a decode step reads: its weights, head included, and the keys and
    /// values of a text of [`TYPICAL_TOKENS`].
    ///
    /// # Errors
    /// [`SplitError::Layers`] when there are fewer layers than stages, or no stages.
    pub fn balance(&self, stages: u32) -> Result<Vec<Range<u32>>, SplitError> {
        if stages == 0 || stages > self.layers {
            let reason = format!("{stages} stages of {} layers", self.layers);
            return Err(SplitError::Layers(reason));
        }
        let kv_bytes = self.header.kv_elements().saturating_mul(2 * TYPICAL_TOKENS);
        // Never more than all weights, whatever the header says.
        let kv_bytes = (kv_bytes / u64::from(self.layers)).min(self.total_bytes());
        let cost = |layer| self.layer_bytes(layer) + kv_bytes;
        let mut costs: Vec<u64> = (0..self.layers).map(cost).collect();
        *costs.last_mut().expect("a model has layers") += self.head_bytes();
        Ok(partition(&costs, stages as usize))
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

    /// Writes the entry file and one file for each of `stages`, beginning with `prefix`:
    /// `PREFIX-entry.gguf`, `PREFIX-stage-1-of-2.gguf`, … `progress` hears of bytes written.
    /// Files appear under their names only when they are whole. Returns their paths.
    ///
    /// # Errors
    /// [`SplitError::Layers`] when `stages` is no partition of the layers in order,
    /// [`SplitError::Write`] when a file cannot be written.
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

    /// Every tensor of the model was given to someone, and only shared and tied ones to several.
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
            // llama.cpp takes these as the head where there is no tensor of that name.
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

    /// Which of `layers` look through a window, where a rule over layer numbers says so: the
    /// rule would be wrong for renumbered layers.
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
            // It may never have been created; the first error is the one to tell.
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
    let layers = u32::try_from(numbers("block_count")).unwrap_or(0);
    check_tensors(header, layers)?;
    Ok(layers)
}

fn check_tensors(header: &Header, layers: u32) -> Result<(), SplitError> {
    let refuse = |why: String| Err(SplitError::Unsupported(why));
    let mut seen = vec![false; layers.min(4096) as usize];
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

/// Cuts `costs` into `parts` runs whose greatest sum is least.
fn partition(costs: &[u64], parts: usize) -> Vec<Range<u32>> {
    let most = costs.iter().copied().max().unwrap_or(0);
    let (mut low, mut high) = (most, costs.iter().sum());
    while low < high {
        let middle = low + (high - low) / 2;
        match cut(costs, parts, middle).len() <= parts {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    cut(costs, parts, low)
}

/// Fills runs up to `limit`, leaving at least one item for every run still to come.
fn cut(costs: &[u64], parts: usize, limit: u64) -> Vec<Range<u32>> {
    let (mut runs, mut start, mut sum) = (Vec::new(), 0, 0u64);
    for (index, &cost) in costs.iter().enumerate() {
        let items_left = costs.len() - index;
        let runs_left = parts.saturating_sub(runs.len() + 1);
        if index > start && (sum + cost > limit || items_left <= runs_left) {
            runs.push(start as u32..index as u32);
            (start, sum) = (index, 0);
        }
        sum += cost;
    }
    runs.push(start as u32..costs.len() as u32);
    runs
}

/// FNV-1a over the tensors' descriptions and the beginning of each one's data.
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
    //! Choosing layers; whole files are tested with llama.cpp in `tests/llama/staged.rs`.
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_partition_is_one_and_is_balanced(
            costs in prop::collection::vec(1..50u64, 1..40),
            parts in 1..9usize,
        ) {
            prop_assume!(parts <= costs.len());
            let runs = partition(&costs, parts);
            prop_assert_eq!(runs.len(), parts);
            let mut next = 0;
            for run in &runs {
                prop_assert_eq!(run.start, next);
                prop_assert!(run.end > run.start);
                next = run.end;
            }
            prop_assert_eq!(next as usize, costs.len());
            let sum = |run: &Range<u32>| costs[run.start as usize..run.end as usize].iter().sum::<u64>();
            let worst = runs.iter().map(sum).max().unwrap();
            let most = costs.iter().copied().max().unwrap();
            let even = costs.iter().sum::<u64>().div_ceil(parts as u64);
            prop_assert!(worst <= even + most, "{worst} of {even} + {most}");
        }
    }

    #[test]
    fn names_say_where_tensors_belong() {
        assert_eq!(owner("blk.12.attn_q.weight"), Some(Owner::Layer(12, "attn_q.weight")));
        assert_eq!(owner("output_norm.bias"), Some(Owner::Norm));
        assert_eq!(owner("blk.x.attn_q.weight"), None);
        assert_eq!(owner("mm.0.weight"), None);
    }
}
