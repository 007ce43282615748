//! Weights for the tests: numbers as ggml quantises them.

use super::sys;
use crate::weight_format::WeightFormat;

/// Formats with grids. ggml looks for each run in its grid, for some of them only with measured
/// importances of weights; this takes seconds. Any bytes are weights in these formats.
const GRID_FORMATS: [sys::ggml_type; 5] = [
    sys::GGML_TYPE_IQ2_XXS,
    sys::GGML_TYPE_IQ2_XS,
    sys::GGML_TYPE_IQ2_S,
    sys::GGML_TYPE_IQ3_XXS,
    sys::GGML_TYPE_IQ3_S,
];

/// Quantises `values` in rows of `inner` with ggml, and dequantises them again. In formats with
/// grids, the values are used as arbitrary bytes.
pub(crate) fn quantised(
    format: sys::ggml_type,
    values: &[f32],
    inner: usize,
) -> (Vec<u8>, Vec<f32>) {
    let rows = (values.len() / inner) as i64;
    // SAFETY: the type exists; ggml writes as many bytes as rows of the type have.
    let bytes = unsafe {
        let mut bytes = vec![0u8; rows as usize * sys::ggml_row_size(format, inner as i64)];
        if GRID_FORMATS.contains(&format) {
            fill_blocks(format, values, &mut bytes);
        } else {
            sys::ggml_quantize_init(format);
            let (from, to) = (values.as_ptr(), bytes.as_mut_ptr().cast());
            sys::ggml_quantize_chunk(format, from, to, 0, rows, inner as i64, std::ptr::null());
        }
        bytes
    };
    if format == sys::GGML_TYPE_F32 {
        return (bytes, values.to_vec());
    }
    let mut back = vec![0.0; values.len()];
    // SAFETY: `bytes` are rows of the type, with as many weights as there are values.
    unsafe {
        let to_float = (*sys::ggml_get_type_traits(format)).to_float.expect("no f32 already");
        to_float(bytes.as_ptr().cast(), back.as_mut_ptr(), values.len() as i64);
    }
    (bytes, back)
}

/// Fills blocks with bytes from `values`, behind units between 1/128 and 1/64.
fn fill_blocks(format: sys::ggml_type, values: &[f32], bytes: &mut [u8]) {
    let format = WeightFormat::of(format).expect("a format of the kernels");
    let blocks = bytes.chunks_exact_mut(format.unit_bytes());
    for (block, values) in blocks.zip(values.chunks_exact(format.unit())) {
        for (byte, value) in block.iter_mut().zip(values) {
            *byte = (value.to_bits() >> 8) as u8;
        }
        block[1] = 0x20 | block[1] & 3;
    }
}
