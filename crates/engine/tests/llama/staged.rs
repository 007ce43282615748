//! Split models over real connections: every number is the whole model's, on every
//! architecture that can be split; what cannot be split is refused.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::TcpListener;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use loquent_engine::KvType;
use loquent_engine::llama::{
    CpuSharing, Embeddings, LlamaLayers, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions,
};
use loquent_engine::staged::wire::OpenSession;
use loquent_engine::staged::{
    Cluster, ClusterOptions, Dtype, Key, Layers, LinkEmulation, PipelineDepth, StageServer,
    StageTrust, StagedRunner,
};
use loquent_formats::gguf::split::{SplitError, SplittableModel};
use loquent_formats::gguf::{GgufError, GgufWriter, Header, ReadLimits, TensorSpec, Value};
use loquent_infer::runner::{Batch, Runner, Sampled, Slot};
use loquent_infer::sampling::{SampledToken, Sampler, Sampling};
use loquent_infer::token::TokenId;

use super::random_model::{self, Random};

const SLOTS: u16 = 4;
const STEPS: usize = 20;

fn options() -> RunnerOptions {
    RunnerOptions {
        slots: SLOTS,
        kv_cells: 512,
        context_tokens: 256,
        batch_tokens: 256,
        pass_tokens: 256,
        // Compute threads wait for each other spinning: with one, tests run side by side.
        threads: NonZeroU16::new(1),
        ..RunnerOptions::default()
    }
}

fn load(path: &Path) -> Arc<LlamaModel> {
    LlamaModel::load(path, &LoadOptions::default(), |_| true).expect("the file loads")
}

/// Splits `model` in `stages` and serves each from a thread of this process.
fn serve_stages(model: &Path, stages: u32, folder: &Path, dtype: Dtype) -> StagedRunner {
    let source = SplittableModel::open(model).expect("it can be split");
    let layers = source.balance(stages).unwrap();
    let files = source.write(&layers, &folder.join("part"), &mut |_| ()).unwrap();
    let trust = StageTrust::of_key(Key::new("a key for tests"));
    let addresses = files[1..].iter().map(|file| serve(file, trust.clone())).collect();
    let wanted = options();
    let head = ClusterOptions {
        addresses,
        own_stages: 0,
        own_key: Key::default(),
        trust,
        dtype,
        slots: SLOTS,
        kv_cells: wanted.kv_cells,
        context_tokens: wanted.context_tokens,
        batch_tokens: wanted.batch_tokens,
        kv_type: KvType::F16,
        link: LinkEmulation::default(),
        stall_limit: Duration::from_secs(60),
        batch_limit: Duration::from_secs(60),
    };
    let cluster = Cluster::connect(head, |why| eprintln!("waiting: {why}")).expect("they connect");
    let embeddings = Embeddings::open(&files[0]).expect("the entry file has embeddings");
    StagedRunner::new(cluster, Box::new(embeddings), PipelineDepth::Fixed(1))
}

fn serve(file: &Path, trust: StageTrust) -> String {
    let model = load(file);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let make = Box::new(move |open: &OpenSession, _: Option<Box<dyn Layers>>| {
        let layers = LlamaLayers::new(
            model.clone(),
            &RunnerOptions { kv_type: open.kv_type, ..options() },
            &CpuSharing { keep_awake: Duration::from_millis(50), compute_lock: None },
        );
        layers.map(|layers| Box::new(layers) as Box<dyn Layers>).map_err(|e| e.to_string())
    });
    thread::spawn(move || StageServer::new(listener, trust, make).run(|_| ()));
    address
}

/// What three sequences generate side by side, with log-probabilities.
fn generate(runner: &mut dyn Runner, vocab: u32) -> Vec<Vec<SampledToken>> {
    let prompt = |seed: u32, len: u32| -> Vec<TokenId> {
        (0..len).map(|i| (seed + i * 7919) % vocab).collect()
    };
    let mut sequences = [prompt(3, 24), prompt(50, 7), prompt(11, 1)];
    let mut computed = [0; 3];
    let mut choices = vec![Vec::new(); 3];
    for slot in 0..3 {
        let sampling = Sampling { logprobs: Some(5), ..Sampling::default() };
        runner.assign(Slot(slot), Sampler::new(sampling, &[], &[]));
    }
    for _ in 0..STEPS {
        let (mut batch, mut sampled): (_, Vec<Sampled>) = (Batch::default(), Vec::new());
        for (i, sequence) in sequences.iter().enumerate() {
            batch.push(Slot(i as u16), computed[i] as u32, &sequence[computed[i]..], true);
            computed[i] = sequence.len();
        }
        runner.run(&batch, &mut sampled).expect("the batch runs");
        for row in sampled {
            let choice = row.outcome.expect("sound logits");
            sequences[row.slot.index()].push(choice.token);
            choices[row.slot.index()].push(choice);
        }
    }
    choices
}

