//! llama.cpp's quantiser: converts one GGUF file to another.

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{UnsupportedProcessor, log, start, sys};

/// Format of a quantised file's matrices (llama.cpp's "file type"). Only formats that need no
/// importance matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quant {
    /// 32-bit floats: also from a quantised file, whose values are unchanged.
    F32,
    /// 16-bit floats, not quantised.
    F16,
    /// 16-bit floats with the range of 32-bit ones, not quantised.
    Bf16,
    /// 8.5 bits a weight.
    Q8_0,
    /// 6.6 bits a weight.
    Q6K,
    /// About 5.7 bits a weight.
    Q5KM,
    /// 6 bits a weight, with a minimum for every 32.
    Q5_1,
    /// 5.5 bits a weight.
    Q5_0,
    /// About 4.8 bits a weight; the usual choice.
    Q4KM,
    /// About 4.6 bits a weight.
    Q4KS,
    /// 5 bits a weight, with a minimum for every 32.
    Q4_1,
    /// 4.5 bits a weight; the simplest kernel.
    Q4_0,
    /// 4.5 bits a weight: like Q4_0, with values closer together near zero.
    Iq4Nl,
    /// About 4.3 bits a weight, in the same way.
    Iq4Xs,
    /// Experts in 4.25 bits a weight, as in gpt-oss; everything else as [`Quant::Q8_0`].
    Mxfp4,
    /// About 3.9 bits a weight.
    Q3KM,
    /// About 3.0 bits a weight.
    Q2K,
    /// About 3.4 bits a weight, in runs of four from a grid.
    Iq3S,
}

/// Every format with its usual name and llama.cpp's number.
const QUANTS: [(Quant, &str, sys::llama_ftype); 18] = [
    (Quant::F32, "F32", sys::LLAMA_FTYPE_ALL_F32),
    (Quant::F16, "F16", sys::LLAMA_FTYPE_MOSTLY_F16),
    (Quant::Bf16, "BF16", sys::LLAMA_FTYPE_MOSTLY_BF16),
    (Quant::Q8_0, "Q8_0", sys::LLAMA_FTYPE_MOSTLY_Q8_0),
    (Quant::Q6K, "Q6_K", sys::LLAMA_FTYPE_MOSTLY_Q6_K),
    (Quant::Q5KM, "Q5_K_M", sys::LLAMA_FTYPE_MOSTLY_Q5_K_M),
    (Quant::Q5_1, "Q5_1", sys::LLAMA_FTYPE_MOSTLY_Q5_1),
    (Quant::Q5_0, "Q5_0", sys::LLAMA_FTYPE_MOSTLY_Q5_0),
    (Quant::Q4KM, "Q4_K_M", sys::LLAMA_FTYPE_MOSTLY_Q4_K_M),
    (Quant::Q4KS, "Q4_K_S", sys::LLAMA_FTYPE_MOSTLY_Q4_K_S),
    (Quant::Q4_1, "Q4_1", sys::LLAMA_FTYPE_MOSTLY_Q4_1),
    (Quant::Q4_0, "Q4_0", sys::LLAMA_FTYPE_MOSTLY_Q4_0),
    (Quant::Iq4Nl, "IQ4_NL", sys::LLAMA_FTYPE_MOSTLY_IQ4_NL),
    (Quant::Iq4Xs, "IQ4_XS", sys::LLAMA_FTYPE_MOSTLY_IQ4_XS),
    (Quant::Mxfp4, "MXFP4", sys::LLAMA_FTYPE_MOSTLY_MXFP4_MOE),
    (Quant::Q3KM, "Q3_K_M", sys::LLAMA_FTYPE_MOSTLY_Q3_K_M),
    (Quant::Q2K, "Q2_K", sys::LLAMA_FTYPE_MOSTLY_Q2_K),
    (Quant::Iq3S, "IQ3_S", sys::LLAMA_FTYPE_MOSTLY_IQ3_S),
];

/// Reason why a file was not quantised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantizeError {
    /// No [`Quant`] has this name.
    #[error(
        "unknown quantisation {0:?}; use F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_1, Q5_0, Q4_K_M, \
         Q4_K_S, Q4_1, Q4_0, IQ4_NL, IQ4_XS, MXFP4, Q3_K_M, Q2_K or IQ3_S"
    )]
    Unknown(String),
    /// A path that C cannot express: it is not UTF-8 or contains a zero byte.
    #[error("llama.cpp cannot open the path {}; use one in UTF-8", .0.display())]
    Path(PathBuf),
    /// This build cannot run on this processor.
    #[error(transparent)]
    Processor(#[from] UnsupportedProcessor),
    /// llama.cpp rejected the file.
    #[error("llama.cpp cannot quantise the file: {0}")]
    Backend(String),
}

impl Quant {
    fn row(self) -> &'static (Quant, &'static str, sys::llama_ftype) {
        let row = QUANTS.iter().find(|(quant, ..)| *quant == self);
        row.expect("the table has every variant")
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

impl FromStr for Quant {
    type Err = QuantizeError;

    /// Parses the usual name, in any case.
    fn from_str(name: &str) -> Result<Self, QuantizeError> {
        let row = QUANTS.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        row.map(|(quant, ..)| *quant).ok_or_else(|| QuantizeError::Unknown(name.to_owned()))
    }
}

/// Writes the model at `from` to `to`, stored as `quant`, with `threads` threads (0 for one per
/// core). Its matrices must be floats, unless `quant` is [`Quant::F32`]. An existing file at `to`
/// is replaced; after an error it is unusable. Matrices whose rows do not fit the format's blocks
/// get a similar format.
///
/// # Errors
/// See [`QuantizeError`].
pub fn quantize(from: &Path, to: &Path, quant: Quant, threads: u32) -> Result<(), QuantizeError> {
    start()?;
    let (source, target) = (c_path(from)?, c_path(to)?);
    // SAFETY: takes nothing, gives a plain struct whose pointers are null.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = i32::try_from(threads).unwrap_or(i32::MAX);
    params.ftype = quant.row().2;
    // Rounding twice would lose more than the format says.
    params.allow_requantize = quant == Quant::F32;
    // The status is only 0 or 1; the reason is in the log.
    log::clear_errors();
    // SAFETY: both strings end in NUL and they and `params` outlive the call, which keeps none of
    // them and turns every C++ exception into its status.
    let status =
        unsafe { sys::llama_model_quantize(source.as_ptr(), target.as_ptr(), &raw const params) };
    if status == 0 { Ok(()) } else { Err(QuantizeError::Backend(log::take_reason())) }
}

fn c_path(path: &Path) -> Result<CString, QuantizeError> {
    let text = path.to_str().and_then(|text| CString::new(text).ok());
    text.ok_or_else(|| QuantizeError::Path(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (quant, name, _) in QUANTS {
            assert_eq!(quant.to_string(), name);
            assert_eq!(name.to_lowercase().parse(), Ok(quant));
        }
        assert!(matches!("Q9".parse::<Quant>(), Err(QuantizeError::Unknown(_))));
    }

    #[test]
    fn a_file_that_is_not_a_model_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
        let quantised = || quantize(&from, &to, Quant::Q8_0, 1);
        assert!(matches!(quantised(), Err(QuantizeError::Backend(_))));
        std::fs::write(&from, b"GGUF but no more").unwrap();
        assert!(matches!(quantised(), Err(QuantizeError::Backend(_))));
        let zero = Path::new("a\0b");
        assert!(matches!(quantize(zero, &to, Quant::Q8_0, 1), Err(QuantizeError::Path(_))));
    }
}
