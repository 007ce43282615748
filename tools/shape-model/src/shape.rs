//! Model shapes: sizes, metadata and tensors, with llama.cpp's names for them.

use loquent_engine::Pooling;
use loquent_formats::gguf::{TensorSpec, TensorType, Value};

use crate::weights::Fill;

/// Standard deviation of embeddings and biases (GPT-2's at initialisation, and most models' since).
const STD: f32 = 0.02;

/// Kinds of texts that BERT tells apart; all of ours are of the first.
const TOKEN_TYPES: u32 = 2;

/// Which family of tensors and metadata a shape has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// As Qwen3, without norms of the heads.
    Llama,
    /// RMS norms, rotary positions, grouped queries with normed heads, gated feed-forward, no
    /// biases, the head tied to the embeddings.
    Qwen3,
    /// As Qwen3, with a feed-forward of experts, of which a router chooses some for each token, and
    /// a head of its own.
    Qwen3Moe,
    /// As Qwen3, with a norm behind attention and feed-forward too, and five layers of six that see
    /// a window of the last tokens only.
    Gemma3,
    /// Layer norms, learned positions, biases, the head tied to the embeddings.
    Gpt2,
    /// An encoder: every token attends to all others, norms come last, there is no head.
    Bert,
}

impl Architecture {
    /// The name of the architecture in GGUF files.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen3Moe => "qwen3moe",
            Architecture::Gemma3 => "gemma3",
            Architecture::Gpt2 => "gpt2",
            Architecture::Bert => "bert",
        }
    }
}

/// The feed-forwards of a mixture of experts, each of the shape's `ffn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many there are in each block.
    pub count: u32,
    /// How many of them compute a token.
    pub used: u32,
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Its name on the command line.
    pub name: &'static str,
    /// The family of tensors that it has.
    pub architecture: Architecture,
    /// Number of transformer blocks.
    pub layers: u32,
    /// Size of the residual stream.
    pub width: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key and value heads.
    pub kv_heads: u32,
    /// Size of one head.
    pub head_dim: u32,
    /// Size of the feed-forward's hidden layer, or of an expert's.
    pub ffn: u32,
    /// The experts; `None` where every token passes through the same feed-forward.
    pub experts: Option<Experts>,
    /// Tokens that most layers see; `None` where all see the whole context.
    pub window: Option<u32>,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Longest context in tokens.
    pub context: u32,
    /// How an embedding model makes a vector of its tokens'; `None` for one that generates text.
    pub pooling: Option<Pooling>,
}

