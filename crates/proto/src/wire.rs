//! Fields on the wire: variable-length integers, length-prefixed bytes, the checksum.

use alloc::string::String;
use alloc::vec::Vec;

use crate::Error;

/// Largest integer on the wire, 2^53 − 1: the largest that a JavaScript number holds exactly
/// (D-1.2).
pub const MAX_INT: u64 = (1 << 53) - 1;

/// Appends `value` as a variable-length integer (RFC 9000 §16), shortest form (D-1.1).
///
/// # Panics
/// If `value` exceeds [`MAX_INT`]; offsets and counters stay far below it.
pub fn put_int(out: &mut Vec<u8>, value: u64) {
    assert!(value <= MAX_INT, "integer beyond the wire format");
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Number of bytes that [`put_int`] writes for `value`.
pub const fn int_len(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends the length of `bytes`, then `bytes` (D-1.3).
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_int(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads fields from the front of a slice. Invalid input gives an error, never a panic.
#[derive(Debug, Clone)]
pub struct FieldReader<'a> {
    rest: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Creates a reader that begins at the front of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that were not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// [`Error::Truncated`] at the end of the bytes.
    pub fn byte(&mut self) -> Result<u8, Error> {
        let (&byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    /// Reads `n` bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer than `n` bytes are left.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads a variable-length integer (D-1.1), at most [`MAX_INT`] (D-1.2).
    ///
    /// # Errors
    /// [`Error::Truncated`], or [`Error::Malformed`] for a value above [`MAX_INT`].
    pub fn int(&mut self) -> Result<u64, Error> {
        let first = *self.rest.first().ok_or(Error::Truncated)?;
        let bytes = self.take(1 << (first >> 6))?;
        let value = bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        let bits = 8 * bytes.len() as u32 - 2;
        let value = value & (u64::MAX >> (64 - bits));
        if value > MAX_INT { Err(Error::Malformed) } else { Ok(value) }
    }

    /// Reads an integer below 2^32.
    ///
    /// # Errors
    /// Same as [`Self::int`], or [`Error::Malformed`] for a larger integer.
    pub fn int32(&mut self) -> Result<u32, Error> {
        u32::try_from(self.int()?).map_err(|_| Error::Malformed)
    }

    /// Reads length-prefixed bytes (D-1.3).
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer bytes are left than the length requires, or an error of
    /// [`Self::int`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let len = usize::try_from(self.int()?).map_err(|_| Error::Truncated)?;
        self.take(len)
    }

    /// Reads length-prefixed UTF-8 text (D-1.3).
    ///
    /// # Errors
    /// Same as [`Self::bytes`], or [`Error::Malformed`] for invalid UTF-8.
    pub fn text(&mut self) -> Result<String, Error> {
        text(self.bytes()?)
    }

    /// Reads all remaining bytes as UTF-8 text.
    ///
    /// # Errors
    /// [`Error::Malformed`] for invalid UTF-8.
    pub fn rest_text(&mut self) -> Result<String, Error> {
        text(core::mem::take(&mut self.rest))
    }

    /// Checks that nothing is left (D-1.4).
    ///
    /// # Errors
    /// [`Error::Malformed`] if bytes are left.
    pub fn end(&self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Malformed) }
    }
}

fn text(bytes: &[u8]) -> Result<String, Error> {
    core::str::from_utf8(bytes).map(String::from).map_err(|_| Error::Malformed)
}

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `bytes` (D-2.4).
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        CRC_TABLE[usize::from((crc ^ u32::from(byte)) as u8)] ^ (crc >> 8)
    })
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { 0x82f6_3b78 ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn integers_round_trip_at_their_edges() {
        for value in [0, 0x3f, 0x40, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, MAX_INT] {
            let mut out = Vec::new();
            put_int(&mut out, value);
            assert_eq!(out.len(), int_len(value));
            let mut reader = FieldReader::new(&out);
            assert_eq!(reader.int(), Ok(value));
            assert_eq!(reader.end(), Ok(()));
            assert_eq!(FieldReader::new(&out[..out.len() - 1]).int(), Err(Error::Truncated));
        }
        assert_eq!(FieldReader::new(&[0xff; 8]).int(), Err(Error::Malformed));
    }
}