fn whole(path: &Path) -> (Vec<Vec<SampledToken>>, u32) {
    let model = load(path);
    let vocab = model.info().vocab_size;
    let mut runner = LlamaRunner::new(model, &options()).expect("a context");
    (generate(&mut runner, vocab), vocab)
}

fn check_exact(model: &Path, stages: u32) {
    let folder = tempfile::tempdir().unwrap();
    let (expected, vocab) = whole(model);
    let mut runner = serve_stages(model, stages, folder.path(), Dtype::F32);
    assert_eq!(generate(&mut runner, vocab), expected, "{stages} stages");
    // Freed and used again: nothing is left of what was there.
    (0..3).for_each(|slot| runner.truncate(Slot(slot), 0));
    assert_eq!(generate(&mut runner, vocab), expected, "again in {stages} stages");
}

fn bundled() -> Option<PathBuf> {
    super::bundled()?;
    Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/loquent-tiny.gguf").into())
}

#[test]
fn the_bundled_model_in_stages_is_the_bundled_model() {
    let Some(model) = bundled() else { return };
    check_exact(&model, 2);
    check_exact(&model, 3);
}

#[test]
fn every_architecture_in_stages_is_itself() {
    let folder = tempfile::tempdir().unwrap();
    for architecture in ["llama", "qwen2", "qwen3", "gemma3", "gpt2"] {
        eprintln!("{architecture}");
        let path = folder.path().join(format!("{architecture}.gguf"));
        write(&path, architecture, 4);
        check_exact(&path, 3);
    }
}

#[test]
fn rounded_hidden_states_change_little() {
    let Some(model) = bundled() else { return };
    let (expected, vocab) = whole(&model);
    // Some two and three times as much as is measured: 0.09 and 0.07.
    for (dtype, most) in [(Dtype::F16, 0.2), (Dtype::Q8, 0.2)] {
        let folder = tempfile::tempdir().unwrap();
        let mut runner = serve_stages(&model, 2, folder.path(), dtype);
        let choices = generate(&mut runner, vocab);
        // Of the first step only: later ones see other pasts once a token differs.
        let logprob = |choices: &[Vec<SampledToken>], i: usize| {
            choices[i][0].logprobs.as_ref().expect("they were asked for").top[0].1
        };
        let difference = (0..3).map(|i| (logprob(&choices, i) - logprob(&expected, i)).abs());
        let difference = difference.fold(0.0, f32::max);
        println!("{dtype:?}: log-probabilities differ by up to {difference}");
        assert!(difference < most, "{dtype:?} changes a log-probability by {difference}");
    }
}

