//! Layers whose numbers are small integers, so that sums are exact in any order of stages.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use loquent_engine::KvType;
use loquent_engine::staged::wire::OpenSession;
use loquent_engine::staged::{
    Cluster, ClusterOptions, Dtype, Embed, Key, Layers, LinkEmulation, PipelineDepth, StageError,
    StageServer, StageSizes, StageTrust, StagedRunner, StopHandle,
};
use loquent_formats::gguf::split::StageKeys;
use loquent_infer::runner::{RunError, Slot, Span};
use loquent_infer::token::TokenId;

/// Floats of a hidden state.
pub const WIDTH: usize = 4;
/// Tokens of the toy model.
pub const VOCAB: u32 = 64;
/// Layers of the toy model, divided among the stages.
const LAYERS: u32 = 6;
/// A token that makes its sequence's logits NaN.
pub const NAN: TokenId = 60;
/// A token for which the second stage's cache is full.
pub const CACHE_IS_FULL: TokenId = 61;
/// A token at which the second stage fails.
pub const BACKEND_FAILS: TokenId = 62;

/// Embeddings of the toy model: a row has the token's number, and zeros for the layers to fill.
pub struct Rows;

impl Embed for Rows {
    fn rows(&self) -> u64 {
        VOCAB.into()
    }

    fn append(&mut self, tokens: &[TokenId], out: &mut Vec<f32>) -> io::Result<()> {
        tokens.iter().for_each(|&token| out.extend([token as f32, 0.0, 0.0, 0.0]));
        Ok(())
    }
}

/// The first number of a row is the token; each layer adds to the second a hash of the token
/// and everything before it in the sequence.
pub struct ToyLayers {
    sizes: StageSizes,
    past: Vec<Vec<f32>>,
    out: Vec<f32>,
    logits: Vec<f32>,
    gate: Arc<AtomicBool>,
}

impl ToyLayers {
    pub fn new(keys: StageKeys, gate: Arc<AtomicBool>) -> Self {
        let sizes = StageSizes {
            keys,
            width: WIDTH,
            vocab: if keys.is_last() { VOCAB } else { 0 },
            slots: 16,
            kv_cells: 2048,
            context_tokens: 512,
            batch_tokens: 128,
            shares_prefix: true,
        };
        let past = vec![Vec::new(); 16];
        Self { sizes, past, out: Vec::new(), logits: vec![0.0; VOCAB as usize], gate }
    }

    fn is_second(&self) -> bool {
        self.sizes.keys.first_layer > 0
    }
}

impl Layers for ToyLayers {
    fn sizes(&self) -> StageSizes {
        self.sizes
    }

    fn compute(&mut self, rows: &[f32], spans: &[Span]) -> Result<(), RunError> {
        while self.gate.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rows.len(), spans.iter().map(|span| span.tokens.len()).sum::<usize>() * WIDTH);
        let has = |token: TokenId| rows.chunks(WIDTH).any(|row| row[0] == token as f32);
        if self.is_second() && has(CACHE_IS_FULL) {
            return Err(RunError::CacheFull);
        }
        if self.is_second() && has(BACKEND_FAILS) {
            return Err(RunError::Backend("as asked for".into()));
        }
        self.out.clear();
        for span in spans {
            let past = &mut self.past[span.slot.index()];
            assert_eq!(past.len(), span.start as usize, "a span continues its sequence");
            for row in rows[span.tokens.start * WIDTH..span.tokens.end * WIDTH].chunks(WIDTH) {
                past.push(row[0]);
                let hash = past.iter().fold(7u64, |hash, &x| (hash * 31 + x as u64) % 1009);
                let sum = row[1] + (hash * u64::from(self.sizes.keys.layers)) as f32;
                let broken = past.contains(&(NAN as f32));
                self.out.extend([row[0], sum, if broken { f32::NAN } else { 0.0 }, 0.0]);
            }
        }
        Ok(())
    }

    fn hidden(&self) -> &[f32] {
        assert!(!self.sizes.keys.is_last());
        &self.out
    }

    fn logits(&mut self, row: usize) -> &mut [f32] {
        let row = &self.out[row * WIDTH..(row + 1) * WIDTH];
        let best = (row[1] as usize) % 50;
        for (token, logit) in self.logits.iter_mut().enumerate() {
            *logit = row[2] - (token.abs_diff(best)) as f32;
        }
        &mut self.logits
    }

    fn fork(&mut self, from: Slot, to: Slot, len: u32) {
        assert!(self.past[to.index()].is_empty(), "a fork into a slot in use");
        self.past[to.index()] = self.past[from.index()][..len as usize].to_vec();
    }

    fn truncate(&mut self, slot: Slot, len: u32) -> bool {
        self.past[slot.index()].truncate(len as usize);
        true
    }

    fn wipe(&mut self) {
        self.past.iter_mut().for_each(Vec::clear);
    }
}

