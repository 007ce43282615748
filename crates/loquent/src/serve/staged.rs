//! The arguments for a model split over stages.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use loquent_engine::staged::{Dtype, Groups, Key, Shape, StageError, Tls, Trust};

/// How the processes of a split model know each other.
#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    /// Key that all processes of a split model share
    #[arg(long, env = "LOQUENT_STAGE_KEY", hide_env_values = true, value_name = "K")]
    stage_key: Option<String>,
    /// Certificate chain in PEM that this process shows to stages: links are enciphered, and
    /// both ends need a certificate of --stage-tls-ca
    #[arg(long, env = "LOQUENT_STAGE_TLS_CERT", value_name = "FILE",
          requires_all = ["stage_tls_key", "stage_tls_ca"])]
    stage_tls_cert: Option<PathBuf>,
    /// Private key of --stage-tls-cert in PEM
    #[arg(long, env = "LOQUENT_STAGE_TLS_KEY", value_name = "FILE", requires = "stage_tls_cert")]
    stage_tls_key: Option<PathBuf>,
    /// Certificate of the authority that signs for the processes of this model alone
    #[arg(long, env = "LOQUENT_STAGE_TLS_CA", value_name = "FILE", requires = "stage_tls_cert")]
    stage_tls_ca: Option<PathBuf>,
}

impl LinkArgs {
    /// What the other processes are to prove.
    ///
    /// # Errors
    /// When a certificate or key cannot be used; the message names the file.
    pub(crate) fn trust(&self) -> Result<Trust, StageError> {
        let key = self.stage_key.clone().map_or(Key::default(), Key::new);
        let files = (&self.stage_tls_cert, &self.stage_tls_key, &self.stage_tls_ca);
        let tls = match files {
            (Some(chain), Some(key), Some(authority)) => Some(Tls::load(chain, key, authority)?),
            _ => None,
        };
        Ok(Trust { key, tls })
    }
}

/// Where a split model's layers are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Split model")]
pub(crate) struct StagedArgs {
    /// The stages of a split model in order, separated by commas: host:port of `loquent
    /// stage`; the first ones may be stage files, computed in this process. --model is
    /// then the entry file
    #[arg(long, env = "LOQUENT_STAGES", value_name = "LIST", value_delimiter = ',')]
    stages: Vec<String>,
    #[command(flatten)]
    pub(super) link: LinkArgs,
    #[command(flatten)]
    pub(super) processors: crate::stage::ProcessorArgs,
    /// How hidden states travel: f32 (exact), f16 or q8
    #[arg(long, env = "LOQUENT_STAGE_DTYPE", default_value = "f32", value_name = "TYPE")]
    pub(super) stage_dtype: Dtype,
    /// Batches in flight through the stages at once: "auto" (measured) or 1 to 16
    #[arg(long, env = "LOQUENT_PIPELINE_DEPTH", default_value = "auto", value_name = "N")]
    pub(super) pipeline_depth: Groups,
    /// Seconds after which a stage that does not answer is lost
    #[arg(long, env = "LOQUENT_STAGE_TIMEOUT_S", default_value_t = 10.0, value_name = "S",
          value_parser = parse_timeout)]
    pub(super) stage_timeout_s: f64,
    /// Instead of stages: servers of llama.cpp's RPC (`loquent rpc-server` or llama.cpp's own of
    /// the same version) among which the layers of a whole --model are shared out
    #[cfg(feature = "rpc")]
    #[arg(
        long,
        env = "LOQUENT_RPC",
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "stages"
    )]
    rpc: Vec<String>,
    /// Artificial delay of every hop between stages, for tests
    #[arg(long, default_value_t = 0.0, value_name = "MS", value_parser = parse_delay, hide = true)]
    link_delay_ms: f64,
    /// Artificial rate of every hop between stages, for tests; 0 is unlimited
    #[arg(long, default_value_t = 0, value_name = "MBIT", hide = true)]
    link_mbit: u32,
}

fn parse_timeout(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.ok_or_else(|| "give seconds, 0.1 to 3600".to_owned())
}

fn parse_delay(text: &str) -> Result<f64, String> {
    let ms = text.parse::<f64>().ok().filter(|ms| (0.0..=10_000.0).contains(ms));
    ms.ok_or_else(|| "give milliseconds, 0 to 10000".to_owned())
}

impl StagedArgs {
    /// Whether the model is split.
    pub(super) fn is_wanted(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Servers of llama.cpp's RPC; none in builds without it.
    #[cfg(feature = "llama")]
    pub(super) fn rpc(&self) -> Vec<String> {
        #[cfg(feature = "rpc")]
        return self.rpc.clone();
        #[cfg(not(feature = "rpc"))]
        Vec::new()
    }

    /// The artificial links.
    pub(super) fn shape(&self) -> Shape {
        Shape {
            delay: Duration::from_secs_f64(self.link_delay_ms / 1e3),
            bytes_per_s: u64::from(self.link_mbit) * 125_000,
        }
    }

    /// Stages that are files: the first ones.
    #[cfg(feature = "llama")]
    pub(super) fn own_stages(&self) -> usize {
        let is_file = |stage: &&String| std::path::Path::new(stage).is_file();
        self.stages.iter().take_while(is_file).count()
    }

    /// The stages' addresses; those that are files are started in this process, where `own`
    /// opens them.
    ///
    /// # Errors
    /// When a file is no stage file, or comes after a stage elsewhere, which could not
    /// reach it.
    #[cfg(feature = "llama")]
    pub(super) fn addresses(
        &self,
        own: &Key,
        trust: &Trust,
        compute: &crate::stage::Compute,
    ) -> anyhow::Result<Vec<String>> {
        let mut addresses: Vec<String> = Vec::new();
        let mut elsewhere = false;
        for stage in &self.stages {
            let path = std::path::Path::new(stage);
            if !path.is_file() {
                let known =
                    stage.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                anyhow::ensure!(known, "--stages: {stage:?} is neither host:port nor a file");
                elsewhere = true;
                addresses.push(stage.clone());
                continue;
            }
            anyhow::ensure!(!elsewhere, "--stages: the files must come first");
            let address = crate::stage::start_here(path, own.clone(), trust.clone(), compute)?;
            addresses.push(address.to_string());
        }
        Ok(addresses)
    }
}