/// All known shapes.
pub const SHAPES: [ModelShape; 11] = [
    ModelShape {
        name: "qwen3-0.6b",
        architecture: Architecture::Qwen3,
        layers: 28,
        width: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        ffn: 3072,
        experts: None,
        window: None,
        vocab: 151_936,
        context: 40_960,
        pooling: None,
    },
    ModelShape {
        name: "qwen3-8b",
        architecture: Architecture::Qwen3,
        layers: 36,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 12_288,
        experts: None,
        window: None,
        vocab: 151_936,
        context: 40_960,
        pooling: None,
    },
    ModelShape {
        name: "gpt2",
        architecture: Architecture::Gpt2,
        layers: 12,
        width: 768,
        heads: 12,
        kv_heads: 12,
        head_dim: 64,
        ffn: 3072,
        experts: None,
        window: None,
        vocab: 50_257,
        context: 1024,
        pooling: None,
    },
    ModelShape {
        name: "tiny",
        architecture: Architecture::Qwen3,
        layers: 4,
        width: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 768,
        experts: None,
        window: None,
        vocab: 151_936,
        context: 40_960,
        pooling: None,
    },
    ModelShape {
        name: "qwen3-embedding-0.6b",
        architecture: Architecture::Qwen3,
        layers: 28,
        width: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        ffn: 3072,
        experts: None,
        window: None,
        vocab: 151_669,
        context: 32_768,
        pooling: Some(Pooling::Last),
    },
    ModelShape {
        name: "bge-small",
        architecture: Architecture::Bert,
        layers: 12,
        width: 384,
        heads: 12,
        kv_heads: 12,
        head_dim: 32,
        ffn: 1536,
        experts: None,
        window: None,
        vocab: 30_522,
        context: 512,
        pooling: Some(Pooling::Cls),
    },
    ModelShape {
        name: "llama-3.2-1b",
        architecture: Architecture::Llama,
        layers: 16,
        width: 2048,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        ffn: 8192,
        experts: None,
        window: None,
        vocab: 128_256,
        context: 131_072,
        pooling: None,
    },
    ModelShape {
        name: "qwen3-30b-a3b",
        architecture: Architecture::Qwen3Moe,
        layers: 48,
        width: 2048,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        ffn: 768,
        experts: Some(Experts { count: 128, used: 8 }),
        window: None,
        vocab: 151_936,
        context: 40_960,
        pooling: None,
    },
    ModelShape {
        name: "tiny-moe",
        architecture: Architecture::Qwen3Moe,
        layers: 4,
        width: 512,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        ffn: 256,
        experts: Some(Experts { count: 32, used: 4 }),
        window: None,
        vocab: 32_000,
        context: 40_960,
        pooling: None,
    },
    ModelShape {
        name: "gemma3-1b",
        architecture: Architecture::Gemma3,
        layers: 26,
        width: 1152,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        ffn: 6912,
        experts: None,
        window: Some(512),
        vocab: 262_144,
        context: 32_768,
        pooling: None,
    },
    ModelShape {
        name: "gemma3-4b",
        architecture: Architecture::Gemma3,
        layers: 34,
        width: 2560,
        heads: 8,
        kv_heads: 4,
        head_dim: 256,
        ffn: 10_240,
        experts: None,
        window: Some(1024),
        vocab: 262_144,
        context: 131_072,
        pooling: None,
    },
];

/// A tensor and how its numbers are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Name, sizes and type.
    pub spec: TensorSpec,
    /// How its numbers are drawn.
    pub fill: Fill,
}

impl Tensor {
    /// Embeddings, in 16-bit floats, which the quantiser reads.
    fn embeddings(name: &str, width: u32, rows: u32) -> Tensor {
        let dims = [width, rows].map(u64::from).to_vec();
        let spec = TensorSpec { name: name.to_owned(), dims, kind: TensorType::F16 };
        Tensor { spec, fill: Fill::Normal { std: STD } }
    }

    /// Embeddings of the kinds of texts, which are added as they are: 32-bit floats.
    fn token_types(width: u32) -> Tensor {
        let dims = [width, TOKEN_TYPES].map(u64::from);
        let spec = TensorSpec::f32("token_types.weight".to_owned(), &dims);
        Tensor { spec, fill: Fill::Normal { std: STD } }
    }

    /// A matrix from `inputs` to `outputs` that keeps the size of what goes through it (LeCun's
    /// initialisation). With GPT-2's 0.02 a narrow model would add too little to the residual
    /// stream, and the tied head would repeat the last token for ever.
    fn matrix(name: String, inputs: u32, outputs: u32) -> Tensor {
        let dims = [inputs, outputs].map(u64::from).to_vec();
        let std = (inputs as f32).sqrt().recip();
        Tensor {
            spec: TensorSpec { name, dims, kind: TensorType::F16 },
            fill: Fill::Normal { std },
        }
    }

    /// Matrices of `experts` feed-forwards, one behind the other.
    fn experts(name: String, inputs: u32, outputs: u32, experts: u32) -> Tensor {
        let mut tensor = Tensor::matrix(name, inputs, outputs);
        tensor.spec.dims.push(experts.into());
        tensor
    }

    /// The router, which stays 32-bit floats: its choice decides which experts compute at all.
    fn router(name: String, inputs: u32, experts: u32) -> Tensor {
        let mut tensor = Tensor::matrix(name, inputs, experts);
        tensor.spec.kind = TensorType::F32;
        tensor
    }

    /// Weights of a norm, all 1, which stay 32-bit floats.
    fn ones(name: String, len: u32) -> Tensor {
        Tensor { spec: TensorSpec::f32(name, &[len.into()]), fill: Fill::Ones }
    }

    /// A bias, which stays 32-bit floats.
    fn bias(name: String, len: u32) -> Tensor {
        Tensor { spec: TensorSpec::f32(name, &[len.into()]), fill: Fill::Normal { std: STD } }
    }
}

