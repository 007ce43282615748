//! GGUF headers: written headers read back; cut, changed or random bytes give errors.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn metadata() -> Vec<(String, Value)> {
    let entry = |key: &str, value| (key.to_owned(), value);
    vec![
        entry("general.architecture", Value::string("llama")),
        entry("llama.block_count", Value::u32(2)),
        entry("a.signed", Value::Signed(ValueKind::I16, -7)),
        entry("a.float", Value::F32(0.5)),
        entry("a.double", Value::F64(-1.25)),
        entry("a.bool", Value::Bool(true)),
        entry("tokens", Value::Array(Array::of_strings(["a", "", "ccc"]))),
        entry("types", Value::Array(Array::of_i32([1, -1, 3]))),
        entry("scores", Value::Array(Array::of_f32([0.0, 1.5]))),
    ]
}

fn file() -> Vec<u8> {
    let tensors = [TensorSpec::f32("a", &[3, 2]), TensorSpec::f32("b", &[5])];
    let mut writer = GgufWriter::start(Vec::new(), &metadata(), &tensors).unwrap();
    writer.data_f32(&[1.0; 6]).unwrap();
    writer.data_f32(&[2.0; 5]).unwrap();
    writer.finish().unwrap()
}

fn read(bytes: &[u8], limits: ReadLimits) -> Result<Header, GgufError> {
    let header = Header::read(Cursor::new(bytes), bytes.len() as u64, limits)?;
    let (needed_bytes, actual_bytes) = (header.file_bytes()?, bytes.len() as u64);
    match needed_bytes > actual_bytes {
        true => Err(GgufError::Truncated { needed_bytes, actual_bytes }),
        false => Ok(header),
    }
}

#[test]
fn reads_back_what_was_written() {
    let bytes = file();
    let header = read(&bytes, ReadLimits::with_arrays()).unwrap();
    assert_eq!(header.metadata, metadata());
    assert_eq!(header.architecture(), Some("llama"));
    assert_eq!(header.model_number("block_count"), Some(2));
    assert_eq!(header.tensors[1].dims, [5]);
    let at = (header.data_offset + header.tensors[1].offset) as usize;
    assert_eq!(bytes[at..at + 4], 2.0f32.to_le_bytes());
    assert_eq!(header.file_bytes().unwrap(), at as u64 + 20);
}

#[test]
fn skips_arrays_unless_asked() {
    let header = read(&file(), ReadLimits::default()).unwrap();
    let skipped = Array { item: ValueKind::String, len: 3, bytes: None };
    assert_eq!(header.get("tokens"), Some(&Value::Array(skipped)));
    let header = read(&file(), ReadLimits::with_arrays()).unwrap();
    let Some(Value::Array(tokens)) = header.get("tokens") else { panic!("no tokens") };
    assert_eq!(tokens.strings(), [&b"a"[..], b"", b"ccc"]);
}

#[test]
fn every_cut_is_truncated() {
    let bytes = file();
    let needed = read(&bytes, ReadLimits::default()).unwrap().file_bytes().unwrap() as usize;
    for len in 0..needed {
        let error = read(&bytes[..len], ReadLimits::default()).unwrap_err();
        assert!(matches!(error, GgufError::Truncated { .. }), "{len}: {error}");
    }
}

#[test]
fn names_what_is_wrong() {
    let mut bytes = file();
    bytes[0] = b'X';
    let error = read(&bytes, ReadLimits::default()).unwrap_err();
    assert_eq!(error.to_string(), "not a GGUF file: it begins with \"XGUF\"");
    let mut bytes = file();
    bytes[4] = 9;
    assert!(matches!(read(&bytes, ReadLimits::default()), Err(GgufError::Version(9))));
}

#[test]
fn a_tensor_without_elements_is_refused() {
    let tensors = [TensorSpec::f32("a", &[0, 4])];
    let mut writer = GgufWriter::start(Vec::new(), &[], &tensors).unwrap();
    writer.data_f32(&[]).unwrap();
    let error = read(&writer.finish().unwrap(), ReadLimits::default()).unwrap_err();
    assert!(error.to_string().contains("has no elements"), "{error}");
}

#[test]
fn announced_lengths_reserve_nothing() {
    // A string, a count and an array that claim 2^60 must fail, not allocate.
    for at in [8, 16, 24, 56] {
        let mut bytes = file();
        bytes[at..at + 8].copy_from_slice(&(1u64 << 60).to_le_bytes());
        assert!(read(&bytes, ReadLimits::with_arrays()).is_err(), "length at {at}");
    }
}

#[test]
fn writer_refuses_wrong_sizes() {
    let tensors = [TensorSpec::f32("a", &[3])];
    let mut writer = GgufWriter::start(Vec::new(), &[], &tensors).unwrap();
    assert!(writer.data_f32(&[0.0; 2]).is_err());
    let writer = GgufWriter::start(Vec::new(), &[], &tensors).unwrap();
    assert!(writer.finish().is_err());
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes, ReadLimits::with_arrays());
        let mut gguf = b"GGUF\x03\0\0\0".to_vec();
        gguf.extend_from_slice(&bytes);
        let _ = read(&gguf, ReadLimits::with_arrays());
    }

    #[test]
    fn changed_bytes_never_panic(at in 0usize..360, value: u8, len in 0usize..8) {
        let mut bytes = file();
        let end = (at + len).min(bytes.len());
        bytes[at.min(end)..end].fill(value);
        let _ = read(&bytes, ReadLimits::with_arrays());
    }
}
