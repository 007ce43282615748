//! The choice between Loquent's own kernels and llama.cpp's for a model.

use std::collections::HashMap;

use loquent_formats::gguf::{Header, TensorType};
use loquent_kernels::Isa;

use super::devices::GPU_BACK_ENDS;

/// Returns true if this build and this processor have kernels, which read most of the model's
/// weights.
pub(super) fn suit(header: &Header) -> bool {
    GPU_BACK_ENDS.is_empty() && covers(header)
}

/// Returns why Loquent's kernels cannot compute the products of the model with this header, as the
/// end of a sentence that begins with "because"; `None` if they can.
pub fn own_kernels_lack(header: &Header) -> Option<String> {
    if !GPU_BACK_ENDS.is_empty() {
        return Some("this build is for graphics processors".to_owned());
    }
    if !loquent_kernels::ARE_BUILT_IN {
        return Some("this build has none of ours".to_owned());
    }
    if Isa::used().is_none() {
        return Some("this processor lacks AVX2".to_owned());
    }
    let format = foreign_format(header)?;
    Some(match format.name() {
        Some(name) => format!("{name} has none of ours"),
        None => format!("weights of ggml's type {} have none of ours", format.0),
    })
}

/// Returns true if most weights of a model are in formats that the kernels read, so that it should
/// be loaded as stored in the file.
fn covers(header: &Header) -> bool {
    // Of experts there are several in one tensor, each a matrix.
    let matrices = || header.tensors.iter().filter(|tensor| matches!(tensor.dims.len(), 2 | 3));
    // By weights, not by tensors: a large head in another format counts for what it costs.
    let elements = |own: bool| -> u64 {
        let counted = matrices().filter(|t| !own || loquent_kernels::reads(t.kind.0));
        counted.map(|tensor| tensor.elements().unwrap_or(0)).sum()
    };
    Isa::used().is_some() && 2 * elements(true) > elements(false)
}

/// Returns the format of most of the weights that the kernels cannot read; `None` if they read most
/// weights.
fn foreign_format(header: &Header) -> Option<TensorType> {
    if covers(header) {
        return None;
    }
    let mut elements: HashMap<TensorType, u64> = HashMap::new();
    for tensor in header.tensors.iter().filter(|tensor| matches!(tensor.dims.len(), 2 | 3)) {
        if !loquent_kernels::reads(tensor.kind.0) {
            let counted = elements.entry(tensor.kind).or_default();
            *counted = counted.saturating_add(tensor.elements().unwrap_or(0));
        }
    }
    elements.into_iter().max_by_key(|(_, elements)| *elements).map(|(format, _)| format)
}
