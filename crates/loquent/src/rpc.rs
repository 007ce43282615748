//! `loquent rpc-server`: a server of llama.cpp's own protocol, for computing on another machine.

use std::num::NonZeroU16;

use anyhow::ensure;
use clap::Args;
use loquent_engine::llama::{at_most_processors, physical_cores, rpc};

const EXAMPLES: &str = "\
Examples:
  loquent rpc-server --listen 127.0.0.1:50052 --threads 2
  loquent serve --model qwen.gguf --rpc 127.0.0.1:50052,127.0.0.1:50053";

/// Arguments of `loquent rpc-server`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RpcServerArgs {
    /// Address to listen on. The protocol has no authentication: everyone who can reach the
    /// address can use, and misuse, this process
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
    /// If llama.cpp cannot listen on the address.
    pub fn run(self) -> anyhow::Result<()> {
        // Checked here, because llama.cpp's error would not name the flag.
        let port = self.listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        ensure!(
            port.is_some_and(|port| port > 0),
            "--listen {}: use HOST:PORT with a port above 0",
            self.listen
        );
        let threads = at_most_processors(self.threads.unwrap_or_else(physical_cores));
        rpc::serve(&self.listen, threads).map_err(anyhow::Error::msg)
    }
}
