//! The server of the demonstration: that of `loquent serve`, in this process, at reading speed.

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;

use anyhow::Context;
use axum::Router;
use clap::builder::Resettable;
use clap::{Args, Command, FromArgMatches};
use loquent_server::{Announcement, LoadedBackend, LoadedEngine};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::paced::PacedRunner;
use crate::serve::{ServeArgs, load};

/// Parameters of the demonstration's server.
#[derive(Debug)]
pub struct DemoServer {
    /// Model file; `None` is the bundled model.
    pub model: Option<PathBuf>,
    /// Speed of each answer, in tokens per second.
    pub tokens_per_s: f64,
    /// Additional routes.
    pub extension: Router,
    /// Origins that its pages may connect to besides the server itself.
    pub page_sources: Vec<String>,
}

impl DemoServer {
    /// Serves on `listener` until `shutdown` resolves and the running requests have ended. Sends
    /// the model's name to `ready` once requests are accepted.
    ///
    /// # Errors
    /// If the model cannot be loaded or the engine has failed.
    pub async fn run(
        self,
        listener: std::net::TcpListener,
        ready: oneshot::Sender<String>,
        shutdown: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let args = self.serve_args(listener.local_addr()?.port())?;
        let mut config = args.resolve(None)?;
        config.extension = config.extension.merge(self.extension);
        config.http.page_sources = self.page_sources;
        let tokens_per_s = self.tokens_per_s;
        let load = move || {
            let loaded = load::load(&args.source, &args.engine, None)?;
            // Around the whole engine, so that both answers have the rhythm of the same steps.
            let runner = Box::new(PacedRunner::new(loaded.runner, tokens_per_s));
            Ok(LoadedBackend::from(LoadedEngine { runner, ..loaded }))
        };
        let announce = move |served: &Announcement<'_>| {
            // Nobody waits any more where the demonstration is over already.
            let _ = ready.send(served.name.to_owned());
        };
        loquent_server::run(listener, config, load, announce, shutdown).await
    }

    /// Returns the flags of `loquent serve` for the demonstration. Ignores the environment, which
    /// is meant for the user's own server: a key, for example, would lock out the demonstration
    /// itself.
    fn serve_args(&self, port: u16) -> anyhow::Result<ServeArgs> {
        let mut flags: Vec<OsString> = [
            "serve",
            "--host",
            "127.0.0.1",
            "--quic",
            "--draft-tokens",
            "off",
            "--drain-timeout-s",
            "1",
            "--port",
        ]
        .map(OsString::from)
        .into();
        flags.push(port.to_string().into());
        if let Some(model) = &self.model {
            flags.extend(["--model".into(), model.clone().into_os_string()]);
        }
        let command = ServeArgs::augment_args(Command::new("serve"));
        let command = command.mut_args(|flag| flag.env(Resettable::Reset));
        let matches = command.try_get_matches_from(flags).context("the demonstration's server")?;
        Ok(ServeArgs::from_arg_matches(&matches)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_for_this_machine_and_has_no_keys() {
        let server = DemoServer {
            model: None,
            tokens_per_s: 30.0,
            extension: Router::new(),
            page_sources: Vec::new(),
        };
        let args = server.serve_args(8080).unwrap();
        assert_eq!((args.host.as_str(), args.port), ("127.0.0.1", 8080));
        let config = args.resolve(None).unwrap();
        assert!(config.http.api_keys.is_empty());
        assert!(config.quic.is_some_and(|quic| quic.required && quic.port.is_none()));
        let model = Some(PathBuf::from("a model.gguf"));
        let args = DemoServer { model: model.clone(), ..server }.serve_args(1).unwrap();
        assert_eq!(args.source.file.name(), model.as_deref());
    }
}