#[test]
fn shared_and_cut_pasts_are_those_of_the_whole_model() {
    let Some(model) = bundled() else { return };
    let folder = tempfile::tempdir().unwrap();
    let weights = load(&model);
    let mut whole = LlamaRunner::new(weights, &options()).unwrap();
    let mut staged = serve_stages(&model, 2, folder.path(), Dtype::F32);
    let ends = [&mut whole as &mut dyn Runner, &mut staged].map(|runner| {
        let tokens: Vec<TokenId> = (5..45).collect();
        let (mut batch, mut sampled) = (Batch::default(), Vec::new());
        batch.push(Slot(0), 0, &tokens[..30], false);
        runner.run(&batch, &mut sampled).unwrap();
        runner.fork(Slot(0), Slot(1), 20);
        runner.truncate(Slot(0), 25);
        for slot in 0..2 {
            let sampling = Sampling { logprobs: Some(3), ..Sampling::default() };
            runner.assign(Slot(slot), Sampler::new(sampling, &[], &[]));
        }
        batch.clear();
        batch.push(Slot(0), 25, &tokens[25..], true);
        batch.push(Slot(1), 20, &tokens[20..35], true);
        runner.run(&batch, &mut sampled).unwrap();
        sampled
    });
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let sound = folder.path().join("sound.gguf");
    write(&sound, "qwen3", 4);
    let source = SplittableModel::open(&sound).unwrap();
    let short = std::iter::once(0..2).collect();
    for layers in [short, vec![0..2, 3..4], vec![0..2, 2..2, 2..4], vec![0..3, 2..4], vec![]] {
        let outcome = source.write(&layers, &folder.path().join("x"), &mut |_| ());
        assert!(matches!(outcome, Err(SplitError::Layers(_))), "{layers:?}");
    }
    assert!(matches!(source.balance(5), Err(SplitError::Layers(_))));
    assert!(matches!(source.balance(0), Err(SplitError::Layers(_))));
    let nowhere = folder.path().join("no/such/folder/x");
    let outcome = source.write(&[0..2, 2..4], &nowhere, &mut |_| ());
    assert!(matches!(outcome, Err(SplitError::Write { source: GgufError::Io(_), .. })));

    let bytes = std::fs::read(&sound).unwrap();
    let other = folder.path().join("other.gguf");
    std::fs::write(&other, &bytes[..bytes.len() / 2]).unwrap();
    let truncated = SplittableModel::open(&other);
    assert!(matches!(
        truncated,
        Err(SplitError::Model { source: GgufError::Truncated { .. }, .. })
    ));
    std::fs::write(&other, b"not a model at all").unwrap();
    let foreign = SplittableModel::open(&other);
    assert!(matches!(foreign, Err(SplitError::Model { source: GgufError::Magic { .. }, .. })));
    write(&other, "gemma", 4);
    let unknown = SplittableModel::open(&other).unwrap_err().to_string();
    assert!(unknown.contains("\"gemma\"") && unknown.contains("qwen3"), "{unknown}");

    let files = source.write(&source.balance(2).unwrap(), &folder.path().join("p"), &mut |_| ());
    let part = SplittableModel::open(&files.unwrap()[1]).unwrap_err().to_string();
    assert!(part.contains("already"), "{part}");
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    // Writing to /dev/full fails as a full disk does; where there is none, nothing is tested.
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        return loquent_needs::Need::DevFull.lack("this system has no /dev/full");
    };
    let tensors = [TensorSpec::f32("a", &[1 << 12])];
    let written = GgufWriter::start(full, &[], &tensors)
        .and_then(|mut writer| writer.data_from(io::repeat(0)).map(drop));
    assert!(
        matches!(written, Err(GgufError::Io(error)) if error.kind() == io::ErrorKind::StorageFull)
    );
}

#[test]
fn each_tensor_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf");
    write(&model, "llama", 4);
    let source = SplittableModel::open(&model).unwrap();
    let files = source.write(&[0..1, 1..4], &folder.path().join("m"), &mut |_| ()).unwrap();
    let parts = files.iter().map(|file| Header::open(file, ReadLimits::default()).unwrap());
    let layers: Vec<u64> = parts.map(|part| part.model_number("block_count").unwrap()).collect();
    assert_eq!(layers, [4, 1, 3], "the entry file keeps what the model says");
    let bytes = |path: &Path| std::fs::metadata(path).unwrap().len();
    let parts: u64 = files.iter().map(|file| bytes(file)).sum();
    // The head of this model is its own: stored once. Headers and placeholders are small.
    assert!(parts < bytes(&model) + 64 * 1024, "{parts} of {}", bytes(&model));
}

const WIDTH: u64 = 64;
const HIDDEN: u64 = 128;
const CONTEXT: u64 = 256;

