//! Block formats of weights that the kernels read.
//!
//! The formats are those of ggml-common.h. Q4_K and Q5_K have eight groups of 32 with 6-bit scales
//! and minima. Q6_K has sixteen groups of 16 with 8-bit scales, Q3_K with 6-bit ones, Q2_K with
//! 4-bit scales and minima. IQ4_XS has eight groups of 32 with 6-bit scales, whose nibbles are
//! looked up in a table. IQ2_XXS, IQ3_XXS and IQ3_S have eight groups of 32 with 4-bit scales,
//! IQ2_XS and IQ2_S sixteen of 16; their weights are runs from a grid ([`crate::grids`]) with a
//! sign each. Q8_0, Q5_0, Q4_0, IQ4_NL and MXFP4 have blocks of 32 with a scale each, Q5_1 and Q4_1
//! blocks of 32 with a scale and a minimum, of which eight are processed together; a row may end
//! within eight.

use super::{BLOCK, sys};

/// A block format of weights that these kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WeightFormat {
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Xs,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Q8_0,
    Q5_0,
    Q4_0,
    Q5_1,
    Q4_1,
    Iq4Nl,
    Mxfp4,
}

impl WeightFormat {
    /// The format of ggml's type `kind`, if the kernels read it.
    pub(super) fn of(kind: sys::ggml_type) -> Option<Self> {
        match kind {
            sys::GGML_TYPE_Q2_K => Some(WeightFormat::Q2K),
            sys::GGML_TYPE_Q3_K => Some(WeightFormat::Q3K),
            sys::GGML_TYPE_Q4_K => Some(WeightFormat::Q4K),
            sys::GGML_TYPE_Q5_K => Some(WeightFormat::Q5K),
            sys::GGML_TYPE_Q6_K => Some(WeightFormat::Q6K),
            sys::GGML_TYPE_IQ4_XS => Some(WeightFormat::Iq4Xs),
            sys::GGML_TYPE_IQ2_XXS => Some(WeightFormat::Iq2Xxs),
            sys::GGML_TYPE_IQ2_XS => Some(WeightFormat::Iq2Xs),
            sys::GGML_TYPE_IQ2_S => Some(WeightFormat::Iq2S),
            sys::GGML_TYPE_IQ3_XXS => Some(WeightFormat::Iq3Xxs),
            sys::GGML_TYPE_IQ3_S => Some(WeightFormat::Iq3S),
            sys::GGML_TYPE_Q8_0 => Some(WeightFormat::Q8_0),
            sys::GGML_TYPE_Q5_0 => Some(WeightFormat::Q5_0),
            sys::GGML_TYPE_Q4_0 => Some(WeightFormat::Q4_0),
            sys::GGML_TYPE_Q5_1 => Some(WeightFormat::Q5_1),
            sys::GGML_TYPE_Q4_1 => Some(WeightFormat::Q4_1),
            sys::GGML_TYPE_IQ4_NL => Some(WeightFormat::Iq4Nl),
            sys::GGML_TYPE_MXFP4 => Some(WeightFormat::Mxfp4),
            _ => None,
        }
    }

    /// Bytes of [`BLOCK`] weights.
    pub(super) fn block_bytes(self) -> usize {
        BLOCK / self.unit() * self.unit_bytes()
    }

    /// Weights of one block as ggml counts them.
    pub(super) fn unit(self) -> usize {
        match self {
            WeightFormat::Q2K
            | WeightFormat::Q3K
            | WeightFormat::Q4K
            | WeightFormat::Q5K
            | WeightFormat::Q6K
            | WeightFormat::Iq4Xs
            | WeightFormat::Iq2Xxs
            | WeightFormat::Iq2Xs
            | WeightFormat::Iq2S
            | WeightFormat::Iq3Xxs
            | WeightFormat::Iq3S => BLOCK,
            WeightFormat::Q8_0
            | WeightFormat::Q5_0
            | WeightFormat::Q4_0
            | WeightFormat::Q5_1
            | WeightFormat::Q4_1
            | WeightFormat::Iq4Nl
            | WeightFormat::Mxfp4 => FINE_UNIT,
        }
    }

    /// Bytes of one block as ggml counts them.
    pub(super) fn unit_bytes(self) -> usize {
        match self {
            WeightFormat::Q2K => 84,
            WeightFormat::Q3K | WeightFormat::Iq3S => 110,
            WeightFormat::Q4K => 144,
            WeightFormat::Q5K => 176,
            WeightFormat::Q6K => 210,
            WeightFormat::Iq4Xs => 136,
            WeightFormat::Iq2Xxs => 66,
            WeightFormat::Iq2Xs => 74,
            WeightFormat::Iq2S => 82,
            WeightFormat::Iq3Xxs => 98,
            WeightFormat::Q8_0 => 34,
            WeightFormat::Q5_0 => 22,
            WeightFormat::Q4_0 | WeightFormat::Iq4Nl => 18,
            WeightFormat::Q5_1 => 24,
            WeightFormat::Q4_1 => 20,
            WeightFormat::Mxfp4 => 17,
        }
    }

    /// Returns true if every 16 weights have their own scale.
    pub(super) fn has_halves(self) -> bool {
        matches!(
            self,
            WeightFormat::Q2K
                | WeightFormat::Q3K
                | WeightFormat::Q6K
                | WeightFormat::Iq2Xs
                | WeightFormat::Iq2S
        )
    }

    /// Returns true if every 32 weights have their own scale. llama.cpp then rounds activations
    /// with a scale for every 32 too.
    pub(super) fn is_fine(self) -> bool {
        self.unit() == FINE_UNIT
    }
}

/// Weights of a block in formats with one scale per block.
const FINE_UNIT: usize = 32;

/// Values of the nibbles of IQ4_NL and IQ4_XS.
pub(super) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of the nibbles of MXFP4, doubled: floats of two bits of exponent and one of mantissa.
/// Scales are halved in return.
pub(super) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
