//! Hidden states as bytes: 32-bit floats, 16-bit floats, or 8-bit integers with scales.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::malformed::Malformed;

/// Maximum bytes of a frame before a session is open.
pub const SMALL_FRAME_BYTES: usize = 64 << 10;
/// Maximum bytes of a frame of an open session in addition to hidden states. The largest other
/// content is a sampler with penalties, which lists the tokens of its sequence: at 8 bytes each
/// that leaves room for half a million.
const MORE_FRAME_BYTES: usize = 4 << 20;
/// Floats that share a scale in [`Dtype::Q8`], as in ggml's Q8_0.
const BLOCK: usize = 32;

/// Number format of hidden states on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dtype {
    /// Unchanged 32-bit floats: every answer equals the unsplit model's.
    #[default]
    F32,
    /// Rounded to 16-bit floats.
    F16,
    /// Rounded to 8-bit integers, with a scale for every 32 floats.
    Q8,
}

impl std::str::FromStr for Dtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            other => Err(format!("use f32, f16 or q8 instead of {other}")),
        }
    }
}

impl Dtype {
    /// Bytes that `floats` floats take on the wire.
    pub fn bytes(self, floats: usize) -> usize {
        match self {
            Self::F32 => floats * 4,
            Self::F16 => floats * 2,
            Self::Q8 => floats + floats.div_ceil(BLOCK) * 4,
        }
    }

    pub(super) fn number(self) -> u8 {
        self as u8
    }

    pub(super) fn from_number(n: u8) -> Result<Self, Malformed> {
        [Self::F32, Self::F16, Self::Q8]
            .into_iter()
            .find(|dtype| dtype.number() == n)
            .ok_or(Malformed("an unknown type of floats"))
    }

    /// Appends `floats` to `out`.
    pub fn encode(self, floats: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(floats.iter().flat_map(|x| x.to_le_bytes())),
            Self::F16 => {
                // An f16 overflows to infinity, which would break the sequence; a clamped value
                // is a rounding error among others. `clamp` keeps NaN, so real faults get through.
                let limit = f16::MAX.to_f32();
                let clamped: Vec<f32> = floats.iter().map(|x| x.clamp(-limit, limit)).collect();
                let mut halves = vec![f16::ZERO; floats.len()];
                // As a slice, because `half` converts eight at a time where the processor can.
                halves.convert_from_f32_slice(&clamped);
                out.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::Q8 => floats.chunks(BLOCK).for_each(|block| encode_block(block, out)),
        }
    }

    /// Decodes all of `bytes` as `floats` floats.
    ///
    /// # Errors
    /// [`Malformed`] if `bytes` does not have the length of `floats` floats.
    pub fn decode(self, bytes: &[u8], floats: usize) -> Result<Vec<f32>, Malformed> {
        if bytes.len() != self.bytes(floats) {
            return Err(Malformed("rows of another size"));
        }
        Ok(match self {
            Self::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Self::F16 => {
                let halves = bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b));
                let mut out = vec![0.0; floats];
                halves.collect::<Vec<_>>().convert_to_f32_slice(&mut out);
                out
            }
            Self::Q8 => bytes.chunks(BLOCK + 4).flat_map(decode_block).collect(),
        })
    }
}

fn encode_block(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    // `max` ignores NaN, and a cast to i8 turns NaN into 0: without this test a broken sequence
    // would look sound at the other end. As the scale, NaN breaks the whole block.
    let is_broken = block.iter().any(|x| !x.is_finite());
    let scale = if is_broken { f32::NAN } else { largest / 127.0 };
    out.extend_from_slice(&scale.to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    out.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
}

fn decode_block(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (scale, values) = bytes.split_at(bytes.len().min(4));
    let scale = scale.try_into().map_or(0.0, f32::from_le_bytes);
    values.iter().map(move |&value| f32::from(value as i8) * scale)
}

/// Format of the rows on a connection; both ends need the same to read each other's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowFormat {
    /// Number format of hidden states.
    pub dtype: Dtype,
    /// Floats of a hidden state; 0 before a session is open.
    pub width: usize,
    /// Maximum rows of a batch.
    pub batch_tokens: usize,
}

impl RowFormat {
    /// Format before a session is open, when no rows are allowed.
    pub const CLOSED: Self = Self { dtype: Dtype::F32, width: 0, batch_tokens: 0 };

    /// Maximum bytes of an accepted frame: a full batch and `MORE_FRAME_BYTES`.
    pub fn frame_bytes(&self) -> usize {
        match self.width {
            0 => SMALL_FRAME_BYTES,
            // Saturating, because the width comes from the other end.
            width => self
                .dtype
                .bytes(width)
                .saturating_mul(self.batch_tokens)
                .saturating_add(MORE_FRAME_BYTES),
        }
    }
}
