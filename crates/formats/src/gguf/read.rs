//! Reads a header without trusting any length in it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use super::value::{Array, Value, ValueKind};
use super::{DEFAULT_ALIGNMENT, GgufError, MAGIC, TensorInfo, TensorType};

/// Maximum metadata entries and maximum tensors of a file; llama.cpp's largest models have
/// thousands.
const MAX_ENTRIES: u64 = 1 << 20;
/// Maximum bytes of a key or tensor name.
const MAX_NAME_BYTES: u64 = 1 << 16;
/// Maximum dimensions of a tensor (ggml's `GGML_MAX_DIMS`).
const MAX_DIMS: u32 = 4;

/// Limits on the parts of a header kept in memory.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Keep arrays (vocabularies); otherwise only their type and length.
    pub keep_arrays: bool,
    /// Maximum bytes of a kept string.
    pub string_bytes: u64,
    /// Maximum bytes of all kept strings and arrays together.
    pub total_bytes: u64,
}

impl Default for ReadLimits {
    /// Enough to check a file: no arrays, strings up to 1 MiB, 64 MiB in total.
    fn default() -> Self {
        Self { keep_arrays: false, string_bytes: 1 << 20, total_bytes: 64 << 20 }
    }
}

impl ReadLimits {
    /// Enough to copy a vocabulary: arrays too, 512 MiB in total.
    pub fn with_arrays() -> Self {
        Self { keep_arrays: true, total_bytes: 512 << 20, ..Self::default() }
    }
}

/// The part of a GGUF file before its tensor data.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Metadata entries in file order.
    pub metadata: Vec<(String, Value)>,
    /// Descriptions of the tensors in file order.
    pub tensors: Vec<TensorInfo>,
    /// Offset of the tensor data in bytes, from the file's start.
    pub data_offset: u64,
    /// Alignment of tensor data, in bytes.
    pub alignment: u32,
}

impl Header {
    /// Reads the header of the file at `path` and checks that the file holds every tensor.
    ///
    /// # Errors
    /// See [`GgufError`]; a file shorter than its tensors is [`GgufError::Truncated`].
    pub fn open(path: &Path, limits: ReadLimits) -> Result<Self, GgufError> {
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let header = Self::read(BufReader::with_capacity(1 << 16, file), file_bytes, limits)?;
        let needed_bytes = header.file_bytes()?;
        if needed_bytes > file_bytes {
            return Err(GgufError::Truncated { needed_bytes, actual_bytes: file_bytes });
        }
        Ok(header)
    }

    /// Reads a header from `source`, the beginning of a file of `file_bytes` bytes.
    ///
    /// # Errors
    /// See [`GgufError`].
    pub fn read(source: impl Read, file_bytes: u64, limits: ReadLimits) -> Result<Self, GgufError> {
        let mut reader = HeaderReader { source, at: 0, file_bytes, limits, kept_bytes: 0 };
        // Both counts come before the entries, and both are bounded before anything is read.
        let version = reader.preamble()?;
        let tensor_count = reader.count("tensors")?;
        let metadata_count = reader.count("metadata entries")?;
        let metadata = (0..metadata_count)
            .map(|_| Ok((reader.name()?, reader.value()?)))
            .collect::<Result<Vec<_>, GgufError>>()?;
        let tensors =
            (0..tensor_count).map(|_| reader.tensor()).collect::<Result<Vec<_>, GgufError>>()?;
        let alignment = alignment(&metadata)?;
        let data_offset = reader.at.next_multiple_of(alignment.into());
        Ok(Self { version, metadata, tensors, data_offset, alignment })
    }

    /// The value of the metadata entry `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    /// The model's architecture (`general.architecture`).
    pub fn architecture(&self) -> Option<&str> {
        self.get("general.architecture")?.as_str()
    }

    /// Number at `key` of the model's own architecture, for example `block_count`.
    pub fn model_number(&self, key: &str) -> Option<u64> {
        self.get(&format!("{}.{key}", self.architecture()?))?.as_u64()
    }