impl ModelShape {
    /// The known shape called `name`.
    pub fn named(name: &str) -> Option<ModelShape> {
        SHAPES.into_iter().find(|shape| shape.name == name)
    }

    /// Number of weights of all tensors.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(|tensor| tensor.spec.dims.iter().product::<u64>()).sum()
    }

    /// Metadata other than the tokenizer's.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let arch = self.architecture.name();
        let name = format!("{} shape, random weights", self.name);
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::string(arch)),
            ("general.name".to_owned(), Value::string(name)),
            // 1 says "mostly 16-bit floats"; the quantiser puts its own number here.
            ("general.file_type".to_owned(), Value::u32(1)),
        ];
        let mut put = |key: &str, value| metadata.push((format!("{arch}.{key}"), value));
        put("block_count", Value::u32(self.layers));
        put("context_length", Value::u32(self.context));
        put("embedding_length", Value::u32(self.width));
        put("feed_forward_length", Value::u32(self.ffn));
        put("attention.head_count", Value::u32(self.heads));
        if let Some(Experts { count, used }) = self.experts {
            put("expert_count", Value::u32(count));
            put("expert_used_count", Value::u32(used));
            put("expert_feed_forward_length", Value::u32(self.ffn));
        }
        if let Some(tokens) = self.window {
            put("attention.sliding_window", Value::u32(tokens));
        }
        match self.architecture {
            Architecture::Llama
            | Architecture::Qwen3
            | Architecture::Qwen3Moe
            | Architecture::Gemma3 => {
                put("attention.head_count_kv", Value::u32(self.kv_heads));
                put("attention.key_length", Value::u32(self.head_dim));
                put("attention.value_length", Value::u32(self.head_dim));
                put("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
                put("rope.freq_base", Value::F32(1e6));
            }
            Architecture::Gpt2 => put("attention.layer_norm_epsilon", Value::F32(1e-5)),
            Architecture::Bert => {
                put("attention.layer_norm_epsilon", Value::F32(1e-12));
                put("attention.causal", Value::Bool(false));
            }
        }
        if let Some(pooling) = self.pooling {
            put("pooling_type", Value::u32(pooling_number(pooling)));
        }
        metadata
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![Tensor::embeddings("token_embd.weight", self.width, self.vocab)];
        if matches!(self.architecture, Architecture::Gpt2 | Architecture::Bert) {
            tensors.push(Tensor::embeddings("position_embd.weight", self.width, self.context));
        }
        if self.architecture == Architecture::Bert {
            tensors.push(Tensor::token_types(self.width));
            push_norm("token_embd_norm", self.width, &mut tensors);
        }
        for layer in 0..self.layers {
            match self.architecture {
                Architecture::Llama
                | Architecture::Qwen3
                | Architecture::Qwen3Moe
                | Architecture::Gemma3 => {
                    self.push_gated_block(layer, &mut tensors);
                }
                Architecture::Gpt2 => self.push_gpt2_block(layer, &mut tensors),
                Architecture::Bert => self.push_bert_block(layer, &mut tensors),
            }
        }
        if self.architecture == Architecture::Bert {
            return tensors;
        }
        tensors.push(Tensor::ones("output_norm.weight".to_owned(), self.width));
        match self.architecture {
            Architecture::Gpt2 => {
                tensors.push(Tensor::bias("output_norm.bias".to_owned(), self.width));
            }
            Architecture::Qwen3Moe => {
                tensors.push(Tensor::matrix("output.weight".to_owned(), self.width, self.vocab));
            }
            _ => {} // the head is the embeddings
        }
        tensors
    }

    fn push_gated_block(&self, layer: u32, tensors: &mut Vec<Tensor>) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        tensors.extend([
            Tensor::ones(name("attn_norm"), self.width),
            Tensor::matrix(name("attn_q"), self.width, queries),
            Tensor::matrix(name("attn_k"), self.width, keys),
            Tensor::matrix(name("attn_v"), self.width, keys),
            Tensor::matrix(name("attn_output"), queries, self.width),
            Tensor::ones(name("ffn_norm"), self.width),
        ]);
        if self.architecture != Architecture::Llama {
            let norms = ["attn_q_norm", "attn_k_norm"];
            tensors.extend(norms.map(|norm| Tensor::ones(name(norm), self.head_dim)));
        }
        if self.architecture == Architecture::Gemma3 {
            let norms = ["post_attention_norm", "post_ffw_norm"];
            tensors.extend(norms.map(|norm| Tensor::ones(name(norm), self.width)));
        }
        let Some(Experts { count, .. }) = self.experts else {
            tensors.extend([
                Tensor::matrix(name("ffn_gate"), self.width, self.ffn),
                Tensor::matrix(name("ffn_up"), self.width, self.ffn),
                Tensor::matrix(name("ffn_down"), self.ffn, self.width),
            ]);
            return;
        };
        tensors.extend([
            Tensor::router(name("ffn_gate_inp"), self.width, count),
            Tensor::experts(name("ffn_gate_exps"), self.width, self.ffn, count),
            Tensor::experts(name("ffn_up_exps"), self.width, self.ffn, count),
            Tensor::experts(name("ffn_down_exps"), self.ffn, self.width, count),
        ]);
    }

    fn push_bert_block(&self, layer: u32, tensors: &mut Vec<Tensor>) {
        let linears = [
            ("attn_q", self.width, self.width),
            ("attn_k", self.width, self.width),
            ("attn_v", self.width, self.width),
            ("attn_output", self.width, self.width),
            ("ffn_up", self.width, self.ffn),
            ("ffn_down", self.ffn, self.width),
        ];
        for (part, inputs, outputs) in linears {
            tensors.push(Tensor::matrix(format!("blk.{layer}.{part}.weight"), inputs, outputs));
            tensors.push(Tensor::bias(format!("blk.{layer}.{part}.bias"), outputs));
        }
        for norm in ["attn_output_norm", "layer_output_norm"] {
            push_norm(&format!("blk.{layer}.{norm}"), self.width, tensors);
        }
    }

    fn push_gpt2_block(&self, layer: u32, tensors: &mut Vec<Tensor>) {
        let name = |part: &str, kind: &str| format!("blk.{layer}.{part}.{kind}");
        for norm in ["attn_norm", "ffn_norm"] {
            tensors.push(Tensor::ones(name(norm, "weight"), self.width));
            tensors.push(Tensor::bias(name(norm, "bias"), self.width));
        }
        let linears = [
            ("attn_qkv", self.width, 3 * self.width),
            ("attn_output", self.width, self.width),
            ("ffn_up", self.width, self.ffn),
            ("ffn_down", self.ffn, self.width),
        ];
        for (part, inputs, outputs) in linears {
            tensors.push(Tensor::matrix(name(part, "weight"), inputs, outputs));
            tensors.push(Tensor::bias(name(part, "bias"), outputs));
        }
    }
}

