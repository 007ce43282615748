//! Minimum reads and multiplications of a step, derived from a model's header.

use loquent_engine::KvType;
use loquent_engine::llama::MachineLimits;
use loquent_formats::gguf::{Header, TensorInfo};

/// Element types whose products are computed as floats: F32, F16, BF16.
const FLOATS: [u32; 3] = [0, 1, 30];

/// Bytes and multiplications of a group of tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cost {
    bytes: f64,
    /// Multiplications for each row, of 8-bit integers.
    int8: f64,
    /// Multiplications for each row, of floats.
    float: f64,
}

impl Cost {
    fn add(&mut self, tensor: &TensorInfo) {
        let elements = tensor.elements().unwrap_or(0) as f64;
        self.bytes += tensor.bytes().ok().flatten().unwrap_or(0) as f64;
        match (tensor.dims.len(), FLOATS.contains(&tensor.kind.0)) {
            // Norms and biases: some operations for each number, not for each pair.
            (..=1, _) => {}
            (_, true) => self.float += elements,
            (_, false) => self.int8 += elements,
        }
    }
}

/// Cost of a model's steps, independent of the implementation.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelWork {
    /// Tensors used by every token.
    dense: Cost,
    /// The output matrix, used only by rows whose next token is wanted.
    head: Cost,
    /// All experts; their number; and the number used by a token.
    experts: Cost,
    expert_count: f64,
    experts_used: f64,
    /// Bytes of the keys and values of one token.
    kv_bytes: f64,
    /// Multiplications of one token's attention for each earlier token.
    attention: f64,
}

/// Reads and multiplications of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepWork {
    /// Bytes of weights, keys and values.
    pub bytes: f64,
    /// Products of 8-bit integers.
    pub int8: f64,
    /// Products of floats in matrices of floats, not in attention.
    pub float: f64,
    /// Products of floats in attention.
    pub attention: f64,
}

impl ModelWork {
    /// Computes the work of the model with this header, whose cache has elements of type `kv`.
    pub fn new(header: &Header, kv: KvType) -> Self {
        let number = |key: &str| header.model_number(key).map_or(0.0, |value| value as f64);
        let heads = number("attention.head_count").max(1.0);
        let or = |value: f64, other: f64| if value > 0.0 { value } else { other };
        let kv_heads = or(number("attention.head_count_kv"), heads);
        let mut work = Self {
            dense: Cost::default(),
            head: Cost::default(),
            experts: Cost::default(),
            expert_count: number("expert_count").max(1.0),
            experts_used: number("expert_used_count").max(1.0),
            kv_bytes: kv.bytes(header.kv_elements()) as f64,
            // Keys and values are shared by the heads of a group, multiplications are not.
            attention: header.kv_elements() as f64 * heads / kv_heads,
        };
        let has_head = header.tensors.iter().any(|tensor| tensor.name == "output.weight");
        for tensor in &header.tensors {
            match tensor.name.as_str() {
                "output.weight" => work.head.add(tensor),
                "token_embd.weight" if !has_head => work.head.add(tensor),
                // Of these a token reads one row.
                "token_embd.weight" | "position_embd.weight" | "per_layer_token_embd.weight" => {}
                name if name.contains("_exps.") => work.experts.add(tensor),
                _ => work.dense.add(tensor),
            }
        }
        work
    }

    /// Returns the work of a step that decodes `rows` sequences of `past` tokens each.
    pub fn decode(&self, rows: u32, past: u32) -> StepWork {
        let (rows, past) = (f64::from(rows), f64::from(past));
        self.pass(rows, rows, rows * past, rows * past)
    }

