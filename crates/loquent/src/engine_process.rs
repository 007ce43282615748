//! The process in which `loquent serve --engine-process` computes: this program again, with a
//! command hidden from the help, and one end of a socket pair on standard input.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;
use loquent_engine::process::{EngineFacts, serve};
use loquent_infer::runner::{Capacity, Runner};

use crate::serve::args::EngineArgs;
use crate::serve::load::{Computing, DefaultContext, computing};
use crate::{private_memory, shutdown};

/// Arguments of the engine's process.
#[derive(Debug, Args)]
pub struct EngineProcessArgs {
    /// GGUF file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// A context that does not depend on the free memory, where none is given
    #[arg(long)]
    modest_context: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

impl EngineProcessArgs {
    /// Computes until the server ends.
    ///
    /// # Errors
    /// If standard input is not a socket. Errors of the model are reported to the server.
    pub fn run(self) -> anyhow::Result<()> {
        private_memory::keep();
        // Signals are the server's: it finishes answers before it ends, and this process with it.
        shutdown::ignore()?;
        let stream = io::stdin().as_fd().try_clone_to_owned()?;
        let is_socket = std::fs::metadata("/dev/stdin")
            .is_ok_and(|it| std::os::unix::fs::FileTypeExt::is_socket(&it.file_type()));
        ensure!(is_socket, "this command is for `loquent serve --engine-process` alone");
        let load = |progress: &mut dyn FnMut(u8)| {
            self.load(progress).map_err(|error| format!("{error:#}"))
        };
        let served = serve(UnixStream::from(stream), load, || shutdown::leave(0));
        served.context("the connection to the server")
    }

    /// Loads the engine; returns it with the facts that the server needs.
    fn load(&self, progress: &mut dyn FnMut(u8)) -> anyhow::Result<(Box<dyn Runner>, EngineFacts)> {
        let progress = RefCell::new(progress);
        let report = |share: f32| (progress.borrow_mut())((share * 100.0) as u8);
        let default =
            if self.modest_context { DefaultContext::Modest } else { DefaultContext::OfMemory };
        let Computing { weights, mut runner, description } =
            computing(&self.model, &self.engine, default, &report)?;
        let abilities = runner.abilities();
        ensure!(
            abilities.generates && abilities.embeds.is_none(),
            "embeddings are computed in the server's own process; leave --engine-process away"
        );
        // The server cannot ask what is held: it shares where all is.
        let capacity = runner.capacity();
        let shares_prefix = capacity.shares_prefix && runner.holds_all();
        let facts = EngineFacts {
            capacity: Capacity { shares_prefix, ..capacity },
            vocab_tokens: weights.info().vocab_size,
            verify_rows: runner.verify_rows(),
            score_rows: runner.score_rows(),
            summary: description.summary,
            details: description.details,
        };
        Ok((runner, facts))
    }
}
