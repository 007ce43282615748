//! Tensor descriptions and the sizes of ggml's element types.

use super::GgufError;

/// Element type by ggml's number; unknown numbers are kept, not rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType(pub u32);

impl TensorType {
    /// 32-bit floats, ggml's number 0.
    pub const F32: Self = Self(0);
    /// 16-bit floats, ggml's number 1.
    pub const F16: Self = Self(1);

    /// ggml's name of the type, as in the names of quantised files; `None` for unknown types.
    pub fn name(self) -> Option<&'static str> {
        let name = match self.0 {
            0 => "F32",
            1 => "F16",
            2 => "Q4_0",
            3 => "Q4_1",
            6 => "Q5_0",
            7 => "Q5_1",
            8 => "Q8_0",
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            12 => "Q4_K",
            13 => "Q5_K",
            14 => "Q6_K",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            20 => "IQ4_NL",
            21 => "IQ3_S",
            22 => "IQ2_S",
            23 => "IQ4_XS",
            29 => "IQ1_M",
            30 => "BF16",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            40 => "NVFP4",
            _ => return None,
        };
        Some(name)
    }

    /// Elements per block and bytes per block; `None` for unknown types.
    pub fn block(self) -> Option<(u64, u64)> {
        let sizes = match self.0 {
            0 | 26 => (1, 4),      // F32, I32
            1 | 25 | 30 => (1, 2), // F16, I16, BF16
            24 => (1, 1),          // I8
            27 | 28 => (1, 8),     // I64, F64
            2 | 20 => (32, 18),    // Q4_0, IQ4_NL
            3 => (32, 20),         // Q4_1
            6 => (32, 22),         // Q5_0
            7 => (32, 24),         // Q5_1
            8 => (32, 34),         // Q8_0
            9 => (32, 36),         // Q8_1
            10 => (256, 84),       // Q2_K
            11 => (256, 110),      // Q3_K
            12 => (256, 144),      // Q4_K
            13 => (256, 176),      // Q5_K
            14 => (256, 210),      // Q6_K
            15 => (256, 292),      // Q8_K
            16 | 35 => (256, 66),  // IQ2_XXS, TQ2_0
            17 => (256, 74),       // IQ2_XS
            18 => (256, 98),       // IQ3_XXS
            19 => (256, 50),       // IQ1_S
            21 => (256, 110),      // IQ3_S
            22 => (256, 82),       // IQ2_S
            23 => (256, 136),      // IQ4_XS
            29 => (256, 56),       // IQ1_M
            34 => (256, 54),       // TQ1_0
            39 => (32, 17),        // MXFP4
            40 => (64, 36),        // NVFP4
            41 => (128, 18),       // Q1_0
            42 => (64, 18),        // Q2_0
            _ => return None,
        };
        Some(sizes)
    }
}

/// A tensor as described in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Sizes, fastest-varying first; one to four of them.
    pub dims: Vec<u64>,
    /// Element type; its size is known only if [`TensorType::block`] has it.
    pub kind: TensorType,
    /// Offset of the data in bytes, from the beginning of the data section.
    pub offset: u64,
}

impl TensorInfo {
    /// Number of elements.
    ///
    /// # Errors
    /// [`GgufError::Malformed`] if the product does not fit 63 bits.
    pub fn elements(&self) -> Result<u64, GgufError> {
        let product = self.dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        product
            .filter(|&n| i64::try_from(n).is_ok())
            .ok_or_else(|| GgufError::malformed(format!("tensor {:?} is too large", self.name)))
    }

    /// Bytes of the data; `None` for an unknown element type.
    ///
    /// # Errors
    /// [`GgufError::Malformed`] if a row is not a whole number of blocks, or on overflow.
    pub fn bytes(&self) -> Result<Option<u64>, GgufError> {
        let Some((block_elements, block_bytes)) = self.kind.block() else {
            return Ok(None);
        };
        // Blocks never span rows.
        let row = self.dims.first().copied().unwrap_or(1);
        if row % block_elements != 0 {
            let reason =
                format!("tensor {:?}: rows of {row} elements are not whole blocks", self.name);
            return Err(GgufError::malformed(reason));
        }
        let blocks = self.elements()? / block_elements;
        let bytes = blocks.checked_mul(block_bytes);
        bytes
            .map(Some)
            .ok_or_else(|| GgufError::malformed(format!("tensor {:?} is too large", self.name)))
    }
}
