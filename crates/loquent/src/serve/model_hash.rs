//! A hash of a model's files that tells models apart without reading gigabytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use loquent_formats::gguf::{Header, ReadLimits};
use loquent_proto::hex;
use sha2::{Digest, Sha256};

use crate::models::split_files;

/// Samples of the weights, of all files together.
const SAMPLES: u64 = 64;
/// Fewest samples of one file.
const FEWEST_SAMPLES: u64 = 4;
/// Bytes of a sample.
const SAMPLE_BYTES: u64 = 16 << 10;
/// Most bytes read of a header. The largest vocabularies need less than half of it.
const MAX_HEADER_BYTES: u64 = 32 << 20;

/// Returns a hash of the model in the file at `model`, of all files if it has several: of their
/// lengths, of their headers, and of samples spread over their weights.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn hash_of(model: &Path) -> io::Result<String> {
    let mut files = split_files::parts(model);
    // A whole model may be called like one file of several: llama.cpp goes by its header.
    files.retain(|file| file.is_file());
    if files.is_empty() {
        files.push(model.to_owned());
    }
    let samples = (SAMPLES / files.len() as u64).max(FEWEST_SAMPLES);
    let mut hash = Sha256::new();
    for file in &files {
        add_file(&mut hash, file, samples)?;
    }
    Ok(hex::encode(&hash.finalize()))
}

fn add_file(hash: &mut Sha256, path: &Path, samples: u64) -> io::Result<()> {
    let header = Header::open(path, ReadLimits::default());
    let header_bytes = header.map_or(MAX_HEADER_BYTES, |it| it.data_offset.min(MAX_HEADER_BYTES));
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    hash.update(len.to_le_bytes());
    let mut bytes = Vec::new();
    // Whole: a single number of it, such as the base of the rotations, makes other keys and values.
    (&mut file).take(header_bytes).read_to_end(&mut bytes)?;
    hash.update(&bytes);
    let last = len.saturating_sub(SAMPLE_BYTES);
    for remaining in (0..samples).rev() {
        file.seek(SeekFrom::Start(last - last / samples * remaining))?;
        bytes.clear();
        (&mut file).take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
        hash.update(&bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use loquent_formats::gguf::{GgufWriter, TensorSpec, Value};

    use super::*;

    /// Returns the bytes of a model whose rotations have the base `base`.
    fn gguf(base: u32) -> Vec<u8> {
        let metadata = [
            ("general.architecture".to_owned(), Value::string("llama")),
            ("llama.rope.freq_base".to_owned(), Value::u32(base)),
        ];
        let tensors = [TensorSpec::f32("w", &[1 << 16])];
        let mut writer = GgufWriter::start(Vec::new(), &metadata, &tensors).unwrap();
        writer.data_f32(&vec![0.5; 1 << 16]).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn the_whole_header_counts_and_the_last_weight() {
        let folder = tempfile::tempdir().unwrap();
        let hash = |bytes: &[u8]| {
            let file = folder.path().join("model.gguf");
            fs::write(&file, bytes).unwrap();
            hash_of(&file).unwrap()
        };
        let model = gguf(10_000);
        let mut last = model.clone();
        *last.last_mut().unwrap() ^= 1;
        assert_eq!(hash(&model), hash(&model));
        assert_ne!(hash(&model), hash(&gguf(10_001)));
        assert_ne!(hash(&model), hash(&last));
        let zeros = vec![0_u8; 1 << 20];
        let mut other = zeros.clone();
        other[100] = 1;
        assert_ne!(hash(&zeros), hash(&other), "the header of a file that is no GGUF");
    }

    #[test]
    fn all_files_of_a_split_model_count() {
        let folder = tempfile::tempdir().unwrap();
        let write = |model: &str, number: u32, bytes: &[u8]| {
            let file = folder.path().join(format!("{model}-{number:05}-of-00002.gguf"));
            fs::write(&file, bytes).unwrap();
            file
        };
        let firsts = ["one", "other", "same"].map(|model| write(model, 1, &gguf(10_000)));
        let alone = hash_of(&firsts[0]).unwrap();
        for (model, base) in [("one", 1), ("other", 2), ("same", 1)] {
            write(model, 2, &gguf(base));
        }
        let [one, other, same] = firsts.map(|first| hash_of(&first).unwrap());
        assert_ne!(one, other);
        assert_eq!(one, same, "the names do not count");
        assert_ne!(one, alone);
    }
}
