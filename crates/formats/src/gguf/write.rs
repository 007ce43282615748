//! Writes a GGUF file as a stream: metadata and tensor descriptions first, then data.

use std::io::{self, Read, Write};

use super::value::{Value, ValueKind};
use super::{DEFAULT_ALIGNMENT, GgufError, MAGIC, TensorInfo, TensorType};

/// A tensor to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Sizes, fastest-varying first; one to four of them.
    pub dims: Vec<u64>,
    /// Element type, one that [`TensorType::block`] knows.
    pub kind: TensorType,
}

impl TensorSpec {
    /// A tensor of 32-bit floats.
    pub fn f32(name: impl Into<String>, dims: &[u64]) -> Self {
        Self { name: name.into(), dims: dims.to_vec(), kind: TensorType::F32 }
    }
}

/// Writes one GGUF version 3 file: [`GgufWriter::start`], then the data of every tensor in
/// order by [`GgufWriter::data`], then [`GgufWriter::finish`].
#[derive(Debug)]
pub struct GgufWriter<W> {
    sink: W,
    /// Data sizes in bytes of the remaining tensors, last first.
    sizes: Vec<u64>,
}

impl<W: Write> GgufWriter<W> {
    /// Writes everything before the tensor data.
    ///
    /// # Errors
    /// [`GgufError::Io`] of the sink; [`GgufError::Malformed`] for a tensor or value that the
    /// format cannot hold (a skipped string or array, an unknown element type).
    pub fn start(
        mut sink: W,
        metadata: &[(String, Value)],
        tensors: &[TensorSpec],
    ) -> Result<Self, GgufError> {
        // Collected first, because tensor data begins at an aligned offset of the whole.
        let mut head = Vec::new();
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&3u32.to_le_bytes());
        head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        head.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            put_bytes(&mut head, key.as_bytes());
            put_value(&mut head, value).map_err(|reason| {
                GgufError::malformed(format!("metadata {key:?} cannot be written: {reason}"))
            })?;
        }
        let mut sizes = put_tensors(&mut head, tensors)?;
        // The next one is popped off the end.
        sizes.reverse();
        pad(&mut head);
        sink.write_all(&head)?;
        Ok(Self { sink, sizes })
    }

    /// Writes the next tensor's data, and the padding after it.
    ///
    /// # Errors
    /// [`GgufError::Malformed`] if `bytes` does not have the described length, or no tensor is
    /// left; [`GgufError::Io`] of the sink.
    pub fn data(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let size = self.sizes.pop().ok_or_else(|| GgufError::malformed("no tensor is left"))?;
        if bytes.len() as u64 != size {
            let reason = format!("a tensor of {size} bytes got {}", bytes.len());
            return Err(GgufError::malformed(reason));
        }
        self.sink.write_all(bytes)?;
        Ok(self.pad_after(size)?)
    }

    /// Writes the next tensor's data from `source`, and the padding after it. Returns its length.
    ///
    /// # Errors
    /// Same as [`GgufWriter::data`]; also [`GgufError::Io`] if `source` ends too early.
    pub fn data_from(&mut self, source: impl Read) -> Result<u64, GgufError> {
        let size = self.sizes.pop().ok_or_else(|| GgufError::malformed("no tensor is left"))?;
        let copied = io::copy(&mut source.take(size), &mut self.sink)?;
        if copied < size {
            return Err(GgufError::Truncated { needed_bytes: size, actual_bytes: copied });
        }
        self.pad_after(size)?;
        Ok(size)
    }

    fn pad_after(&mut self, size: u64) -> io::Result<()> {
        let padding = size.next_multiple_of(DEFAULT_ALIGNMENT.into()) - size;
        self.sink.write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])
    }

    /// Writes the next tensor's data from 32-bit floats.
    ///
    /// # Errors
    /// Same as [`GgufWriter::data`].
    pub fn data_f32(&mut self, values: &[f32]) -> Result<(), GgufError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.data(&bytes)
    }

    /// Flushes the file and returns the sink.
    ///
    /// # Errors
    /// [`GgufError::Malformed`] if some tensors have no data yet; [`GgufError::Io`] of the sink.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if !self.sizes.is_empty() {
            return Err(GgufError::malformed(format!("{} tensors have no data", self.sizes.len())));
        }
        self.sink.flush()?;
        Ok(self.sink)
    }
}

fn put_bytes(head: &mut Vec<u8>, bytes: &[u8]) {
    head.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    head.extend_from_slice(bytes);
}

fn pad(head: &mut Vec<u8>) {
    head.resize(head.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
}

fn put_kind(head: &mut Vec<u8>, kind: ValueKind) {
    head.extend_from_slice(&(kind as u32).to_le_bytes());
}

fn put_value(head: &mut Vec<u8>, value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Unsigned(kind, n) => put_number(head, *kind, *n),
        Value::Signed(kind, n) => put_number(head, *kind, *n as u64),
        Value::F32(x) => put_number(head, ValueKind::F32, x.to_bits().into()),
        Value::F64(x) => put_number(head, ValueKind::F64, x.to_bits()),
        Value::Bool(b) => put_number(head, ValueKind::Bool, (*b).into()),
        Value::String(bytes) => {
            put_kind(head, ValueKind::String);
            put_bytes(head, bytes);
            Ok(())
        }
        Value::LongString(_) => Err("its text was skipped"),
        Value::Array(array) => {
            let bytes = array.bytes.as_ref().ok_or("its elements were skipped")?;
            put_kind(head, ValueKind::Array);
            put_kind(head, array.item);
            head.extend_from_slice(&array.len.to_le_bytes());
            head.extend_from_slice(bytes);
            Ok(())
        }
    }
}

/// Writes the low bytes of `bits`, as many as `kind` has (two's complement keeps signs).
fn put_number(head: &mut Vec<u8>, kind: ValueKind, bits: u64) -> Result<(), &'static str> {
    let bytes = kind.fixed_bytes().ok_or("a number cannot have this type")?;
    put_kind(head, kind);
    head.extend_from_slice(&bits.to_le_bytes()[..bytes as usize]);
    Ok(())
}

fn put_tensors(head: &mut Vec<u8>, tensors: &[TensorSpec]) -> Result<Vec<u64>, GgufError> {
    let mut offset = 0u64;
    let mut sizes = Vec::with_capacity(tensors.len());
    for spec in tensors {
        let TensorSpec { name, dims, kind } = spec.clone();
        let info = TensorInfo { name, dims, kind, offset };
        let size = info.bytes()?.ok_or_else(|| {
            GgufError::malformed(format!("tensor {:?} has an unknown element type", info.name))
        })?;
        put_bytes(head, info.name.as_bytes());
        head.extend_from_slice(&(info.dims.len() as u32).to_le_bytes());
        info.dims.iter().for_each(|d| head.extend_from_slice(&d.to_le_bytes()));
        head.extend_from_slice(&info.kind.0.to_le_bytes());
        head.extend_from_slice(&offset.to_le_bytes());
        offset += size.next_multiple_of(DEFAULT_ALIGNMENT.into());
        sizes.push(size);
    }
    Ok(sizes)
}