    /// Returns the work of a prompt of `tokens`, in passes of at most `pass` through the layers.
    /// After each pass one row uses the output matrix.
    pub fn prompt(&self, tokens: u32, pass: u32) -> StepWork {
        let mut all = StepWork::default();
        for first in (0..tokens).step_by(pass.max(1) as usize) {
            let end = tokens.min(first + pass.max(1));
            let (rows, before) = (f64::from(end - first), f64::from(first));
            // The first token sees those before the pass and itself, the last one all.
            let pairs = rows * (before + (rows + 1.0) / 2.0);
            let part = self.pass(rows, 1.0, f64::from(end), pairs);
            all.bytes += part.bytes;
            all.int8 += part.int8;
            all.float += part.float;
            all.attention += part.attention;
        }
        all
    }

    /// Returns the work of one pass of `rows` through the layers, of which `outputs` use the output
    /// matrix. `cells` is the number of tokens whose keys and values are read, `pairs` the number
    /// of row-token pairs.
    fn pass(&self, rows: f64, outputs: f64, cells: f64, pairs: f64) -> StepWork {
        // Experts that no row chose are not read: with rows that choose by chance this share is.
        let chosen = self.experts_used / self.expert_count;
        let read = 1.0 - (1.0 - chosen).powf(rows);
        let each = |of: fn(&Cost) -> f64| {
            rows * (of(&self.dense) + chosen * of(&self.experts)) + outputs * of(&self.head)
        };
        StepWork {
            bytes: self.dense.bytes
                + self.head.bytes
                + read * self.experts.bytes
                + cells * self.kv_bytes,
            int8: each(|cost| cost.int8),
            float: each(|cost| cost.float),
            attention: pairs * self.attention,
        }
    }
}

/// Resource that limits the speed of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitedBy {
    /// Reading weights, keys and values.
    Memory,
    /// Multiplying rows.
    Multiply,
}

/// Minimum time of a step.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct StepLimit {
    /// Milliseconds to read everything once.
    pub read_ms: f64,
    /// Milliseconds to multiply everything, attention included.
    pub multiply_ms: f64,
}

impl StepLimit {
    /// Computes the minimum time of `work` on a machine with these limits.
    pub fn new(work: &StepWork, machine: &MachineLimits) -> Self {
        let time = |count: f64, per_s: Option<f64>| match per_s {
            Some(per_s) if count > 0.0 => count / per_s * 1e3,
            _ => 0.0,
        };
        let int8 = machine.best_int8().map(|peak| peak.per_s);
        let float = machine.float.map(|peak| peak.per_s);
        Self {
            read_ms: time(work.bytes, Some(machine.read_bytes_per_s)),
            multiply_ms: time(work.int8, int8) + time(work.float + work.attention, float),
        }
    }

    /// Returns the larger of the two times: reading and multiplying can overlap.
    pub fn ms(&self) -> f64 {
        self.read_ms.max(self.multiply_ms)
    }

    /// Returns the resource with the larger time.
    pub fn by(&self) -> LimitedBy {
        if self.read_ms >= self.multiply_ms { LimitedBy::Memory } else { LimitedBy::Multiply }
    }
}

#[cfg(test)]
mod tests {
    //! Counts of models, checked against values computed by hand.
    use loquent_engine::llama::MultiplyPeak;
    use loquent_formats::gguf::{TensorType, Value};

    use super::*;

    const Q8_0: TensorType = TensorType(8);

    fn tensor(name: &str, dims: &[u64], kind: TensorType) -> TensorInfo {
        TensorInfo { name: name.to_owned(), dims: dims.to_vec(), kind, offset: 0 }
    }

    fn header(tensors: Vec<TensorInfo>, numbers: &[(&str, u32)]) -> Header {
        let mut metadata = vec![("general.architecture".into(), Value::string("t"))];
        let number = |&(key, value): &(&str, u32)| (format!("t.{key}"), Value::u32(value));
        metadata.extend(numbers.iter().map(number));
        Header { version: 3, alignment: 32, data_offset: 0, metadata, tensors }
    }

