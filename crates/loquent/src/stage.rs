//! `loquent stage`: computes some layers of a split model for a server.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use loquent_engine::GpuLayers;
use loquent_engine::llama::{
    ComputeLock, CpuSharing, LlamaLayers, LlamaModel, LoadOptions, MAX_SLOTS, RunnerOptions,
    has_gpu,
};
use loquent_engine::staged::wire::OpenSession;
use loquent_engine::staged::{Key, Layers, MakeLayers, StageServer, StageTrust};
use loquent_formats::gguf::split::StageKeys;

use crate::stage_args::{StageCompute, StageProcessorArgs, StageTrustArgs};
use crate::{logging, private_memory};

/// KV cells for which `--gpu-layers auto` leaves room before a server has requested a number: the
/// default of `loquent serve`.
const ASSUMED_KV_CELLS: u32 = 8192;

const EXAMPLES: &str = "\
Examples:
  loquent stage --model qwen-stage-2-of-2.gguf --listen 127.0.0.1:7070
  loquent stage --model qwen-stage-2-of-2.gguf --listen 0.0.0.0:7070 \\
    --stage-tls-cert stage.pem --stage-tls-key stage.key --stage-tls-ca ca.pem
  LOQUENT_STAGE_KEY=secret loquent stage --model qwen-stage-2-of-2.gguf \\
    --listen 0.0.0.0:7070 --stage-plaintext         on a network that only you can reach";

/// Arguments of `loquent stage`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StageArgs {
    /// Stage file, written by `loquent split`
    #[arg(long, env = "LOQUENT_MODEL", value_name = "FILE")]
    model: PathBuf,
    /// Address to listen on. Addresses other than loopback need --stage-tls-cert, or --stage-key
    /// and --stage-plaintext
    #[arg(
        long,
        env = "LOQUENT_LISTEN",
        default_value = "127.0.0.1:7070",
        value_name = "HOST:PORT"
    )]
    listen: String,
    #[command(flatten)]
    trust: StageTrustArgs,
    /// Compute threads [default: physical cores; 1 for stages below 32 MiB]
    #[arg(long, env = "LOQUENT_THREADS", value_name = "N")]
    threads: Option<NonZeroU16>,
    /// Layers computed on the GPU, in builds with GPU support: "auto" (as many as fit into its free
    /// memory), "all" or a number
    #[arg(long, env = "LOQUENT_GPU_LAYERS", value_name = "N", default_value_t = GpuLayers::Auto)]
    gpu_layers: GpuLayers,
    #[command(flatten)]
    processors: StageProcessorArgs,
}

impl StageArgs {
    /// Serves until the process is killed: a stage has no state that must be saved.
    ///
    /// # Errors
    /// If the file is not a stage file, or the address cannot be used.
    pub fn run(self) -> anyhow::Result<()> {
        private_memory::keep();
        let trust = self.trust.trust()?;
        let addresses = self.listen.to_socket_addrs();
        let addresses: Vec<_> =
            addresses.with_context(|| format!("--listen {}", self.listen))?.collect();
        ensure!(
            addresses.iter().all(|address| trust.suits(address.ip())),
            "--listen {}: a stage for other machines needs --stage-tls-cert, or --stage-key and \
             --stage-plaintext on a network that only you can reach",
            self.listen
        );
        let (threads, gpu_layers) = (self.threads, self.gpu_layers);
        let compute = StageCompute { threads, gpu_layers, processors: self.processors };
        let (weights, keys) = load(&self.model, &compute)?;
        let make = make(weights, compute)?;
        // Only after loading, so that a stage that accepts connections is ready.
        let listener = TcpListener::bind(addresses.as_slice())
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        let end = keys.first_layer.saturating_add(keys.layers);
        let (address, all) = (listener.local_addr()?, keys.all_layers);
        let first = keys.first_layer;
        logging::say(&format!("Loquent computes layers {first}..{end} of {all} on {address}"));
        Ok(StageServer::new(listener, trust, make).run(|_| ())?)
    }
}

/// Starts a stage in this process, which runs until the process ends. It accepts connections with
/// the key `own`, and connects to the next stage with `dials`.
///
/// # Errors
/// If the file is not a stage file.
pub fn start_here(
    path: &Path,
    own: Key,
    dials: StageTrust,
    compute: &StageCompute,
) -> anyhow::Result<SocketAddr> {
    let (weights, _) = load(path, compute)?;
    let make = make(weights, compute.clone())?;
    // Over loopback like any other stage: one code path, at the cost of a copy for each batch.
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let server = StageServer::inside(listener, own, dials, make);
    let run = move || {
        if let Err(error) = server.run(|_| ()) {
            tracing::error!(%error, "the stage in this process ended");
        }
    };
    thread::Builder::new().name("stage".into()).spawn(run)?;
    Ok(address)
}

fn load(path: &Path, compute: &StageCompute) -> anyhow::Result<(Arc<LlamaModel>, StageKeys)> {
    let options = LoadOptions {
        gpu_layers: compute.gpu_layers,
        // For --gpu-layers auto; the real number comes with a session.
        kv_cells: if has_gpu() { ASSUMED_KV_CELLS } else { 0 },
        ..LoadOptions::default()
    };
    let weights = LlamaModel::load(path, &options, |_| true)?;
    match StageKeys::of(weights.header()) {
        Some(keys) if !keys.is_entry() => Ok((weights, keys)),
        Some(_) => bail!("{} is an entry file; give it to loquent serve", path.display()),
        None => bail!("{} is no stage file; create one with loquent split", path.display()),
    }
}

/// Creates contexts of the sizes that runners request, and keeps the last one for a runner that
/// requests the same sizes.
///
/// # Errors
/// If the lock file cannot be opened.
fn make(weights: Arc<LlamaModel>, compute: StageCompute) -> anyhow::Result<MakeLayers> {
    let keep_awake = Duration::from_millis(compute.processors.keep_cores_awake_ms);
    let compute_lock = compute.processors.compute_lock.as_ref().map(|path| {
        let lock = ComputeLock::open(path).map(Arc::new);
        lock.with_context(|| format!("--compute-lock {}", path.display()))
    });
    let cpu = CpuSharing { keep_awake, compute_lock: compute_lock.transpose()? };
    let mut made_for = None;
    Ok(Box::new(move |open: &OpenSession, before: Option<Box<dyn Layers>>| {
        let options = options(open, &compute)?;
        // A new context takes time, and a runner that reconnects wants the old sizes.
        if let (Some(layers), true) = (before, made_for.as_ref() == Some(&options)) {
            return Ok(layers);
        }
        let layers =
            LlamaLayers::new(weights.clone(), &options, &cpu).map_err(|error| error.to_string())?;
        made_for = Some(options);
        Ok(Box::new(layers))
    }))
}

fn options(open: &OpenSession, compute: &StageCompute) -> Result<RunnerOptions, String> {
    if open.slots > MAX_SLOTS {
        return Err(format!("{} slots are too many; at most {MAX_SLOTS} are possible", open.slots));
    }
    Ok(RunnerOptions {
        slots: open.slots,
        kv_cells: open.kv_cells,
        context_tokens: open.context_tokens,
        batch_tokens: open.batch_tokens,
        // llama.cpp's own default for a pass through the layers (`n_ubatch`).
        pass_tokens: open.batch_tokens.min(512),
        threads: compute.threads,
        kv_type: open.kv_type,
        ..RunnerOptions::default()
    })
}
