//! Determines how many layers of a model fit on the GPUs, and where each layer was put.
//!
//! llama.cpp counts the output as a layer after the blocks and moves layers from the end: with `n`
//! layers on GPUs, the last `n` of them. Several GPUs share them in proportion to their free
//! memory. The size of a layer is known from the file and from the requested KV cache; the memory
//! for the computation itself is estimated, and never measured here on a GPU.

use std::fmt;

use super::devices::Device;
use crate::{GpuLayers, KvType};
use loquent_formats::gguf::Header;

/// Memory of each GPU reserved for the computation and the driver. Chosen by hand: buffers of a
/// pass of 512 tokens take 100 to 300 MiB with models of up to 70 billion parameters.
const RESERVE_BYTES: u64 = 512 << 20;
/// Maximum rows of logits computed in one pass.
const LOGIT_ROWS: u64 = 512;
/// Maximum blocks counted in a model; a file that claims more is not a model.
const MAX_BLOCKS: u64 = 1 << 10;

/// Placement of a loaded model's layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Layers on GPUs, the output counted as one.
    pub gpu_layers: u32,
    /// All layers, the output counted as one.
    pub all_layers: u32,
    /// GPUs that have these layers.
    pub devices: Vec<Device>,
}

impl Placement {
    /// Puts everything on the CPU.
    pub(super) fn processor(header: &Header) -> Self {
        Self { gpu_layers: 0, all_layers: layers(header), devices: Vec::new() }
    }

    /// Applies `wanted` to the model of `header` on `devices`.
    pub(super) fn choose(
        wanted: GpuLayers,
        header: &Header,
        (kv_cells, kv_type): (u32, KvType),
        devices: Vec<Device>,
    ) -> Self {
        if devices.is_empty() {
            return Self::processor(header);
        }
        let all_layers = layers(header);
        let gpu_layers = match wanted {
            GpuLayers::All => all_layers,
            GpuLayers::Count(layers) => layers.min(all_layers),
            GpuLayers::Auto => {
                let free: Vec<u64> = devices.iter().map(|device| device.free_bytes).collect();
                fitting(&needs(header, kv_cells, kv_type), &free)
            }
        };
        Self { gpu_layers, all_layers, devices }
    }

    /// Value of llama.cpp's parameter: if there is no choice, everything that it would take by
    /// itself.
    pub(super) fn parameter(&self) -> i32 {
        match self.devices.is_empty() {
            true => -1,
            false => i32::try_from(self.gpu_layers).unwrap_or(i32::MAX),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gpu_layers == 0 {
            return f.write_str("all layers on the processor");
        }
        write!(f, "{} of {} layers on ", self.gpu_layers, self.all_layers)?;
        for (at, device) in self.devices.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({})", device.name, device.description)?;
        }
        if self.gpu_layers < self.all_layers {
            f.write_str(", the rest on the processor")?;
        }
        Ok(())
    }
}

/// Number of the model's blocks plus one for its output.
fn layers(header: &Header) -> u32 {
    let blocks = header.model_number("block_count").unwrap_or(0).min(MAX_BLOCKS);
    u32::try_from(blocks).unwrap_or(0) + 1
}

/// Memory of each layer in bytes, the output's last.
fn needs(header: &Header, kv_cells: u32, kv_type: KvType) -> Vec<u64> {
    let layers = layers(header) as usize;
    let blocks = layers - 1;
    let elements = header.kv_elements() / (blocks as u64).max(1);
    let kv_bytes = kv_type.bytes(elements.saturating_mul(kv_cells.into()));
    let mut needs = vec![kv_bytes; layers];
    needs[blocks] = LOGIT_ROWS * 4 * vocabulary(header);
    let has_output = header.tensors.iter().any(|tensor| tensor.name == "output.weight");
    for tensor in &header.tensors {
        // A tensor of a type unknown here counts as floats.
        let floats = || tensor.elements().unwrap_or(0).saturating_mul(4);
        let bytes = tensor.bytes().ok().flatten().unwrap_or_else(floats);
        let layer = match block(&tensor.name) {
            Some(block) if block < blocks => block,
            Some(_) => continue,
            // The embeddings stay with the processor; an output that shares them is a copy.
            None if tensor.name == "token_embd.weight" && has_output => continue,
            None => blocks,
        };
        needs[layer] = needs[layer].saturating_add(bytes);
    }
    needs
}