    fn small(more: Vec<TensorInfo>, numbers: &[(&str, u32)]) -> ModelWork {
        let mut tensors = vec![
            tensor("token_embd.weight", &[32, 100], Q8_0),
            tensor("blk.0.ffn_up.weight", &[32, 64], Q8_0),
            tensor("blk.0.norm.weight", &[32], TensorType::F32),
        ];
        tensors.extend(more);
        let mut all = vec![("block_count", 1), ("attention.head_count", 4)];
        all.extend([("attention.head_count_kv", 2), ("embedding_length", 32)]);
        all.extend(numbers);
        ModelWork::new(&header(tensors, &all), KvType::F16)
    }

    #[test]
    fn decoding_reads_the_weights_once_and_the_cache_for_each_row() {
        let work = small(vec![], &[]);
        // The embeddings are the output matrix too: 100 rows of one block of 34 bytes.
        let weights = f64::from(100 * 34 + 64 * 34 + 32 * 4);
        // Two heads of 8 for keys and for values, of 2 bytes each.
        let (kv, pairs) = (2.0 * 2.0 * 8.0 * 2.0, 10.0);
        for rows in [1.0, 4.0] {
            let step = work.decode(rows as u32, 10);
            assert_eq!(step.bytes, weights + rows * pairs * kv);
            assert_eq!(step.int8, rows * f64::from(32 * 64 + 32 * 100));
            // Four heads multiply keys and values.
            assert_eq!(step.attention, rows * pairs * 4.0 * 16.0);
        }
    }

    #[test]
    fn a_prompt_meets_the_output_matrix_once_for_each_pass() {
        let head = tensor("output.weight", &[32, 100], TensorType::F16);
        let work = small(vec![head], &[]);
        let (one, two) = (work.prompt(8, 8), work.prompt(8, 4));
        assert_eq!((one.int8, one.float), (8.0 * 32.0 * 64.0, 3200.0));
        assert_eq!((two.int8, two.float), (one.int8, 2.0 * one.float));
        assert_eq!(one.attention, two.attention, "the same pairs of tokens, in two passes");
        assert!(two.bytes > one.bytes);
    }

    #[test]
    fn experts_are_read_as_rows_choose_them() {
        let experts = tensor("blk.0.ffn_up_exps.weight", &[32, 64, 8], Q8_0);
        let numbers = [("expert_count", 8), ("expert_used_count", 2)];
        let (work, none) = (small(vec![experts], &numbers), small(vec![], &[]));
        let experts = |rows: u32| work.decode(rows, 0).bytes - none.decode(rows, 0).bytes;
        let all = f64::from(8 * 64 * 34);
        assert!((experts(1) - all / 4.0).abs() < 1e-6, "two of eight");
        assert!(experts(4) < all && experts(4) > experts(1));
        assert!(experts(64) > 0.999 * all);
        assert_eq!(work.decode(1, 0).int8 - none.decode(1, 0).int8, f64::from(2 * 32 * 64));
    }

    #[test]
    fn the_limit_is_the_slower_of_reading_and_multiplying() {
        let machine = MachineLimits {
            read_bytes_per_s: 1e9,
            int8: vec![
                MultiplyPeak { name: "slow", per_s: 1e9 },
                MultiplyPeak { name: "fast", per_s: 1e10 },
            ],
            float: Some(MultiplyPeak { name: "f", per_s: 1e9 }),
            has_amx: false,
        };
        let work = StepWork { bytes: 2e6, int8: 1e7, float: 0.0, attention: 0.5e6 };
        let limit = StepLimit::new(&work, &machine);
        assert!((limit.read_ms - 2.0).abs() < 1e-9 && (limit.multiply_ms - 1.5).abs() < 1e-9);
        assert_eq!((limit.ms(), limit.by()), (limit.read_ms, LimitedBy::Memory));
        let more = StepLimit::new(&StepWork { int8: 1e8, ..work }, &machine);
        assert_eq!((more.ms(), more.by()), (more.multiply_ms, LimitedBy::Multiply));
    }
}
