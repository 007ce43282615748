//! Options of `loquent bench load` and `loquent bench engine` as typed, resolved into a
//! [`LoadPlan`](crate::plan::LoadPlan): those that describe the load ([`WorkloadArgs`]), and the
//! servers ([`ServerArgs`]).

mod disturbances;
mod prompts;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use loquent_openai::BaseUrl;
use loquent_openai::api_key::{api_key, warn_of_cleartext};
use loquent_openai::http::HttpClient;
use loquent_openai::tls::Trust;

pub use self::workload::WorkloadArgs;
use crate::BenchError;
use crate::http_target::HttpTarget;
use crate::plan::TargetPlan;

/// Meaning of a load test's exit status, for the end of a help text.
pub const EXIT_STATUS: &str = "\
Exit status: 0 if every measured request succeeded, 1 if one failed (429 and 503 do not count) \
or a run had no answer, 3 if a token total is impossible.";

/// Connection options of the servers in `--url`.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Process of a local server, for its CPU time and memory
    ///
    /// Give it once per --url, in the same order.
    #[arg(long, value_name = "PID")]
    server_pid: Vec<u32>,
    /// Server that gets all requests over one HTTP/2 connection; repeat to name several
    ///
    /// NAME is that of --url, or the URL if it has none. http:// is spoken by prior knowledge,
    /// https:// by ALPN.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    http2: Vec<String>,
    /// API key, sent as a bearer token
    #[arg(long, env = "LOQUENT_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// File with the API key, which other users cannot see as they can arguments
    #[arg(long, env = "LOQUENT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
}

impl ServerArgs {
    /// Returns the servers at `urls`, each optionally as `name=url`, in order. `trust`: which of
    /// their certificates are accepted.
    ///
    /// # Errors
    /// If a URL is invalid, or the process ids do not match the URLs.
    pub fn targets(&self, urls: &[String], trust: &Trust) -> Result<Vec<TargetPlan>, BenchError> {
        check(
            self.server_pid.is_empty() || self.server_pid.len() == urls.len(),
            "--server-pid must be given once per --url, in the same order",
        )?;
        let key = api_key(self.api_key.as_deref(), self.api_key_file.as_deref());
        let key = key.map_err(|error| BenchError::Options(error.to_string()))?;
        let pids = self.server_pid.iter().copied().map(Some).chain(std::iter::repeat(None));
        let named: Vec<_> = urls.iter().map(|given| named(given)).collect();
        for name in &self.http2 {
            check(
                named.iter().any(|(given, _)| given == name),
                &format!("--http2 {name}: no --url has this name"),
            )?;
        }
        let target = |((name, url), pid): (&(String, String), _)| {
            let client = self.client(name, url, key.as_deref(), trust.clone())?;
            Ok(TargetPlan { target: Arc::new(HttpTarget::new(name.clone(), client)), pid })
        };
        named.iter().zip(pids).map(target).collect()
    }

    fn client(
        &self,
        name: &str,
        url: &str,
        key: Option<&str>,
        trust: Trust,
    ) -> Result<HttpClient, BenchError> {
        let base = BaseUrl::parse(url).map_err(|error| BenchError::Options(error.to_string()))?;
        if let Some(warning) = warn_of_cleartext(&base, key.is_some()) {
            eprintln!("{warning}");
        }
        let client = match self.http2.iter().any(|one| one == name) {
            true => HttpClient::over_http2(base, key, trust),
            false => HttpClient::with_trust(base, key, trust),
        };
        client.map_err(|error| BenchError::Options(error.to_string()))
    }
}

/// The name and the URL of a server as given.
fn named(given: &str) -> (String, String) {
    // A bare URL may hold a '=' of its own, in its query; a name is followed by "=http".
    match given.split_once("=http") {
        Some((name, rest)) => (name.to_owned(), format!("http{rest}")),
        None => (given.to_owned(), given.to_owned()),
    }
}

fn check(holds: bool, otherwise: &str) -> Result<(), BenchError> {
    if holds { Ok(()) } else { refuse(otherwise) }
}

fn refuse<T>(why: &str) -> Result<T, BenchError> {
    Err(BenchError::Options(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[arg(long)]
        url: Vec<String>,
        #[command(flatten)]
        servers: ServerArgs,
    }

    #[test]
    fn servers_have_names_and_processes() {
        let args = ["bench", "--url", "a=http://127.0.0.1:1", "--url", "http://127.0.0.1:2"];
        let pids = ["--server-pid", "7", "--server-pid", "8"];
        let cli = Cli::parse_from(args.iter().chain(&pids));
        let targets = cli.servers.targets(&cli.url, &Trust::System).unwrap();
        let named: Vec<_> = targets.iter().map(|plan| (plan.target.name(), plan.pid)).collect();
        assert_eq!(named, [("a", Some(7)), ("http://127.0.0.1:2", Some(8))]);
    }

    #[test]
    fn unusable_servers_are_refused() {
        for (args, word) in [
            (&["--url", "ftp://x"][..], "ftp"),
            (&["--url", "http://x", "--server-pid", "1", "--server-pid", "2"], "--server-pid"),
            (&["--url", "a=http://x", "--http2", "b"], "--http2 b"),
        ] {
            let cli = Cli::parse_from(["bench"].iter().chain(args));
            let refused = cli.servers.targets(&cli.url, &Trust::System).err();
            let refused = refused.unwrap_or_else(|| panic!("{args:?} was accepted")).to_string();
            assert!(refused.contains(word), "{args:?}: {refused}");
        }
    }
}