/// Returns the block that a tensor such as `blk.17.attn_q.weight` belongs to.
fn block(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

fn vocabulary(header: &Header) -> u64 {
    let embeddings = header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
    embeddings.and_then(|tensor| tensor.dims.get(1)).copied().unwrap_or(0).min(1 << 24)
}

/// Maximum number of layers, counted from the end of `needs`, that fit on GPUs with these `free`
/// bytes.
fn fitting(needs: &[u64], free: &[u64]) -> u32 {
    let fits = |&layers: &usize| {
        let taken = shares(&needs[needs.len() - layers..], free);
        let mut gpus = taken.iter().zip(free);
        gpus.all(|(&taken, &free)| taken == 0 || taken.saturating_add(RESERVE_BYTES) <= free)
    };
    let most = (1..=needs.len()).rev().find(fits).unwrap_or(0);
    u32::try_from(most).unwrap_or(0)
}

/// Bytes that each GPU gets of `layers`, by llama.cpp's rule: the position of a layer among them
/// falls into the GPU's share of all free memory.
fn shares(layers: &[u64], free: &[u64]) -> Vec<u64> {
    let all: f64 = free.iter().map(|&bytes| bytes as f64).sum();
    let mut shares = vec![0_u64; free.len()];
    for (at, &bytes) in layers.iter().enumerate() {
        let place = at as f64 / layers.len() as f64;
        let mut end = 0.0;
        let gpu = free.iter().position(|&bytes| {
            end += bytes as f64 / all;
            place < end
        });
        let gpu = gpu.unwrap_or(free.len() - 1);
        shares[gpu] = shares[gpu].saturating_add(bytes);
    }
    shares
}

#[cfg(test)]
mod tests {
    //! Sizes of made-up models and GPUs; no GPU is needed.
    use super::super::devices::DeviceKind;
    use super::*;
    use loquent_formats::gguf::{TensorInfo, TensorType, Value, ValueKind};

    const GIB: u64 = 1 << 30;

    fn gpu(name: &str, free_bytes: u64) -> Device {
        let (name, description) = (name.to_owned(), "test".to_owned());
        Device { name, description, kind: DeviceKind::Gpu, free_bytes, total_bytes: free_bytes }
    }

    fn tensor(name: &str, dims: &[u64]) -> TensorInfo {
        let (name, dims, kind) = (name.to_owned(), dims.to_vec(), TensorType::F32);
        TensorInfo { name, dims, kind, offset: 0 }
    }

    /// Four blocks of 1 GiB and an output of 256 MiB.
    fn model() -> Header {
        let number = |key: &str, value: u64| {
            (format!("llama.{key}"), Value::Unsigned(ValueKind::U32, value))
        };
        let architecture = ("general.architecture".to_owned(), Value::String("llama".into()));
        let mut tensors: Vec<_> = (0..4)
            .map(|block| tensor(&format!("blk.{block}.ffn_up.weight"), &[1 << 14, 1 << 14]))
            .collect();
        tensors.push(tensor("token_embd.weight", &[1 << 10, 1 << 16]));
        tensors.push(tensor("output.weight", &[1 << 10, 1 << 16]));
        Header {
            version: 3,
            metadata: vec![
                architecture,
                number("block_count", 4),
                number("attention.head_count", 8),
                number("embedding_length", 1 << 10),
            ],
            tensors,
            data_offset: 0,
            alignment: 32,
        }
    }

    fn auto(free: &[u64], kv_cells: u32) -> u32 {
        let devices = free.iter().map(|&bytes| gpu("G", bytes)).collect();
        let kv = (kv_cells, KvType::F16);
        Placement::choose(GpuLayers::Auto, &model(), kv, devices).gpu_layers
    }

    #[test]
    fn as_many_as_fit() {
        assert_eq!(auto(&[80 * GIB], 0), 5, "four blocks and the output");
        // 512 MiB are left for the computation, 384 taken by the output and its logits.
        assert_eq!(auto(&[3 * GIB], 0), 3);
        assert_eq!(auto(&[GIB], 0), 1);
        assert_eq!(auto(&[RESERVE_BYTES], 0), 0);
        assert_eq!(auto(&[0], 0), 0);
    }

    #[test]
    fn the_kv_cache_takes_room_too() {
        // 4 KiB for each cell of a block: 1 GiB for each block.
        assert_eq!(auto(&[5 * GIB], 0), 5);
        assert_eq!(auto(&[5 * GIB], 1 << 18), 3);
    }

    #[test]
    fn several_gpus_share_by_their_free_memory() {
        // Of five layers each would get up to three; 3 GiB hold two and the computation.
        assert_eq!(auto(&[4 * GIB, 4 * GIB], 0), 5);
        assert_eq!(auto(&[3 * GIB, 3 * GIB], 0), 4);
        // The small one gets a layer of 1 GiB by llama.cpp's rule, and has no room for it.
        assert!(auto(&[GIB, 4 * GIB], 0) < 5);
    }

    #[test]
    fn what_is_asked_for_is_bounded_by_the_model() {
        let placed =
            |wanted, devices| Placement::choose(wanted, &model(), (0, KvType::F16), devices);
        let on = || vec![gpu("CUDA0", GIB)];
        assert_eq!(placed(GpuLayers::All, on()).parameter(), 5);
        assert_eq!(placed(GpuLayers::Count(99), on()).gpu_layers, 5);
        assert_eq!(placed(GpuLayers::Count(0), on()).parameter(), 0);
        let none = placed(GpuLayers::All, Vec::new());
        assert_eq!((none.gpu_layers, none.parameter()), (0, -1));
        assert_eq!(none.to_string(), "all layers on the processor");
        let some = placed(GpuLayers::Count(2), on()).to_string();
        assert_eq!(some, "2 of 5 layers on CUDA0 (test), the rest on the processor");
    }

    #[test]
    fn hostile_headers_are_bounded() {
        let mut hostile = model();
        hostile.metadata[1].1 = Value::Unsigned(ValueKind::U64, u64::MAX);
        hostile.tensors.push(tensor("blk.99999999999.x", &[u64::MAX, 2]));
        hostile.tensors.push(tensor("x", &[u64::MAX, 2]));
        let placed = Placement::choose(
            GpuLayers::Auto,
            &hostile,
            (u32::MAX, KvType::F32),
            vec![gpu("G", 1)],
        );
        assert_eq!(placed.gpu_layers, 0);
    }
}
