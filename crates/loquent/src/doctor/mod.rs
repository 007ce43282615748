//! `loquent doctor`: finds problems of this machine, or of the path to a server, that keep Loquent
//! from working well, and gives advice.
//!
//! Each check is a small type of facts, collected in one function and judged in another, so that
//! tests can supply facts in place of a machine. Nothing is changed, and nothing is sent except to
//! the server to be checked.

mod certificate;
mod clock;
mod diagnosis;
pub(crate) mod gpu;
mod held_back;
mod machine;
mod model;
mod ports;
mod remote;
mod report;
mod udp;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use loquent_openai::api_key::api_key;

use self::diagnosis::Diagnosis;
use self::machine::{FreeMemory, OpenFiles, Processor};
use self::ports::ListenTarget;
use self::remote::RemoteServer;
use self::report::Sheet;
use crate::models::{self, ModelFolders};
use crate::trust::TrustArgs;
use crate::via_args::ViaArgs;

const EXAMPLES: &str = "\
Examples:
  loquent doctor                                  check this machine
  loquent doctor qwen3:0.6b --port 443 --tls-cert fullchain.pem --tls-key key.pem
  loquent doctor --url https://loquent.example    check the way from here to a server and back
  loquent doctor --url https://loquent.example --via wlan0,wwan0    over each of two networks
  loquent doctor --json

Exit status:
  0  nothing failed; there may be warnings
  1  something failed";

/// Arguments of `loquent doctor`: those of `serve` to check, or the URL of a server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Model to check: a GGUF file, or a name that `loquent list` shows
    #[arg(value_name = "MODEL", conflicts_with = "url")]
    model: Option<PathBuf>,
    #[command(flatten)]
    places: ModelFolders,
    /// Check the way to the server at this URL instead of this machine
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// API key for that server
    #[arg(long, value_name = "KEY", env = "LOQUENT_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// File with the API key, which other users cannot see as they can arguments
    #[arg(long, value_name = "FILE", env = "LOQUENT_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustArgs,
    #[command(flatten)]
    via: ViaArgs,
    /// Address that `serve` would listen on
    #[arg(long, env = "LOQUENT_HOST", default_value = "127.0.0.1")]
    host: String,
    /// TCP port that `serve` would listen on
    #[arg(long, short, env = "LOQUENT_PORT", default_value_t = 8080)]
    port: u16,
    /// UDP port that `serve` would use for QUIC [default: the number of the TCP port]
    #[arg(long, env = "LOQUENT_QUIC_PORT", value_name = "PORT")]
    quic_port: Option<u16>,
    /// Certificate chain that `serve` would present, in PEM
    #[arg(long, env = "LOQUENT_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert in PEM
    #[arg(long, env = "LOQUENT_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Print one JSON object for programs
    #[arg(long)]
    json: bool,
}

/// Runs `loquent doctor`; the exit status shows whether something failed.
///
/// # Errors
/// A URL or key that cannot be used.
pub async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut sheet = Sheet::new(args.json);
    match &args.url {
        Some(url) => {
            let key = api_key(args.api_key.as_deref(), args.api_key_file.as_deref())?;
            let server = RemoteServer::new(url, key, args.trust.trust()?, args.via.via.clone())?;
            sheet.note(clock::diagnose(SystemTime::now()));
            server.diagnose(&mut sheet).await;
        }
        None => args.check_machine(&mut sheet).await,
    }
    Ok(if sheet.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl DoctorArgs {
    async fn check_machine(&self, sheet: &mut Sheet) {
        sheet.note(Processor::of_machine().diagnose());
        sheet.note(gpu::diagnose());
        let memory = FreeMemory::of_machine();
        sheet.note(memory.diagnose());
        if let Some(path) = &self.model {
            sheet.note(check_model(path, &self.places, memory.0));
        }
        if let Some(files) = OpenFiles::of_process() {
            sheet.note(files.diagnose());
        }
        let place =
            ListenTarget { host: self.host.clone(), port: self.port, quic_port: self.quic_port };
        place.diagnose().await.into_iter().for_each(|found| sheet.note(found));
        sheet.note(clock::diagnose(SystemTime::now()));
        if let Some(chain) = &self.tls_cert {
            let key = self.tls_key.as_deref();
            sheet.note(certificate::diagnose_files(chain, key, SystemTime::now()));
        }
    }
}

/// Checks the model called `name`, if it is on this machine.
fn check_model(name: &Path, places: &ModelFolders, free_bytes: Option<u64>) -> Diagnosis {
    if models::is_bundled(name) {
        return Diagnosis::fine("model", "the demonstration model in this program");
    }
    match models::resolve_here(name, places) {
        Ok(path) => model::diagnose(path.as_deref().unwrap_or(name), free_bytes),
        Err(error) => Diagnosis::failure(
            "model",
            format!("{error:#}"),
            "get it whole: loquent pull, or the tool that it came with",
        ),
    }
}
