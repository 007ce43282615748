//! Metadata values of a GGUF file, and their types.

use super::GgufError;

/// The type of a metadata value or array element, with GGUF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueKind {
    /// An unsigned integer of 8 bits.
    U8 = 0,
    /// A signed integer of 8 bits.
    I8 = 1,
    /// An unsigned integer of 16 bits.
    U16 = 2,
    /// A signed integer of 16 bits.
    I16 = 3,
    /// An unsigned integer of 32 bits.
    U32 = 4,
    /// A signed integer of 32 bits.
    I32 = 5,
    /// A float of 32 bits.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// 64-bit length, then that many bytes.
    String = 8,
    /// Element type, 64-bit count, elements.
    Array = 9,
    /// An unsigned integer of 64 bits.
    U64 = 10,
    /// A signed integer of 64 bits.
    I64 = 11,
    /// A float of 64 bits.
    F64 = 12,
}

impl ValueKind {
    /// The type with GGUF's number `n`.
    pub(super) fn from_number(n: u32) -> Result<Self, GgufError> {
        const ALL: [ValueKind; 13] = [
            ValueKind::U8,
            ValueKind::I8,
            ValueKind::U16,
            ValueKind::I16,
            ValueKind::U32,
            ValueKind::I32,
            ValueKind::F32,
            ValueKind::Bool,
            ValueKind::String,
            ValueKind::Array,
            ValueKind::U64,
            ValueKind::I64,
            ValueKind::F64,
        ];
        ALL.get(n as usize).copied().ok_or_else(|| GgufError::malformed(format!("value type {n}")))
    }

    /// Bytes of one value; `None` for types whose values differ in length.
    pub fn fixed_bytes(self) -> Option<u64> {
        match self {
            ValueKind::U8 | ValueKind::I8 | ValueKind::Bool => Some(1),
            ValueKind::U16 | ValueKind::I16 => Some(2),
            ValueKind::U32 | ValueKind::I32 | ValueKind::F32 => Some(4),
            ValueKind::U64 | ValueKind::I64 | ValueKind::F64 => Some(8),
            ValueKind::String | ValueKind::Array => None,
        }
    }
}

/// An array of metadata values, kept in the file's own encoding so that it can be copied into
/// another file unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Type of the elements (never [`ValueKind::Array`]).
    pub item: ValueKind,
    /// Number of elements, also of a skipped array.
    pub len: u64,
    /// The elements, little-endian; `None` if [`super::ReadLimits::keep_arrays`] was off.
    pub bytes: Option<Vec<u8>>,
}

impl Array {
    /// Creates an array of strings, each preceded by its length.
    pub fn of_strings<S: AsRef<[u8]>>(items: impl IntoIterator<Item = S>) -> Self {
        let (mut len, mut bytes) = (0, Vec::new());
        for item in items {
            let item = item.as_ref();
            bytes.extend_from_slice(&(item.len() as u64).to_le_bytes());
            bytes.extend_from_slice(item);
            len += 1;
        }
        Self { item: ValueKind::String, len, bytes: Some(bytes) }
    }

    /// An array of 32-bit signed integers.
    pub fn of_i32(items: impl IntoIterator<Item = i32>) -> Self {
        let bytes: Vec<u8> = items.into_iter().flat_map(i32::to_le_bytes).collect();
        Self { item: ValueKind::I32, len: bytes.len() as u64 / 4, bytes: Some(bytes) }
    }

    /// An array of 32-bit floats.
    pub fn of_f32(items: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = items.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { item: ValueKind::F32, len: bytes.len() as u64 / 4, bytes: Some(bytes) }
    }

    /// The elements of an array of strings; empty for other arrays and skipped ones.
    pub fn strings(&self) -> Vec<&[u8]> {
        let mut rest = match (&self.bytes, self.item) {
            (Some(bytes), ValueKind::String) => bytes.as_slice(),
            _ => &[],
        };
        // Lengths come from a file: a wrong one ends the list instead of the process.
        let mut items = Vec::new();
        while let Some((head, tail)) = rest.split_first_chunk::<8>() {
            let len = usize::try_from(u64::from_le_bytes(*head)).unwrap_or(usize::MAX);
            let Some((item, after)) = tail.split_at_checked(len) else {
                break;
            };
            items.push(item);
            rest = after;
        }
        items
    }
}

/// A metadata value with its type in the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned integers of all widths.
    Unsigned(ValueKind, u64),
    /// Signed integers of all widths.
    Signed(ValueKind, i64),
    /// A float of 32 bits.
    F32(f32),
    /// A float of 64 bits.
    F64(f64),
    /// One byte, true or false.
    Bool(bool),
    /// A string; GGUF requires UTF-8, but files with other bytes exist.
    String(Vec<u8>),
    /// A string longer than [`super::ReadLimits::string_bytes`], skipped; its length.
    LongString(u64),
    /// Several values of one type.
    Array(Array),
}

impl Value {
    /// A 32-bit unsigned integer.
    pub fn u32(n: u32) -> Self {
        Self::Unsigned(ValueKind::U32, n.into())
    }

    /// A string value from text.
    pub fn string(text: impl Into<String>) -> Self {
        Self::String(text.into().into_bytes())
    }

    /// The value as an unsigned number; `None` unless it is a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(_, n) => Some(n),
            Self::Signed(_, n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    /// The value as text; `None` unless it is a string in UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}
