//! The arguments of `loquent serve` for a split model.

#![cfg_attr(
    not(feature = "llama"),
    allow(dead_code, reason = "a build without llama.cpp parses these flags only to refuse them")
)]

use std::time::Duration;

use clap::Args;
use loquent_engine::staged::{Dtype, LinkEmulation, PipelineDepth};
#[cfg(feature = "llama")]
use loquent_engine::staged::{Key, StageTrust};

use crate::stage_args::{StageProcessorArgs, StageTrustArgs};

/// Stages of a split model, and how to use them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Split model")]
pub(crate) struct StagedArgs {
    /// Stages of a split model in order, separated by commas, each as HOST:PORT of a `loquent
    /// stage`. The first ones may be stage files, which this process computes itself. --model is
    /// the entry file
    ///
    /// A stage may have replicas, which take over when it is gone: HOST:PORT|HOST:PORT, or a name
    /// with several addresses.
    #[arg(long, env = "LOQUENT_STAGES", value_name = "LIST", value_delimiter = ',')]
    stages: Vec<String>,
    #[command(flatten)]
    pub(super) trust: StageTrustArgs,
    #[command(flatten)]
    pub(super) processors: StageProcessorArgs,
    /// Number format of hidden states between stages: f32 (exact), f16 or q8
    #[arg(long, env = "LOQUENT_STAGE_DTYPE", default_value = "f32", value_name = "TYPE")]
    pub(super) stage_dtype: Dtype,
    /// Batches in flight through the stages at once: 1 to 16, or "auto" to find the best number by
    /// measuring
    #[arg(long, env = "LOQUENT_PIPELINE_DEPTH", default_value = "auto", value_name = "N")]
    pub(super) pipeline_depth: PipelineDepth,
    /// How long a stage may be silent before it counts as lost, in seconds
    #[arg(long, env = "LOQUENT_STAGE_TIMEOUT_S", default_value_t = 10.0, value_name = "S",
          value_parser = parse_timeout)]
    pub(super) stage_timeout_s: f64,
    /// Divide the layers of a whole --model among llama.cpp RPC servers: `loquent rpc-server`, or
    /// llama.cpp's own of the same version
    #[cfg(feature = "rpc")]
    #[arg(
        long,
        env = "LOQUENT_RPC",
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "stages"
    )]
    rpc: Vec<String>,
    /// Emulated delay of every link between stages, for tests
    #[arg(long, hide = true, default_value_t = 0.0, value_name = "MS", value_parser = parse_delay)]
    link_delay_ms: f64,
    /// Emulated rate of every link between stages, for tests; 0 is unlimited
    #[arg(long, hide = true, default_value_t = 0, value_name = "MBIT")]
    link_mbit: u32,
}

fn parse_timeout(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.ok_or_else(|| "use seconds from 0.1 to 3600".to_owned())
}

fn parse_delay(text: &str) -> Result<f64, String> {
    let ms = text.parse::<f64>().ok().filter(|ms| (0.0..=10_000.0).contains(ms));
    ms.ok_or_else(|| "use milliseconds from 0 to 10000".to_owned())
}

impl StagedArgs {
    /// Returns true if the model is split.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.stages.is_empty()
    }

    /// Returns the addresses of llama.cpp RPC servers; always empty in builds without RPC.
    #[cfg(feature = "llama")]
    pub(super) fn rpc(&self) -> Vec<String> {
        #[cfg(feature = "rpc")]
        return self.rpc.clone();
        #[cfg(not(feature = "rpc"))]
        Vec::new()
    }

    /// Returns delay and rate of emulated links.
    pub(super) fn link(&self) -> LinkEmulation {
        LinkEmulation {
            delay: Duration::from_secs_f64(self.link_delay_ms / 1e3),
            // A million bits are 125,000 bytes.
            bytes_per_s: u64::from(self.link_mbit) * 125_000,
        }
    }

    /// Returns the number of stages that are files, from the first on.
    #[cfg(feature = "llama")]
    pub(super) fn own_stages(&self) -> usize {
        let is_file = |stage: &&String| std::path::Path::new(stage).is_file();
        self.stages.iter().take_while(is_file).count()
    }

    /// Starts the stages that are files in this process, with `own` as their key, and returns the
    /// addresses of all stages.
    ///
    /// # Errors
    /// If a file is not a stage file, or comes after a stage on another machine, which could not
    /// reach it.
    #[cfg(feature = "llama")]
    pub(super) fn addresses(
        &self,
        own: &Key,
        trust: &StageTrust,
        compute: &crate::stage_args::StageCompute,
    ) -> anyhow::Result<Vec<String>> {
        let mut addresses: Vec<String> = Vec::new();
        let mut elsewhere = false;
        for stage in &self.stages {
            let path = std::path::Path::new(stage);
            if !path.is_file() {
                let has_port = |replica: &str| {
                    replica.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
                };
                anyhow::ensure!(
                    stage.split('|').all(has_port),
                    "--stages: {stage:?} is neither HOST:PORT, several of them with | between, nor \
                     an existing file"
                );
                // Not resolved here: a stage may be up later, and under another address.
                elsewhere = true;
                addresses.push(stage.clone());
                continue;
            }
            anyhow::ensure!(
                !elsewhere,
                "--stages: put the files first; other machines cannot reach stages in this process"
            );
            let address = crate::stage::start_here(path, own.clone(), trust.clone(), compute)?;
            addresses.push(address.to_string());
        }
        Ok(addresses)
    }
}