/// A stage that runs on a thread.
pub struct Running {
    keys: StageKeys,
    pub address: String,
    pub handle: StopHandle,
    /// While set, a native call does not return.
    pub gate: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Stages of one toy model.
pub struct Site {
    pub stages: Vec<Running>,
    trust: StageTrust,
}

/// The key of all toy stages, unless a test sets another.
pub fn trust() -> StageTrust {
    StageTrust::of_key(Key::new("toy"))
}

impl Site {
    pub fn start(stages: u32) -> Self {
        Self::trusting(stages, trust())
    }

    pub fn trusting(stages: u32, trust: StageTrust) -> Self {
        let each = LAYERS / stages;
        let keys = |index: u32| StageKeys {
            fingerprint: 42,
            first_layer: index * each,
            layers: if index + 1 == stages { LAYERS - index * each } else { each },
            all_layers: LAYERS,
        };
        let running = (0..stages).map(|index| run(keys(index), "127.0.0.1:0", trust.clone()));
        Self { stages: running.collect(), trust }
    }

    pub fn addresses(&self) -> Vec<String> {
        self.stages.iter().map(|stage| stage.address.clone()).collect()
    }

    pub fn connect(&self, mut wanted: ClusterOptions) -> Result<Cluster, StageError> {
        wanted.addresses = self.addresses();
        Cluster::connect(wanted, |why| eprintln!("waiting: {why}"))
    }

    pub fn runner(&self) -> StagedRunner {
        runner(&self.connect(options()).expect("the stages connect"))
    }

    pub fn stop(&mut self, index: usize) {
        let stage = &mut self.stages[index];
        stage.handle.stop();
        stage
            .thread
            .take()
            .expect("the stage runs")
            .join()
            .expect("the stage ends without a panic");
    }

    pub fn restart(&mut self, index: usize) {
        let stage = &self.stages[index];
        self.stages[index] = run(stage.keys, &stage.address, self.trust.clone());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stages.iter().filter(|stage| stage.thread.is_some()).for_each(|s| s.handle.stop());
    }
}

pub fn runner(cluster: &Cluster) -> StagedRunner {
    StagedRunner::new(cluster.clone(), Box::new(Rows), PipelineDepth::Fixed(8))
}

pub fn options() -> ClusterOptions {
    ClusterOptions {
        addresses: Vec::new(),
        own_stages: 0,
        own_key: Key::default(),
        trust: trust(),
        dtype: Dtype::F32,
        slots: 16,
        kv_cells: 2048,
        context_tokens: 512,
        batch_tokens: 128,
        kv_type: KvType::F16,
        link: LinkEmulation::default(),
        stall_limit: Duration::from_secs(10),
        batch_limit: Duration::from_secs(10),
    }
}

fn run(keys: StageKeys, address: &str, trust: StageTrust) -> Running {
    let listener = TcpListener::bind(address).expect("a free port");
    let address = listener.local_addr().unwrap().to_string();
    let gate = Arc::new(AtomicBool::new(false));
    let closing = gate.clone();
    let make = Box::new(move |_: &OpenSession, _: Option<Box<dyn Layers>>| {
        Ok(Box::new(ToyLayers::new(keys, closing.clone())) as Box<dyn Layers>)
    });
    let server = StageServer::new(listener, trust, make);
    let (sender, handles) = mpsc::channel();
    let thread = thread::spawn(move || {
        server.run(|handle| sender.send(handle).expect("the test waits")).expect("it listens");
    });
    let handle = handles.recv().expect("the stage starts");
    Running { keys, address, handle, gate, thread: Some(thread) }
}
