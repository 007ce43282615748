//! Every way in which a model cannot be loaded has its error.

use std::fs;
#[cfg(target_os = "linux")]
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use loquent_engine::KvType;
use loquent_engine::llama::{
    History, LlamaModel, LlamaRunner, LoadError, LoadOptions, RunnerOptions,
};
use tempfile::TempDir;

use super::random_model::{self, Defect, Width};

fn file(defect: Defect) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    random_model::write(&path, Width::SMALL, defect);
    (folder, path)
}

fn error(path: &Path, options: &LoadOptions) -> LoadError {
    LlamaModel::load(path, options, |_| true).expect_err("must not load")
}

#[test]
fn describes_a_model() {
    let (_folder, path) = file(Defect::None);
    let mut shares = Vec::new();
    let record = |share| {
        shares.push(share);
        true
    };
    let model = LlamaModel::load(&path, &LoadOptions::default(), record).unwrap();
    let info = model.info();
    assert_eq!((info.name.as_deref(), info.architecture.as_str()), (Some("random"), "llama"));
    assert_eq!((info.context_train, info.vocab_size), (1024, 260));
    assert_eq!(info.chat_template, None);
    assert_eq!(info.history, History::Whole);
    assert!(shares.is_sorted() && shares.last() == Some(&1.0), "{shares:?}");
}

#[test]
fn missing_files_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let options = LoadOptions::default();
    assert!(matches!(error(&folder.path().join("no"), &options), LoadError::NotFound(_)));
    assert!(matches!(error(folder.path(), &options), LoadError::Unreadable { .. }));
}

#[test]
fn other_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    for bytes in [&b""[..], b"GG", b"PK\x03\x04 something else", &[0; 100]] {
        fs::write(&path, bytes).unwrap();
        let error = error(&path, &LoadOptions::default());
        assert!(matches!(error, LoadError::NotGguf(_)), "{bytes:?}: {error}");
    }
    fs::write(&path, b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0").unwrap();
    assert!(matches!(error(&path, &LoadOptions::default()), LoadError::Malformed { .. }));
}

#[test]
fn truncated_files() {
    let (_folder, path) = file(Defect::None);
    let bytes = fs::read(&path).unwrap();
    for len in [10, 1000, 10_000, bytes.len() - 40] {
        fs::write(&path, &bytes[..len]).unwrap();
        let error = error(&path, &LoadOptions::default());
        assert!(matches!(error, LoadError::Truncated { .. }), "{len}: {error}");
    }
}

#[test]
fn unknown_architecture() {
    let (_folder, path) = file(Defect::Architecture);
    let error = error(&path, &LoadOptions::default());
    assert!(
        matches!(&error, LoadError::UnsupportedArchitecture(name) if name == "llamma"),
        "{error}"
    );
}

#[test]
fn epsilons_that_end_llama_cpp() {
    for value in [-1e-5, f32::NAN, f32::INFINITY] {
        let (_folder, path) = file(Defect::Epsilon(value));
        let error = error(&path, &LoadOptions::default());
        assert!(matches!(error, LoadError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains("layer_norm_rms_epsilon"), "{error}");
    }
    let (_folder, path) = file(Defect::Epsilon(0.0));
    LlamaModel::load(&path, &LoadOptions::default(), |_| true).expect("a sound model");
}

#[test]
fn too_large() {
    let (_folder, path) = file(Defect::None);
    let options = LoadOptions { memory_bytes: Some(1000), ..LoadOptions::default() };
    assert!(matches!(error(&path, &options), LoadError::TooLarge { .. }));
    let megabyte = Some(1 << 20);
    let options =
        LoadOptions { memory_bytes: megabyte, kv_cells: 1 << 20, ..LoadOptions::default() };
    // 2 layers x (32 + 32) elements x 2 bytes a cell.
    let expected_bytes = 256 << 20;
    let error = error(&path, &options);
    assert!(matches!(error, LoadError::TooLarge { kv_bytes, .. } if kv_bytes == expected_bytes));
}

#[test]
fn a_context_that_cannot_fit() {
    let options =
        RunnerOptions { kv_cells: 1 << 30, kv_type: KvType::F32, ..RunnerOptions::default() };
    let error = LlamaRunner::new(super::random(), &options).err().expect("512 GiB do not fit");
    assert!(matches!(error, LoadError::TooLarge { .. }), "{error}");
}

#[test]
fn cancelled() {
    let (_folder, path) = file(Defect::None);
    let cancelled = LlamaModel::load(&path, &LoadOptions::default(), |_| false);
    assert!(matches!(cancelled, Err(LoadError::Cancelled)));
    let panicked = LlamaModel::load(&path, &LoadOptions::default(), |_| panic!("on purpose"));
    assert!(matches!(panicked, Err(LoadError::Cancelled)));
}

#[test]
fn missing_tensors_are_llama_cpps_to_report() {
    let (_folder, path) = file(Defect::None);
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(11).position(|w| w == b"output_norm").unwrap();
    let mut renamed = bytes.clone();
    renamed[at..at + 11].copy_from_slice(b"output_morn");
    fs::write(&path, renamed).unwrap();
    let error = error(&path, &LoadOptions::default());
    assert!(
        matches!(&error, LoadError::Backend(reason) if reason.contains("output_norm")),
        "{error}"
    );
}

/// Resident memory of this process in bytes.
#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux tells");
    let line = pages.lines().find_map(|line| line.strip_prefix("Rss:")).expect("resident memory");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    kibibytes * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn a_cache_takes_memory_as_it_is_used() {
    let model = super::random();
    let before = resident_bytes();
    // 2 layers of 32 keys and as many values, in 4 bytes each: 512 bytes a cell, 512 MiB in all.
    let options = RunnerOptions {
        kv_cells: 1 << 20,
        batch_tokens: 16,
        pass_tokens: 16,
        kv_type: KvType::F32,
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    };
    let runner = LlamaRunner::new(model, &options).expect("a context");
    let grown = resident_bytes().saturating_sub(before);
    // Other tests run beside this one, with small models.
    assert!(grown < 256 << 20, "{} MiB for an empty cache", grown >> 20);
    drop(runner);
}
