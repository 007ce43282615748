//! Starts the process in which `loquent serve --engine-process` computes.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use loquent_engine::process::{Launch, LaunchedEngine};

use super::args::EngineArgs;
use crate::{logging, own_program};

/// Returns a launcher of processes that compute with the model at `path` and the settings in
/// `engine`. With `is_modest`, the context must not depend on the free memory.
pub(super) fn launcher(path: &Path, engine: &EngineArgs, is_modest: bool) -> Launch {
    let (path, mut flags) = (path.to_owned(), engine.flags());
    if is_modest {
        flags.push("--modest-context".to_owned());
    }
    Box::new(move || {
        let (ours, theirs) = UnixStream::pair()?;
        let process = Command::new(own_program::path()?)
            .arg("engine-process")
            .arg("--model")
            .arg(&path)
            .args(&flags)
            .envs(logging::environment())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Ctrl-C in the terminal is for the server, which lets answers end.
            .process_group(0)
            .spawn()?;
        Ok(LaunchedEngine { stream: ours, process: Some(process) })
    })
}