/// Writes a random model of `architecture`; its head is tied unless it is a llama.
fn write(path: &Path, architecture: &str, layers: u32) {
    let vocab = random_model::vocabulary().len() as u64;
    let mut tensors = vec![
        TensorSpec::f32("token_embd.weight", &[WIDTH, vocab]),
        TensorSpec::f32("output_norm.weight", &[WIDTH]),
    ];
    match architecture {
        "llama" => tensors.push(TensorSpec::f32("output.weight", &[WIDTH, vocab])),
        "gpt2" => {
            tensors.push(TensorSpec::f32("output_norm.bias", &[WIDTH]));
            tensors.push(TensorSpec::f32("position_embd.weight", &[WIDTH, CONTEXT]));
        }
        _ => {}
    }
    for layer in 0..layers {
        for (name, dims) in layer_tensors(architecture) {
            tensors.push(TensorSpec::f32(format!("blk.{layer}.{name}"), &dims));
        }
    }
    let metadata = metadata(architecture, layers);
    let file = BufWriter::new(File::create(path).unwrap());
    let mut writer = GgufWriter::start(file, &metadata, &tensors).unwrap();
    let mut random = Random(7);
    for tensor in &tensors {
        let mut values = random_model::values(tensor, &mut random);
        // Norms that differ from layer to layer, so that a layer in a wrong place shows.
        if tensor.dims.len() == 1 {
            values.iter_mut().for_each(|x| *x += 0.2 * random.next());
        }
        writer.data_f32(&values).unwrap();
    }
    writer.finish().unwrap();
}

fn layer_tensors(architecture: &str) -> Vec<(&'static str, Vec<u64>)> {
    let (kv, head) = (32, 16);
    if architecture == "gpt2" {
        return vec![
            ("attn_norm.weight", vec![WIDTH]),
            ("attn_norm.bias", vec![WIDTH]),
            ("attn_qkv.weight", vec![WIDTH, 3 * WIDTH]),
            ("attn_qkv.bias", vec![3 * WIDTH]),
            ("attn_output.weight", vec![WIDTH, WIDTH]),
            ("attn_output.bias", vec![WIDTH]),
            ("ffn_norm.weight", vec![WIDTH]),
            ("ffn_norm.bias", vec![WIDTH]),
            ("ffn_up.weight", vec![WIDTH, HIDDEN]),
            ("ffn_up.bias", vec![HIDDEN]),
            ("ffn_down.weight", vec![HIDDEN, WIDTH]),
            ("ffn_down.bias", vec![WIDTH]),
        ];
    }
    let mut tensors = vec![
        ("attn_norm.weight", vec![WIDTH]),
        ("attn_q.weight", vec![WIDTH, WIDTH]),
        ("attn_k.weight", vec![WIDTH, kv]),
        ("attn_v.weight", vec![WIDTH, kv]),
        ("attn_output.weight", vec![WIDTH, WIDTH]),
        ("ffn_norm.weight", vec![WIDTH]),
        ("ffn_gate.weight", vec![WIDTH, HIDDEN]),
        ("ffn_up.weight", vec![WIDTH, HIDDEN]),
        ("ffn_down.weight", vec![HIDDEN, WIDTH]),
    ];
    match architecture {
        "qwen2" => tensors.extend([
            ("attn_q.bias", vec![WIDTH]),
            ("attn_k.bias", vec![kv]),
            ("attn_v.bias", vec![kv]),
        ]),
        "qwen3" | "gemma3" => {
            tensors.extend([("attn_q_norm.weight", vec![head]), ("attn_k_norm.weight", vec![head])])
        }
        _ => {}
    }
    if architecture == "gemma3" {
        tensors.extend([
            ("post_attention_norm.weight", vec![WIDTH]),
            ("post_ffw_norm.weight", vec![WIDTH]),
        ]);
    }
    tensors
}

fn metadata(architecture: &str, layers: u32) -> Vec<(String, Value)> {
    let kv_heads = if architecture == "gpt2" { 4 } else { 2 };
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::string(architecture)),
        ("general.name".to_owned(), Value::string("random")),
    ];
    for (key, value) in [
        ("context_length", CONTEXT as u32),
        ("embedding_length", WIDTH as u32),
        ("block_count", layers),
        ("feed_forward_length", HIDDEN as u32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        // Of gemma3 only, and shorter than the longest prompt here.
        ("attention.sliding_window", 8),
    ] {
        if architecture == "gemma3" || key != "attention.sliding_window" {
            metadata.push((format!("{architecture}.{key}"), Value::u32(value)));
        }
    }
    for key in ["layer_norm_rms_epsilon", "layer_norm_epsilon"] {
        metadata.push((format!("{architecture}.attention.{key}"), Value::F32(1e-5)));
    }
    metadata.extend(random_model::tokenizer());
    metadata
}
