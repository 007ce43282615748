//! No prompt ends the process, whatever the model's pre-tokenizer, and none takes long.
//!
//! A copy of the bundled model's vocabulary gets each pre-tokenizer that this llama.cpp knows, and
//! tokenizes prompts made to exhaust `std::regex`. Each runs in a process of its own, so that a
//! crash is one failed test.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use loquent_engine::llama::{LlamaModel, LlamaVocab, LoadOptions};
use loquent_formats::gguf::{GgufWriter, Header, ReadLimits, Value};
use loquent_infer::vocab::{Encode, Vocab};

/// Names the pre-tokenizer to the process that tries it.
const PRE: &str = "LOQUENT_TEST_PRE_TOKENIZER";
/// Length of each prompt in characters. By default several pieces into which prompts are cut.
const CHARS: &str = "LOQUENT_TEST_PROMPT_CHARS";
const DEFAULT_CHARS: usize = 9000;

/// Stack of the thread that tokenizes. By default the least that any caller has (a runtime's own
/// threads); a sanitizer's frames are larger.
const STACK: &str = "LOQUENT_TEST_STACK_BYTES";
const DEFAULT_STACK_BYTES: usize = 2 << 20;
/// Far more than any prompt of the default length takes on a slow machine: quadratic time shows.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The names in `llama_vocab::impl::load` of the pinned llama.cpp.
const PRE_TOKENIZERS: &str = "
    default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2
    jina-v5-nano deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder
    gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jais-2
    gemma4 granite-embed-multi-311m mmbert sarvam-moe jina-v1-en jina-v2-code roberta-bpe
    whitespace refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx
    smaug-bpe poro-chat chatglm-bpe glm4 glm5 viking jais tekken smollm codeshell bloom
    gpt3-finnish exaone exaone4 exaone-moe chameleon minerva-7b megrez gpt-4o llama4 kanana2 talkie
    granite-embed-multi-97m tiny_aya cohere2moe superbpe trillion granite-docling bailingmoe
    bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm kimi-k2 ufakzeka grok-2
    afmoe laguna minimax-m2 solar-open mellum2";

/// Prompts of about `chars` characters, by name.
fn prompts(chars: usize) -> Vec<(&'static str, String)> {
    let of = |part: &str| part.repeat(chars / part.chars().count());
    vec![
        ("one letter", of("a")),
        ("capitals and small letters", of("aB")),
        ("letters and digits", of("a1")),
        ("words and single spaces", of("a ")),
        ("spaces", of(" ")),
        ("newlines", of("\n")),
        ("digits", of("7")),
        ("punctuation", of("!")),
        ("combining marks", of("\u{301}")),
        ("Han", of("語")),
        ("unassigned and private", of("\u{378}\u{e000}\u{10ffff}")),
        ("control tokens", of("<|im_end|>")),
        ("apostrophes", of("'s")),
        ("mixed", of("Ab1 é語\u{301}👩\t\n!?= ")),
    ]
}

/// Writes the bundled model's vocabulary with the pre-tokenizer `pre`; false without the model.
fn write_vocabulary(path: &Path, pre: &str) -> bool {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/loquent-tiny.gguf");
    if !Path::new(model).exists() {
        return false;
    }
    let header = Header::open(Path::new(model), ReadLimits::with_arrays()).unwrap();
    let mut metadata = header.metadata;
    metadata.retain(|(key, _)| key != "tokenizer.ggml.pre");
    metadata.push(("tokenizer.ggml.pre".into(), Value::string(pre)));
    let file = BufWriter::new(File::create(path).unwrap());
    GgufWriter::start(file, &metadata, &[]).unwrap().finish().unwrap();
    true
}

/// Tokenizes all prompts with one pre-tokenizer; returns the longest time.
fn try_all(pre: &str, chars: usize) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vocabulary.gguf");
    assert!(write_vocabulary(&path, pre));
    let options = LoadOptions { vocab_only: true, mmap: false, ..LoadOptions::default() };
    let vocab = LlamaVocab::new(LlamaModel::load(&path, &options, |_| true).unwrap());
    let mut longest = Duration::ZERO;
    for (name, prompt) in prompts(chars) {
        let started = Instant::now();
        let tokens = vocab.encode(&prompt, Encode { add_bos: true, parse_special: true });
        let took = started.elapsed();
        // An error is an answer too.
        let tokens = tokens.map(|tokens| tokens.len());
        eprintln!("{pre}: {name}: {took:.1?}, {tokens:?}");
        assert!(took < TIME_LIMIT, "{pre}: {name} took {took:?}");
        longest = longest.max(took);
    }
    longest
}

/// Does nothing unless started by the test below.
#[test]
fn one_pre_tokenizer() {
    let Ok(pre) = std::env::var(PRE) else { return };
    let number = |name, default| std::env::var(name).map_or(default, |set| set.parse().unwrap());
    let (chars, stack_bytes) = (number(CHARS, DEFAULT_CHARS), number(STACK, DEFAULT_STACK_BYTES));
    let work = move || try_all(&pre, chars);
    let thread = std::thread::Builder::new().stack_size(stack_bytes).spawn(work).unwrap();
    eprintln!("longest: {:.1?}", thread.join().unwrap());
}

#[test]
fn every_pre_tokenizer_survives_hostile_prompts() {
    if !write_vocabulary(&tempfile::tempdir().unwrap().path().join("v.gguf"), "default") {
        return loquent_needs::Need::Model.lack("the bundled model is not there");
    }
    let own = std::env::current_exe().unwrap();
    let failed: Vec<String> = PRE_TOKENIZERS
        .split_whitespace()
        .filter_map(|pre| {
            let mut child = Command::new(&own);
            child.args(["--exact", "llama::hostile_prompts::one_pre_tokenizer", "--nocapture"]);
            let output = child.env(PRE, pre).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = text.lines().last().unwrap_or_default().to_owned();
            (!output.status.success() || !text.contains("longest: "))
                .then(|| format!("{pre}: {} after {last:?}", output.status))
        })
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}