    /// Elements of the keys and values of one token in all layers: exact for plain transformers, an
    /// upper bound for models with windows or recurrent layers; 0 if the header lacks sizes.
    pub fn kv_elements(&self) -> u64 {
        let number = |key: &str| self.model_number(key);
        let layers = number("block_count").unwrap_or(0);
        let heads = number("attention.head_count").unwrap_or(1).max(1);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads);
        let head_width = number("embedding_length").unwrap_or(0) / heads;
        let key = number("attention.key_length").unwrap_or(head_width);
        let value = number("attention.value_length").unwrap_or(head_width);
        layers.saturating_mul(kv_heads).saturating_mul(key.saturating_add(value))
    }

    /// Minimum size in bytes of a file that holds every tensor of a known type.
    ///
    /// # Errors
    /// [`GgufError::Malformed`] if a tensor's size or offset overflows.
    pub fn file_bytes(&self) -> Result<u64, GgufError> {
        let mut needed = if self.tensors.is_empty() { 0 } else { self.data_offset };
        for tensor in &self.tensors {
            let end = self
                .data_offset
                .checked_add(tensor.offset)
                .and_then(|start| start.checked_add(tensor.bytes().ok()?.unwrap_or(0)))
                .ok_or_else(|| {
                    GgufError::malformed(format!("place of tensor {:?}", tensor.name))
                })?;
            needed = needed.max(end);
        }
        Ok(needed)
    }
}

