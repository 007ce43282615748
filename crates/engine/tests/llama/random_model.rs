//! A random Llama model of some hundred KiB, written for the tests.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use loquent_engine::llama::{LlamaModel, LoadOptions};
use loquent_formats::gguf::{Array, GgufWriter, TensorSpec, Value};

const LAYERS: u32 = 2;
/// Query heads; there is a key head for every two.
const HEADS: u32 = 4;

/// Its width; the hidden layer has twice as many numbers, keys and values half as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width(u64);

impl Width {
    /// Fast to write.
    pub const SMALL: Self = Self(64);
    /// Rows of whole blocks of 256, for K-quants.
    pub const BLOCKS: Self = Self(256);
    /// The hidden layer's rows are longer than our kernels take at once.
    pub const PARTS: Self = Self(1024);
}

/// What differs from a sound model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Defect {
    None,
    /// The embedding of this token is NaN.
    NanToken(u32),
    /// An architecture that llama.cpp does not know.
    Architecture,
    /// The epsilon of the norms.
    Epsilon(f32),
}

/// Tokens of the byte-level vocabulary: 256 bytes, one merge, three special ones.
pub fn vocabulary() -> Vec<String> {
    let mut tokens: Vec<String> = (0..=255u8).map(|b| letter(b).to_string()).collect();
    tokens.push("he".to_owned());
    tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    tokens
}

/// The letter by which GPT-2's tokenizer writes a byte: itself where it is printable,
/// otherwise the next one from U+0100 on.
fn letter(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).expect("a small code point")
}

/// Writes the model to `path`.
pub fn write(path: &Path, width: Width, defect: Defect) {
    write_with(path, width, &metadata(width, defect), defect);
}

/// Writes the small model to `path` with `value` for `key`, in place of its own if it has one.
pub fn write_claiming(path: &Path, key: &str, value: Value) {
    let mut metadata = metadata(Width::SMALL, Defect::None);
    metadata.retain(|(own, _)| own != key);
    metadata.push((key.to_owned(), value));
    write_with(path, Width::SMALL, &metadata, Defect::None);
}

fn write_with(path: &Path, width: Width, metadata: &[(String, Value)], defect: Defect) {
    let tensors = tensors(width, vocabulary().len() as u64);
    let file = BufWriter::new(File::create(path).expect("a temporary file"));
    let mut writer = GgufWriter::start(file, metadata, &tensors).expect("a header");
    let mut random = Random(1);
    for tensor in &tensors {
        let mut values = values(tensor, &mut random);
        if let (Defect::NanToken(token), "token_embd.weight") = (defect, tensor.name.as_str()) {
            let start = token as usize * width.0 as usize;
            values[start..start + width.0 as usize].fill(f32::NAN);
        }
        writer.data_f32(&values).expect("tensor data");
    }
    writer.finish().expect("a complete file");
}

/// A model of another architecture: `metadata` and the tokenizer's keys, and [`values`] for
/// `tensors`, which `adjust` may change.
pub fn load(
    mut metadata: Vec<(String, Value)>,
    tensors: &[TensorSpec],
    adjust: impl Fn(&TensorSpec, &mut [f32]),
) -> Arc<LlamaModel> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.gguf");
    metadata.extend(tokenizer());
    let file = BufWriter::new(File::create(&path).expect("a temporary file"));
    let mut writer = GgufWriter::start(file, &metadata, tensors).expect("a header");
    let mut random = Random(1);
    for tensor in tensors {
        let mut values = values(tensor, &mut random);
        adjust(tensor, &mut values);
        writer.data_f32(&values).expect("tensor data");
    }
    writer.finish().expect("a complete file");
    let options = LoadOptions { mmap: false, ..LoadOptions::default() };
    LlamaModel::load(&path, &options, |_| true).expect("a sound model")
}

/// Values for a tensor: ones for norms, random numbers for matrices.
pub fn values(tensor: &TensorSpec, random: &mut Random) -> Vec<f32> {
    let count: u64 = tensor.dims.iter().product();
    match tensor.dims.len() {
        1 => vec![1.0; count as usize],
        // Variance 4 / inputs: hidden states keep their size and logits differ clearly.
        _ => {
            let scale = (12.0 / tensor.dims[0] as f32).sqrt();
            (0..count).map(|_| random.next() * scale).collect()
        }
    }
}

/// A linear congruential generator (Knuth's MMIX constants).
pub struct Random(pub u64);

impl Random {
    /// Uniform in -1..1.
    pub fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn tensors(Width(width): Width, vocab: u64) -> Vec<TensorSpec> {
    let (kv_width, hidden) = (width / 2, 2 * width);
    let mut tensors = vec![
        TensorSpec::f32("token_embd.weight", &[width, vocab]),
        TensorSpec::f32("output_norm.weight", &[width]),
        TensorSpec::f32("output.weight", &[width, vocab]),
    ];
    for layer in 0..LAYERS {
        for (name, dims) in [
            ("attn_norm", &[width][..]),
            ("attn_q", &[width, width]),
            ("attn_k", &[width, kv_width]),
            ("attn_v", &[width, kv_width]),
            ("attn_output", &[width, width]),
            ("ffn_norm", &[width]),
            ("ffn_gate", &[width, hidden]),
            ("ffn_up", &[width, hidden]),
            ("ffn_down", &[hidden, width]),
        ] {
            tensors.push(TensorSpec::f32(format!("blk.{layer}.{name}.weight"), dims));
        }
    }
    tensors
}

fn metadata(width: Width, defect: Defect) -> Vec<(String, Value)> {
    let architecture = if defect == Defect::Architecture { "llamma" } else { "llama" };
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::string(architecture)),
        ("general.name".to_owned(), Value::string("random")),
    ];
    for (key, value) in [
        ("context_length", 1024),
        ("embedding_length", width.0 as u32),
        ("block_count", LAYERS),
        ("feed_forward_length", 2 * width.0 as u32),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", HEADS / 2),
        ("rope.dimension_count", width.0 as u32 / HEADS),
    ] {
        metadata.push((format!("{architecture}.{key}"), Value::u32(value)));
    }
    let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
    let value = if let Defect::Epsilon(value) = defect { value } else { 1e-5 };
    metadata.push((epsilon, Value::F32(value)));
    metadata.extend(tokenizer());
    metadata
}

/// The keys of the tokenizer.
pub fn tokenizer() -> Vec<(String, Value)> {
    let tokens = vocabulary();
    let (normal, control) = (1, 3);
    let types = tokens.iter().map(|t| if t.starts_with("<|") { control } else { normal });
    let types = Array::of_i32(types);
    let end = tokens.len() as u32 - 1;
    [
        ("model", Value::string("gpt2")),
        ("pre", Value::string("gpt-2")),
        ("merges", Value::Array(Array::of_strings(["h e"]))),
        ("token_type", Value::Array(types)),
        ("tokens", Value::Array(Array::of_strings(&tokens))),
        ("bos_token_id", Value::u32(end - 2)),
        ("eos_token_id", Value::u32(end)),
        ("add_bos_token", Value::Bool(false)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into()
}