/// A layer norm: weights and biases.
fn push_norm(name: &str, width: u32, tensors: &mut Vec<Tensor>) {
    tensors.push(Tensor::ones(format!("{name}.weight"), width));
    tensors.push(Tensor::bias(format!("{name}.bias"), width));
}

/// llama.cpp's number of a way to pool.
fn pooling_number(pooling: Pooling) -> u32 {
    match pooling {
        Pooling::Mean => 1,
        Pooling::Cls => 2,
        Pooling::Last => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_have_their_models_numbers_of_weights() {
        let millions = |name| ModelShape::named(name).unwrap().parameters() / 1_000_000;
        // The published counts: Qwen3-0.6B 596 million with tied embeddings, GPT-2 124 million.
        assert_eq!((millions("qwen3-0.6b"), millions("gpt2")), (596, 124));
        // Llama 3.2 1B 1.24 billion.
        assert_eq!(millions("llama-3.2-1b"), 1235);
        // Qwen3-30B-A3B 30.5 billion, Gemma 3 1.0 and (its text model) 3.9 billion.
        assert_eq!(millions("qwen3-30b-a3b"), 30_532);
        assert_eq!((millions("gemma3-1b"), millions("gemma3-4b")), (999, 3880));
        assert!(ModelShape::named("gpt-5").is_none());
    }
}