fn alignment(metadata: &[(String, Value)]) -> Result<u32, GgufError> {
    let Some((_, value)) = metadata.iter().find(|(key, _)| key == "general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let alignment = value.as_u64().and_then(|n| u32::try_from(n).ok());
    alignment
        .filter(|n| n.is_power_of_two() && *n <= 1 << 20)
        .ok_or_else(|| GgufError::malformed("general.alignment is not a power of two up to 1 MiB"))
}

struct HeaderReader<R> {
    source: R,
    at: u64,
    file_bytes: u64,
    limits: ReadLimits,
    kept_bytes: u64,
}

impl<R: Read> HeaderReader<R> {
    fn preamble(&mut self) -> Result<u32, GgufError> {
        let magic = self.bytes::<4>()?;
        if magic != MAGIC {
            return Err(GgufError::Magic { found: magic });
        }
        match self.u32()? {
            version @ (2 | 3) => Ok(version),
            version => Err(GgufError::Version(version)),
        }
    }

    /// Fails if fewer than `len` bytes of the file are left.
    fn expect(&self, len: u64) -> Result<(), GgufError> {
        match self.at.checked_add(len) {
            Some(end) if end <= self.file_bytes => Ok(()),
            end => Err(GgufError::Truncated {
                needed_bytes: end.unwrap_or(u64::MAX),
                actual_bytes: self.file_bytes,
            }),
        }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        self.expect(N as u64)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn count(&mut self, what: &str) -> Result<u64, GgufError> {
        let count = self.u64()?;
        if count > MAX_ENTRIES {
            return Err(GgufError::malformed(format!("{count} {what}")));
        }
        Ok(count)
    }

    /// Reads `len` bytes into memory, within the limit on kept bytes.
    fn keep(&mut self, len: u64) -> Result<Vec<u8>, GgufError> {
        self.expect(len)?;
        self.kept_bytes += len;
        if self.kept_bytes > self.limits.total_bytes {
            return Err(GgufError::malformed("the header is too large"));
        }
        // Grows with what is read: the file may be shorter than its size was.
        let mut bytes = Vec::new();
        (&mut self.source).take(len).read_to_end(&mut bytes)?;
        self.advance(len, bytes.len() as u64)?;
        Ok(bytes)
    }

    fn skip(&mut self, len: u64) -> Result<(), GgufError> {
        self.expect(len)?;
        let skipped = std::io::copy(&mut (&mut self.source).take(len), &mut std::io::sink())?;
        self.advance(len, skipped)
    }

    fn advance(&mut self, wanted: u64, got: u64) -> Result<(), GgufError> {
        self.at += got;
        if got < wanted {
            let needed_bytes = self.at + (wanted - got);
            return Err(GgufError::Truncated { needed_bytes, actual_bytes: self.at });
        }
        Ok(())
    }

    fn name(&mut self) -> Result<String, GgufError> {
        let len = self.u64()?;
        if len > MAX_NAME_BYTES {
            return Err(GgufError::malformed(format!("a name of {len} bytes")));
        }
        let bytes = self.keep(len)?;
        String::from_utf8(bytes).map_err(|_| GgufError::malformed("a name that is not UTF-8"))
    }

    fn value(&mut self) -> Result<Value, GgufError> {
        let kind = ValueKind::from_number(self.u32()?)?;
        Ok(match kind {
            ValueKind::U8 => Value::Unsigned(kind, self.bytes::<1>()?[0].into()),
            ValueKind::U16 => Value::Unsigned(kind, u16::from_le_bytes(self.bytes()?).into()),
            ValueKind::U32 => Value::Unsigned(kind, self.u32()?.into()),
            ValueKind::U64 => Value::Unsigned(kind, self.u64()?),
            ValueKind::I8 => Value::Signed(kind, i8::from_le_bytes(self.bytes()?).into()),
            ValueKind::I16 => Value::Signed(kind, i16::from_le_bytes(self.bytes()?).into()),
            ValueKind::I32 => Value::Signed(kind, i32::from_le_bytes(self.bytes()?).into()),
            ValueKind::I64 => Value::Signed(kind, i64::from_le_bytes(self.bytes()?)),
            ValueKind::F32 => Value::F32(f32::from_le_bytes(self.bytes()?)),
            ValueKind::F64 => Value::F64(f64::from_le_bytes(self.bytes()?)),
            ValueKind::Bool => Value::Bool(self.bytes::<1>()?[0] != 0),
            ValueKind::String => self.string()?,
            ValueKind::Array => Value::Array(self.array()?),
        })
    }

    fn string(&mut self) -> Result<Value, GgufError> {
        let len = self.u64()?;
        if len > self.limits.string_bytes {
            self.skip(len)?;
            return Ok(Value::LongString(len));
        }
        Ok(Value::String(self.keep(len)?))
    }

    fn array(&mut self) -> Result<Array, GgufError> {
        let item = ValueKind::from_number(self.u32()?)?;
        let len = self.u64()?;
        let bytes = match item {
            // The format allows nesting, but no known model uses it, and reading would become
            // recursive.
            ValueKind::Array => return Err(GgufError::malformed("an array of arrays")),
            ValueKind::String => self.strings(len)?,
            _ => self.numbers(item, len)?,
        };
        Ok(Array { item, len, bytes })
    }

    fn numbers(&mut self, item: ValueKind, len: u64) -> Result<Option<Vec<u8>>, GgufError> {
        let size = item.fixed_bytes().and_then(|size| size.checked_mul(len));
        let size =
            size.ok_or_else(|| GgufError::malformed(format!("an array of {len} numbers")))?;
        if self.limits.keep_arrays {
            return self.keep(size).map(Some);
        }
        self.skip(size)?;
        Ok(None)
    }

    fn strings(&mut self, len: u64) -> Result<Option<Vec<u8>>, GgufError> {
        // Each string takes at least its length field: bounds the loop by the file's size.
        self.expect(len.saturating_mul(8))?;
        let mut kept = Vec::new();
        for _ in 0..len {
            let size = self.u64()?;
            if self.limits.keep_arrays {
                kept.extend_from_slice(&size.to_le_bytes());
                kept.extend_from_slice(&self.keep(size)?);
            } else {
                self.skip(size)?;
            }
        }
        Ok(self.limits.keep_arrays.then_some(kept))
    }

    fn tensor(&mut self) -> Result<TensorInfo, GgufError> {
        let name = self.name()?;
        let dim_count = self.u32()?;
        if dim_count > MAX_DIMS {
            return Err(GgufError::malformed(format!(
                "tensor {name:?} has {dim_count} dimensions"
            )));
        }
        let dims = (0..dim_count).map(|_| self.u64()).collect::<Result<Vec<_>, GgufError>>()?;
        if dims.contains(&0) {
            // ggml takes such a tensor for a transposed one, and ends the process.
            return Err(GgufError::malformed(format!("tensor {name:?} has no elements")));
        }
        let kind = TensorType(self.u32()?);
        let offset = self.u64()?;
        Ok(TensorInfo { name, dims, kind, offset })
    }
}
