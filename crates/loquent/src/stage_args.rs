//! The arguments shared by `loquent stage` and `loquent serve --stages`.

#![cfg_attr(
    not(feature = "llama"),
    allow(dead_code, reason = "a build without llama.cpp parses these flags only to refuse them")
)]

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::Args;
use loquent_engine::GpuLayers;
use loquent_engine::staged::{Key, StageError, StageTrust, Tls};

/// Key and certificates of the processes of a split model.
#[derive(Debug, Clone, Args)]
pub struct StageTrustArgs {
    /// Shared key of all processes of a split model
    #[arg(long, env = "LOQUENT_STAGE_KEY", hide_env_values = true, value_name = "K")]
    stage_key: Option<String>,
    /// Certificate chain of this process in PEM. It turns on TLS between stages, and every
    /// process then needs a certificate signed by --stage-tls-ca
    #[arg(long, env = "LOQUENT_STAGE_TLS_CERT", value_name = "FILE",
          requires_all = ["stage_tls_key", "stage_tls_ca"])]
    stage_tls_cert: Option<PathBuf>,
    /// Private key of --stage-tls-cert in PEM
    #[arg(long, env = "LOQUENT_STAGE_TLS_KEY", value_name = "FILE", requires = "stage_tls_cert")]
    stage_tls_key: Option<PathBuf>,
    /// Certificate of the authority in PEM. Every process with a certificate of this authority may
    /// use the stages, so it must sign for nothing else
    #[arg(long, env = "LOQUENT_STAGE_TLS_CA", value_name = "FILE", requires = "stage_tls_cert")]
    stage_tls_ca: Option<PathBuf>,
    /// Let stages on other machines be used with --stage-key alone. Whoever is on the network
    /// between them can then read prompts and change answers
    #[arg(long, env = "LOQUENT_STAGE_PLAINTEXT")]
    stage_plaintext: bool,
}

impl StageTrustArgs {
    /// Loads the certificates and returns them with the key.
    ///
    /// # Errors
    /// [`StageError::Certificates`], which names the file that cannot be used.
    pub(crate) fn trust(&self) -> Result<StageTrust, StageError> {
        let key = self.stage_key.clone().map_or(Key::default(), Key::new);
        let files = (&self.stage_tls_cert, &self.stage_tls_key, &self.stage_tls_ca);
        let tls = match files {
            (Some(chain), Some(key), Some(authority)) => Some(Tls::load(chain, key, authority)?),
            _ => None,
        };
        Ok(StageTrust { key, tls, allows_plaintext: self.stage_plaintext })
    }
}

/// Use of processors by stages.
#[derive(Debug, Clone, Args)]
pub struct StageProcessorArgs {
    /// How long a stage keeps its processor cores awake for the next batch, in milliseconds; 0
    /// lets them sleep. A core that slept computes more slowly at first. Threads of the lowest
    /// priority spin meanwhile, which costs energy while answers run
    #[arg(long, env = "LOQUENT_KEEP_CORES_AWAKE_MS", default_value_t = 500, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub(crate) keep_cores_awake_ms: u64,
    /// Lock file for several stages that share one machine's processors: stages with the same file
    /// compute one after the other, each with all of its threads. The file is created if needed
    #[arg(long, env = "LOQUENT_COMPUTE_LOCK", value_name = "FILE")]
    pub(crate) compute_lock: Option<PathBuf>,
}

/// Compute settings of a stage.
#[derive(Debug, Clone)]
pub struct StageCompute {
    /// Compute threads; `None` for the default.
    pub threads: Option<NonZeroU16>,
    /// Layers on the graphics processor.
    pub gpu_layers: GpuLayers,
    /// Processor settings.
    pub processors: StageProcessorArgs,
}
