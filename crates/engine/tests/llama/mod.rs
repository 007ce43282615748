//! llama.cpp behind the runner: loading and its errors, tokenizing, batched decoding.
//!
//! On a random model that the tests write, and on the bundled one where it is there.
#![cfg(feature = "llama")]

mod decoding;
mod embedding;
mod hostile_headers;
mod hostile_prompts;
mod kernels;
mod loading;
mod prefixes;
mod random_model;
mod recurrent;
mod speculation;
mod staged;
mod tokenizing;
mod windows;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use loquent_engine::llama::{LlamaModel, LoadOptions};
use random_model::{Defect, Width};

/// The random model, loaded once.
fn random() -> Arc<LlamaModel> {
    static MODEL: OnceLock<Arc<LlamaModel>> = OnceLock::new();
    MODEL.get_or_init(|| load_random(Defect::None)).clone()
}

fn load_random(defect: Defect) -> Arc<LlamaModel> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("random.gguf");
    random_model::write(&path, Width::SMALL, defect);
    // Not mapped: the file is gone when this returns.
    let options = LoadOptions { mmap: false, ..LoadOptions::default() };
    LlamaModel::load(&path, &options, |_| true).expect("the random model loads")
}

/// The bundled model; `None`, with the reason printed, where it is not there.
fn bundled() -> Option<Arc<LlamaModel>> {
    static MODEL: OnceLock<Option<Arc<LlamaModel>>> = OnceLock::new();
    MODEL.get_or_init(load_bundled).clone()
}

fn load_bundled() -> Option<Arc<LlamaModel>> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/loquent-tiny.gguf");
    let path = std::env::var_os("LOQUENT_TEST_MODEL").map_or(PathBuf::from(default), PathBuf::from);
    if !path.exists() {
        loquent_needs::Need::Model.lack(path.display());
        return None;
    }
    Some(
        LlamaModel::load(&path, &LoadOptions::default(), |_| true)
            .expect("the bundled model loads"),
    )
}
