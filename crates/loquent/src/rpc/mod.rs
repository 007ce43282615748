//! `loquent rpc-server`: llama.cpp's own way to compute on another machine.

use std::num::NonZeroU16;

use anyhow::ensure;
use clap::Args;
use loquent_engine::llama::{physical_cores, rpc};

const EXAMPLES: &str = "\
Examples:
  loquent rpc-server --listen 127.0.0.1:50052 --threads 2
  loquent serve --model qwen.gguf --rpc 127.0.0.1:50052,127.0.0.1:50053";

/// What `loquent rpc-server` takes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RpcServerArgs {
    /// Address to listen on. The protocol has no keys: whoever reaches it may use, and misuse,
    /// this process
    #[arg(long, default_value = "127.0.0.1:50052", value_name = "HOST:PORT")]
    listen: String,
    /// Compute threads [default: physical cores]
    #[arg(long, env = "LOQUENT_THREADS", value_name = "N")]
    threads: Option<NonZeroU16>,
}

impl RpcServerArgs {
    /// Serves until the process is killed.
    ///
    /// # Errors
    /// When llama.cpp cannot listen there.
    pub fn run(self) -> anyhow::Result<()> {
        let port = self.listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        ensure!(port.is_some_and(|port| port > 0), "--listen {}: give host:port", self.listen);
        let threads = self.threads.unwrap_or_else(physical_cores);
        rpc::serve(&self.listen, threads).map_err(anyhow::Error::msg)
    }
}
