//! Rows of a model's embeddings, read from the file on demand.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use loquent_infer::token::TokenId;

use super::{LoadError, start, sys};
use crate::staged::Embed;
use loquent_formats::gguf::{Header, ReadLimits, TensorType};

/// First step of a split model: tokens to hidden states. The file stays on disk; the system caches
/// the used rows in memory.
#[derive(Debug)]
pub struct Embeddings {
    file: File,
    /// Offset of the rows, in bytes.
    at: u64,
    kind: TensorType,
    row_bytes: usize,
    width: usize,
    rows: u64,
    /// Factor by which the architecture multiplies embeddings, if any.
    scale: Option<f32>,
    buffer: Vec<u8>,
}

impl Embeddings {
    /// Opens the embeddings of the GGUF file at `path`.
    ///
    /// # Errors
    /// [`LoadError`] if the file cannot be read or has no usable `token_embd.weight`.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        start()?;
        let malformed = |reason: String| LoadError::Malformed { path: path.to_owned(), reason };
        let header =
            Header::open(path, ReadLimits::default()).map_err(|e| malformed(e.to_string()))?;
        let tensor = header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
        let tensor = tensor.ok_or_else(|| malformed("it has no token_embd.weight".into()))?;
        let &[width, rows] = tensor.dims.as_slice() else {
            return Err(malformed("token_embd.weight is not a matrix".into()));
        };
        let bytes = tensor.bytes().ok().flatten().filter(|_| rows > 0 && width > 0);
        let bytes = bytes.ok_or_else(|| malformed("token_embd.weight has no size".into()))?;
        if dequantise(tensor.kind).is_none() && tensor.kind != TensorType::F32 {
            let kind = tensor.kind.0;
            return Err(malformed(format!("its embeddings have the unknown element type {kind}")));
        }
        let source = |source| LoadError::Unreadable { path: path.to_owned(), source };
        Ok(Self {
            file: File::open(path).map_err(source)?,
            at: header.data_offset + tensor.offset,
            kind: tensor.kind,
            row_bytes: (bytes / rows) as usize,
            width: width as usize,
            rows,
            // llama.cpp scales the embeddings of tokens itself, but not rows that it is given.
            scale: (header.architecture() == Some("gemma3")).then(|| (width as f32).sqrt()),
            buffer: Vec::new(),
        })
    }

    /// Number of floats in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    fn read_row(&self, row: &mut [f32]) {
        match dequantise(self.kind) {
            Some(convert) => {
                // SAFETY: `buffer` holds the blocks of one row of `width` elements of this
                // type, and `row` has room for as many floats.
                unsafe {
                    convert(self.buffer.as_ptr().cast(), row.as_mut_ptr(), self.width as i64);
                }
            }
            None => {
                let floats = self.buffer.as_chunks::<4>().0.iter();
                row.iter_mut()
                    .zip(floats)
                    .for_each(|(out, &bytes)| *out = f32::from_le_bytes(bytes));
            }
        }
        if let Some(scale) = self.scale {
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

impl Embed for Embeddings {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn append(&mut self, tokens: &[TokenId], out: &mut Vec<f32>) -> io::Result<()> {
        for &token in tokens {
            if u64::from(token) >= self.rows {
                return Err(io::Error::other(format!("token {token} has no embedding")));
            }
            self.buffer.resize(self.row_bytes, 0);
            let at = self.at + u64::from(token) * self.row_bytes as u64;
            self.file.read_exact_at(&mut self.buffer, at)?;
            let from = out.len();
            out.resize(from + self.width, 0.0);
            self.read_row(&mut out[from..]);
        }
        Ok(())
    }
}

type ToFloat = unsafe extern "C" fn(*const std::ffi::c_void, *mut f32, i64);

/// ggml's conversion of a type to floats; `None` for floats themselves and unknown types.
fn dequantise(kind: TensorType) -> Option<ToFloat> {
    // Numbers beyond those of `block` are unknown to ggml too, whose table has an end.
    kind.block()?;
    // SAFETY: the number is one of ggml's types, so the table has an entry, which is static.
    unsafe { (*sys::ggml_get_type_traits(kind.0 as sys::ggml_type)).to_float }
}
