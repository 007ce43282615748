//! Shrunken shapes are written, quantised, loaded by llama.cpp and decoded.

use std::path::Path;
use std::process::Command;

use loquent_engine::llama::{LlamaModel, LoadOptions, Quant};
use loquent_formats::gguf::{Header, ReadLimits};
use shape_model::{BuildOrder, Experts, ModelShape, build, embedding_trial, trial, vocab};

/// A shape of few and small layers, so that a test takes a second.
fn shrunken(name: &str) -> ModelShape {
    let shape = ModelShape::named(name).unwrap();
    ModelShape {
        layers: 2,
        width: 256,
        heads: 4,
        kv_heads: shape.kv_heads.min(4),
        experts: shape.experts.map(|_| Experts { count: 8, used: 2 }),
        // Less than what a test decodes, so that tokens leave it.
        window: shape.window.map(|_| 16),
        ffn: 512,
        vocab: 3000,
        ..shape
    }
}

fn order(shape: ModelShape, quant: Quant, out: &Path) -> BuildOrder {
    let vocabulary = vocab::synthetic(shape.vocab, "qwen2").unwrap();
    BuildOrder { shape, vocabulary, seed: 7, quant, threads: 1, out: out.to_owned() }
}

#[test]
fn every_shape_loads_and_decodes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let cases = [
        ("tiny", Quant::Q4KM),
        ("tiny", Quant::F16),
        ("qwen3-0.6b", Quant::Q8_0),
        ("gpt2", Quant::Q4KM),
        ("llama-3.2-1b", Quant::Q4KM),
        ("tiny-moe", Quant::Q4KM),
        ("gemma3-1b", Quant::Q4KM),
    ];
    for (name, quant) in cases {
        let shape = shrunken(name);
        build(&order(shape, quant, &file), &mut |_| {}).unwrap();
        let trial = trial(&file, 24, 1).unwrap_or_else(|error| panic!("{name} {quant}: {error}"));
        assert_eq!(trial.tokens.len(), 24);
        assert!(trial.distinct() > 3, "{name} {quant} repeats itself: {:?}", trial.tokens);
        let model = LlamaModel::load(&file, &LoadOptions::default(), |_| true).unwrap();
        assert_eq!(model.info().parameters, shape.parameters());
        assert_eq!((model.info().vocab_size, model.info().context_train), (3000, shape.context));
    }
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left, ["model.gguf"], "unfinished files were left");
}

#[test]
fn embedding_shapes_embed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    for (name, quant) in [
        ("bge-small", Quant::F16),
        ("bge-small", Quant::Q8_0),
        ("qwen3-embedding-0.6b", Quant::Q4KM),
    ] {
        let shape = shrunken(name);
        let vocabulary = match name {
            "bge-small" => vocab::word_pieces(shape.vocab).unwrap(),
            _ => vocab::synthetic(shape.vocab, "qwen2").unwrap(),
        };
        build(&BuildOrder { vocabulary, ..order(shape, quant, &file) }, &mut |_| {}).unwrap();
        let vector = embedding_trial(&file, 1).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_eq!(vector.len(), 256);
        let model = LlamaModel::load(&file, &LoadOptions::default(), |_| true).unwrap();
        assert_eq!(model.info().parameters, shape.parameters());
        let traits = model.embedding_traits().unwrap();
        assert_eq!((traits.pooling, traits.is_causal), (shape.pooling, name != "bge-small"));
    }
}

#[test]
fn the_seed_decides_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |seed: u64, name: &str| {
        let file = folder.path().join(name);
        let order = BuildOrder { seed, ..order(shrunken("tiny"), Quant::Q4_0, &file) };
        build(&order, &mut |_| {}).unwrap();
        std::fs::read(file).unwrap()
    };
    let first = bytes(1, "a");
    assert!(first == bytes(1, "b"), "the same seed gave another file");
    assert!(first != bytes(2, "c"), "another seed gave the same file");
}

#[test]
fn a_vocabulary_is_copied_from_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.gguf"), folder.path().join("to.gguf"));
    build(&order(shrunken("gpt2"), Quant::F16, &from), &mut |_| {}).unwrap();
    let vocabulary = vocab::copied(&from).unwrap();
    assert_eq!(vocabulary.len, 3000);
    build(&BuildOrder { vocabulary, ..order(shrunken("tiny"), Quant::F16, &to) }, &mut |_| {})
        .unwrap();
    let tokens = |file| {
        let header = Header::open(file, ReadLimits::with_arrays()).unwrap();
        header.get("tokenizer.ggml.tokens").unwrap().clone()
    };
    assert!(tokens(&from) == tokens(&to));
    std::fs::write(&from, b"no model").unwrap();
    assert!(vocab::copied(&from).is_err());
}

#[test]
fn a_failed_build_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("a-folder");
    std::fs::create_dir(&taken).unwrap();
    for quant in [Quant::F16, Quant::Q8_0] {
        assert!(build(&order(shrunken("tiny"), quant, &taken), &mut |_| {}).is_err());
    }
    let nowhere = folder.path().join("none/model.gguf");
    assert!(build(&order(shrunken("tiny"), Quant::F16, &nowhere), &mut |_| {}).is_err());
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "unfinished files were left");
}

#[test]
fn the_command_explains_itself_and_its_errors() {
    let run = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_shape-model")).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (listed, shapes, _) = run(&["--list"]);
    assert!(listed && shapes.contains("qwen3-0.6b") && shapes.contains("596.0M"), "{shapes}");
    let (ok, _, error) = run(&["llama-9", "--out", "x.gguf"]);
    assert!(!ok && error.contains("qwen3-0.6b"), "{error}");
    let (ok, _, error) = run(&["tiny", "--quant", "Q9", "--out", "x.gguf"]);
    assert!(!ok && error.contains("Q4_K_M"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.gguf").to_str().unwrap().to_owned();
    let small = [
        "tiny",
        "--layers",
        "1",
        "--vocab-size",
        "300",
        "--quant",
        "q8_0",
        "--threads",
        "1",
        "--check",
    ];
    let (ok, told, error) = run(&[&small[..], &["--out", &file]].concat());
    assert!(ok && told.contains("300 tokens") && told.contains("tokens/s"), "{told}{error}");
}
